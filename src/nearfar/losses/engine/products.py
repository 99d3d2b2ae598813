"""The three products: the similarities of a tile, and what their gradient adds to those of its rows and its columns.

Shapes: N rows, M columns, D dimensions; b x t a tile.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from nearfar.losses.engine.maps import Map
from nearfar.losses.engine.plan import Plan
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.vectors import Vectors, at_least_float32, blocks, ordered, restored


class Numbers:
    """Numbers of the rows or of the columns in the engine's order, and the gradients by them.

    Args:
        given: (n,) each, in the caller's order.
        needs: which of them take a gradient.
    """

    def __init__(self, given: Sequence[Tensor], order: Tensor | None, like: Tensor, needs: Sequence[bool]):
        self._order = order
        self.values = [ordered(number, order).to(like.dtype) for number in given]
        self.gradients = [
            torch.zeros_like(value) if need else None for value, need in zip(self.values, needs, strict=True)
        ]

    def restored(self) -> list[Tensor | None]:
        """The gradients in the caller's order."""
        return [None if g is None else restored(g, self._order) for g in self.gradients]


class Products:
    """Rows and columns as the products need them, and the gradients so far. With a pool, K vectors make a column."""

    def __init__(
        self, plan: Plan, rows: Tensor, columns: Tensor | None, bias: Tensor | None, needs: tuple[bool, bool, bool]
    ):
        pairs, normalize, self.sizes = plan.pairs, plan.spec.normalize, plan.sizes
        self.pool = plan.spec.pool if isinstance(plan.spec, LossSpec) else None
        self._watch = plan.watch
        dtype = at_least_float32(rows, columns)
        self.like = rows if rows.dtype == dtype else rows.new_empty(0, dtype=dtype)
        self.one_set = columns is None
        whole = rows.numel() if self.one_set else self.sizes.whole  # two blocks of one set are looked at together
        self.x = self.y = Vectors(rows, pairs.row_order, normalize[0], dtype, whole)
        if columns is not None:
            self.y = Vectors(columns, pairs.column_order, normalize[1], dtype, whole)
        self.bias = Numbers(
            [] if bias is None else [bias], pairs.column_order, self.like, needs[2:][: bias is not None]
        )
        self.grad_x = self._zeros(self.x, plan) if needs[0] else None
        self.grad_y = self.grad_x if self.one_set else self._zeros(self.y, plan) if needs[1] else None

    def _zeros(self, vectors: Vectors, plan: Plan) -> Tensor:
        """For a gradient; a large one is in memory that the next step uses again."""
        n, dimension = vectors.shape
        larger = n >= max(self.x.shape[0], self.y.shape[0])
        if larger and n * dimension * self.like.element_size() >= self.sizes.reused:
            return plan.spare.take(vectors.shape, self.like).zero_()
        return self.like.new_zeros(vectors.shape)

    def tile(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor | None]:
        """The similarities of a tile (b, t), pooled if there is a pool, and the pool's shares."""
        if self.pool is None:
            return self.similarities(rows, columns), None
        planes = self.like.new_empty(self.pool.size, rows.stop - rows.start, columns.stop - columns.start)
        for plane, vectors in zip(planes, self._planes(columns), strict=True):
            self.similarities(rows, vectors, out=plane)
        return self.pool.gather(planes)

    def _planes(self, columns: slice) -> list[slice]:
        """The vectors of these classes: a slice for the first vector of each, one for the second, and so on."""
        k = 1 if self.pool is None else self.pool.size
        return [slice(columns.start * k + plane, columns.stop * k, k) for plane in range(k)]

    def similarities(self, rows: slice, columns: slice, out: Tensor | None = None) -> Tensor:
        """Product 1: (b, t), with the bias."""
        x, y = self.x.block(rows), self.y.block(columns)
        s = torch.mm(x, y.t(), out=out)
        self._fold(rows, columns, s)
        for bias in self.bias.values:
            s.add_(bias[columns])
        return s

    def _fold(self, rows: slice, columns: slice, tile: Tensor) -> None:
        """Multiply a tile, in place, by what its vectors are still to be multiplied by."""
        fold_x, fold_y = self.x.fold(rows), self.y.fold(columns)
        if fold_x is not None:
            tile.mul_(fold_x)
        if fold_y is not None:
            tile.mul_(fold_y.t())

    def add_tile(self, rows: slice, columns: slice, g: Tensor, shares: Tensor | None) -> None:
        """Products 2 and 3 of a `tile` of two sets."""
        if self.pool is None or shares is None:
            self.add(rows, columns, g)
        else:
            for plane, vectors in zip(self.pool.expand(g, shares), self._planes(columns), strict=True):
                self.add(rows, vectors, plane)

    def add(self, rows: slice, columns: slice, g: Tensor) -> None:
        """Products 2 and 3 of some similarities (b, t) of two sets. Their gradient `g` is used up."""
        for gradient in self.bias.gradients:
            if gradient is not None:
                gradient[columns] += g.sum(0)
        self._fold(rows, columns, g)
        if self.grad_y is not None:
            self.grad_y[columns].addmm_(g.t(), self.x.block(rows))
        if self.grad_x is not None:
            self.grad_x[rows].addmm_(g, self.y.block(columns))

    def add_symmetric(self, rows: slice, columns: slice, h: Tensor) -> None:
        """Products 2 and 3 of a tile of one set, with H = G + G^T, for which the tile below the diagonal need not be
        looked at.
        """
        if self.grad_x is not None:
            self.grad_x[rows].addmm_(h, self.x.block(columns))
            if rows.start != columns.start:
                self.grad_x[columns].addmm_(h.t(), self.x.block(rows))

    def add_entries(self, rows: slice, columns: Tensor, function: Map, pull: Tensor) -> None:
        """The gradient of these rows if it has one entry a row: vectors are gathered, without products.

        Args:
            columns: (b,) of the entries.
            pull: (b,) the derivatives by the values of the map there.
        """
        if self.y.shape[0] == 0:
            return
        x, y = self.x.block(rows), self.y.block(columns)
        folds = [fold[:, 0] for fold in (self.x.fold(rows), self.y.fold(columns)) if fold is not None]
        s = functools.reduce(torch.mul, folds, (x * y).sum(1))
        for bias in self.bias.values:
            s = s + bias[columns]
        g = (pull * function.slopes(s)[1]).masked_fill_(pull == 0, 0)
        if self._watch is not None:
            self._watch(g)
        for gradient in self.bias.gradients:
            if gradient is not None:
                gradient.index_add_(0, columns, g)
        g = functools.reduce(torch.mul, folds, g).unsqueeze(1)
        if self.grad_x is not None:
            self.grad_x[rows].addcmul_(y, g)
        if self.grad_y is not None:
            self.grad_y.index_add_(0, columns, x * g)

    def add_penalty(self, weight: Tensor) -> Tensor:
        """The sum of the pool's own term, a block of classes at a time; adds its gradient, times the weight."""
        total, dimension = self.like.new_zeros(()), self.y.shape[1]
        assert self.pool is not None
        k = self.pool.size
        for part in blocks(self.y.shape[0], max(1, self.sizes.turned // (k * dimension)) * k):
            vectors, fold = self.y.block(part), self.y.fold(part)
            term = self.pool.penalty((vectors if fold is None else vectors * fold).view(-1, k, dimension))
            if term is None:
                break
            total += term[0]
            if self.grad_y is not None:
                self.grad_y[part].addcmul_(term[1].view(-1, dimension), weight if fold is None else weight * fold)
        return total

    def scale(self, factor: Tensor) -> None:
        """Multiply all gradients so far."""
        for gradient in (self.grad_x, None if self.one_set else self.grad_y, *self.bias.gradients):
            if gradient is not None:
                gradient.mul_(factor)

    def gradients(self) -> list[Tensor | None]:
        """By the caller's rows, columns and bias."""
        x = None if self.grad_x is None else self.x.to_raw(self.grad_x, self.sizes.turned)
        y = None if self.grad_y is None or self.one_set else self.y.to_raw(self.grad_y, self.sizes.turned)
        return [x, y, *(self.bias.restored() or [None])]
