"""Which rows count, and how much each adds to the result."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nearfar.losses.engine.combination import zeroed
from nearfar.losses.engine.pairs import over_all_rows
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.vectors import ordered

if TYPE_CHECKING:
    from nearfar.losses.engine.plan import Plan


class RowWeights:
    """The weights of the rows in a mean, a sum, or a backward pass.

    Attributes, all (N,) in the engine's order:
        weight: the caller's weights.
        left_out: the rows whose loss does not count, and is zero; None: no row.
        positive_side: for average "sides", the factor k_p of the positive term.
        pull: d result / d l_r, the row's weight in the mean or sum, or the upstream gradient of reduction "none".
    """

    def __init__(self, plan: "Plan", like: Tensor, upstream: Tensor | None = None):
        average, pairs, dtype = plan.spec.average, plan.pairs, like.dtype
        self._pairs, self._reduction = pairs, plan.reduction
        self._scale = plan.spec.scale if isinstance(plan.spec, LossSpec) else 1.0
        self.weight = like.new_ones(pairs.rows)
        if plan.row_weight is not None:
            self.weight = ordered(plan.row_weight, pairs.row_order).to(dtype)
        self.left_out: Tensor | None = None
        if average in ("both", "pairs", "positive") and not pairs.complete:
            self.left_out = pairs.positives == 0
            if average != "positive":
                self.left_out |= pairs.negatives == 0
        self.positive_side = self.weight
        if average == "sides":
            present = (pairs.positives > 0).to(dtype)
            rows, number = over_all_rows(pairs, torch.stack([torch.ones_like(present).sum(), present.sum()]))
            self.positive_side = present * (self._represented(rows) / number.clamp_min(1))
        self._summed = self.weight
        if upstream is not None:
            self._summed = self.weight * ordered(upstream, pairs.row_order).to(dtype)
        if plan.reduction != "mean":
            self.pull = self._summed * self._scale
        else:
            share = zeroed(self.weight, self.left_out)
            if average == "pairs":
                share = share * pairs.positives
            total = self._represented(over_all_rows(pairs, share.sum()))
            self.pull = share * (self._scale / total.clamp_min(torch.finfo(dtype).tiny))  # 0 if nothing counts

    def _represented(self, total: Tensor) -> Tensor:
        """The total over all ranks' rows; where classes are drawn, the number of rows that these represent."""
        spread = self._pairs.spread
        return total if spread is None or spread.total is None else total.new_tensor(spread.total)

    @property
    def factor(self) -> Tensor:
        """(N,) the factors of the rows' losses, before they are averaged or added."""
        return self.weight * self._scale

    def over_active(self, active: Tensor) -> Tensor:
        """The factor that makes the mean over rows a mean over active terms: the sum of the weights divided by the
        weighted number of these terms, of which the rows have `active` (N,); 0 if there are none.
        """
        sums = torch.stack([self.weight.sum(), torch.dot(self.weight, active.to(self.weight.dtype))])
        weights, total = over_all_rows(self._pairs, sums)
        return torch.div(weights, total).nan_to_num_(0, 0)

    @property
    def of_columns(self) -> Tensor:
        """The weight of a term of the columns only: 1 in the mean, of which ranks that share rows out have equal parts,
        and the number of rows in the sum.
        """
        if self._reduction != "mean":
            return self._summed.sum()
        spread = self._pairs.spread
        return self.pull.new_tensor(1.0 if spread is None or spread.over == "columns" else 1 / spread.ranks.size)
