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
from nearfar.losses.engine.pools import Pool
from nearfar.losses.engine.products import Numbers, Products
from nearfar.losses.engine.reductions import PICKS
from nearfar.losses.engine.row_functions import of_function
from nearfar.losses.engine.row_statistics import RowStatistics
from nearfar.losses.engine.row_weights import RowWeights
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.tile_terms import Side
from nearfar.losses.engine.vectors import blocks, ordered, restored

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
            penalty = None if spec.pool is None else self._add_penalty(spec.pool)
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
        statistics = RowStatistics(spec, self.pairs, group.rows, self.like, group.one_tile)
        sweeps, picks = statistics.sweeps, self._picks(spec)
        hold = self.wanted and not picks
        left: float = self.plan.budget if hold or len(sweeps) > 1 else 0
        kept: dict[int, list[Side]] = {}
        for number, (look, exchange) in enumerate(sweeps):
            for index, tile in enumerate(group.tiles):
                sides = kept[index] if index in kept else self._sides(group, tile, spec.pool)
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
            self.products.add_entries(group.rows, statistics.picked)
            return losses
        for index, tile in enumerate(group.tiles):
            sides = kept.pop(index) if index in kept else self._sides(group, tile, spec.pool)
            self._add_gradient(tile, statistics, sides, spec.pool)
        for number, by_row in statistics.by_row_number.items():
            if (total := self.row_numbers.gradients[number]) is not None:
                total[group.rows] += by_row
        return losses

    def _picks(self, spec: LossSpec) -> bool:
        """Whether each reduction picks one pair, which is then one entry of the gradient."""
        plain = self.log_weight is None and spec.pool is None and spec.combine in ("joint", "split")
        return (
            plain
            and all(how in PICKS for how in spec.gather)
            and not any(placeholders(function) for function in (spec.positive, spec.negative))
        )

    def _sides(self, group: Group, tile: Tile, pool: Pool | None) -> list[Side]:
        """A tile as its rows see it, and, off the diagonal of one set, as the rows see it that are its columns."""
        i, j = tile
        if pool is None:
            s = self.products.similarities(i, j)
            if not self.products.one_set or i.start == j.start:
                return [self._side(group, s, i, j)]
            return [self._side(group, s, i, j), self._side(group, s.t(), j, i)]
        # A pool does not care which side is which, but its passes are faster over memory as it lies.
        b, t = i.stop - i.start, j.stop - j.start
        planes = self.like.new_empty(pool.size, *((b, t) if b >= t else (t, b)))
        for plane, columns in zip(planes, _planes(j, pool), strict=True):
            self.products.similarities(i, columns, plane if b >= t else plane.t())
        pooled, shares = pool.gather(planes)
        return [self._side(group, pooled if b >= t else pooled.t(), i, j, shares)]

    def _side(self, group: Group, s: Tensor, i: slice, j: slice, pool_shares: Tensor | None = None) -> Side:
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

    def _add_gradient(self, tile: Tile, statistics: RowStatistics, sides: list[Side], pool: Pool | None) -> None:
        """Products 2 and 3 of one tile."""
        i, j = tile
        g, *of_columns = (statistics.gradient(side, self.column_numbers.gradients) for side in sides)
        if self.plan.watch is not None:
            for part in (g, *of_columns):
                self.plan.watch(part)
        if self.products.one_set:
            self.products.add_symmetric(i, j, g.add_(of_columns[0].t()) if of_columns else g + g.t())
        elif pool is None:
            self.products.add(i, j, g)
        else:
            upright, shares = g.shape[0] >= g.shape[1], sides[0].pool_shares
            assert shares is not None
            planes = pool.expand(g if upright else g.t(), shares)
            for plane, columns in zip(planes, _planes(j, pool), strict=True):
                self.products.add(i, columns, plane if upright else plane.t())

    def _add_penalty(self, pool: Pool) -> Tensor:
        """A pool's own term, of a block of classes at a time, whose gradient is added to that of the columns."""
        columns, grad = self.products.y, self.products.grad_y
        total, dimension = self.like.new_zeros(()), columns.shape[1]
        for part in blocks(columns.shape[0], max(1, self.plan.sizes.turned // (pool.size * dimension)) * pool.size):
            term = pool.penalty(columns.units(part).view(-1, pool.size, dimension))
            if term is None:
                break
            total += term[0]
            if grad is not None:
                fold = columns.fold(part)
                pull = self.weights.of_columns if fold is None else self.weights.of_columns * fold
                grad[part].addcmul_(term[1].view(-1, dimension), pull)
        return total if self.shared is None else self.shared.ranks.sum(total)


def _planes(columns: slice, pool: Pool) -> list[slice]:
    """The vectors of a tile's classes: a slice for the first vector of each, one for the second, and so on."""
    return [slice(columns.start * pool.size + plane, columns.stop * pool.size, pool.size) for plane in range(pool.size)]
