"""The engine: similarities in tiles, row statistics, gradients formed in forward, and the one autograd.Function.

It equals, for a loss of the formula,

    s = rows @ columns.T                      # after dividing by the norms, where the loss does
    loss = combine(gather(f_p(s[positive])), gather(f_n(s[negative])))
    loss.backward()

without keeping anything of size rows x columns beyond a budget. Rows come in *groups*, whose statistics are complete
before their gradients begin:

    for each group of rows
        for each tile:  S = X Y^T             product 1; kept while the budget lasts, computed again beyond it
                        statistics += tile
        for each tile:  G = dL/dS             closed form, from S and the finished statistics
                        dX += G Y,  dY += G^T X        products 2 and 3

Samples x classes, samples x references and proxies x samples are cut into strips of rows, each a group. Samples x the
same samples are one group of the upper triangle's tiles: a tile serves the rows of both its sides, and H = G + G^T
turns products 2 and 3 into one. Where all is one tile or strip, `at_once` does the same straight.

Shapes: N rows, M columns, D dimensions; b x t a tile.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nearfar.errors import StateError
from nearfar.losses import at_once
from nearfar.losses.memory import keep_freed_memory
from nearfar.losses.plan import Plan
from nearfar.losses.pools import Pool
from nearfar.losses.rows import GatheredRows, HardestRows, View, within
from nearfar.losses.spec import LossSpec, StripSpec
from nearfar.losses.strips import of_strip, strip_height
from nearfar.losses.tiles import Group, Tiles, as_it_lies
from nearfar.losses.vectors import WORK, Vectors, at_least_float32, blocks, cut
from nearfar.losses.weights import RowWeights, ordered, restored

WIDEST = 2048  # columns of a tile
SQUARE = 1024  # side of a tile of samples x samples; columns of one that is high, or of every plane of several
# Products of fewer rows run visibly below full speed: 1.1 x the time at 128 rows, 1.25 x at 64, 1.5 x at 32 (two
# cores, AVX2).
FEWEST_ROWS = 256

Grads = tuple[Tensor | None, ...]


def evaluate(
    plan: Plan, rows: Tensor, columns: Tensor | None, bias: Tensor | None = None, *parameters: Tensor
) -> Tensor:
    """The loss: a scalar, or (N,) for reduction "none"; differentiable once by every tensor given.

    Args:
        rows: (N, D).
        columns: (M, D), or None when they are the rows.
        bias: (M,), added to the similarities.
        parameters: (N,) each, what a strip function takes besides.
    """
    wanted = torch.is_grad_enabled()
    result: Tensor = _Evaluate.apply(plan, wanted, rows, columns, bias, *parameters)  # type: ignore[no-untyped-call]
    return result


class _Evaluate(torch.autograd.Function):
    """Forward forms the gradients; backward only scales them. For reduction "none", whose upstream gradient is a
    weight per row, backward runs the tiles.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, wanted: bool, *tensors: Tensor | None) -> Tensor:
        ctx.plan = plan
        if plan.reduction == "none":
            losses, _ = _evaluated(plan, tensors, (False,) * len(tensors))
            ctx.save_for_backward(*tensors)
            return losses
        losses, grads = _evaluated(plan, tensors, ctx.needs_input_grad[2:] if wanted else (False,) * len(tensors))
        ctx.save_for_backward(*grads)
        return losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise StateError(
                "the losses are differentiable once: call backward or autograd.grad without create_graph=True"
            )
        if ctx.plan.reduction == "none":
            with torch.autocast(upstream.device.type, enabled=False):
                grads = _evaluated(ctx.plan, ctx.saved_tensors, ctx.needs_input_grad[2:], upstream)[1]
        elif torch._C._autograd._get_current_graph_task_keep_graph():
            grads = tuple(g if g is None else g * upstream for g in ctx.saved_tensors)
        else:
            # Nobody will look at these again, so they are scaled where they are; a large W's gradient is never copied.
            grads = ctx.saved_tensors
            if upstream.device.type != "cpu" or upstream.item() != 1:
                grads = tuple(g if g is None else g.mul_(upstream) for g in grads)
        return None, None, *grads


def _evaluated(
    plan: Plan, tensors: Grads, needs: tuple[bool, ...], upstream: Tensor | None = None
) -> tuple[Tensor, Grads]:
    rows, columns = tensors[:2]
    assert rows is not None
    if at_once.fits(plan, rows, columns):
        return at_once.evaluate(plan, tensors, needs, upstream)
    return Run(plan, tensors, needs, upstream).run()


class Run:
    """One evaluation: the prepared vectors, the gradients' accumulators, and the loop."""

    # What few losses have any of.
    penalty: Tensor | None = None  # of the columns alone
    radial_x: Tensor | None = None
    radial_y: Tensor | None = None
    arena: Tensor | None = None
    grad_bias: Tensor | None = None
    grad_norm_x: Tensor | None = None
    grad_norm_y: Tensor | None = None

    def __init__(self, plan: Plan, tensors: Grads, needs: tuple[bool, ...], upstream: Tensor | None = None):
        rows, columns, bias, *parameters = tensors
        assert rows is not None
        if rows.device.type == "cpu":
            keep_freed_memory()
        self.plan, self.spec, self.pairs, self.needs = plan, plan.spec, plan.pairs, needs
        dtype = at_least_float32(rows, columns)
        self.norms = norms = isinstance(plan.spec, LossSpec) and plan.spec.positive.uses_norm
        same = columns is None and not self.pairs.crossed
        self.x = self.y = Vectors(rows, self.pairs.row_order, self.spec.normalize[0], norms, dtype, whole=same)
        if not same:
            others = rows if columns is None else columns
            order = self.pairs.column_order
            self.y = Vectors(others, order, self.spec.normalize[1], norms, dtype, others=self.pairs.rows)
        self.bias = bias if bias is None else ordered(bias, self.pairs.column_order).to(dtype)
        self.log_weight = plan.column_weight
        if self.log_weight is not None:
            self.log_weight = ordered(self.log_weight, self.pairs.column_order).to(dtype).log()
        self.n, self.m = self.pairs.rows, self.y.shape[0]
        spread = self.pairs.spread
        self.shared = spread if spread is not None and spread.over == "columns" else None  # with other ranks
        self.pool = plan.spec.pool if isinstance(plan.spec, LossSpec) else None
        self.per_class = 1 if self.pool is None else self.pool.size  # columns that the pairs have for one
        self.like = rows if rows.dtype == dtype else rows.new_empty(0, dtype=dtype)
        self.weights = RowWeights(plan, self.like, upstream)
        self.active: list[Tensor] = []  # the numbers of active terms that strip functions report

        # Of rows and columns that differ, every tile's product is stored or added exactly once.
        hardest = isinstance(plan.spec, LossSpec) and plan.spec.gather[1] == "max"
        some = not same and self.n > 0 and self.m > 0
        self.overwritten = some and isinstance(plan.spec, LossSpec) and not hardest
        # Where rows have one tile each, its similarities tell which part of a gradient is along its vector.
        one_each = self.m <= min(SQUARE, plan.tile) and plan.spec.average != "active"
        self.told = one_each and self.overwritten and any(plan.spec.normalize) and self.pool is None and bias is None
        self.grad_x = self._accumulator(self.x) if needs[0] else None
        wants_y = needs[0] if columns is None else needs[1]
        self.grad_y = self.grad_x if same else self._accumulator(self.y) if wants_y else None
        if needs[2]:
            self.grad_bias = self._zeros((self.m,))
        if norms and needs[0]:
            self.grad_norm_x = self._zeros((self.n,))
        if norms and needs[1] and not plan.spec.normalize[1]:
            self.grad_norm_y = self._zeros((self.m,))
        self.parameters = [ordered(p, self.pairs.row_order).to(dtype) for p in parameters if p is not None]
        self.grad_parameters = [
            torch.zeros_like(p) if need else None for p, need in zip(self.parameters, needs[3:], strict=True)
        ]
        self.column_parameters: list[Tensor] = []
        if isinstance(plan.spec, StripSpec) and plan.spec.anchors == "proxies":
            self.column_parameters = [self._zeros((self.m,)) if self.log_weight is None else self.log_weight]

    def _accumulator(self, vectors: Vectors) -> Tensor:
        smaller = vectors.shape[0] < max(self.x.shape[0], self.y.shape[0])
        gradient = self.like.new_empty(vectors.shape) if smaller else self.plan.spare.take(vectors.shape, self.like)
        return gradient if self.overwritten else gradient.zero_()

    def _zeros(self, shape: tuple[int, ...]) -> Tensor:
        return self.like.new_zeros(shape)

    def run(self) -> tuple[Tensor, Grads]:
        losses = self._losses()
        # Where tiles are overwritten, every part was finished as soon as it was complete.
        if not (self.overwritten and self.wants_tiles):
            self._finish_rows(slice(0, self.x.shape[0]))
            for part in blocks(self.m, self.per_class * WIDEST):
                self._finish_columns(part)
        grads, penalty = self._gradients(), self.penalty
        if self.pool is not None and self.shared is not None:
            penalty = self.shared.ranks.sum(self._zeros(()) if penalty is None else penalty)
        if isinstance(self.spec, StripSpec) and self.spec.average == "active":
            scale = self.weights.over_active(_joined(self.active, self.like))
            losses = losses * scale
            grads = tuple(g if g is None else g.mul_(scale) for g in grads)
        if self.plan.reduction == "none":
            losses = losses if penalty is None else losses + penalty
            size = self.x.raw.shape[0] if self.pairs.crossed else None
            return restored(losses * self.weights.factor, self.pairs.row_order, size), grads
        loss = torch.dot(losses, self.weights.pull)
        return loss if penalty is None else loss + penalty * self.weights.of_columns, grads

    def _losses(self) -> Tensor:
        """(N,), while the gradients are gathered."""
        parts = [
            self._strip(group.rows, self.spec) if isinstance(self.spec, StripSpec) else self._group(group, self.spec)
            for group in self._groups()
        ]
        return _joined(parts, self.like)

    def _finish_rows(self, part: slice) -> None:
        """All products of these rows are in: turn their gradient into that by the caller's tensor."""
        if self.grad_x is not None:
            by_norm = None if self.grad_norm_x is None else cut(self.grad_norm_x, part)
            self.x.to_raw(part, cut(self.grad_x, part), by_norm, self.radial_x)

    def _finish_columns(self, part: slice) -> None:
        """The same for columns, with what the pool adds for them alone."""
        if self.y is self.x:
            return
        if self.pool is not None:
            self._add_penalty(self.pool, part)
        if self.grad_y is not None:
            by_norm = None if self.grad_norm_y is None else cut(self.grad_norm_y, part)
            self.y.to_raw(part, cut(self.grad_y, part), by_norm, self.radial_y)

    def _add_penalty(self, pool: Pool, part: slice) -> None:
        dimension = self.y.raw.shape[1]
        for inner in blocks(part.stop - part.start, max(1, WORK // (pool.size * dimension)) * pool.size):
            some = slice(part.start + inner.start, part.start + inner.stop)
            term = pool.penalty(self.y.units(some).view(-1, pool.size, dimension))
            if term is None:
                return
            self.penalty = term[0] if self.penalty is None else self.penalty + term[0]
            if self.grad_y is not None:
                fold = self.y.fold(some)
                pull = self.weights.of_columns if fold is None else self.weights.of_columns * fold
                self.grad_y[some].addcmul_(term[1].view(-1, dimension), pull)

    def _gradients(self) -> Grads:
        grad_x = None if self.grad_x is None else self.x.restored(self.grad_x)
        grad_y = None
        if self.pairs.crossed and grad_x is not None:
            assert self.grad_y is not None and self.pairs.column_order is not None
            grad_x.index_copy_(0, self.pairs.column_order, self.grad_y.to(grad_x.dtype))
        elif self.grad_y is not None and self.y is not self.x:
            grad_y = self.y.restored(self.grad_y)
        grad_bias = None if self.grad_bias is None else restored(self.grad_bias, self.pairs.column_order)
        by_parameters = [g if g is None else restored(g, self.pairs.row_order) for g in self.grad_parameters]
        return grad_x, grad_y, grad_bias, *by_parameters

    def _groups(self) -> Iterator[Group]:
        """Cut the rows into groups, and these into tiles."""
        if isinstance(self.spec, StripSpec):
            row_bytes = self.m * self.like.element_size() * self.x.shape[0] // max(1, self.n)
            height = strip_height(self.plan.budget, row_bytes)
            yield from (Group(rows, [(rows, slice(0, self.m))]) for rows in blocks(self.n, height))
        elif self.y is self.x:
            side, towers = max(1, min(SQUARE, math.isqrt(self.plan.tile))), self.pairs.towers
            if towers is None:
                edges = list(blocks(self.n, side))
                tiles = [(i, j) for k, i in enumerate(edges) for j in edges[k:]]
            else:
                edges = list(blocks(towers, side))
                tiles = [(i, slice(towers + j.start, towers + j.stop)) for i in edges for j in edges]
            yield Group(slice(0, self.n), tiles, mirrored=True)
        elif self.spec.average == "active":  # the weights depend on every row
            yield Group(slice(0, self.n), [tile for rows in self._strips() for tile in self._tiles_of(rows)])
        else:
            yield from (Group(rows, self._tiles_of(rows)) for rows in self._strips())

    def _strips(self) -> Iterator[slice]:
        """As many rows at a time as can be kept, if that is enough for products at full speed; otherwise as many as the
        cache allows. The first strip is kept in the place of the column gradient too.
        """
        # Where ranks share the columns, all must cut the rows alike: as the one with most columns does.
        classes = max(1, self.m // self.per_class)
        if self.shared is not None and self.shared.shard is not None:
            classes = max(1, self.shared.shard.largest)
        fewest = min(FEWEST_ROWS, self.plan.tile)
        most = max(fewest, self.plan.tile // min(SQUARE, classes))
        row = self.numbers(classes)
        kept = self.plan.budget // (row * self.like.element_size())
        gradient = classes * self.per_class * self.y.raw.shape[1]
        beside = gradient // row if self.needs[1] else 0  # rows that the gradient's place has room for
        first = max(fewest, min(most, kept + beside))
        yield slice(0, min(first, self.n))
        for later in blocks(self.n - first, min(most, kept) if kept >= fewest else most):
            yield slice(first + later.start, first + later.stop)

    def _tiles_of(self, rows: slice) -> list[tuple[slice, slice]]:
        wide = SQUARE
        if self.pool is None:
            wide = min(WIDEST, max(SQUARE, self.plan.tile // max(1, rows.stop - rows.start)))
        return [(rows, part) for part in blocks(self.m // self.per_class, min(wide, self.plan.tile))]

    def numbers(self, pairs: int) -> int:
        """How many similarities take as much memory as keeping so many pairs does."""
        return pairs if self.pool is None else pairs + self.pool.room(pairs)

    def planes(self, columns: slice) -> list[slice]:
        """Of a tile's columns, as the pairs count them: those of the vectors, one plane for each that a class has."""
        k = self.per_class
        return [slice(columns.start * k + plane, columns.stop * k, k) for plane in range(k)]

    def similarities(self, rows: slice, columns: slice, out: Tensor | None = None) -> Tensor:
        s = self._fold(rows, columns, torch.mm(self.x.block(rows), self.y.block(columns).t(), out=out))
        return s if self.bias is None else s.add_(self.bias[columns])

    def _fold(self, rows: slice, columns: slice, tile: Tensor) -> Tensor:
        """Multiply a tile, in place, by what its vectors are still to be multiplied by."""
        fold_x, fold_y = self.x.fold(rows), self.y.fold(columns)
        if fold_x is not None:
            tile.mul_(fold_x)
        if fold_y is not None:
            tile.mul_(fold_y.t())
        return tile

    def view(self, s: Tensor, i: slice, j: slice, first: int = 0, line: int | None = None) -> View:
        """A tile for its rows, in a group that begins with `first`; `line`: which it is of their tiles, if several."""
        pairs = self.pairs.tile(i, j)
        listed = None
        if pairs is not None:
            listed = (
                s if pairs.columns is None else (s if pairs.rows is None else s[pairs.rows]).gather(1, pairs.columns)
            )
        return View(
            slice(i.start - first, i.stop - first) if first else i,
            s,
            pairs,
            listed=listed,
            column_offset=j.start,
            line=line,
            keep_s=self.told,
            log_weight=None if self.log_weight is None else self.log_weight[j],
            row_norm=self.x.norms(i) if self.norms else None,
            column_norm=self.y.norms(j) if self.norms and not self.y.normalize else None,
            border=self.parameters[0][i, None] if isinstance(self.spec, LossSpec) and self.spec.border else None,
        )

    def _add_products(self, i: slice, j: slice, g: Tensor, first: tuple[bool, bool] = (False, False)) -> None:
        """Products 2 and 3 of a tile whose rows and columns differ; `g` is used up."""
        self._fold(i, j, g)
        if self.grad_y is not None:
            _add_product(self.grad_y, j, g.t(), self.x.block(i), first[1])
            if self.overwritten and self.pool is None and i.stop == self.n:
                self._finish_columns(j)  # while it is in the cache, and its vectors will be
        if self.grad_x is not None:
            _add_product(self.grad_x, i, g, self.y.block(j), first[0])

    def _state(self, spec: LossSpec, rows: slice, lines: int) -> GatheredRows | HardestRows:
        n = rows.stop - rows.start
        if spec.gather[1] == "max":
            return HardestRows(spec, n, self.like)
        return GatheredRows(spec, lines, n, self.like, self.pairs, rows)

    def _group(self, group: Group, spec: LossSpec) -> Tensor:
        """The losses of the rows of a group, whose statistics its tiles complete, and the gradients of these."""
        state = self._state(spec, group.rows, len(group.lines))
        # What the last sweep leaves behind is kept if a gradient will look at it; what an earlier one leaves, always.
        hold = self.wants_tiles and isinstance(state, GatheredRows)
        sweeps = state.sweeps
        tiles = Tiles(self, group, hold, sweeps=len(sweeps))
        for look, exchange in sweeps:
            for views in tiles.visit():
                for view in views:
                    look(view)
            if self.shared is not None:
                exchange(self.shared.ranks)
        sides = self.weights.sides_of(group.rows)
        if spec.average == "active":
            assert isinstance(state, GatheredRows)
            of_positives, of_negatives = state.active()
            sides = self.weights.over_active(of_positives), self.weights.over_active(of_negatives)
        losses = state.finish(cut(self.weights.pull, group.rows), self.weights.counted_of(group.rows), sides)
        if isinstance(state, HardestRows):
            self._scatter_gradient(group.rows, state.entries)
        elif self.wants_tiles:
            for (i, j), views in zip(group.tiles, tiles.visit(), strict=True):
                self._add_gradient(i, j, state, views)
        return losses

    @property
    def wants_tiles(self) -> bool:
        return any(self.needs[:3])

    def _add_gradient(self, i: slice, j: slice, state: GatheredRows, views: list[View]) -> None:
        """Products 2 and 3 of one tile."""
        g, by_norm = state.gradient(views[0])
        if self.y is self.x:
            assert self.grad_x is not None
            if len(views) == 2:
                g.add_(state.gradient(views[1])[0].t())
                _add_product(self.grad_x, j, g.t(), self.x.block(i))
            else:
                g = g + g.t()
            _add_product(self.grad_x, i, g, self.x.block(j))
            return
        if self.grad_bias is not None:
            self.grad_bias[j] += g.sum(0)
        if by_norm is not None and views[0].pairs is not None:
            self._add_norm_gradient(i, j, views[0], by_norm)
        if self.told:
            self._tell_radial(g, views[0])
        if self.pool is None:
            self._add_products(i, j, g, first=(j.start == 0, i.start == 0))
        else:
            assert views[0].shares is not None and views[0].planes is not None
            planes = views[0].planes
            lying = g if planes.is_contiguous() else g.t()
            self.pool.expand(lying, views[0].shares, out=as_it_lies(planes))
            for k, (plane, columns) in enumerate(zip(planes, self.planes(j), strict=True)):
                self._add_products(i, columns, plane, first=(j.start == 0 and k == 0, i.start == 0))
        if j.stop * self.per_class == self.m:
            self._finish_rows(i)
        if self.pool is not None and i.stop == self.n:
            self._finish_columns(slice(j.start * self.per_class, j.stop * self.per_class))

    def _tell_radial(self, g: Tensor, view: View) -> None:
        """x̂·(G Ŷ) = sum_c G S, and the same for the columns, of which other strips have their part."""
        assert view.s is not None
        along = view.s.mul_(g)
        self.radial_x = along.sum(1, keepdim=True)
        by_columns = along.sum(0).unsqueeze(1)
        self.radial_y = by_columns if self.radial_y is None else self.radial_y + by_columns

    def _add_norm_gradient(self, i: slice, j: slice, view: View, by_norm: Tensor) -> None:
        """The pair norm n is |x|, or |x||w|: hand its gradient (b, K) to both."""
        assert view.pairs is not None and view.row_norm is not None
        columns, some = view.pairs.columns, view.pairs.rows
        assert columns is not None
        if self.grad_norm_x is not None:
            by_row = by_norm if view.column_norm is None else by_norm * view.column_norm[columns]
            self.grad_norm_x[within(i, some)] += by_row.sum(1)
        if self.grad_norm_y is not None:
            row_norm = view.row_norm if some is None else view.row_norm[some]
            self.grad_norm_y[j].index_add_(0, columns.flatten(), (by_norm * row_norm[:, None]).flatten())

    def _scatter_gradient(self, rows: slice, entries: list[tuple[Tensor, Tensor]]) -> None:
        """The gradient of a tile that has one entry a row and kind: no products, only gathered vectors."""
        fold_x = self.x.fold(rows)
        for columns, pull in entries:
            pull = pull[:, None] if fold_x is None else pull[:, None] * fold_x
            fold_y = self.y.fold_of(columns)
            pull = pull if fold_y is None else pull * fold_y
            if self.grad_x is not None:
                self.grad_x[rows].addcmul_(self.y.take(columns), pull)
            if self.grad_y is not None:
                self.grad_y.index_add_(0, columns, self.x.block(rows) * pull)

    def _strip(self, rows: slice, spec: StripSpec) -> Tensor:
        """A strip function's losses; the gradient of one strip at a time."""
        k = spec.vectors_per_class if spec.anchors == "proxies" else 1
        i, j = slice(rows.start * k, rows.stop * k), slice(0, self.m)
        inputs = [self.similarities(i, j), *(cut(p, rows).detach() for p in self.parameters)]
        sides, counted, wanted = self.weights.sides_of(rows), self.weights.counted_of(rows), any(self.needs)
        strip = of_strip(spec, inputs, self.pairs.masks(rows), self.column_parameters, sides, counted, wanted)
        if strip.active is not None:
            self.active.append(strip.active)
        if wanted:
            g, *by_parameters = strip.gradient(spec.closed, cut(self.weights.pull, rows))
            if g is not None:
                self._add_products(i, j, g)
            for grads, grad in zip(self.grad_parameters, by_parameters, strict=True):
                if grads is not None and grad is not None:
                    grads[rows] = grad
        return strip.losses.detach()


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    """What every group has of its rows, (N,)."""
    return parts[0] if len(parts) == 1 else torch.cat([like.new_zeros(0), *parts])


def _add_product(total: Tensor, part: slice, a: Tensor, b: Tensor, first: bool = False) -> None:
    """Add a b to a part of the total; the first time store it there, so that a large gradient need not be zeroed."""
    if first:
        torch.mm(a, b, out=cut(total, part))
    else:
        cut(total, part).addmm_(a, b)
