"""Rows or columns as the products need them: in the engine's order and precision, and divided by their norms if the
loss compares cosines.

A large matrix of class weights is never copied or normalised. Instead its products are scaled (`fold`), and so is the
tile that its gradient is a product of; the same is done for few rows, where it is less work. Where vectors are
normalised, a zero vector stays zero, and so does its gradient.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def blocks(n: int, size: int) -> Sequence[slice]:
    """Cut range(n) into slices of `size`, the last perhaps smaller."""
    size = max(1, size)
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def ordered(values: Tensor, order: Tensor | None) -> Tensor:
    """From the caller's order to the engine's."""
    return values if order is None else values.index_select(0, order)


def restored(values: Tensor, order: Tensor | None) -> Tensor:
    """From the engine's order to the caller's."""
    return values if order is None else torch.empty_like(values).index_copy_(0, order, values)


def at_least_float32(rows: Tensor, columns: Tensor | None = None) -> torch.dtype:
    """The type that their similarities are computed in."""
    dtype = rows.dtype if columns is None else torch.promote_types(rows.dtype, columns.dtype)
    return torch.promote_types(dtype, torch.float32)


def wide(vectors: Tensor) -> Tensor:
    """The vectors, at least in float32."""
    return vectors.to(at_least_float32(vectors))


def norms(vectors: Tensor) -> Tensor:
    """Norms (n,), at least in float32, differentiable; the norm of a zero vector has the slope zero."""
    vectors = wide(vectors)
    return torch.where((vectors != 0).any(1), torch.linalg.vector_norm(vectors, dim=1), 0)


def unit(vectors: Tensor, length: Tensor | float = 1.0) -> Tensor:
    """The vectors stretched to a length, differentiable. A zero vector has no direction: it stays zero, and so does its
    gradient.
    """
    inverse = _divisor(torch.linalg.vector_norm(vectors, dim=1, keepdim=True)).reciprocal()
    return vectors * (inverse if isinstance(length, float) and length == 1 else inverse * length)


def differences(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns (n, D + 2) whose dot products are -|x - y|^2 / 2; differentiable."""

    def extended(vectors: Tensor, norm_first: bool) -> Tensor:
        vectors = wide(vectors)
        half = vectors.square().sum(1, keepdim=True) / -2
        one = torch.ones_like(half)
        return torch.cat([vectors, half, one] if norm_first else [vectors, one, half], 1)

    return extended(rows, True), extended(columns, False)


def _divisor(norms: Tensor) -> Tensor:
    """The norms, with infinity in place of zero, so that the quotient of a zero vector is zero."""
    return torch.threshold(norms, 0.0, math.inf)


class Vectors:
    """Rows or columns, for the products.

    Args:
        raw: (n, D), the caller's tensor.
        order: vector i is the caller's vector order[i]; None: the same order.
        normalize: divide by the norms.
        dtype: of all arithmetic.
        whole: the number of elements up to which all vectors are prepared at once.
    """

    def __init__(self, raw: Tensor, order: Tensor | None, normalize: bool, dtype: torch.dtype, whole: int):
        self.raw, self.order, self.dtype, self.shape = raw, order, dtype, raw.shape
        self._inverse: Tensor | None = None  # (n, 1) of the norms
        if normalize:
            norms = torch.linalg.vector_norm(raw, dim=1, keepdim=True, dtype=dtype)
            self._inverse = ordered(_divisor(norms).reciprocal_(), order)
        self._prepared: Tensor | None = None
        if raw.numel() <= whole:
            self._prepared = ordered(raw, order).to(dtype)
            if self._inverse is not None:
                self._prepared = self._prepared * self._inverse

    def block(self, part: slice | Tensor) -> Tensor:
        """A range of the vectors, or those listed, (b, D): prepared, or lacking the factor that `fold` returns."""
        if self._prepared is not None:
            return self._prepared[part]
        return self.raw[part if self.order is None else self.order[part]].to(self.dtype)

    def fold(self, part: slice | Tensor) -> Tensor | None:
        """The factor (b, 1) that each of these vectors still lacks: a product with it is multiplied by the factor, and
        so is its gradient. None: none is missing.
        """
        return None if self._inverse is None or self._prepared is not None else self._inverse[part]

    def to_raw(self, grad: Tensor, together: int) -> Tensor:
        """The gradient by the caller's tensor, from the gradient g (n, D) by the prepared vectors, multiplied by
        `fold`. The part of g along the unit vector is subtracted, and the norm divides the rest. `grad` is used up. The
        result keeps the precision of the arithmetic: a loss scale is to multiply it before it is rounded to float16.

        Args:
            together: the number of elements that are turned at a time, so that they stay in the cache.
        """
        if self._inverse is not None:
            for part in blocks(self.shape[0], together // max(1, self.shape[1])):
                g, vectors, fold = grad[part], self.block(part), self.fold(part)
                along = (g * vectors).sum(1, keepdim=True)
                if fold is None:
                    g.addcmul_(vectors, along, value=-1).mul_(self._inverse[part])
                else:
                    g.addcmul_(vectors, along.mul_(fold).mul_(fold), value=-1)
        return restored(grad, self.order)
