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


def blocks(n: int, size: int) -> Sequence[slice]:
    """Cut range(n) into slices of `size`, the last perhaps smaller."""
    size = max(1, size)
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def cut(values: Tensor, part: slice) -> Tensor:
    """values[part], without an operation where that is all of them."""
    return values if part == slice(0, values.shape[0]) else values[part]


def ordered(values: Tensor, order: Tensor | None) -> Tensor:
    """From the caller's order to the engine's."""
    return values if order is None else values.index_select(0, order)


def restored(values: Tensor, order: Tensor | None) -> Tensor:
    """From the engine's order to the caller's."""
    return values if order is None else torch.empty_like(values).index_copy_(0, order, values)


def at_least_float32(rows: Tensor, columns: Tensor | None = None) -> torch.dtype:
    """What their similarities are computed in."""
    dtype = rows.dtype if columns is None else torch.promote_types(rows.dtype, columns.dtype)
    return torch.promote_types(dtype, torch.float32)


def wide(vectors: Tensor) -> Tensor:
    """At least in float32."""
    return vectors.to(at_least_float32(vectors))


def norms(vectors: Tensor) -> Tensor:
    """Norms (n,) at least in float32, differentiable: the slope of a zero vector's is zero."""
    vectors = wide(vectors)
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
        order: row i here is the caller's row order[i]; None keeps the order.
        normalize: divide by the norms.
        dtype: of all arithmetic.
        whole: up to this many elements the prepared copy is made once.
        others: how many vectors each is compared with. Of few, scaling their products is less work than scaling them.
    """

    def __init__(
        self,
        raw: Tensor,
        order: Tensor | None,
        normalize: bool,
        dtype: torch.dtype,
        whole: int,
        others: float = math.inf,
    ):
        self.raw, self.order, self.normalize, self.dtype = raw, order, normalize, dtype
        self.shape = n, dimension = raw.shape
        small = n * dimension <= whole
        self._folded = normalize and (not small or others < dimension)
        self._inverse = raw.new_empty(n, 1, dtype=dtype)  # of the norms
        self._known = 0  # so many vectors have theirs: each is found when the vector is first asked for
        self._whole: Tensor | None = None
        if small:
            self._whole = ordered(raw, order).to(dtype)
            if normalize and not self._folded:
                self._whole = self._whole * self._inverse_norms(slice(0, n))

    def _fetch(self, part: slice) -> Tensor:
        raw = cut(self.raw, part) if self.order is None else self.raw.index_select(0, cut(self.order, part))
        return raw.to(self.dtype)

    def block(self, part: slice) -> Tensor:
        """The vectors of a range of rows, (b, D): prepared, or as they are if `fold` tells what is missing."""
        return self._fetch(part) if self._whole is None else cut(self._whole, part)

    def take(self, index: Tensor) -> Tensor:
        """What `block` has of the vectors listed, (b, D)."""
        if self._whole is not None:
            return self._whole[index]
        return self.raw[index if self.order is None else self.order[index]].to(self.dtype)

    def fold(self, part: slice) -> Tensor | None:
        """(b, 1) what each of these vectors is still to be multiplied by, wherever it takes part in a product; its
        gradient is, too.
        """
        return self._inverse_norms(part) if self._folded else None

    def fold_of(self, index: Tensor) -> Tensor | None:
        """The same, of the vectors listed."""
        return self._inverse_norms(slice(0, self.shape[0]))[index] if self._folded else None

    def _inverse_norms(self, part: slice) -> Tensor:
        # In step with the products, so that a vector is fetched from memory once for both.
        if part.stop > self._known:
            new = slice(self._known, part.stop)
            norm = torch.linalg.vector_norm(self.block(new), dim=1, keepdim=True)
            torch.reciprocal(_divisor(norm), out=self._inverse[new])
            self._known = part.stop
        return cut(self._inverse, part)

    def units(self, part: slice) -> Tensor:
        """The vectors of a range of rows, divided by their norms whatever the loss compares."""
        vectors = self.block(part)
        return vectors if self.normalize and not self._folded else vectors * self._inverse_norms(part)

    def to_raw(self, grad: Tensor, together: int) -> Tensor:
        """The gradient by the caller's tensor, from that by the prepared vectors (n, D), which `fold` has scaled and
        which is used up: the part of g along the unit vector is left out, and the norm divides it.

        Args:
            together: how many elements are turned at a time, so that they stay in the cache.
        """
        for part in blocks(self.shape[0], together // max(1, self.shape[1])) if self.normalize else ():
            g, vectors, inverse = cut(grad, part), self.block(part), self._inverse_norms(part)
            along = (g * vectors).sum(1, keepdim=True)
            if self._folded:
                g.addcmul_(vectors, along.mul_(inverse).mul_(inverse), value=-1)
            else:
                g.addcmul_(vectors, along, value=-1).mul_(inverse)
        return restored(grad, self.order).to(self.raw.dtype)
