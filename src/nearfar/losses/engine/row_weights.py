"""Which rows count, and how much each adds to the result."""

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nearfar.losses.engine.pairs import over_all_rows
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.vectors import ordered

if TYPE_CHECKING:
    from nearfar.losses.engine.plan import Plan


class RowWeights:
    """The weights of the rows in a mean, a sum, or a backward pass.

    Attributes, all in the engine's order:
        counted: (N,) whether the row's loss counts; it is zero otherwise. None: every row's does.
        positive_side: (N,) the factor k_p of the positive term of a split loss; None: it is 1.
        pull: (N,) d result / d l_r: the row's weight in the mean or sum, or the upstream gradient of reduction "none".
    """

    def __init__(self, plan: "Plan", like: Tensor, upstream: Tensor | None = None):
        average, pairs, dtype = plan.spec.average, plan.pairs, like.dtype
        self._n, self._like, self._reduction, self._pairs = pairs.rows, like, plan.reduction, pairs
        self._scale = plan.spec.scale if isinstance(plan.spec, LossSpec) else 1.0
        self._given = None if plan.row_weight is None else ordered(plan.row_weight, pairs.row_order).to(dtype)
        known = None if pairs.spread is None else pairs.spread.total
        self.counted: Tensor | None = None
        if not pairs.complete and average in ("both", "pairs", "positive"):
            self.counted = pairs.positives > 0
            if average != "positive":
                self.counted &= pairs.negatives > 0
        self.positive_side: Tensor | None = None
        if average == "sides":
            present = (pairs.positives > 0).to(dtype)
            rows, with_positive = over_all_rows(pairs, torch.stack([torch.ones_like(present).sum(), present.sum()]))
            rows = rows if known is None else torch.full_like(rows, known)
            self.positive_side = present * (rows / with_positive.clamp_min(1))
        if upstream is not None:
            self.pull = self.factor * ordered(upstream, pairs.row_order).to(dtype)
        elif plan.reduction != "mean":
            self.pull = self.factor
        elif self._given is None and self.counted is None and pairs.spread is None and average != "pairs":
            self.pull = like.new_full((self._n,), self._scale / max(1, self._n))
        else:
            share = self.weight if self.counted is None else self.weight * self.counted
            if average == "pairs":
                share = share * pairs.positives
            total = over_all_rows(pairs, share.sum())
            total = total if known is None else torch.full_like(total, known)
            self.pull = share * self._scale / total.clamp_min(torch.finfo(dtype).tiny)  # 0 if nothing counts

    @functools.cached_property
    def factor(self) -> Tensor:
        """(N,) the factors of the rows' losses, before they are averaged or added."""
        return self.weight if self._scale == 1 else self.weight * self._scale

    @functools.cached_property
    def weight(self) -> Tensor:
        """(N,) the caller's weights."""
        return self._like.new_ones(self._n) if self._given is None else self._given

    def over_active(self, active: Tensor) -> Tensor:
        """The factor that makes the mean over rows a mean over active terms: the sum of the weights divided by the
        weighted number of these terms, of which the rows have `active` (N,); 0 if there are none.
        """
        active = active.to(self._like.dtype)
        sums = torch.stack([self.weight.sum(), torch.dot(self.weight, active)])
        weights, total = over_all_rows(self._pairs, sums)
        return torch.div(weights, total).nan_to_num_(0, 0)

    @property
    def of_columns(self) -> Tensor:
        """The weight of a term of the columns only: 1 in the mean, of which ranks that share rows out have equal parts,
        and the number of rows in the sum.
        """
        if self._reduction != "mean":
            return self.pull.sum() / self._scale
        spread = self._pairs.spread
        return self.pull.new_tensor(1.0 if spread is None or spread.over == "columns" else 1 / spread.ranks.size)


def only(counted: Tensor | None, values: Tensor) -> Tensor:
    """The values of the rows that count, zero for the others, whatever these hold."""
    return values if counted is None else torch.where(counted, values, 0)
