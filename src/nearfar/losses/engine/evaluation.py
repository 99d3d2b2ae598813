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

from collections.abc import Iterator

import torch
from torch import Tensor

from nearfar.losses.engine.groups import Group, Tile, of_one_set, of_two_sets
from nearfar.losses.engine.maps import Map, placeholders
from nearfar.losses.engine.memory import keep_freed_memory
from nearfar.losses.engine.plan import Plan
from nearfar.losses.engine.pools import Pool
from nearfar.losses.engine.reductions import PICKS
from nearfar.losses.engine.row_functions import of_strip, strip_height
from nearfar.losses.engine.row_statistics import RowStatistics, Side
from nearfar.losses.engine.row_weights import RowWeights
from nearfar.losses.engine.spec import LossSpec, StripSpec
from nearfar.losses.engine.vectors import Vectors, at_least_float32, blocks, cut, ordered, restored

Grads = tuple[Tensor | None, ...]


class Total:
    """A gradient (n, D) that products are added to. What nothing was added to before is stored, so that a large one
    need not be zeroed.

    Args:
        ascending: parts are first added to in ascending order.
    """

    def __init__(self, values: Tensor, ascending: bool):
        self.values = values if ascending else values.zero_()
        self._stop = 0 if ascending else values.shape[0]

    def add(self, part: slice, a: Tensor, b: Tensor) -> None:
        """values[part] += a b, of consecutive rows, or, in turn, of the k-th of every K."""
        k, per_class = part.start % (part.step or 1), part.step or 1
        if part.start >= self._stop:
            self.values[self._stop : part.start - k].zero_()
            torch.mm(a, b, out=self.values[part])
            if k == per_class - 1:
                self._stop = part.stop
        else:
            self.values[part].addmm_(a, b)

    def complete(self) -> None:
        """Zero what nothing was added to."""
        if self._stop < self.values.shape[0]:
            self.values[self._stop :].zero_()
            self._stop = self.values.shape[0]


class Evaluation:
    """One evaluation: the prepared vectors, the gradients so far, and the loop."""

    def __init__(self, plan: Plan, tensors: Grads, needs: tuple[bool, ...], upstream: Tensor | None = None):
        rows, columns, bias, *parameters = tensors
        assert rows is not None
        if rows.device.type == "cpu":
            keep_freed_memory()
        self.plan, self.spec, self.pairs, self.sizes = plan, plan.spec, plan.pairs, plan.sizes
        pairs, spec, self.needs = plan.pairs, plan.spec, needs
        formula = spec if isinstance(spec, LossSpec) else None
        dtype = at_least_float32(rows, columns)
        self.like = rows if rows.dtype == dtype else rows.new_empty(0, dtype=dtype)
        whole = self.sizes.whole if columns is not None else rows.numel()  # two blocks are looked at together
        self.x = self.y = Vectors(rows, pairs.row_order, spec.normalize[0], dtype, whole)
        if columns is not None:
            self.y = Vectors(columns, pairs.column_order, spec.normalize[1], dtype, whole, others=pairs.rows)
        self.n, self.m = pairs.rows, self.y.shape[0]
        self.pool: Pool | None = None if formula is None else formula.pool
        self.per_class = 1 if self.pool is None else self.pool.size  # columns that the pairs have for one
        self.bias = None if bias is None else ordered(bias, pairs.column_order).to(dtype)
        self.log_weight: Tensor | None = None
        if plan.column_weight is not None:
            self.log_weight = ordered(plan.column_weight, pairs.column_order).to(dtype).log()
        numbers = [p for p in parameters if p is not None]
        by_row = plan.row_parameters
        self.row_numbers = [ordered(p, pairs.row_order).to(dtype) for p in numbers[:by_row]]
        self.column_numbers = [ordered(p, pairs.column_order).to(dtype) for p in numbers[by_row:]]
        spread = pairs.spread
        self.shared = spread if spread is not None and spread.over == "columns" else None  # with other ranks
        self.weights = RowWeights(plan, self.like, upstream)
        self.wants_products = any(needs[:3])

        # The one pair that a reduction picks is one entry of the gradient: its vectors are gathered, without products.
        free = formula is not None and not placeholders(formula.positive) and not placeholders(formula.negative)
        self.picks = (
            formula is not None
            and free
            and all(how in PICKS for how in formula.gather)
            and (formula.combine in ("joint", "split") and self.log_weight is None and self.pool is None)
        )
        ascending = formula is not None and not self.picks and pairs.towers is None
        self.grad_x = self.grad_y = self._total(self.x, ascending) if needs[0] else None
        if self.y is not self.x:
            self.grad_y = self._total(self.y, ascending) if needs[1] else None
        self.overlaps = ascending and self.y is not self.x  # columns are finished as soon as their last product is in
        self.finished = 0  # so many of them are
        self.grad_bias = self._zeros(self.m) if needs[2] else None
        wanted = list(needs[3:])
        self.grad_row_numbers = [self._zeros(self.n) if need else None for need in wanted[:by_row]]
        self.grad_column_numbers = [
            self._zeros(number.shape[0]) if need else None
            for number, need in zip(self.column_numbers, wanted[by_row:], strict=True)
        ]
        self.penalty: Tensor | None = None  # of the columns by themselves
        self.active: list[Tensor] = []  # the numbers of active terms that strip functions report

    def _zeros(self, n: int) -> Tensor:
        return self.like.new_zeros(n)

    def _total(self, vectors: Vectors, ascending: bool) -> Total:
        larger = vectors.shape[0] >= max(self.x.shape[0], self.y.shape[0])
        shape = tuple(vectors.shape)
        return Total(self.plan.spare.take(shape, self.like) if larger else self.like.new_empty(shape), ascending)

    def run(self) -> tuple[Tensor, Grads]:
        """The loss, or the rows' losses for reduction "none", and the gradients by the tensors that need one."""
        spec = self.spec
        if isinstance(spec, StripSpec):
            parts = [self._strip(rows, spec) for rows in self._strips()]
        else:
            parts = [self._group(group, spec) for group in self._groups(spec)]
        losses = parts[0] if len(parts) == 1 else torch.cat([self._zeros(0), *parts])
        grads = self._gradients()
        if isinstance(spec, StripSpec) and spec.average == "active":
            active = self.active[0] if len(self.active) == 1 else torch.cat([self._zeros(0), *self.active])
            scale = self.weights.over_active(active)
            losses, grads = losses * scale, tuple(g if g is None else g.mul_(scale) for g in grads)
        penalty = self.penalty
        if self.pool is not None and self.shared is not None:
            penalty = self.shared.ranks.sum(self._zeros(1)[0] if penalty is None else penalty)
        if self.plan.reduction == "none":
            losses = losses * self.weights.factor
            losses = losses if penalty is None else losses + penalty * self.weights.weight
            return restored(losses, self.pairs.row_order), grads
        loss = torch.dot(losses, self.weights.pull)
        return loss if penalty is None else loss + penalty * self.weights.of_columns, grads

    # The formula

    def _groups(self, spec: LossSpec) -> Iterator[Group]:
        if self.y is self.x:
            return iter([of_one_set(self.n, self.pairs.towers, self.sizes)])
        columns = self.m // self.per_class
        shard = None if self.shared is None else self.shared.shard
        alike = columns if shard is None else shard.largest
        row_bytes = (alike + (0 if self.pool is None else self.pool.room(alike))) * self.like.element_size()
        kept = self.plan.budget // max(1, row_bytes)
        together = spec.average == "active"
        return of_two_sets(
            self.n, columns, kept, self.sizes, alike=alike, pooled=self.pool is not None, together=together
        )

    def _group(self, group: Group, spec: LossSpec) -> Tensor:
        """The losses of the rows of a group, whose statistics its tiles complete, and the gradients of these."""
        wanted = any(self.needs)
        single = len(group.tiles) == 1 and group.tiles[0][0] == group.rows
        rows = RowStatistics(spec, self.pairs, group.rows, self.like, single, wanted and not self.picks)
        kept: dict[int, list[Side]] = {}
        sweeps = rows.sweeps
        hold = wanted and not self.picks
        left = self.plan.budget if hold or len(sweeps) > 1 else 0
        for number, (look, exchange) in enumerate(sweeps):
            for index, tile in enumerate(group.tiles):
                sides = kept.get(index)
                if sides is None:
                    sides = self._sides(group, tile)
                    size = sum(side.nbytes for side in sides)
                    if number == 0 and size <= left:
                        left -= size
                        kept[index] = sides
                        for side in sides:
                            side.keep = hold
                for side in sides:
                    look(side)
            if self.shared is not None:
                exchange(self.shared.ranks)
        losses = rows.finish(self.weights, group.rows)
        if not wanted or rows.nothing_to_learn:
            return losses
        if self.picks:
            self._add_picked(group.rows, rows)
            return losses
        for index, tile in enumerate(group.tiles):
            self._add_gradient(tile, rows, kept.pop(index) if index in kept else self._sides(group, tile))
        for number, by_row in rows.row_gradients.items():
            if (total := self.grad_row_numbers[number]) is not None:
                total[group.rows] += by_row
        return losses

    def _sides(self, group: Group, tile: Tile) -> list[Side]:
        i, j = tile
        if self.pool is not None:
            # A pool does not care which side is which, but its passes are faster over memory as it lies.
            b, t = i.stop - i.start, j.stop - j.start
            planes = self.like.new_empty(self.per_class, *((b, t) if b >= t else (t, b)))
            for plane, columns in zip(planes, self._planes(j), strict=True):
                self._similarities(i, columns, plane if b >= t else plane.t())
            pooled, shares = self.pool.gather(planes)
            return [self._side(group, pooled if b >= t else pooled.t(), i, j, shares)]
        s = self._similarities(i, j)
        if self.y is not self.x or i.start == j.start:
            return [self._side(group, s, i, j)]
        return [self._side(group, s, i, j), self._side(group, s.t(), j, i)]

    def _side(self, group: Group, s: Tensor, i: slice, j: slice, shares: Tensor | None = None) -> Side:
        pairs = self.pairs.tile(i, j)
        listed = None
        if pairs is not None:
            listed = (s if pairs.rows is None else s[pairs.rows]).gather(1, pairs.columns)
        return Side(
            slice(i.start - group.rows.start, i.stop - group.rows.start),
            s,
            pairs,
            listed,
            j.start,
            None if self.log_weight is None else self.log_weight[j],
            [number[i] for number in self.row_numbers],
            [number[j] for number in self.column_numbers],
            shares=shares,
        )

    def _planes(self, columns: slice) -> list[slice]:
        """Of a tile's columns, as the pairs count them: those of the vectors, one plane for each that a class has."""
        k = self.per_class
        return [slice(columns.start * k + plane, columns.stop * k, k) for plane in range(k)]

    def _similarities(self, rows: slice, columns: slice, out: Tensor | None = None) -> Tensor:
        x, y = self.x.block(rows), self.y.block(columns)
        # With its longer side outermost: products of some hundred rows with thousands of columns run a tenth faster so.
        if x.shape[0] >= y.shape[0]:
            s = torch.mm(x, y.t(), out=out)
        else:
            s = torch.mm(y, x.t(), out=None if out is None else out.t()).t()
        s = self._fold(rows, columns, s)
        return s if self.bias is None else s.add_(self.bias[columns])

    def _fold(self, rows: slice, columns: slice, tile: Tensor) -> Tensor:
        """Multiply a tile, in place, by what its vectors are still to be multiplied by."""
        fold_x, fold_y = self.x.fold(rows), self.y.fold(columns)
        if fold_x is not None:
            tile.mul_(fold_x)
        if fold_y is not None:
            tile.mul_(fold_y.t())
        return tile

    def _add_gradient(self, tile: Tile, rows: RowStatistics, sides: list[Side]) -> None:
        """Products 2 and 3 of one tile."""
        i, j = tile
        g = rows.gradient(sides[0], self.grad_column_numbers)
        if self.y is self.x:
            if len(sides) == 2:
                g.add_(rows.gradient(sides[1], self.grad_column_numbers).t())
            if self.grad_x is not None:
                if len(sides) == 2:
                    self.grad_x.add(j, g.t(), self.x.block(i))
                    self.grad_x.add(i, g, self.x.block(j))
                else:
                    self.grad_x.add(i, g + g.t(), self.x.block(j))
            return
        if self.grad_bias is not None:
            self.grad_bias[j] += g.sum(0)
        if self.pool is None:
            self._add_products(i, j, g)
        else:
            shares = sides[0].shares
            assert shares is not None
            upright = g.shape[0] >= g.shape[1]
            planes = self.pool.expand(g if upright else g.t(), shares)
            for plane, columns in zip(planes, self._planes(j), strict=True):
                self._add_products(i, columns, plane if upright else plane.t())
        if self.overlaps and i.stop == self.n:  # their last product is in, and they are in the cache
            self._finish_columns(slice(j.start * self.per_class, j.stop * self.per_class))

    def _add_products(self, i: slice, j: slice, g: Tensor) -> None:
        """Products 2 and 3 of a tile whose rows and columns differ; `g` is used up."""
        self._fold(i, j, g)
        if self.grad_y is not None:
            self.grad_y.add(j, g.t(), self.x.block(i))
        if self.grad_x is not None:
            self.grad_x.add(i, g, self.y.block(j))

    def _add_picked(self, part: slice, rows: RowStatistics) -> None:
        """The gradient of a tile that has one entry a row and kind: no products, only gathered vectors."""
        x = self.x.block(part)
        fold_x = self.x.fold(part)

        def slopes_at(function: Map, columns: Tensor) -> Tensor:
            s = (x * self.y.take(columns)).sum(1)
            for fold in (fold_x, self.y.fold_of(columns)):
                s = s if fold is None else s * fold[:, 0]
            slope = function.slopes(s if self.bias is None else s + self.bias[columns])[1]
            return slope if isinstance(slope, Tensor) else torch.full_like(s, slope)

        for columns, pull in rows.picked(slopes_at) if self.m else ():
            if self.grad_bias is not None:
                self.grad_bias.index_add_(0, columns, pull)
            scaled = pull[:, None]
            for fold in (fold_x, self.y.fold_of(columns)):
                scaled = scaled if fold is None else scaled * fold
            if self.grad_x is not None:
                self.grad_x.values[part].addcmul_(self.y.take(columns), scaled)
            if self.grad_y is not None:
                self.grad_y.values.index_add_(0, columns, x * scaled)

    # Functions of strips

    def _strips(self) -> Iterator[slice]:
        row_bytes = self.m * self.like.element_size() * self.x.shape[0] // max(1, self.n)
        return iter(blocks(self.n, strip_height(self.plan.budget, row_bytes)))

    def _strip(self, rows: slice, spec: StripSpec) -> Tensor:
        """A strip function's losses; the gradient of one strip at a time."""
        k = spec.vectors_per_class if spec.anchors == "proxies" else 1
        i, j, wanted = slice(rows.start * k, rows.stop * k), slice(0, self.m), any(self.needs)
        inputs = [self._similarities(i, j), *(cut(number, rows).detach() for number in self.row_numbers)]
        by_column: list[Tensor] = []
        if spec.anchors == "proxies":
            by_column = [self._zeros(self.m) if self.log_weight is None else self.log_weight]
        strip = of_strip(spec, rows, inputs, self.pairs.masks(rows), by_column, self.weights, wanted)
        if strip.active is not None:
            self.active.append(strip.active)
        slopes = strip.gradient(cut(self.weights.pull, rows)) if wanted else None
        if slopes is not None:
            self._add_products(i, j, slopes[0])
            for total, by_row in zip(self.grad_row_numbers, slopes[1:], strict=True):
                if total is not None:
                    total[rows] = by_row
        return strip.losses.detach()

    # The end

    def _gradients(self) -> Grads:
        for total in (self.grad_x, self.grad_y):
            if total is not None:
                total.complete()
        if self.grad_x is not None:
            self.x.to_raw(slice(0, self.x.shape[0]), self.grad_x.values, self.sizes.turned)
        if self.y is not self.x:
            first = self.finished
            for part in blocks(self.m - first, self.per_class * self.sizes.widest):
                self._finish_columns(slice(first + part.start, first + part.stop))
        grad_x = None if self.grad_x is None else self.x.restored(self.grad_x.values)
        grad_y = None
        if self.y is not self.x and self.grad_y is not None:
            grad_y = self.y.restored(self.grad_y.values)
        by_bias = None if self.grad_bias is None else restored(self.grad_bias, self.pairs.column_order)
        by_rows = [None if g is None else restored(g, self.pairs.row_order) for g in self.grad_row_numbers]
        by_columns = [None if g is None else restored(g, self.pairs.column_order) for g in self.grad_column_numbers]
        return grad_x, grad_y, by_bias, *by_rows, *by_columns

    def _finish_columns(self, part: slice) -> None:
        """All products of these columns are in: turn their gradient into that by the caller's tensor, with what the
        pool adds for them.
        """
        if self.pool is not None:
            self._add_penalty(self.pool, part)
        if self.grad_y is not None:
            self.y.to_raw(part, self.grad_y.values[part], self.sizes.turned)
        if self.overlaps:
            self.finished = part.stop

    def _add_penalty(self, pool: Pool, part: slice) -> None:
        dimension = self.y.raw.shape[1]
        for inner in blocks(part.stop - part.start, max(1, self.sizes.turned // (pool.size * dimension)) * pool.size):
            some = slice(part.start + inner.start, part.start + inner.stop)
            term = pool.penalty(self.y.units(some).view(-1, pool.size, dimension))
            if term is None:
                return
            self.penalty = term[0] if self.penalty is None else self.penalty + term[0]
            if self.grad_y is not None:
                fold = self.y.fold(some)
                pull = self.weights.of_columns if fold is None else self.weights.of_columns * fold
                self.grad_y.values[some].addcmul_(term[1].view(-1, dimension), pull)
