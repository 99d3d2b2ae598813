"""Losses of angles between samples."""

import functools
import math
from dataclasses import KW_ONLY

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nearfar.errors import InputError
from nearfar.losses.catalogue.all_pairs import in_order, positive_pairs
from nearfar.losses.engine.angles import AngularSlack
from nearfar.losses.engine.maps import Linear
from nearfar.losses.engine.pairs import ClassPairs, Pairs, over_all_rows
from nearfar.losses.engine.spec import LossSpec, over_negatives
from nearfar.losses.engine.vectors import ordered, restored
from nearfar.losses.inputs import Batch
from nearfar.losses.loss import Loss, Reduction
from nearfar.losses.registry import register
from nearfar.losses.settings import Angle, Positive

LISTED = 2**23  # elements of the vectors of positive pairs that are compared together


@register("pair", "log(1 + Σ_n exp(γ(cosθ_n − cos(θ_p − m)))), for every positive")
class TupletMarginLoss(Loss):
    """Tuplet margin loss: every positive pair, with some slack in its angle, against all negatives of its row.

        l = mean_p log(1 + sum_n exp(scale (cos(theta_n) - cos(theta_p - margin))))

    averaged over positive pairs. The paper adds IntraPairVarianceLoss with a weight of 0.5.

    Args:
        margin: the slack in radians (0.1, which is 5.73 degrees).
        scale: scale of the cosines.

    Example:
        >>> import torch
        >>> loss = TupletMarginLoss(margin=0.1, scale=32)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.079

    References: B. Yu, D. Tao, "Deep Metric Learning with Tuplet Margin Loss", ICCV 2019.
    """

    row_local = True
    margin: Angle = math.radians(5.73)
    scale: Positive = 64.0

    def spec(self) -> LossSpec:
        return LossSpec(
            positive=AngularSlack(self.scale, self.margin),
            negative=Linear(self.scale),
            combine="each",
            average="pairs",
        )


@register("pair", "log(1 + Σ_n exp(4tan²α (x + x_p)·x_n − 2(1 + tan²α) x·x_p)), for every positive")
class AngularLoss(Loss):
    """Angular loss: bounds the angle at the negative in the triangle of anchor, positive and negative.

        l = mean_p log(1 + sum_n exp(4 tan(alpha)^2 (x + x_p).x_n - 2 (1 + tan(alpha)^2) x.x_p)) + npair_weight l_npair

    of normalised vectors, averaged over positive pairs; l_npair is the N-pair loss of the same vectors,
    mean_p log(1 + sum_n exp(x.x_n - x.x_p)). Every positive pair is compared with all negatives, so the cost is that of
    as many rows as there are positive pairs.

    Args:
        alpha: the bound, in radians (40 degrees; the paper finds 36 to 55 good).
        npair_weight: weight of l_npair, which the paper adds.

    Example:
        >>> import torch
        >>> loss = AngularLoss(alpha=0.7)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        1.099

    References: J. Wang et al., "Deep Metric Learning with Angular Loss", ICCV 2017, arXiv:1708.01682, Eq. 7 and 9.
    """

    row_local = True
    alpha: Angle = math.radians(40)
    _: KW_ONLY
    npair_weight: float = 0.0

    def set_up(self) -> None:
        if math.tan(self.alpha) <= 0:
            raise InputError(f"alpha must be between 0 and π/2, not {self.alpha}")

    def over_pairs(self, pairs: Pairs, batch: Batch) -> Tensor:
        embeddings, ref_emb, weight = batch.embeddings, batch.ref_emb, batch.sample_weight
        by_row = self.reduction == "none"
        if not self.any_row_counts(pairs, "pairs"):
            return self.zero(embeddings, ref_emb, shape=(len(embeddings),) if by_row else ())
        x, y = in_order(pairs, embeddings, ref_emb)
        share = self._shares(pairs, weight, x)
        # In one set, i and p have the same negatives: a pair stands for both its ends.
        mirrored = isinstance(pairs, ClassPairs) and pairs.same
        blocks = list(positive_pairs(pairs, LISTED // x.shape[1], above_diagonal=mirrored))
        # Several blocks are computed again for the gradient: the vectors of all positive pairs take unbounded memory.
        terms_of = self._terms if len(blocks) == 1 else functools.partial(checkpoint, self._terms, use_reentrant=False)
        loss = self.zero(x, y, shape=(len(x),) if by_row else ())
        for i, p in blocks:
            ends = (i, p) if mirrored else (i,)
            if by_row:
                terms = terms_of(pairs, x, y, i, p, None, "none")
                for end in ends:
                    loss = loss.index_add(0, end, torch.where(share[end] > 0, terms * share[end], 0))
            else:
                loss = loss + terms_of(pairs, x, y, i, p, torch.stack([share[end] for end in ends]).sum(0), "sum")
        if by_row:
            loss = restored(loss, pairs.row_order)
        if self.npair_weight:
            spec = LossSpec(positive=Linear(-1.0), negative=Linear(1.0), combine="each", average="pairs")
            loss = loss + self.npair_weight * self.evaluate(spec, pairs, embeddings, ref_emb, row_weight=weight)
        return loss

    def _shares(self, pairs: Pairs, weight: Tensor | None, like: Tensor) -> Tensor:
        """(N,) the weight of each positive pair of a row in the row's loss, or in the sum or mean over all."""
        number = pairs.positives * (pairs.negatives > 0)
        weight = like.new_ones(pairs.rows) if weight is None else ordered(weight.to(like.dtype), pairs.row_order)
        weight = weight * (number > 0)
        if self.reduction != "mean":
            return weight / number.clamp_min(1)
        total = over_all_rows(pairs, (weight * number).sum())
        return weight / total.clamp_min(torch.finfo(weight.dtype).tiny)

    def _terms(
        self, pairs: Pairs, x: Tensor, y: Tensor, i: Tensor, p: Tensor, weight: Tensor | None, reduction: Reduction
    ) -> Tensor:
        """log(1 + sum_n exp(...)) of the pairs listed (P,), or their weighted sum. The engine's rows are the sums of
        the pairs' vectors; one more coordinate, of columns of ones, adds what is the same for all negatives.
        """
        tan2 = math.tan(self.alpha) ** 2
        anchor, positive = x.index_select(0, i), y.index_select(0, p)
        pull = -2 * (1 + tan2) * (anchor * positive).sum(1, keepdim=True)
        rows = torch.cat([4 * tan2 * (anchor + positive), pull], 1)
        columns = torch.cat([y, y.new_ones(len(y), 1)], 1)
        spec = over_negatives(Linear(1.0), "softplus", normalize=(False, False))
        return self.evaluate(spec, pairs.of_rows(i), rows, columns, row_weight=weight, reduction=reduction)
