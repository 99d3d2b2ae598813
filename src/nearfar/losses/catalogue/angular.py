"""Losses of angles between samples."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nearfar.errors import InputError
from nearfar.losses.catalogue.whole_batch import in_order, positive_pairs
from nearfar.losses.engine.angles import AngularSlack
from nearfar.losses.engine.maps import Linear
from nearfar.losses.engine.pairs import ClassPairs, Pairs, over_all_rows
from nearfar.losses.engine.spec import LossSpec, over_negatives
from nearfar.losses.engine.vectors import ordered, restored
from nearfar.losses.hyperparameters import check_angle, check_positive
from nearfar.losses.loss import Given, Loss, Reduction
from nearfar.losses.registry import register

LISTED = 2**23  # elements of the vectors of positive pairs that are compared together


@register(
    "pair",
    "Yu, Tao, Deep Metric Learning with Tuplet Margin Loss, ICCV 2019",
    "log(1 + Σ_n exp(γ(cosθ_n − cos(θ_p − m)))), for every positive",
)
class TupletMarginLoss(Loss):
    """Tuplet margin loss: every positive pair, with some slack in its angle, against all negatives of its row.

        l = mean_p log(1 + sum_n exp(scale (cos(theta_n) - cos(theta_p - margin))))

    averaged over positive pairs. Goes together with IntraPairVarianceLoss, with a weight of 0.5 in the paper.

    Args:
        margin: the slack in radians (0.1, which is 5.73 degrees).
        scale: of the cosines.

    References: B. Yu, D. Tao, "Deep Metric Learning with Tuplet Margin Loss", ICCV 2019.
    """

    row_local = True

    def __init__(self, margin: float = math.radians(5.73), scale: float = 64.0, **options: Any):
        super().__init__(**options)
        check_angle("margin", margin)
        check_positive("scale", scale)
        self.margin, self.scale = margin, scale

    def spec(self) -> LossSpec:
        return LossSpec(
            positive=AngularSlack(self.scale, self.margin),
            negative=Linear(self.scale),
            combine="each",
            average="pairs",
        )


@register(
    "pair",
    "Wang et al., Deep Metric Learning with Angular Loss, ICCV 2017, arXiv:1708.01682",
    "log(1 + Σ_n exp(4tan²α (x + x_p)·x_n − 2(1 + tan²α) x·x_p)), for every positive",
)
class AngularLoss(Loss):
    """Angular loss: bounds the angle at the negative in the triangle of anchor, positive and negative.

        l = mean_p log(1 + sum_n exp(4 tan(alpha)^2 (x + x_p).x_n - 2 (1 + tan(alpha)^2) x.x_p)) + npair_weight l_npair

    of normalised vectors, averaged over positive pairs; l_npair is the N-pair loss of the same vectors,
    mean_p log(1 + sum_n exp(x.x_n - x.x_p)). Every positive pair is compared with all negatives, so the cost is that of
    as many rows as there are positive pairs.

    Args:
        alpha: the bound, in radians (40 degrees; the paper finds 36 to 55 good).
        npair_weight: 0 for the angular loss alone; the paper adds both.

    References: J. Wang et al., "Deep Metric Learning with Angular Loss", ICCV 2017, arXiv:1708.01682, Eq. 7 and 9.
    """

    row_local = True

    def __init__(self, alpha: float = math.radians(40), *, npair_weight: float = 0.0, **options: Any):
        super().__init__(**options)
        check_angle("alpha", alpha)
        if math.tan(alpha) <= 0:
            raise InputError(f"alpha must be between 0 and π/2, not {alpha}")
        self.alpha, self.npair_weight = alpha, npair_weight

    @property
    def proxies_are_rows(self) -> bool:
        return False

    def over_pairs(self, pairs: Pairs, given: Given) -> Tensor:
        embeddings, ref_emb, sample_weight = given.embeddings, given.ref_emb, given.sample_weight
        n = len(embeddings)
        if not self.any_row_counts(pairs, "pairs"):
            return self.zero(embeddings, ref_emb, shape=(n,) if self.reduction == "none" else ())
        x, y = in_order(pairs, embeddings, ref_emb)
        share = None
        if not (pairs.complete and self.reduction == "mean" and sample_weight is None and pairs.spread is None):
            share = self._shares(pairs, None if sample_weight is None else sample_weight.to(x.dtype), x)
        if self.reduction == "none":
            assert share is not None
            loss = self._of_rows(pairs, x, y, share)
        else:
            loss = self._sum(pairs, x, y, share)
        if self.npair_weight:
            spec = LossSpec(positive=Linear(-1.0), negative=Linear(1.0), combine="each", average="pairs")
            loss = loss + self.npair_weight * self.evaluate(spec, pairs, embeddings, ref_emb, row_weight=sample_weight)
        return loss

    def _shares(self, pairs: Pairs, weight: Tensor | None, like: Tensor) -> Tensor:
        """(N,) what a term counts in its row's loss, or in the mean."""
        number = pairs.positives if pairs.complete else pairs.positives * (pairs.negatives > 0)
        weight = like.new_ones(pairs.rows) if weight is None else ordered(weight, pairs.row_order)
        if not pairs.complete:
            weight = weight * (number > 0)
        if self.reduction != "mean":
            return weight / number.clamp_min(1)
        total = over_all_rows(pairs, (weight * number).sum())
        return weight / total.clamp_min(torch.finfo(weight.dtype).tiny)

    def _pairs_of(self, pairs: Pairs, dimension: int) -> tuple[bool, Iterator[tuple[Tensor, Tensor]]]:
        """The positive pairs, and whether each stands for both its ends, as where i and p have the same negatives."""
        mirrored = isinstance(pairs, ClassPairs) and pairs.same
        return mirrored, positive_pairs(pairs, LISTED // dimension, above_diagonal=mirrored)

    def _sum(self, pairs: Pairs, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """The sum of all terms by their rows' shares, or (None) their mean."""
        mirrored, listed = self._pairs_of(pairs, x.shape[1])
        parts = list(listed)
        if len(parts) == 1 and share is None:
            return self._terms(pairs, x, y, *parts[0], None, "mean")
        if share is None:
            share = self._shares(pairs, None, x)
        weights = [share[i] + share[p] if mirrored else share[i] for i, p in parts]
        if len(parts) == 1:
            return self._terms(pairs, x, y, *parts[0], weights[0], "sum")
        total = self.zero(x, y)
        for (i, p), weight in zip(parts, weights, strict=True):
            # Computed again for the gradient: the vectors of all positive pairs would not be bounded.
            total = total + checkpoint(self._terms, pairs, x, y, i, p, weight, "sum", use_reentrant=False)
        return total

    def _of_rows(self, pairs: Pairs, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        mirrored, listed = self._pairs_of(pairs, x.shape[1])
        rows = x.new_zeros(len(x))
        for i, p in listed:
            terms = checkpoint(self._terms, pairs, x, y, i, p, None, "none", use_reentrant=False)
            for end in (i, p) if mirrored else (i,):
                rows = rows.index_add(0, end, torch.where(share[end] > 0, terms * share[end], 0))
        return restored(rows, pairs.row_order)

    def _terms(
        self, pairs: Pairs, x: Tensor, y: Tensor, i: Tensor, p: Tensor, weight: Tensor | None, reduction: Reduction
    ) -> Tensor:
        """log(1 + sum_n exp(...)) of the pairs listed (P,), or their weighted sum. The rows are the pairs' sums,
        lengthened by what is the same for all negatives, which a column of ones adds.
        """
        tan2 = math.tan(self.alpha) ** 2
        anchor, positive = x.index_select(0, i), y.index_select(0, p)
        pull = -2 * (1 + tan2) * (anchor * positive).sum(1, keepdim=True)
        rows = torch.cat([4 * tan2 * (anchor + positive), pull], 1)
        columns = torch.cat([y, y.new_ones(len(y), 1)], 1)
        spec = over_negatives(Linear(1.0), "softplus", normalize=(False, False))
        return self.evaluate(spec, pairs.of_rows(i), rows, columns, row_weight=weight, reduction=reduction)
