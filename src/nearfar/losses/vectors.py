"""One side's vectors as the products need them: in the engine's order and precision, divided by their norms if the loss
says so.

A large matrix of class weights is never copied nor normalised: its products are scaled instead (`fold`), and so is what
its gradient is a product of; a small one of columns, too, where that is less work. Where vectors are normalised, a
zero vector stays zero, and so does its gradient.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nearfar.losses.weights import restored

WHOLE = 2**22  # up to this many elements the prepared copy is made once
WORK = 2**18  # elements of the vectors whose gradients are turned at a time: they stay in the cache


def blocks(n: int, size: int) -> Sequence[slice]:
    """Cut range(n) into slices of `size`, the last perhaps smaller."""
    if 0 < n <= size:
        return (slice(0, n),)
    size = max(1, size)
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def cut(values: Tensor, part: slice) -> Tensor:
    """values[part], without an operation where that is all of them."""
    return values if part == slice(0, values.shape[0]) else values[part]


def at_least_float32(rows: Tensor, columns: Tensor | None) -> torch.dtype:
    """What their similarities are computed in."""
    dtype = rows.dtype
    if columns is not None and columns.dtype != dtype:
        dtype = torch.promote_types(dtype, columns.dtype)
    return dtype if dtype == torch.float32 else torch.promote_types(dtype, torch.float32)


def norms(vectors: Tensor) -> Tensor:
    """Norms (n,), differentiable: the slope of a zero vector's is zero."""
    return torch.where((vectors != 0).any(1), torch.linalg.vector_norm(vectors, dim=1), 0)


def unit(vectors: Tensor, length: Tensor | float = 1.0) -> Tensor:
    """The vectors stretched to a length, differentiable. A zero vector has no direction: it stays zero, and so does its
    gradient.
    """
    inverse = _divisor(torch.linalg.vector_norm(vectors, dim=1, keepdim=True)).reciprocal()
    return vectors * (inverse if isinstance(length, float) and length == 1 else inverse * length)


def _divisor(norms: Tensor) -> Tensor:
    """The norm, and infinity for vectors that have none: what is divided by that is zero."""
    return torch.threshold(norms, 0.0, math.inf)


class Vectors:
    """
    Args:
        raw: (n, D), the caller's tensor.
        order: row i here is the caller's row order[i], who may have others besides; None keeps the order.
        normalize: divide by the norms.
        keep_norm: the norms are asked for themselves.
        dtype: of all arithmetic.
        whole: prepare a copy of all, so that two blocks can be had at a time; else only if it is small.
        others: how many vectors each is compared with. Of few, scaling their products is less work than scaling them.
    """

    def __init__(
        self,
        raw: Tensor,
        order: Tensor | None,
        normalize: bool,
        keep_norm: bool,
        dtype: torch.dtype,
        whole: bool = False,
        others: float = math.inf,
    ):
        self.raw, self.order, self.normalize, self.dtype = raw, order, normalize, dtype
        self._norm: Tensor | None = None
        self._divisor: Tensor | None = None  # of what is prepared;
        self._inverse: Tensor | None = None  # its inverse is made when asked for
        self._known = 0  # so many vectors are prepared or, if there are many, have norms: each when first asked for
        self._whole: Tensor | None = None
        self.shape = n, dimension = raw.shape[0] if order is None else order.shape[0], raw.shape[1]
        uses_norm = normalize or keep_norm
        small = whole or n * dimension <= WHOLE
        self._folded = normalize and (not small or others < dimension)
        if small:
            self._known = n
            self._whole = raw if order is None else raw.index_select(0, order)
            if raw.dtype != dtype:
                self._whole = self._whole.to(dtype)
            if uses_norm:
                self._norm = torch.linalg.vector_norm(self._whole, dim=1, keepdim=True)
                self._divisor = _divisor(self._norm)
                if normalize and not self._folded:
                    self._whole = self._whole / self._divisor
        elif uses_norm:
            self._norm = raw.new_empty(n, 1, dtype=dtype)
            self._inverse = torch.empty_like(self._norm)

    def _learn_norms(self, stop: int) -> None:
        """Of all vectors up to there. In step with the products, a vector is fetched from memory once for both."""
        if stop <= self._known or self._norm is None or self._inverse is None:
            return
        part = slice(self._known, stop)
        torch.linalg.vector_norm(self.block(part), dim=1, keepdim=True, out=self._norm[part])
        torch.reciprocal(_divisor(self._norm[part]), out=self._inverse[part])
        self._known = stop

    def _fetch(self, part: slice) -> Tensor:
        raw = cut(self.raw, part) if self.order is None else self.raw.index_select(0, cut(self.order, part))
        return raw if raw.dtype == self.dtype else raw.to(self.dtype)

    def block(self, part: slice) -> Tensor:
        """The vectors of a range of rows, (b, D): prepared, or as they are if `fold` tells what is missing."""
        return self._fetch(part) if self._whole is None else cut(self._whole, part)

    def fold(self, part: slice) -> Tensor | None:
        """(b, 1) what each of these vectors is still to be multiplied by, wherever it takes part in a product; its
        gradient is, too.
        """
        return self._inverse_norms(part) if self._folded else None

    def fold_of(self, index: Tensor) -> Tensor | None:
        """The same, of the vectors listed."""
        return self._inverse_norms(slice(0, self.shape[0]))[index] if self._folded else None

    def norms(self, part: slice) -> Tensor:
        """(b,) the norms, if they are kept."""
        assert self._norm is not None
        self._learn_norms(part.stop)
        return cut(self._norm, part)[:, 0]

    def _inverse_norms(self, part: slice) -> Tensor:
        if self._inverse is None:
            assert self._divisor is not None
            self._inverse = self._divisor.reciprocal()
        self._learn_norms(part.stop)
        return cut(self._inverse, part)

    def units(self, part: slice) -> Tensor:
        """The vectors of a range of rows, divided by their norms whatever the loss compares."""
        vectors = self.block(part)
        return vectors if self.normalize and not self._folded else vectors * self._inverse_norms(part)

    def take(self, index: Tensor) -> Tensor:
        """What `block` has of the vectors listed, (b, D)."""
        if self._whole is not None:
            return self._whole[index]
        return self.raw[index if self.order is None else self.order[index]].to(self.dtype)

    def to_raw(self, part: slice, grad: Tensor, by_norm: Tensor | None, radial: Tensor | None = None) -> None:
        """Turn the gradient by a range of prepared vectors (b, D), which `fold` has scaled, in place, into that by the
        caller's; `by_norm` (b,) is the gradient by their kept norms, `radial` (b, 1) its part along the unit vectors,
        if that is known.
        """
        if not self.normalize and by_norm is None:
            return
        b, dimension = grad.shape
        for inner in blocks(b, max(1, WORK // max(1, dimension))):
            outer = slice(part.start + inner.start, part.start + inner.stop)
            some, vectors, fold = cut(grad, inner), self.block(outer), self.fold(outer)
            if self.normalize:
                along = (some * vectors).sum(1, keepdim=True) if radial is None else cut(radial, inner)
                some.addcmul_(vectors, along if fold is None else along * fold * fold, value=-1)
                if fold is None:
                    assert self._divisor is not None
                    some.div_(cut(self._divisor, outer))
            if by_norm is not None:
                along = cut(by_norm, inner)[:, None]
                if fold is not None or not self.normalize:
                    along = along * self._inverse_norms(outer)
                some.addcmul_(vectors, along)

    def restored(self, grad: Tensor) -> Tensor:
        """The gradient in the caller's order and precision."""
        grad = restored(grad, self.order, self.raw.shape[0])
        return grad if grad.dtype == self.raw.dtype else grad.to(self.raw.dtype)
