"""Ranking losses: smooth forms of retrieval metrics, from the ranks of a row's positives among its columns."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nearfar.errors import InputError
from nearfar.losses.engine.maps import Distance
from nearfar.losses.engine.pairs import table_of
from nearfar.losses.engine.spec import StripSpec
from nearfar.losses.loss import Loss
from nearfar.losses.registry import register
from nearfar.losses.settings import Fraction, Positive, PositiveInt

TOGETHER = 2**20  # pairs of a positive and another column that are compared together


def ranks_above(
    s: Tensor, positive: Tensor, negative: Tensor, temperature: float, among: bool = False
) -> tuple[Tensor, Tensor | None, Tensor]:
    """How many negatives rank above each positive, smoothly: sum over them of sigmoid((s - s_p) / temperature).

    Args:
        s: (b, M) similarities.
        positive, negative: (b, M) masks.
        among: count the other positives, too.

    Returns:
        How many negatives, (b, K), an entry for each positive; how many other positives, or None; and which of the
        entries belong to a positive.
    """

    def above(s: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
        s_p = s.gather(1, columns)
        sigmoid = torch.sigmoid((s.unsqueeze(1) - s_p.unsqueeze(2)) * (1 / temperature))
        of_negatives = (sigmoid * negative.unsqueeze(1)).sum(2)
        if not among:
            return (of_negatives,)
        all_columns = torch.arange(s.shape[1], device=s.device)
        other = all_columns != columns.unsqueeze(-1)
        return of_negatives, (sigmoid * (other & positive.unsqueeze(1))).sum(2)

    columns, filled = table_of(positive)
    # As many positives at a time as TOGETHER allows; of several parts, each is computed again for its gradient.
    together = max(1, TOGETHER // max(1, s.numel()))
    if columns.shape[1] <= together:
        counts = above(s, columns)
    else:
        parts = [checkpoint(above, s, part, use_reentrant=False) for part in torch.split(columns, together, 1)]
        counts = tuple(torch.cat(side, 1) for side in zip(*parts, strict=True))
    return counts[0], counts[1] if among else None, filled


def mean_over(values: Tensor, filled: Tensor) -> Tensor:
    """Mean (b,) of the filled entries of (b, K)."""
    return torch.where(filled, values, 0).sum(1) / filled.sum(1).clamp_min(1)


@register("pair", "1 − mean_p rank⁺(p)/rank(p), ranks by Σ sigmoid((s − s_p)/τ)")
class SmoothAPLoss(Loss):
    """Smooth-AP: one minus average precision, the ranks counted with sigmoids.

        rank+(p) = 1 + sum_{other positives} sigmoid((s - s_p) / temperature)
        rank(p)  = rank+(p) + sum_{negatives} sigmoid((s - s_p) / temperature)
        l = 1 - mean_p rank+(p) / rank(p)

    Classes may be of any sizes.

    Args:
        temperature: τ.

    Example:
        >>> import torch
        >>> loss = SmoothAPLoss(temperature=0.1)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.5

    References: A. Brown et al., "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV 2020,
    arXiv:2007.12163, Eq. 6.
    """

    row_local = True
    temperature: Positive = 0.01

    def _losses(self, s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        below, among, filled = ranks_above(s, positive, negative, self.temperature, among=True)
        assert among is not None
        return 1 - mean_over((1 + among) / (1 + among + below), filled)

    def spec(self) -> StripSpec:
        return StripSpec(self._losses)


@register("pair", "1 − 1/|P| Σ_l h⁺_l H⁺_l / H_l, histograms of squared distances")
class FastAPLoss(Loss):
    """FastAP: one minus average precision, from histograms of the distances.

        l = 1 - 1/|P| sum_l h+_l H+_l / H_l

    h+ is the histogram of the positives' squared distances 2 - 2s, each shared linearly by the two nearest nodes; H+
    and H are the cumulated histograms of the positives and of all pairs.

    Args:
        num_bins: number of bins on [0, 4], between num_bins + 1 nodes.

    Example:
        >>> import torch
        >>> loss = FastAPLoss(num_bins=20)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.667

    References: F. Cakir et al., "Deep Metric Learning to Rank", CVPR 2019, Eq. 10.
    """

    row_local = True
    num_bins: PositiveInt = 10

    def _losses(self, s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        position = (2 - 2 * s) * (self.num_bins / 4)
        left = position.detach().floor().clamp(0, self.num_bins - 1)
        right_share = position - left
        bins = left.long()

        def histogram(mask: Tensor) -> Tensor:
            counts = s.new_zeros(len(s), self.num_bins + 1)
            counts = counts.scatter_add(1, bins, (1 - right_share) * mask)
            return counts.scatter_add(1, bins + 1, right_share * mask)

        h_p, h_n = histogram(positive), histogram(negative)
        cumulated_p, cumulated = h_p.cumsum(1), (h_p + h_n).cumsum(1)
        filled = h_p > 0
        terms = torch.where(filled, h_p * cumulated_p / torch.where(filled, cumulated, 1), 0)
        return 1 - terms.sum(1) / positive.sum(1).clamp_min(1)

    def spec(self) -> StripSpec:
        return StripSpec(self._losses)


@register("pair", "1 − mean_k min(k, Σ_p sigmoid(k − rank(p)))/min(k, |P|)")
class RecallAtKLoss(Loss):
    """Recall@k surrogate: one minus a smooth Recall@k, averaged over several k.

        rank(p) = 1 + sum_{negatives} sigmoid((s - s_p) / rank_temperature)
        l = 1 - mean_k min(k, sum_p sigmoid((k - rank(p)) / k_temperature)) / min(k, |P|)

    Positives do not compete with each other. It needs large batches (the authors use thousands).

    Args:
        ks: the values of k.
        rank_temperature: of the sigmoid that counts ranks.
        k_temperature: of the sigmoid that cuts at k.

    Example:
        >>> import torch
        >>> loss = RecallAtKLoss(ks=(1, 2))
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.616

    References: Y. Patel, G. Tolias, J. Matas, "Recall@k Surrogate Loss with Large Batches and Similarity Mixup",
    CVPR 2022, arXiv:2108.11179, Eq. 8.
    """

    row_local = True
    ks: tuple[int, ...] = (1, 2, 4, 8, 16)
    rank_temperature: Positive = 0.01
    k_temperature: Positive = 1.0

    def set_up(self) -> None:
        if not self.ks or min(self.ks) < 1:
            raise InputError(f"ks must be positive integers, at least one, not {self.ks}")

    def _losses(self, s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        below, _, filled = ranks_above(s, positive, negative, self.rank_temperature)
        number = filled.sum(1).clamp_min(1)
        recalls = []
        for k in self.ks:
            retrieved = torch.where(filled, torch.sigmoid((k - 1 - below) / self.k_temperature), 0).sum(1)
            recalls.append(retrieved.clamp_max(k) / number.clamp_max(k))
        return 1 - torch.stack(recalls).mean(0)

    def spec(self) -> StripSpec:
        return StripSpec(self._losses)


@register("pair", "mean_p f(R_p), R_p = Σ_n sigmoid((s_n − s_p)/τ)")
class PNPLoss(Loss):
    """PNP: only penalise the negatives before each positive.

        R_p = sum_n sigmoid((s_n - s_p) / anneal),   l = mean_p f(R_p), over the positives and the query itself (s = 1)

    f(R) is R (variant "O"), log(1 + R) ("Ds"), 1 - (1 + R)^-alpha ("Dq"), (1 + R) log(1 + R) ("Iu") or
    (b R - log(1 + b R)) / b^2 ("Ib").

    Args:
        b, alpha: of the variants that have them.
        anneal: the sigmoid's temperature.
        variant: as above.

    Example:
        >>> import torch
        >>> loss = PNPLoss(variant="Ds")
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.347

    References: Z. Li et al., "Rethinking the Optimization of Average Precision: Only Penalizing Negative Instances
    before Positive Ones is Enough", AAAI 2022, arXiv:2102.04640.
    """

    row_local = True
    b: float = 2.0
    alpha: float = 1.0
    anneal: Positive = 0.01
    variant: Literal["O", "Ds", "Dq", "Iu", "Ib"] = "O"

    def _losses(self, s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        before, _, filled = ranks_above(s, positive, negative, self.anneal)
        before_query = (torch.sigmoid((s - 1) / self.anneal) * negative).sum(1)
        shape: dict[str, Callable[[Tensor], Tensor]] = {
            "O": lambda r: r,
            "Ds": torch.log1p,
            "Dq": lambda r: 1 - (1 + r) ** -self.alpha,
            "Iu": lambda r: (1 + r) * torch.log1p(r),
            "Ib": lambda r: (self.b * r - torch.log1p(self.b * r)) / self.b**2,
        }
        f = shape[self.variant]
        total = (f(before) * filled).sum(1) + f(before_query)
        return total / (filled.sum(1) + 1)

    def spec(self) -> StripSpec:
        return StripSpec(self._losses)


@register("pair", "(1−λ) Σ w_p[d_p − (α−m)]₊/Σw_p + λ Σ w_n[α − d_n]₊/Σw_n, w = exp(T·hinge)")
class RankedListLoss(Loss):
    """Ranked list loss: positives within a ball of radius alpha - margin, negatives beyond alpha, hard ones first.

        l = (1 - imbalance) sum_p w_p h_p / sum_p w_p + imbalance sum_n w_n h_n / sum_n w_n
        h_p = [d_p - (alpha - margin)]_+,  h_n = [alpha - d_n]_+,  w = exp(T h) of the pairs with h > 0

    d is the Euclidean distance of normalised vectors; the mean is over all rows. As in the authors' code, 1e-5 per
    column is added to the sums of weights, and the weights are differentiated.

    Args:
        margin: m.
        Tn, Tp: temperatures of the negatives' and the positives' weights.
        imbalance: weight of the negatives.
        alpha: boundary of the negatives; None is 1 + margin / 2.

    Example:
        >>> import torch
        >>> loss = RankedListLoss(margin=0.4, Tn=5)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.307

    References: X. Wang et al., "Ranked List Loss for Deep Metric Learning", CVPR 2019, arXiv:1903.03238.
    """

    row_local = True
    margin: float = 0.4
    Tn: float = 10.0
    imbalance: Fraction = 0.5
    alpha: float | None = None
    Tp: float = 0.0

    def _losses(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, list[Tensor]]:
        distance, slope = Distance("l2").slopes(s)
        assert isinstance(slope, Tensor)
        alpha = 1 + self.margin / 2 if self.alpha is None else self.alpha
        pull, by_pull = _weighted_mean(distance - (alpha - self.margin), positive, self.Tp)
        push, by_push = _weighted_mean(alpha - distance, negative, self.Tn)
        by_distance = by_pull.mul_(1 - self.imbalance).sub_(by_push, alpha=self.imbalance)
        return pull * (1 - self.imbalance) + push * self.imbalance, [by_distance.mul_(slope)]

    def spec(self) -> StripSpec:
        return StripSpec(self._losses, average="all", closed=True)


def _weighted_mean(over: Tensor, mask: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """sum w h / sum w (b,), for the hinges h = [over]_+ (b, M) in the mask, and its derivatives by `over`, which is
    overwritten: w (1 + T (h - mean)) / sum w, since w = exp(T h) is differentiated too.
    """
    hinge = over.clamp_min_(0).mul_(mask)
    weight = (hinge * temperature).exp_().mul_(hinge.sign())
    total = weight.sum(1, keepdim=True).add_(1e-5 * over.shape[1])
    mean = (weight * hinge).sum(1, keepdim=True).div_(total)
    by_hinge = hinge.sub_(mean).mul_(temperature).add_(1).mul_(weight).div_(total)
    return mean.squeeze(1), by_hinge
