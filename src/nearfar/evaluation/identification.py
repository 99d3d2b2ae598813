"""Identification: who is it, among many? Every comparison is counted against strangers that may be millions."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearfar.evaluation import inputs
from nearfar.evaluation.neighbours import TIED, products

Protocol = Literal["gallery", "megaface"]
STRANGERS_AT_A_TIME = 2**14  # rows of gallery or distractors that are read at a time
PROBES_AT_A_TIME = 2**10


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

    Args:
        probes: (P, D), gallery: (G, D), distractors: (M, D): tensors, arrays or memory maps.
        probe_labels: (P,), gallery_labels: (G,): numbers or strings.
        device: where to compute; that of `probes` if it is a tensor, else the CPU.
    """
    if protocol not in ("gallery", "megaface"):
        raise ValueError(f'protocol must be "gallery" or "megaface", not {protocol!r}')
    if protocol == "megaface" and distractors is None:
        raise ValueError('protocol="megaface" hides each mate among distractors: give distractors=')
    if not ranks or min(ranks) < 1 or (fnir_rank is not None and fnir_rank < 1):
        raise ValueError(f"ranks begin with 1, not {min(ranks, default=None)} (fnir_rank={fnir_rank})")
    for fpir in fpirs:
        if not 0 <= fpir <= 1:
            raise ValueError(f"an FPIR is a share between 0 and 1, not {fpir}")
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels go together")
    searched = inputs.Rows(probes, "probes", device)
    known = searched if gallery is None else inputs.Rows(gallery, "gallery", searched.device)
    strangers = None if distractors is None else inputs.Rows(distractors, "distractors", searched.device)
    for rows in (known, strangers):
        if rows is not None and rows.dimension != searched.dimension:
            raise ValueError(f"{rows.name} have {rows.dimension} dimensions, but the probes {searched.dimension}")
    labels, known_labels = inputs.encode(
        inputs.labels(probe_labels, len(searched), "probe_labels"),
        None if gallery is None else inputs.labels(gallery_labels, len(known), "gallery_labels"),
        "labels",
    )
    mates = np.bincount(known_labels, minlength=int(labels.max(initial=-1)) + 1)[labels] - (gallery is None)
    if not (mates > 0).any():
        raise ValueError("no probe has a mate in the gallery: do probe_labels and gallery_labels name people alike?")
    if fpirs and (mates > 0).all():
        raise ValueError(
            "an open-set test needs probes without a mate, and all have one: leave out fpirs=, or add such"
        )
    if strangers is None and (mates + (gallery is None) == len(known))[mates > 0].all():
        raise ValueError("there is nobody to be mistaken for: the whole gallery has one label, and no distractors")

    x = searched.normalized(slice(None))
    device = searched.device
    best = torch.full((len(x), max(*ranks, fnir_rank or 1)), -torch.inf, device=device)
    if strangers is not None:
        for part in _parts(len(strangers)):
            _meet_strangers(best, x, strangers.normalized(part))
    codes, known_codes = torch.from_numpy(labels).to(device), torch.from_numpy(known_labels).to(device)
    others_count = protocol == "gallery"
    probe, score = [], []
    for part in _parts(len(known)):
        own = part.start if gallery is None else None
        found = _meet_gallery(best, x, codes, known.normalized(part), known_codes[part], own, others_count)
        probe.append(found[0])
        score.append(found[1])
    searches = _Searches(
        best.cpu().numpy(), *_best_of_each(torch.cat(probe), torch.cat(score), len(x), others_count), mates == 0
    )
    result = {f"rank@{k}": searches.identified(k) for k in ranks}
    for fpir in fpirs:
        threshold = searches.threshold(fpir)
        result[f"fnir@fpir={fpir:g}"] = searches.missed(threshold, fnir_rank)
        result[f"threshold@fpir={fpir:g}"] = threshold
    return result | {
        "mated_searches": len(searches.probe),
        "unmated_searches": int((mates == 0).sum()),
        "distractors": 0 if strangers is None else len(strangers),
    }


@dataclass(frozen=True)
class _Searches:
    """What is left to count once everything has been compared."""

    strangers: npt.NDArray[
        np.float32
    ]  # (P, K) similarities of the nearest strangers, falling; -inf where there is none
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
        allowed = int(np.searchsorted(np.arange(len(tops) + 1) / len(tops), fpir, side="right")) - 1
        return float(tops[allowed] + TIED) if allowed < len(tops) else -np.inf

    def missed(self, threshold: float, rank: int | None) -> float:
        """The share of searches whose mate is below the threshold, or beyond the rank."""
        found = self.score >= threshold
        return 1 - float(np.mean(found if rank is None else found & self._within(rank)))


def _parts(n: int) -> list[slice]:
    return [slice(start, min(n, start + STRANGERS_AT_A_TIME)) for start in range(0, n, STRANGERS_AT_A_TIME)]


def _meet_strangers(best: Tensor, x: Tensor, strangers: Tensor) -> None:
    """Keep the nearest of them in `best`."""
    for start in range(0, len(x), PROBES_AT_A_TIME):
        rows = slice(start, start + PROBES_AT_A_TIME)
        _keep_nearest(best[rows], products(x[rows], strangers))


def _meet_gallery(
    best: Tensor,
    x: Tensor,
    codes: Tensor,
    gallery: Tensor,
    gallery_codes: Tensor,
    own: int | None,
    others_count: bool,
) -> tuple[Tensor, Tensor]:
    """The pairs of probe and mate, (probe, similarity); the others of the gallery are strangers if they count. With
    `own`, row i of this part of the gallery is probe own + i itself.
    """
    probes, scores = [], []
    for start in range(0, len(x), PROBES_AT_A_TIME):
        rows = slice(start, start + PROBES_AT_A_TIME)
        similarities = products(x[rows], gallery)
        mate = codes[rows, None] == gallery_codes
        if others_count:
            _keep_nearest(best[rows], similarities.masked_fill(mate, -torch.inf))
        if own is not None:
            itself = torch.arange(start, start + len(mate), device=x.device) - own
            there = (itself >= 0) & (itself < len(gallery))
            mate[there.nonzero().flatten(), itself[there]] = False
        row, column = mate.nonzero(as_tuple=True)
        probes.append(row + start)
        scores.append(similarities[row, column])
    return torch.cat(probes), torch.cat(scores)


def _keep_nearest(best: Tensor, similarities: Tensor) -> None:
    depth = min(best.shape[1], similarities.shape[1])
    top = similarities.amax(1, keepdim=True) if depth == 1 else similarities.topk(depth, dim=1).values
    best.copy_(torch.cat([best, top], 1).topk(best.shape[1], dim=1).values)


def _best_of_each(
    probe: Tensor, score: Tensor, n: int, best_only: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The searches as arrays: every pair, or of each probe the most similar mate."""
    if not best_only:
        return probe.cpu().numpy(), score.cpu().numpy()
    most = torch.full((n,), -torch.inf, device=score.device).scatter_reduce(0, probe, score, "amax")
    there = most > -torch.inf
    return there.nonzero().flatten().cpu().numpy(), most[there].cpu().numpy()
