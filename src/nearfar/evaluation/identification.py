"""Identification metrics: closed-set and open-set search among up to millions of strangers."""

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
STRANGERS_AT_A_TIME = 2**14  # rows of gallery or distractors read at a time
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

    `protocol="gallery"`: a probe is compared with the gallery and the distractors. The most similar gallery item of its
    label is its mate; its rank is 1 + the number of strangers (other labels, and all distractors) that are at least as
    similar.

    `protocol="megaface"`: each pair of probe and mate is a search among the distractors, and its rank is 1 + the number
    of distractors that are at least as similar. The rest of the gallery does not count. With the official probes and
    noise lists and a million distractors, this is MegaFace's identification rate.

    Without `gallery`, the probes are also the gallery, and a probe is never its own mate. Ties count against the model,
    including those hidden by rounding. Distractors are read once, in blocks, and may be a memory map of millions.

    The result has `rank@k`, the share of mated searches with rank <= k; `mated_searches` (probes, or pairs for
    megaface), `unmated_searches` (probes without a mate) and `distractors`.

    Open set, with `fpirs`: `threshold@fpir=F` is the threshold t at which the share of unmated searches whose best
    stranger reaches t is at most F, and `fnir@fpir=F` is the share of mated searches whose mate is below t or beyond
    rank `fnir_rank` (None: at any rank).

    Verification, with `fars`: `threshold@far=F` is the lowest threshold that at most a share F of the `stranger_pairs`
    pairs of probe and stranger reaches, and `tar@far=F` is the share of pairs of probe and mate that reach it. With
    `protocol="megaface"` and F = 1e-6 this is MegaFace's verification rate. Up to 2^24 scores of strangers are kept.

    Args:
        probes: (P, D), gallery: (G, D), distractors: (M, D): tensors, arrays or memory maps.
        probe_labels: (P,), gallery_labels: (G,): numbers or strings.
        distractors: strangers without labels.
        protocol: "gallery" or "megaface", see above.
        ranks: the ranks k of `rank@k`.
        fpirs: false positive identification rates F.
        fnir_rank: the largest rank of a mate that counts as identified in `fnir@fpir=F`.
        fars: false accept rates F.
        progress: whether to show a bar; None shows it on a terminal if the computation takes long.
        device: the device of the computation; by default that of `probes` if it is a tensor, else the CPU.
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
        raise InputError("distractors= is empty: leave it out, or give some")
    labels, known_labels = inputs.encode(
        inputs.labels(probe_labels, len(searched), "probe_labels"),
        None if gallery is None else inputs.labels(gallery_labels, len(known), "gallery_labels"),
        "labels",
    )
    alike = np.bincount(known_labels, minlength=int(labels.max(initial=-1)) + 1)[labels]
    mates = alike - (gallery is None)  # without itself
    if not (mates > 0).any():
        raise InputError("no probe has a mate in the gallery: probe_labels and gallery_labels have no label in common")
    if fpirs and (mates > 0).all():
        raise InputError("all probes have a mate, but fpirs= needs probes without one: add some, or leave out fpirs=")
    if strangers is None and (alike == len(known))[mates > 0].all():
        raise InputError("the gallery has only one label and there are no distractors: give strangers to compare with")

    others_count = protocol == "gallery"
    distractor_count = 0 if strangers is None else len(strangers)
    stranger_pairs = len(searched) * distractor_count + others_count * int((len(known) - alike).sum())
    allowed = _allowed(max(fars), stranger_pairs) if fars else -1
    x = searched.normalized(slice(None))
    nearest = _Strangers(len(x), max(*ranks, fnir_rank or 1), allowed, x.device)
    codes, known_codes = torch.from_numpy(labels).to(x.device), torch.from_numpy(known_labels).to(x.device)
    probe, score = [], []
    with Progress(len(x) * (len(known) + distractor_count), "identification", progress) as bar:
        for _, block, similarities in _blocks(x, strangers, bar):
            nearest.add(block, similarities)
        for part, block, similarities in _blocks(x, known, bar):
            mate = codes[block, None] == known_codes[part]
            if others_count:
                nearest.add(block, similarities.masked_fill(mate, -torch.inf))
            if gallery is None:
                _exclude_self(mate, block.start, part.start)
            row, column = mate.nonzero(as_tuple=True)
            probe.append(row + block.start)
            score.append(similarities[row, column])
    pairs = torch.cat(probe), torch.cat(score)
    searches = _Searches(nearest.scores.cpu().numpy(), *_best_mates(*pairs, len(x), others_count), mates == 0)
    result = {f"rank@{k}": searches.identified(k) for k in ranks}
    for fpir in fpirs:
        threshold = searches.threshold(fpir)
        result[f"fnir@fpir={fpir:g}"] = searches.missed(threshold, fnir_rank)
        result[f"threshold@fpir={fpir:g}"] = threshold
    if fars:
        mate_scores, stranger_scores = pairs[1].cpu().numpy(), nearest.highest()
        for far in fars:
            if 0 < far < 1 / stranger_pairs:
                warnings.warn(
                    f"FAR {far:g} cannot be measured with {stranger_pairs} pairs of probe and stranger: "
                    f"tar@far={far:g} is measured without false accepts",
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
        raise InputError('protocol="megaface" compares each mate with distractors: give distractors=')
    if not ranks:
        raise InputError("ranks= is empty: give ranks such as (1, 5)")
    for rank in (*ranks, fnir_rank or 1):
        if not isinstance(rank, Integral) or rank < 1:
            raise InputError(f"ranks must be whole numbers from 1 up, not {rank!r}")
    for name, rates in (("an FPIR", fpirs), ("a FAR", fars)):
        for rate in rates:
            check_rate(rate, name)


class _Strangers:
    """The similarities of the nearest strangers of each probe, and the highest of all pairs.

    Args:
        depth: the number of nearest strangers of each probe.
        allowed: one more than this number of the highest scores is kept; none for -1.
    """

    def __init__(self, probes: int, depth: int, allowed: int, device: torch.device):
        if allowed >= SCORES_KEPT:
            raise InputError(
                f"the largest of fars= needs {allowed:,} scores of strangers, and at most {SCORES_KEPT:,} are kept: "
                "ask for smaller rates, or give fewer distractors"
            )
        self.scores = torch.full((probes, depth), -torch.inf, device=device)  # descending, padded with -inf
        self._kept = allowed + 1
        self._highest = [torch.empty(0, device=device)]
        self._least = -torch.inf  # of the highest scores

    def add(self, probes: slice, similarities: Tensor) -> None:
        """Add similarities (probes, strangers); -inf for items that are not strangers."""
        best = self.scores[probes]
        depth = min(best.shape[1], similarities.shape[1])
        top = similarities.amax(1, keepdim=True) if depth == 1 else similarities.topk(depth, dim=1).values
        best.copy_(torch.cat([best, top], 1).topk(best.shape[1], dim=1).values)
        if self._kept:
            self._highest.append(similarities[similarities > self._least])
            if sum(map(len, self._highest)) > 2 * self._kept:
                kept = torch.cat(self._highest)
                kept = kept.topk(self._kept, sorted=False).values
                self._highest, self._least = [kept], float(kept.min())

    def highest(self) -> npt.NDArray[np.float32]:
        """The highest scores, descending."""
        scores: npt.NDArray[np.float32] = torch.cat(self._highest).sort(descending=True).values.cpu().numpy()
        return scores


@dataclass(frozen=True)
class _Searches:
    """The mated searches and the nearest strangers of all probes."""

    strangers: npt.NDArray[np.float32]  # (P, K) similarities of the nearest, descending, padded with -inf
    probe: npt.NDArray[np.int64]  # (S,) the probe of each search
    score: npt.NDArray[np.float32]  # (S,) the similarity of the mate
    unmated: npt.NDArray[np.bool_]  # (P,)

    def identified(self, k: int) -> float:
        """The share of searches with fewer than k strangers at least as similar as the mate."""
        return float(np.mean(self._within(k)))

    def _within(self, k: int) -> npt.NDArray[np.bool_]:
        within: npt.NDArray[np.bool_] = self.strangers[self.probe, k - 1] < self.score - TIED
        return within

    def threshold(self, fpir: float) -> float:
        """The lowest threshold at which at most a share `fpir` of the unmated searches have a false positive."""
        tops = np.sort(self.strangers[self.unmated, 0])[::-1]
        if 0 < fpir < 1 / len(tops):
            warnings.warn(
                f"FPIR {fpir:g} cannot be measured with {len(tops)} unmated searches: "
                f"fnir@fpir={fpir:g} is measured without false positives",
                stacklevel=3,
            )
        return _above(tops, _allowed(fpir, len(tops)))

    def missed(self, threshold: float, rank: int | None) -> float:
        """The share of searches whose mate is below the threshold, or beyond the rank."""
        accepted = self.score >= threshold
        return 1 - float(np.mean(accepted if rank is None else accepted & self._within(rank)))


def _blocks(
    x: Tensor, others: inputs.Rows | None, progress: Callable[[int], None]
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield blocks of the others, blocks of the probes, and their similarities (probes, others)."""
    count = 0 if others is None else len(others)
    for start in range(0, count, STRANGERS_AT_A_TIME):
        assert others is not None
        part = slice(start, min(count, start + STRANGERS_AT_A_TIME))
        y = others.normalized(part)
        for first in range(0, len(x), PROBES_AT_A_TIME):
            block = slice(first, min(len(x), first + PROBES_AT_A_TIME))
            yield part, block, products(x[block], y)
            progress((block.stop - block.start) * len(y))


def _exclude_self(mate: Tensor, row: int, column: int) -> None:
    """Clear the entries of probes paired with themselves in a block that starts at `row` and `column`."""
    itself = torch.arange(row, row + len(mate), device=mate.device) - column
    in_block = (itself >= 0) & (itself < mate.shape[1])
    mate[in_block.nonzero().flatten(), itself[in_block]] = False


def _allowed(rate: float, count: int) -> int:
    """The largest n with n / count <= rate; -1 if there is none."""
    n = int(rate * count)
    return n + 1 if (n + 1) / count <= rate else n if n / count <= rate else n - 1


def _above(descending: npt.NDArray[np.float32], allowed: int) -> float:
    """The lowest threshold that at most `allowed` of the scores reach."""
    return float(descending[allowed] + TIED) if allowed < len(descending) else -np.inf


def _best_mates(
    probe: Tensor, score: Tensor, n: int, best_only: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The probes and scores of the searches: of all pairs, or only of each probe's most similar mate."""
    if not best_only:
        return probe.cpu().numpy(), score.cpu().numpy()
    most = torch.full((n,), -torch.inf, device=score.device).scatter_reduce(0, probe, score, "amax")
    mated = most > -torch.inf
    return mated.nonzero().flatten().cpu().numpy(), most[mated].cpu().numpy()
