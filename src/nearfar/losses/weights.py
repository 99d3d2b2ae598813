"""Which rows count, and how much each adds to the result."""

import functools
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from nearfar.losses.spec import LossSpec
from nearfar.losses.spread import over_all_rows

if TYPE_CHECKING:
    from nearfar.losses.plan import Plan


Sides = tuple[Tensor | float, Tensor | float]


def ordered(values: Tensor, order: Tensor | None) -> Tensor:
    """From the caller's order to the engine's."""
    return values if order is None else values.index_select(0, order)


def restored(values: Tensor, order: Tensor | None, size: int | None = None) -> Tensor:
    """From the engine's order to the caller's, who has `size` of them; those that are not in the order have zero."""
    if order is None:
        return values
    n = order.shape[0]
    if size is not None and size != n:
        return values.new_zeros(size, *values.shape[1:]).index_copy_(0, order, values)
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(n, device=order.device))
    return values.index_select(0, inverse)


@overload
def only(counted: Tensor | None, values: Tensor) -> Tensor: ...
@overload
def only(counted: Tensor | None, values: Tensor | float) -> Tensor | float: ...
def only(counted: Tensor | None, values: Tensor | float) -> Tensor | float:
    """The values of the rows that count, zero for the others, whatever these hold."""
    return values if counted is None else torch.where(counted, values, 0)


class RowWeights:
    """
    Attributes, all in the engine's order:
        counted: (N,) whether the row's loss counts; it is zero otherwise. None if all do.
        sides: factors of the positive and the negative term of a split loss, a tensor (N,) or a number each.
    """

    def __init__(self, plan: "Plan", like: Tensor, upstream: Tensor | None = None):
        average, pairs, dtype = plan.spec.average, plan.pairs, like.dtype
        self.n, self.like, self.reduction, self._pairs = pairs.rows, like, plan.reduction, pairs
        self._scale = plan.spec.scale if isinstance(plan.spec, LossSpec) else 1.0
        known = None if pairs.spread is None else pairs.spread.total
        self.counted: Tensor | None = None
        if not pairs.complete and average in ("both", "pairs", "positive"):
            self.counted = pairs.positives > 0
            if average != "positive":
                self.counted &= pairs.negatives > 0
        self._given = None if plan.row_weight is None else ordered(plan.row_weight, pairs.row_order).to(dtype)
        self.sides: Sides = (1.0, 1.0)
        if average == "sides":
            present = (pairs.positives > 0).to(dtype)
            rows, with_positive = over_all_rows(pairs, torch.stack([torch.ones_like(present).sum(), present.sum()]))
            if known is not None:
                rows = torch.full_like(rows, known)
            self.sides = (present * (rows / with_positive.clamp_min(1)), 1.0)
        even = self._given is None and self.counted is None and pairs.spread is None and average != "pairs"
        self._pull: Tensor | None = None
        if upstream is not None:
            self._pull = self.factor * ordered(upstream, pairs.row_order).to(dtype)
        elif plan.reduction == "mean" and not even:
            share = self.weight if self.counted is None else self.weight * self.counted
            if average == "pairs":
                share = share * pairs.positives
            total = over_all_rows(pairs, share.sum())
            if known is not None:
                total = torch.full_like(total, known)
            self._pull = self._scaled(share / total.clamp_min(torch.finfo(dtype).tiny))  # 0 if nothing counts
        elif plan.reduction != "mean":
            self._pull = self.factor

    def counted_of(self, rows: slice) -> Tensor | None:
        """`counted`, of some rows."""
        return None if self.counted is None else self.counted[rows]

    def sides_of(self, rows: slice) -> Sides:
        """`sides`, of some rows."""
        a, b = self.sides
        return a[rows] if isinstance(a, Tensor) else a, b

    @property
    def pull(self) -> Tensor:
        """(N,) d result / d l_r: what the mean or sum gives a row, or the upstream gradient of reduction "none"."""
        if self._pull is None:  # made if somebody asks for it: all rows count alike
            self._pull = self.like.new_full((self.n,), self._scale / max(1, self.n))
        return self._pull

    def _scaled(self, weights: Tensor) -> Tensor:
        return weights if self._scale == 1 else weights * self._scale

    @functools.cached_property
    def factor(self) -> Tensor:
        """(N,) what the rows' losses are multiplied by before they are averaged or added."""
        return self._scaled(self.weight)

    @functools.cached_property
    def weight(self) -> Tensor:
        """(N,) the caller's weights."""
        return self.like.new_ones(self.n) if self._given is None else self._given

    def over_active(self, active: Tensor) -> Tensor:
        """Of (N,) how many terms of the rows are active: the sum of the weights / the weighted number of these terms,
        which makes the mean over rows one over terms; 0 if none is.
        """
        weights: Tensor | int = self.n
        total = active.sum(dtype=self.like.dtype)
        if self._given is not None or self._pairs.spread is not None:
            sums = torch.stack([self.weight.sum(), torch.dot(self.weight, active.to(self.like.dtype))])
            weights, total = over_all_rows(self._pairs, sums)
        return torch.div(weights, total).nan_to_num_(0, 0)

    @property
    def of_columns(self) -> Tensor:
        """What a term of the columns alone counts: once in the mean, and in the sum once for every row."""
        return self.pull.new_ones(()) if self.reduction == "mean" else self.pull.sum() / self._scale
