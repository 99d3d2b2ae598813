"""The evaluation of a loss: similarities in tiles, row statistics, and gradients formed in forward.

It equals, for a loss of the formula,

    s = rows @ columns.T                      # after dividing by the norms, where the loss does
    loss = combine(gather(f_p(s[positive])), gather(f_n(s[negative])))
    loss.backward()

without keeping anything of size rows x columns beyond a budget:

    for each group of rows
        for each tile:  S = X Y^T             product 1
                        statistics += tile; its contribution to G is kept while the budget lasts
        the rows' losses, and one number a row
        for each tile:  G = dL/dS             what was kept, times that number; or from product 1 once more
                        dX += G Y,  dY += G^T X        products 2 and 3

One tile is a group of one tile. Where the columns are the rows, a tile serves the rows of both its sides, and
H = G + G^T turns products 2 and 3 into one.

Shapes: N rows, M columns, D dimensions; b x t a tile; K vectors of a class.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nearfar.losses.engine.groups import Group, Tile, of_one_set, of_two_sets
from nearfar.losses.engine.maps import placeholders
from nearfar.losses.engine.memory import keep_freed_memory
from nearfar.losses.engine.plan import Plan
from nearfar.losses.engine.products import Numbers, Products
from nearfar.losses.engine.reductions import PICKS
from nearfar.losses.engine.row_functions import of_function
from nearfar.losses.engine.row_statistics import RowStatistics
from nearfar.losses.engine.row_weights import RowWeights
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.tile_terms import Side
from nearfar.losses.engine.vectors import ordered, restored

Grads = tuple[Tensor | None, ...]


class Evaluation:
    """One evaluation: the loop over groups and tiles.

    Args:
        tensors: rows, columns, bias, numbers of the rows and numbers of the columns.
        needs: which of them take a gradient.
        upstream: (N,) for reduction "none": the gradient by the rows' losses.
    """

    def __init__(self, plan: Plan, tensors: Grads, needs: Sequence[bool], upstream: Tensor | None = None):
        rows, columns, bias, *rest = tensors
        assert rows is not None
        if rows.device.type == "cpu":
            keep_freed_memory()
        self.plan, self.pairs, self.wanted = plan, plan.pairs, any(needs)
        self.products = Products(plan, rows, columns, bias, (needs[0], needs[1], needs[2]))
        self.like = self.products.like
        self.weights = RowWeights(plan, self.like, upstream)
        numbers, k = [number for number in rest if number is not None], plan.row_parameters
        self.row_numbers = Numbers(numbers[:k], self.pairs.row_order, self.like, needs[3 : 3 + k])
        self.column_numbers = Numbers(numbers[k:], self.pairs.column_order, self.like, needs[3 + k :])
        self.log_weight: Tensor | None = None
        if plan.column_weight is not None:
            self.log_weight = ordered(plan.column_weight, self.pairs.column_order).to(self.like.dtype).log()
        spread = self.pairs.spread
        self.shared = spread if spread is not None and spread.over == "columns" else None  # with other ranks

    def run(self) -> tuple[Tensor, Grads]:
        """The loss, or the rows' losses for reduction "none", and the gradients by the tensors that need one."""
        spec, penalty = self.plan.spec, None
        if isinstance(spec, LossSpec):
            losses = torch.cat([self.like.new_zeros(0), *(self._of_group(group, spec) for group in self._groups(spec))])
            if spec.pool is not None:
                penalty = self.products.add_penalty(self.weights.of_columns)
                penalty = penalty if self.shared is None else self.shared.ranks.sum(penalty)
        else:
            losses = of_function(
                spec, self.plan, self.products, self.row_numbers, self.log_weight, self.weights, self.wanted
            )
        gradients = *self.products.gradients(), *self.row_numbers.restored(), *self.column_numbers.restored()
        if self.plan.reduction == "none":
            losses = losses * self.weights.factor
            losses = losses if penalty is None else losses + penalty * self.weights.weight
            return restored(losses, self.pairs.row_order), gradients
        loss = torch.dot(losses, self.weights.pull)
        return loss if penalty is None else loss + penalty * self.weights.of_columns, gradients

    def _groups(self, spec: LossSpec) -> Iterator[Group]:
        sizes, pool = self.plan.sizes, spec.pool
        if self.products.one_set:
            return iter([of_one_set(self.pairs.rows, self.pairs.towers, sizes)])
        shard = None if self.shared is None else self.shared.shard
        alike = self.pairs.columns if shard is None else shard.largest
        row_bytes = (alike + (0 if pool is None else pool.room(alike))) * self.like.element_size()
        return of_two_sets(
            self.pairs.rows,
            self.pairs.columns,
            self.plan.budget // max(1, row_bytes),
            sizes,
            alike=alike,
            pooled=pool is not None,
            together=spec.average == "active",
        )

    def _of_group(self, group: Group, spec: LossSpec) -> Tensor:
        """The losses of the rows of a group, whose statistics its tiles complete, and the gradients of these."""
        by_numbers = self.row_numbers.gradients, self.column_numbers.gradients
        statistics = RowStatistics(spec, self.pairs, group.rows, self.like, group.one_tile, *by_numbers)
        sweeps, picks = statistics.sweeps, self._picks(spec)
        hold = self.wanted and not picks
        left: float = self.plan.budget if hold or len(sweeps) > 1 else 0
        kept: dict[int, list[Side]] = {}
        for number, (look, exchange) in enumerate(sweeps):
            for index, tile in enumerate(group.tiles):
                sides = kept[index] if index in kept else self._sides(group, tile)
                size = sum(side.nbytes for side in sides) if number == 0 else math.inf
                if size <= left:
                    left -= size
                    kept[index] = sides
                    for side in sides:
                        side.keep = hold
                for side in sides:
                    look(side)
            if self.shared is not None:
                exchange(self.shared.ranks)
        losses = statistics.finish(self.weights, group.rows)
        if not self.wanted or statistics.nothing_to_learn:
            return losses
        if picks:
            for function, columns, pull in statistics.picked():
                self.products.add_entries(group.rows, columns, function, pull)
            return losses
        for index, tile in enumerate(group.tiles):
            sides = kept.pop(index) if index in kept else self._sides(group, tile)
            self._add_gradient(tile, statistics, sides)
        return losses

    def _picks(self, spec: LossSpec) -> bool:
        """Whether each reduction picks one pair, which is then one entry of the gradient."""
        plain = self.log_weight is None and spec.pool is None and spec.combine in ("joint", "split")
        return (
            plain
            and all(how in PICKS for how in spec.gather)
            and not any(placeholders(function) for function in (spec.positive, spec.negative))
        )

    def _sides(self, group: Group, tile: Tile) -> list[Side]:
        """A tile as its rows see it, and, off the diagonal of one set, as the rows see it that are its columns."""
        i, j = tile
        s, shares = self.products.tile(i, j)
        sides = [self._side(group, s, i, j, shares)]
        if self.products.one_set and i.start != j.start:
            sides.append(self._side(group, s.t(), j, i, None))
        return sides

    def _side(self, group: Group, s: Tensor, i: slice, j: slice, pool_shares: Tensor | None) -> Side:
        return Side(
            slice(i.start - group.rows.start, i.stop - group.rows.start),
            s,
            self.pairs.tile(i, j),
            j.start,
            None if self.log_weight is None else self.log_weight[j],
            [number[i] for number in self.row_numbers.values],
            [number[j] for number in self.column_numbers.values],
            pool_shares,
        )

    def _add_gradient(self, tile: Tile, statistics: RowStatistics, sides: list[Side]) -> None:
        """Products 2 and 3 of one tile."""
        g, *of_columns = (statistics.gradient(side) for side in sides)
        if self.plan.watch is not None:
            for part in (g, *of_columns):
                self.plan.watch(part)
        if self.products.one_set:
            self.products.add_symmetric(*tile, g.add_(of_columns[0].t()) if of_columns else g + g.t())
        else:
            self.products.add_tile(*tile, g, sides[0].pool_shares)
