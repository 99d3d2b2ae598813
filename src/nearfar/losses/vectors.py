"""One side's vectors as the products need them: in the engine's order and precision, divided by their norms if the loss
says so.

A large matrix of class weights is never copied nor normalised: its products are scaled instead (`fold`). Where vectors
are normalised, a zero vector stays zero, and so does its gradient.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from nearfar.losses.weights import restored

WHOLE = 2**22  # up to this many elements the prepared copy is made once


def blocks(n: int, size: int) -> Iterator[slice]:
    """Cut range(n) into slices of `size`, the last perhaps smaller."""
    return (slice(i, min(i + size, n)) for i in range(0, n, max(1, size)))


def norms(vectors: Tensor) -> Tensor:
    """Norms (n,), differentiable: the slope of a zero vector's is zero."""
    return torch.where((vectors != 0).any(1), torch.linalg.vector_norm(vectors, dim=1), 0)


def unit(vectors: Tensor) -> Tensor:
    """The vectors divided by their norms, differentiable. A zero vector has no direction: it stays zero, and so does
    its gradient.
    """
    some = (vectors != 0).any(1, keepdim=True)
    safe = torch.where(some, vectors, 1)
    return torch.where(some, safe / torch.linalg.vector_norm(safe, dim=1, keepdim=True), 0)


class Vectors:
    """
    Args:
        raw: (n, D), the caller's tensor.
        order: row i here is the caller's row order[i]; None keeps the order.
        normalize: divide by the norms.
        keep_norm: the norms are asked for themselves.
        dtype: of all arithmetic.
        whole: prepare a copy of all, so that two blocks can be had at a time; else only if it is small.
    """

    def __init__(
        self,
        raw: Tensor,
        order: Tensor | None,
        normalize: bool,
        keep_norm: bool,
        dtype: torch.dtype,
        whole: bool = False,
    ):
        self.raw, self.order, self.normalize, self.dtype = raw, order, normalize, dtype
        self.block_rows = max(1, 2**20 // max(1, raw.shape[1]))
        self.norm: Tensor | None = None
        self._inverse: Tensor | None = None
        self._whole: Tensor | None = None
        if whole or raw.numel() <= WHOLE:
            self._whole = self._fetch(slice(0, len(raw)))
        if normalize or keep_norm:
            parts = [torch.linalg.vector_norm(self.block(part), dim=1) for part in self._parts()]
            self.norm = torch.cat(parts) if parts else raw.new_zeros(0, dtype=dtype)
            self._inverse = self.norm.reciprocal().nan_to_num_(posinf=0.0)
        if self._whole is not None:
            self._whole = self._prepare(self._whole, self._inverse)

    def _parts(self) -> Iterator[slice]:
        return blocks(len(self.raw), len(self.raw) if self._whole is not None else self.block_rows)

    def _fetch(self, part: slice) -> Tensor:
        raw = self.raw[part] if self.order is None else self.raw.index_select(0, self.order[part])
        return raw.to(self.dtype)

    def block(self, part: slice) -> Tensor:
        """The vectors of a range of rows, (b, D): prepared, or as they are if `fold` tells what is missing."""
        return self._fetch(part) if self._whole is None else self._whole[part]

    def fold(self, part: slice) -> Tensor | None:
        """(b,) what each of these vectors is still to be multiplied by, wherever it takes part in a product."""
        return self._inverse[part] if self._whole is None and self.normalize and self._inverse is not None else None

    def take(self, index: Tensor) -> Tensor:
        """The prepared vectors of the rows listed, (b, D)."""
        if self._whole is not None:
            return self._whole[index]
        raw = self.raw[index if self.order is None else self.order[index]].to(self.dtype)
        return self._prepare(raw, self._inverse if self._inverse is None else self._inverse[index])

    def _prepare(self, raw: Tensor, inverse: Tensor | None) -> Tensor:
        return raw * inverse[:, None] if self.normalize and inverse is not None else raw

    def gradient(self, by_prepared: Tensor, by_norm: Tensor | None) -> Tensor:
        """From the gradient by the prepared vectors (n, D), used up, and by the kept norms (n,), that by the caller's
        tensor.
        """
        for part in self._parts():
            grad, vectors, fold = by_prepared[part], self.block(part), self.fold(part)
            if self.normalize:
                assert self._inverse is not None
                radial = (grad * vectors).sum(1)
                if fold is not None:
                    radial = radial * fold * fold
                grad.addcmul_(vectors, radial[:, None], value=-1).mul_(self._inverse[part, None])
            if by_norm is not None:
                assert self._inverse is not None
                along = by_norm[part]
                if fold is not None or not self.normalize:
                    along = along * self._inverse[part]
                grad.addcmul_(vectors, along[:, None])
        return restored(by_prepared, self.order).to(self.raw.dtype)
