"""Embeddings as an index keeps them: of length 1, or as the packed bits of their signs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.retrieval.index import About, Floats, RetrievalError, WrongModelError


def checked(vectors: Any, dimension: int, name: str) -> Floats:
    """(N, dimension) float32 without NaN, or an error that says what is wrong."""
    array = np.asarray(vectors)
    if array.ndim != 2 or array.shape[1] != dimension:
        raise RetrievalError(f"{name} must be (N, {dimension}), not {array.shape}")
    if array.dtype.kind != "f":
        raise RetrievalError(f"{name} must be real numbers, not {array.dtype}")
    return np.ascontiguousarray(array, np.float32)


def unit(vectors: Floats) -> Floats:
    """Vectors of length 1; zero stays zero. NaN and infinity are an error."""
    squares = np.einsum("nd,nd->n", vectors, vectors)
    if not np.isfinite(squares).all():
        raise _not_finite(int(np.flatnonzero(~np.isfinite(squares))[0]))
    if len(squares) == 0 or float(np.abs(squares - 1).max()) < 1e-6:  # as models give them
        return vectors
    lengths = np.sqrt(np.where(squares > 0, squares, np.float32(1)))
    return np.asarray(vectors / lengths[:, None], np.float32)


def packed(vectors: Floats) -> NDArray[np.uint8]:
    """Signs as bits, (N, ceil(dimension / 8)): 1 where positive, filled up with zeros."""
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        raise _not_finite(int(np.flatnonzero(~finite)[0]))
    return np.packbits(vectors > 0, axis=1)


def unpacked(codes: NDArray[np.uint8], dimension: int) -> Floats:
    """Vectors of length 1 with the signs of the bits."""
    bits = np.unpackbits(codes, axis=1, count=dimension).astype(np.float32)
    return (2 * bits - 1) / np.float32(np.sqrt(dimension))


def _not_finite(row: int) -> RetrievalError:
    return RetrievalError(f"row {row} is NaN or infinite: leave out what could not be embedded, such as broken images")


def model_checked(where: str, about: About, model: str) -> None:
    """Refuse the embeddings of another model: they are numbers without a meaning to this one."""
    if about.model != model:
        of = f" ({about.run})" if about.run else ""
        raise WrongModelError(
            f"{where} was made with another model{of}: its embeddings cannot be compared with those of this one. "
            "Build an index for this model elsewhere, or replace this one: nearfar index RUN --rebuild"
        )
