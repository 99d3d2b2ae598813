"""Identification: who is it, among many? Every comparison is counted against strangers that may be millions."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearfar.errors import InputError
from nearfar.evaluation import inputs
from nearfar.evaluation.neighbours import products
from nearfar.evaluation.progress import Progress
from nearfar.evaluation.ties import TIED
from nearfar.evaluation.verification import check_rate

Protocol = Literal["gallery", "megaface"]
STRANGERS_AT_A_TIME = 2**14  # rows of gallery or distractors that are read at a time
PROBES_AT_A_TIME = 2**10
SCORES_KEPT = 2**24  # of strangers, for TAR at FAR


def identification_metrics(
    probes: Any,
    probe_labels: Any,
    gallery: Any = None,
    gallery_labels: Any = None,
    *,
    distractors: Any = None,
    protocol: Protocol = "gallery",
    ranks: Sequence[int] = (1, 5, 10),
    fpirs: Sequence[float] = (),
    fnir_rank: int | None = 1,
    fars: Sequence[float] = (),
    progress: bool | None = None,
    device: torch.device | str | None = None,
) -> dict[str, float]:
    """Rank-k identification rates, closed and open set, by cosine similarity.

    `protocol="gallery"`: a probe is searched for in everything at once, and its best mate (gallery entry of its label)
    counts: rank = 1 + how many strangers (other labels, and all distractors) are at least as similar.

    `protocol="megaface"`: every mate takes its turn to be hidden, alone, among the distractors: each pair of probe and
    mate is a search, and its rank is 1 + how many distractors are at least as similar. Others in the gallery play no
    part. The official probe set, lists of noise to leave out, and a million distractors make it MegaFace's number.

    Without `gallery`, the probes are the gallery as well, each never its own mate. Ties count against the model, also
    those that rounding hides. Distractors are read once, in blocks, and may be a memory map of millions.

    Gives `rank@k`, the share of mated searches with rank <= k; `mated_searches` (probes, or pairs for megaface) and
    `unmated_searches` (probes without a mate); `distractors`.

    Open set, with `fpirs`: at the threshold t that the share of unmated searches whose best stranger reaches t is at
    most F (strictly), `fnir@fpir=F` is the share of mated searches whose mate is below t or beyond rank `fnir_rank`
    (None: whatever its rank), and `threshold@fpir=F` is t.

    Verification, with `fars`: every probe is compared with everybody, one to one. `tar@far=F` is the share of pairs of
    probe and mate that reach the lowest threshold, `threshold@far=F`, which at most the share F of the pairs of probe
    and stranger reaches; `stranger_pairs` is how many of these there are. With `protocol="megaface"` and F = 1e-6 it is
    MegaFace's verification number. Only the highest scores of strangers are kept, up to 2^24 of them.

    Args:
        probes: (P, D), gallery: (G, D), distractors: (M, D): tensors, arrays or memory maps.
        probe_labels: (P,), gallery_labels: (G,): numbers or strings.
        progress: show a bar; None: on a terminal, if it takes long.
        device: where to compute; that of `probes` if it is a tensor, else the CPU.
    """
    _check_options(protocol, distractors, ranks, fpirs, fnir_rank, fars)
    if (gallery is None) != (gallery_labels is None):
        raise InputError("gallery and gallery_labels go together")
    searched = inputs.Rows(probes, "probes", device)
    known = searched if gallery is None else inputs.Rows(gallery, "gallery", searched.device)
    strangers = None if distractors is None else inputs.Rows(distractors, "distractors", searched.device)
    for rows in (known, strangers):
        if rows is not None and rows.dimension != searched.dimension:
            raise InputError(f"{rows.name} have {rows.dimension} dimensions, but the probes {searched.dimension}")
    if strangers is not None and not len(strangers):
        raise InputError("distractors= are empty: leave them out, or give some")
    labels, known_labels = inputs.encode(
        inputs.labels(probe_labels, len(searched), "probe_labels"),
        None if gallery is None else inputs.labels(gallery_labels, len(known), "gallery_labels"),
        "labels",
    )
    alike = np.bincount(known_labels, minlength=int(labels.max(initial=-1)) + 1)[labels]
    mates = alike - (gallery is None)  # but itself
    if not (mates > 0).any():
        raise InputError("no probe has a mate in the gallery: do probe_labels and gallery_labels name people alike?")
    if fpirs and (mates > 0).all():
        raise InputError(
            "an open-set test needs probes without a mate, and all have one: leave out fpirs=, or add such"
        )
    if strangers is None and (alike == len(known))[mates > 0].all():
        raise InputError("there is nobody to be mistaken for: the whole gallery has one label, and no distractors")

    others_count = protocol == "gallery"
    distractor_count = 0 if strangers is None else len(strangers)
    stranger_pairs = len(searched) * distractor_count + others_count * int((len(known) - alike).sum())
    allowed = _allowed(max(fars), stranger_pairs) if fars else -1
    x = searched.normalized(slice(None))
    met = _Strangers(len(x), max(*ranks, fnir_rank or 1), allowed, x.device)
    codes, known_codes = torch.from_numpy(labels).to(x.device), torch.from_numpy(known_labels).to(x.device)
    probe, score = [], []
    with Progress(len(x) * (len(known) + distractor_count), "identification", progress) as bar:
        for _, some, similarities in _blocks(x, strangers, bar):
            met.meet(some, similarities)
        for part, some, similarities in _blocks(x, known, bar):
            mate = codes[some, None] == known_codes[part]
            if others_count:
                met.meet(some, similarities.masked_fill(mate, -torch.inf))
            if gallery is None:
                _leave_itself_out(mate, some.start, part.start)
            row, column = mate.nonzero(as_tuple=True)
            probe.append(row + some.start)
            score.append(similarities[row, column])
    pairs = torch.cat(probe), torch.cat(score)
    searches = _Searches(met.nearest.cpu().numpy(), *_best_of_each(*pairs, len(x), others_count), mates == 0)
    result = {f"rank@{k}": searches.identified(k) for k in ranks}
    for fpir in fpirs:
        threshold = searches.threshold(fpir)
        result[f"fnir@fpir={fpir:g}"] = searches.missed(threshold, fnir_rank)
        result[f"threshold@fpir={fpir:g}"] = threshold
    if fars:
        mate_scores, stranger_scores = pairs[1].cpu().numpy(), met.highest()
        for far in fars:
            if 0 < far < 1 / stranger_pairs:
                warnings.warn(
                    f"FAR {far:g} cannot be measured with {stranger_pairs} pairs of probe and stranger: "
                    f"tar@far={far:g} is that at no false accept",
                    stacklevel=2,
                )
            threshold = _above(stranger_scores, _allowed(far, stranger_pairs))
            result[f"tar@far={far:g}"] = float(np.mean(mate_scores >= threshold))
            result[f"threshold@far={far:g}"] = threshold
        result["stranger_pairs"] = stranger_pairs
    return result | {
        "mated_searches": len(searches.probe),
        "unmated_searches": int((mates == 0).sum()),
        "distractors": distractor_count,
    }


def _check_options(
    protocol: str,
    distractors: Any,
    ranks: Sequence[int],
    fpirs: Sequence[float],
    fnir_rank: int | None,
    fars: Sequence[float],
) -> None:
    if protocol not in ("gallery", "megaface"):
        raise InputError(f'protocol must be "gallery" or "megaface", not {protocol!r}')
    if protocol == "megaface" and distractors is None:
        raise InputError('protocol="megaface" hides each mate among distractors: give distractors=')
    if not ranks:
        raise InputError("ranks= must name a rank, such as (1, 5)")
    for rank in (*ranks, fnir_rank or 1):
        if not isinstance(rank, Integral) or rank < 1:
            raise InputError(f"ranks are whole numbers that begin with 1, not {rank!r}")
    for name, rates in (("an FPIR", fpirs), ("a FAR", fars)):
        for rate in rates:
            check_rate(rate, name)


class _Strangers:
    """What is kept of the strangers that were met: of each probe the nearest, of all pairs the highest scores.

    Args:
        depth: how many of the nearest.
        allowed: one more than this many of the highest scores, so none for -1.
    """

    def __init__(self, probes: int, depth: int, allowed: int, device: torch.device):
        if allowed >= SCORES_KEPT:
            raise InputError(
                f"the largest of fars= would keep {allowed:,} scores of strangers, and {SCORES_KEPT:,} are the most: "
                "ask for smaller rates, or give fewer distractors"
            )
        self.nearest = torch.full((probes, depth), -torch.inf, device=device)  # falling; -inf where there is none
        self._kept = allowed + 1
        self._scores = [torch.empty(0, device=device)]
        self._least = -torch.inf  # of the highest scores

    def meet(self, probes: slice, similarities: Tensor) -> None:
        """Some of them, (probes, strangers); -inf for who is none."""
        best = self.nearest[probes]
        depth = min(best.shape[1], similarities.shape[1])
        top = similarities.amax(1, keepdim=True) if depth == 1 else similarities.topk(depth, dim=1).values
        best.copy_(torch.cat([best, top], 1).topk(best.shape[1], dim=1).values)
        if self._kept:
            self._scores.append(similarities[similarities > self._least])
            if sum(map(len, self._scores)) > 2 * self._kept:
                kept = torch.cat(self._scores)
                kept = kept.topk(self._kept, sorted=False).values
                self._scores, self._least = [kept], float(kept.min())

    def highest(self) -> npt.NDArray[np.float32]:
        """The highest scores, falling."""
        scores: npt.NDArray[np.float32] = torch.cat(self._scores).sort(descending=True).values.cpu().numpy()
        return scores


@dataclass(frozen=True)
class _Searches:
    """What is left to count once everything has been compared."""

    strangers: npt.NDArray[np.float32]  # (P, K) similarities of the nearest, falling; -inf where there is none
    probe: npt.NDArray[np.int64]  # (S,) whose search it is
    score: npt.NDArray[np.float32]  # (S,) the similarity of the mate
    unmated: npt.NDArray[np.bool_]  # (P,)

    def identified(self, k: int) -> float:
        """The share of searches with fewer than k strangers at least as similar as the mate."""
        return float(np.mean(self._within(k)))

    def _within(self, k: int) -> npt.NDArray[np.bool_]:
        within: npt.NDArray[np.bool_] = self.strangers[self.probe, k - 1] < self.score - TIED
        return within

    def threshold(self, fpir: float) -> float:
        """Just above the best stranger of the first unmated search that must stay below it."""
        tops = np.sort(self.strangers[self.unmated, 0])[::-1]
        if 0 < fpir < 1 / len(tops):
            warnings.warn(
                f"FPIR {fpir:g} cannot be measured with {len(tops)} unmated searches: "
                f"fnir@fpir={fpir:g} is that at no false positive",
                stacklevel=3,
            )
        return _above(tops, _allowed(fpir, len(tops)))

    def missed(self, threshold: float, rank: int | None) -> float:
        """The share of searches whose mate is below the threshold, or beyond the rank."""
        found = self.score >= threshold
        return 1 - float(np.mean(found if rank is None else found & self._within(rank)))


def _blocks(
    x: Tensor, others: inputs.Rows | None, progress: Callable[[int], None]
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Some of the others at a time, some of the probes, and their similarities (probes, others)."""
    count = 0 if others is None else len(others)
    for start in range(0, count, STRANGERS_AT_A_TIME):
        assert others is not None
        part = slice(start, min(count, start + STRANGERS_AT_A_TIME))
        y = others.normalized(part)
        for first in range(0, len(x), PROBES_AT_A_TIME):
            some = slice(first, min(len(x), first + PROBES_AT_A_TIME))
            yield part, some, products(x[some], y)
            progress((some.stop - some.start) * len(y))


def _leave_itself_out(alike: Tensor, row: int, column: int) -> None:
    """From the pairs of probes from `row` on and others from `column` on, where both are numbered alike."""
    itself = torch.arange(row, row + len(alike), device=alike.device) - column
    there = (itself >= 0) & (itself < alike.shape[1])
    alike[there.nonzero().flatten(), itself[there]] = False


def _allowed(rate: float, count: int) -> int:
    """The largest n with n / count <= rate; -1 if there is none."""
    n = int(rate * count)
    return n + 1 if (n + 1) / count <= rate else n if n / count <= rate else n - 1


def _above(falling: npt.NDArray[np.float32], allowed: int) -> float:
    """The lowest threshold that so many of the scores reach, or fewer."""
    return float(falling[allowed] + TIED) if allowed < len(falling) else -np.inf


def _best_of_each(
    probe: Tensor, score: Tensor, n: int, best_only: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The searches as arrays: every pair, or of each probe the most similar mate."""
    if not best_only:
        return probe.cpu().numpy(), score.cpu().numpy()
    most = torch.full((n,), -torch.inf, device=score.device).scatter_reduce(0, probe, score, "amax")
    there = most > -torch.inf
    return there.nonzero().flatten().cpu().numpy(), most[there].cpu().numpy()
