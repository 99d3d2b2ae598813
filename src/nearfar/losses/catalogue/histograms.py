"""Losses of the distribution of a batch's similarities. A first pass over all pairs determines the distribution; then
each pair's share in the gradient is a function of its own similarity, and the engine does the rest.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from nearfar.errors import InputError
from nearfar.losses.catalogue.all_pairs import Strip, strips
from nearfar.losses.catalogue.triplets import listed
from nearfar.losses.engine.maps import Distance, Interpolated, Map, ShiftedHinge, beyond, nodes, through
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.spec import LossSpec, StripSpec, plain_sums
from nearfar.losses.engine.vectors import ordered
from nearfar.losses.inputs import Batch
from nearfar.losses.loss import Loss
from nearfar.losses.registry import register
from nearfar.losses.settings import PositiveInt


def _over_all_pairs(positive: Map, negative: Map, numbers: tuple[float, float]) -> LossSpec:
    """The mean of f_p over all positive pairs, plus the mean of f_n over all negative ones."""
    side_scale = 1 / max(1, numbers[0]), 1 / max(1, numbers[1])
    return plain_sums(positive, negative, side_scale=side_scale, average="all")


def _numbers(pairs: Pairs) -> tuple[float, float]:
    return float(pairs.positives.sum()), float(pairs.negatives.sum())


@register("pair", "Σ_r h⁻_r Σ_{q≤r} h⁺_q, histograms of the similarities")
class HistogramLoss(Loss):
    """Histogram loss: the probability that a negative pair is more similar than a positive one.

        L = sum_r h-_r sum_{q <= r} h+_q

    h+ and h- are the histograms of the cosines of all positive and all negative pairs, on n_bins + 1 nodes over
    [-1, 1]; a pair is shared linearly by the two nearest nodes. There is nothing to tune but the bins; it needs large
    batches, as it estimates two distributions.

    Args:
        n_bins: number of bins of each histogram.

    Example:
        >>> import torch
        >>> loss = HistogramLoss(n_bins=50)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        1.0

    References: E. Ustinova, V. Lempitsky, "Learning Deep Embeddings with Histogram Loss", NIPS 2016, arXiv:1611.00822,
    Eq. 2-5.
    """

    whole_batch = True
    n_bins: PositiveInt = 100

    def over_pairs(self, pairs: Pairs, batch: Batch) -> Tensor:
        embeddings, ref_emb = batch.embeddings, batch.ref_emb
        numbers = _numbers(pairs)
        if not (all(numbers) or self.any_row_counts(pairs, "both")):
            return self.zero(embeddings, ref_emb)
        h_p, h_n = self._histograms(pairs, embeddings, ref_emb)
        h_p, h_n = h_p / numbers[0], h_n / numbers[1]
        # L is linear in either histogram: a pair adds the slope by h+ or h-, interpolated at its similarity.
        by_p, by_n = h_n.flip(0).cumsum(0).flip(0), h_p.cumsum(0)
        spec = _over_all_pairs(Interpolated(by_p), Interpolated(by_n), numbers)
        both = self.evaluate(spec, pairs, embeddings, ref_emb, reduction="sum")
        return both - (h_n @ by_n).to(both.dtype)  # either side has the value of L

    def _histograms(self, pairs: Pairs, embeddings: Tensor, ref_emb: Tensor | None) -> tuple[Tensor, Tensor]:
        """How many positive and negative pairs each node has, (n_bins + 1,) in float64."""
        counts = torch.zeros(2, self.n_bins + 1, dtype=torch.float64, device=embeddings.device)
        for _, s, *masks in strips(pairs, embeddings, ref_emb, self.memory_budget):
            node, fraction = nodes(s, self.n_bins)
            for count, mask in zip(counts, masks, strict=True):
                # Pairs outside the mask fall into a bin that is cut off.
                bin_ = torch.where(mask, node, self.n_bins).flatten()
                number = torch.bincount(bin_, minlength=self.n_bins + 1)[: self.n_bins]
                upper = torch.bincount(bin_, fraction.flatten(), minlength=self.n_bins + 1)[: self.n_bins].double()
                count[:-1] += number - upper
                count[1:] += upper
        return counts[0], counts[1]


@register("pair", "mean [(1−ε_p) s̄_p − s_p]₊² + mean [s_n − (1+ε_n) s̄_n]₊²")
class IntraPairVarianceLoss(Loss):
    """Intra-pair variance loss: pairs of a kind should not be far on the wrong side of their mean.

        L = mean_p [(1 - pos_eps) mean(s_p) - s_p]_+^2 + mean_n [s_n - (1 + neg_eps) mean(s_n)]_+^2

    over all positive and all negative pairs; the means are differentiated too. The paper adds it to TupletMarginLoss.

    Args:
        pos_eps, neg_eps: how far from the mean a pair may be, relative to it.

    Example:
        >>> import torch
        >>> from nearfar.losses import TupletMarginLoss
        >>> loss = TupletMarginLoss() + 0.5 * IntraPairVarianceLoss()
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.003

    References: B. Yu, D. Tao, "Deep Metric Learning with Tuplet Margin Loss", ICCV 2019, Eq. 11-13.
    """

    whole_batch = True
    pos_eps: float = 0.01
    neg_eps: float = 0.01

    def over_pairs(self, pairs: Pairs, batch: Batch) -> Tensor:
        embeddings, ref_emb = batch.embeddings, batch.ref_emb
        if not self.any_row_counts(pairs, "all"):
            return self.zero(embeddings, ref_emb)
        numbers = _numbers(pairs)
        compute = functools.partial(strips, pairs, embeddings, ref_emb, self.memory_budget)
        stored = list(compute()) if self._fits(pairs, embeddings) else None  # otherwise computed for each pass
        signs, factors = (-1, 1), (1 - self.pos_eps, 1 + self.neg_eps)
        # The border is factor * mean(s): every pair moves it by its share.
        shares = [factor / max(1, number) for factor, number in zip(factors, numbers, strict=True)]
        sums = _sums(stored or compute(), [lambda s: s] * 2)
        borders = [share * total for share, total in zip(shares, sums, strict=True)]
        excess = [functools.partial(beyond, border=b, sign=sign) for b, sign in zip(borders, signs, strict=True)]
        sums = _sums(stored or compute(), excess)
        drifts = [-2 * sign * share * total for sign, share, total in zip(signs, shares, sums, strict=True)]
        positive, negative = (ShiftedHinge(*side) for side in zip(signs, borders, drifts, strict=True))
        return self.evaluate(_over_all_pairs(positive, negative, numbers), pairs, embeddings, ref_emb, reduction="sum")

    def _fits(self, pairs: Pairs, embeddings: Tensor) -> bool:
        """Whether all similarities, with the two masks, take less than half of the budget."""
        return len(embeddings) * pairs.columns * (max(4, embeddings.element_size()) + 2) < self.memory_budget // 2


def _sums(all_strips: Iterable[Strip], functions: Sequence[Callable[[Tensor], Tensor]]) -> list[Tensor]:
    """The sums over all positive and over all negative pairs of a function of the similarity each."""
    totals: list[Any] = [0, 0]
    for _, s, *masks in all_strips:
        for k, (function, mask) in enumerate(zip(functions, masks, strict=True)):
            totals[k] = totals[k] + torch.where(mask, function(s), 0).sum(1).sum(dtype=torch.float64)
    return [total.to(s.dtype) for total in totals]


@register("pair", "F(d_p − d_n)(d_p − d_n), F the distribution of d_p − d_n so far")
class DynamicSoftMarginLoss(Loss):
    """Dynamic soft margin loss: triplets weighted by how hard they are among those seen so far.

        L = mean F(d_p - d_n) (d_p - d_n)        over all triplets

    F is the cumulated histogram of d_p - d_n, a constant in the gradient; d is the Euclidean distance of normalised
    vectors. The histogram is a running mean: momentum times this batch's counts, plus (1 - momentum) times the old
    histogram. Only training steps update it.

    Args:
        min_val: where the histogram begins; it ends at -min_val.
        num_bins: number of bins of the histogram.
        momentum: weight of a new batch in the running histogram.

    Example:
        >>> import torch
        >>> loss = DynamicSoftMarginLoss(num_bins=20)
        >>> round(loss(torch.arange(16.0).view(4, 4).sin(), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.367

    References: L. Zhang, S. Rusinkiewicz, "Learning Local Descriptors With a CDF-Based Dynamic Soft Margin", ICCV 2019.
    """

    min_val: float = -2.0
    num_bins: PositiveInt = 10
    momentum: float = 0.01

    def set_up(self) -> None:
        if not -math.inf < self.min_val < 0:
            raise InputError(f"min_val, where the histogram of d_p - d_n begins, must be negative, not {self.min_val}")
        self.histogram: Tensor
        self.register_buffer("histogram", torch.zeros(self.num_bins, dtype=torch.float64))
        self._weights = self.histogram

    def _apply(self, fn: Any, recurse: bool = True) -> "DynamicSoftMarginLoss":
        """Counts stay in float64, whatever the embeddings are in."""
        super()._apply(fn, recurse)
        self.histogram = self.histogram.double()
        return self

    def spec(self) -> StripSpec:
        return StripSpec(self._triplets, average="active")

    def over_pairs(self, pairs: Pairs, batch: Batch) -> Tensor:
        x, ref_emb = batch.embeddings, batch.ref_emb
        if not self.any_row_counts(pairs, "both"):
            return self.zero(x, ref_emb, shape=(len(x),) if self.reduction == "none" else ())
        histogram = self._blended(self._counts(pairs, x, ref_emb, batch.sample_weight))
        self._weights = histogram.cumsum(0)
        if self.training and torch.is_grad_enabled():
            self.histogram = histogram
        return super().over_pairs(pairs, batch)

    def _blended(self, counts: Tensor) -> Tensor:
        total = counts
        if bool(self.histogram.any()):
            total = (1 - self.momentum) * self.histogram + self.momentum * counts
        return total / total.sum().clamp_min(torch.finfo(total.dtype).tiny)

    def _counts(self, pairs: Pairs, embeddings: Tensor, ref_emb: Tensor | None, sample_weight: Tensor | None) -> Tensor:
        """The histogram of d_p - d_n of all triplets, each shared linearly by two bins; the last bin takes what lies
        beyond it.
        """
        counts = torch.zeros(self.num_bins + 2, dtype=torch.float64, device=embeddings.device)
        weight = None if sample_weight is None else ordered(sample_weight.double(), pairs.row_order)
        for rows, s, positive, negative in strips(pairs, embeddings, ref_emb, self.memory_budget):
            distance = Distance("l2").value(s)
            d_p, filled = listed(distance, positive)
            for k in range(d_p.shape[1]):
                bin_, share = self._bins(d_p[:, k, None] - distance)
                bin_ = torch.where(negative & filled[:, k, None], bin_, self.num_bins + 1).flatten()
                share, triplet_weight = share.double(), None
                if weight is not None:
                    share = share * weight[rows, None]
                    triplet_weight = weight[rows, None].expand_as(share).flatten()
                number = torch.bincount(bin_, triplet_weight, minlength=self.num_bins + 2)
                shared = torch.bincount(bin_, share.flatten(), minlength=self.num_bins + 2)
                counts += number - shared
                counts[1:] += shared[:-1]
        return torch.cat([counts[: self.num_bins - 1], counts[self.num_bins - 1 : self.num_bins + 1].sum(0, True)])

    def _bins(self, difference: Tensor) -> tuple[Tensor, Tensor]:
        """The bins of d_p - d_n, which is overwritten, and how far into the bins the values lie, 0 to 1."""
        position = difference.sub_(self.min_val).mul_(self.num_bins / (-2 * self.min_val))
        bin_ = position.floor().clamp_(0, self.num_bins - 1)
        return bin_.to(torch.int32), position.sub_(bin_)

    def _triplets(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """sum_p sum_n F (d_p - d_n). It is linear in the distances, as F is constant: gather each distance's factor."""
        distance = through(Distance("l2"), s)
        d_p, filled = listed(distance, positive)
        weights = self._weights.to(s.dtype)
        of_negatives, of_positives = torch.zeros_like(s), []
        with torch.no_grad():
            for k in range(d_p.shape[1]):
                bin_, _ = self._bins(d_p[:, k, None] - distance)
                weight = weights.index_select(0, bin_.flatten()).view_as(s).mul_(negative & filled[:, k, None])
                of_negatives += weight
                of_positives.append(weight.sum(1))
        losses = (torch.stack(of_positives, 1) * d_p).sum(1) - (of_negatives * distance).sum(1)
        return losses, (positive.sum(1) * negative.sum(1)).to(s.dtype)
