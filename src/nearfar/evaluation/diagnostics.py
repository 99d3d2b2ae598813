"""Diagnostics of an embedding: distances within and between classes, use of the space, and hubs.

All are functions of the cosines s of unit vectors; squared distances are 2 - 2s.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearfar.errors import InputError
from nearfar.evaluation import inputs
from nearfar.evaluation.neighbours import products
from nearfar.evaluation.progress import Progress
from nearfar.evaluation.spectrum import Spectrum, spectrum
from nearfar.evaluation.ties import TIED

Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]
ROUNDING = 1e-6  # of a cosine distance
SIMILARITIES_AT_A_TIME = 2**23  # a block of 32 MB; a few exist at a time
TIED_AT_A_TIME = 2**22  # similarities of rows with tied neighbours
SAMPLES_AT_A_TIME = 2**14  # samples of the classes summed together


@dataclass(frozen=True)
class Histogram:
    """Numbers of ordered pairs (anchor, other) with a similarity between `edges[i]` and `edges[i + 1]`."""

    edges: npt.NDArray[np.float64]  # (bins + 1,) from -1 to 1
    positive: Counts  # (bins,) pairs of one class
    negative: Counts  # (bins,) pairs of two classes


@dataclass(frozen=True)
class Hubness:
    """How often points are among the k nearest neighbours of others. The occurrences sum to k times the anchors.

    Points that tie for the last places share them, so that a collapsed embedding has no hubs.
    """

    k: int
    occurrences: npt.NDArray[np.float64]  # (N,)
    skewness: float  # of the occurrences; 0 if all points occur equally often
    hub_share: float  # share of all neighbours that are hubs: points with at least twice the mean occurrence
    orphan_share: float  # share of the points that are not a neighbour of any other


@dataclass(frozen=True)
class Density:
    """Cosine distances within and between classes (Roth et al., ICML 2020, arXiv 2002.08473)."""

    intra: float  # mean distance of two samples of a class, averaged over the classes with at least two
    inter: float  # mean distance of two class centres (normalised means)

    @property
    def ratio(self) -> float:
        """intra / inter: low for compact, well separated classes; NaN if the centres coincide up to rounding."""
        return self.intra / self.inter if self.inter > ROUNDING else float("nan")


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`. Values that are undefined (one class only, no two samples of a class) are NaN."""

    samples: int
    classes: int
    dimension: int
    zero_vectors: int
    anchors: Counts  # (A,) the rows of the per-sample values and the histogram
    histogram: Histogram
    hardest_positive: Floats  # (A,) lowest similarity to a sample of the same class
    easiest_positive: Floats  # (A,) highest
    hardest_negative: Floats  # (A,) highest similarity to a sample of another class
    alignment: float  # mean squared distance of positive pairs (Wang and Isola, ICML 2020, arXiv 2005.10242)
    uniformity: float  # log mean exp(-2 d²) of all pairs (the same paper)
    density: Density
    spectrum: Spectrum
    hubness: Hubness

    def summary(self) -> dict[str, float]:
        """The scalar results."""
        return {
            "samples": self.samples,
            "classes": self.classes,
            "zero_vectors": self.zero_vectors,
            "alignment": self.alignment,
            "uniformity": self.uniformity,
            "intra_class_distance": self.density.intra,
            "inter_class_distance": self.density.inter,
            "density": self.density.ratio,
            "spectral_decay": self.spectrum.decay,
            "effective_rank": self.spectrum.effective_rank,
            "collapsed_dimensions": self.spectrum.collapsed_dimensions,
            "hubness_skewness": self.hubness.skewness,
            "hub_share": self.hubness.hub_share,
            "orphan_share": self.hubness.orphan_share,
        }


def diagnose(
    embeddings: Any,
    labels: Any,
    *,
    bins: int = 200,
    k: int = 10,
    anchors: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    device: torch.device | str | None = None,
) -> Diagnosis:
    """Diagnose labelled embeddings exactly, over all pairs, in blocks of rows.

    Memory: one float32 copy of the embeddings and a few blocks of 32 MB. The time grows with the square of the number
    of samples, unless `anchors` bounds it.

    Args:
        embeddings: (N, D), a tensor, an array or a memory map; normalised to unit length.
        labels: (N,) numbers or strings.
        bins: the number of bins of the histogram of similarities.
        k: the number of neighbours for hubness.
        anchors: the number of rows that are compared with all others, drawn without replacement with `seed`. The
            histogram, uniformity, the per-sample values and hubness are then those of the drawn rows; alignment,
            density and the spectrum remain exact.
        progress: whether to show a bar; None shows it on a terminal if the computation takes long.
        device: the device of the computation; by default that of `embeddings` if it is a tensor, else the CPU.
    """
    rows = inputs.Rows(embeddings, "embeddings", device)
    n = len(rows)
    if n < 2:
        raise InputError(f"{n} embeddings have no pairs: give at least two")
    if bins < 1 or k < 1 or (anchors is not None and anchors < 1):
        raise InputError(f"bins, k and anchors must be at least 1, not {bins}, {k} and {anchors}")
    codes, _ = inputs.encode(inputs.labels(labels, n, "labels"), None, "labels")
    order = np.argsort(codes, kind="stable")  # so that the positives of consecutive rows are in one range
    x, codes = rows.normalized(order), codes[order]
    drawn = np.arange(n)
    if anchors is not None and anchors < n:
        drawn = np.sort(np.random.default_rng(seed).choice(n, anchors, replace=False))
    pairs = _AllPairs(x, codes, bins, min(k, n - 1))
    step = max(1, SIMILARITIES_AT_A_TIME // n)
    with Progress(len(drawn) * n, "diagnosis", progress) as bar:
        for start in range(0, len(drawn), step):
            block = drawn[start : start + step]
            pairs.add(block)
            bar(len(block) * n)
    original = np.argsort(order[drawn])  # the anchors in the caller's order
    hardest_positive, easiest_positive, hardest_negative = (
        torch.cat(parts).cpu().numpy()[original]
        for parts in (pairs.hardest_positive, pairs.easiest_positive, pairs.hardest_negative)
    )
    occurrences = np.empty(n)
    occurrences[order] = pairs.occurrences.cpu().numpy()
    alignment, density = _classes(x, codes)
    return Diagnosis(
        samples=n,
        classes=int(codes[-1]) + 1,
        dimension=rows.dimension,
        zero_vectors=int((x == 0).all(1).sum()),
        anchors=order[drawn][original],
        histogram=Histogram(np.linspace(-1, 1, bins + 1), pairs.positive, pairs.all - pairs.positive),
        hardest_positive=hardest_positive,
        easiest_positive=easiest_positive,
        hardest_negative=hardest_negative,
        alignment=alignment,
        uniformity=float(np.log(pairs.potential / (len(drawn) * (n - 1)))),
        density=density,
        spectrum=spectrum(x),
        hubness=_hubness(occurrences, min(k, n - 1)),
    )


class _AllPairs:
    """Statistics accumulated over blocks of anchors, each compared with all rows."""

    def __init__(self, x: Tensor, codes: Counts, bins: int, k: int):
        self.x, self.k, self.bins = x, k, bins
        self.codes = torch.from_numpy(codes).to(x.device)
        self.ends = np.searchsorted(codes, codes, side="right")
        self.starts = np.searchsorted(codes, codes, side="left")
        self.all: Counts = np.zeros(bins, dtype=np.int64)
        self.positive: Counts = np.zeros(bins, dtype=np.int64)
        self.potential = 0.0
        self.hardest_positive: list[Tensor] = []
        self.easiest_positive: list[Tensor] = []
        self.hardest_negative: list[Tensor] = []
        self.occurrences = torch.zeros(len(x), dtype=torch.float64, device=x.device)

    def add(self, anchors: Counts) -> None:
        index = torch.from_numpy(anchors).to(self.x.device)
        row = torch.arange(len(index), device=index.device)
        s = products(self.x[index], self.x).clamp_(-1, 1)
        itself = s[row, index]
        self.all += self._histogram(s) - self._histogram(itself)
        self.potential += _potential(s) - _potential(itself[:, None])
        s[row, index] = -torch.inf
        self.occurrences += _occurrences(s, self.k)
        # Rows are sorted by class: the positives of these anchors are in one range of columns.
        first, last = int(self.starts[anchors[0]]), int(self.ends[anchors[-1]])
        near = s[:, first:last]
        same = self.codes[index, None] == self.codes[first:last]
        same[row, index - first] = False
        self.positive += self._histogram(near[same])
        self.easiest_positive.append(_or_nan(near.masked_fill(~same, -torch.inf).amax(1)))
        self.hardest_positive.append(_or_nan(near.masked_fill(~same, torch.inf).amin(1)))
        near.masked_fill_(same, -torch.inf)  # changes s, of which it is a view
        self.hardest_negative.append(_or_nan(s.amax(1)))

    def _histogram(self, similarities: Tensor) -> Counts:
        # float32 counts are exact in pieces of this size.
        counts = np.zeros(self.bins, dtype=np.int64)
        flat = similarities.flatten()
        for start in range(0, len(flat), 2**24):
            counts += torch.histc(flat[start : start + 2**24], self.bins, -1, 1).cpu().numpy().astype(np.int64)
        return counts


def _potential(s: Tensor) -> float:
    """Σ exp(-2 d²) with d² = 2 - 2s, summed over rows in float32 and then in float64."""
    return float((s - 1).mul_(4).exp_().sum(1).double().sum())


def _or_nan(values: Tensor) -> Tensor:
    return values.masked_fill(values.isinf(), torch.nan)


def _occurrences(s: Tensor, k: int) -> Tensor:
    """How often each column is among the k largest of a row. Tied columns share the last places."""
    total = torch.zeros(s.shape[1], dtype=torch.float64, device=s.device)
    values, columns = s.topk(min(k + 1, s.shape[1]), dim=1)
    last = values[:, k - 1 : k]
    tied = values[:, k] >= last[:, 0] - TIED if values.shape[1] > k else torch.zeros_like(last[:, 0], dtype=torch.bool)
    total += torch.bincount(columns[~tied, :k].flatten(), minlength=s.shape[1])
    rows = tied.nonzero().flatten()
    step = max(1, TIED_AT_A_TIME // s.shape[1])
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        above = s[part] > last[part] + TIED
        sharing = (s[part] >= last[part] - TIED) & ~above
        share = (k - above.sum(1)) / sharing.sum(1).double()
        total += above.sum(0) + share @ sharing.double()
    return total


def _hubness(occurrences: npt.NDArray[np.float64], k: int) -> Hubness:
    mean, deviation = occurrences.mean(), occurrences.std()
    spread = deviation > 1e-9 * mean
    hubs = occurrences >= 2 * mean
    return Hubness(
        k=k,
        occurrences=occurrences,
        skewness=float(np.mean((occurrences - mean) ** 3) / deviation**3) if spread else 0.0,
        hub_share=float(occurrences[hubs].sum() / occurrences.sum()),
        orphan_share=float(np.mean(occurrences == 0)),
    )


def _classes(x: Tensor, codes: Counts) -> tuple[float, Density]:
    """Alignment and density, from the sums of the classes: Σ_{i≠j} x_i·x_j = |Σ x|² - Σ |x|²."""
    bounds = np.r_[0, np.flatnonzero(np.diff(codes)) + 1, len(codes)]
    similarity = pairs = intra = centres_squared = 0.0
    of_several = 0
    centres = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    for group in _groups(bounds):
        first, last = bounds[group.start], bounds[group.stop]
        part = x[first:last].double()
        sizes = torch.from_numpy(np.diff(bounds[group.start : group.stop + 1])).to(x.device)
        into = torch.repeat_interleave(torch.arange(len(sizes), device=x.device), sizes)
        sums = part.new_zeros(len(sizes), x.shape[1]).index_add_(0, into, part)
        squares = part.new_zeros(len(sizes)).index_add_(0, into, part.square().sum(1))
        norms = sums.norm(dim=1)
        within = norms.square() - squares
        ordered = sizes * (sizes - 1.0)
        several = sizes > 1
        similarity += float(within[several].sum())
        pairs += float(ordered.sum())
        intra += float((1 - within[several] / ordered[several]).sum())
        of_several += int(several.sum())
        unit = sums / inputs.positive(norms)[:, None]
        centres += unit.sum(0)
        centres_squared += float(unit.square().sum())
    classes = len(bounds) - 1
    nothing = float("nan")
    between = (float(centres.square().sum()) - centres_squared) / (classes * (classes - 1)) if classes > 1 else nothing
    return (
        2 - 2 * similarity / pairs if pairs else nothing,
        Density(intra / of_several if of_several else nothing, 1 - between),
    )


def _groups(bounds: Counts) -> list[slice]:
    """Ranges of classes that are summed together."""
    starts = [0]
    for number in range(1, len(bounds) - 1):
        if bounds[number + 1] - bounds[starts[-1]] > SAMPLES_AT_A_TIME:
            starts.append(number)
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], len(bounds) - 1], strict=True)]
