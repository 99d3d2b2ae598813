"""Converts embeddings to the format of an index: unit vectors, or packed bits of the signs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.retrieval.index import About, Floats, RetrievalError, WrongModelError


def checked(vectors: Any, dimension: int, name: str) -> Floats:
    """Check the shape and type of vectors, and convert them to float32 (N, dimension)."""
    array = np.asarray(vectors)
    if array.ndim != 2 or array.shape[1] != dimension:
        raise RetrievalError(f"{name} must be (N, {dimension}), not {array.shape}")
    if array.dtype.kind != "f":
        raise RetrievalError(f"{name} must be real numbers, not {array.dtype}")
    return np.ascontiguousarray(array, np.float32)


def unit(vectors: Floats) -> Floats:
    """Normalise vectors to unit length; zero stays zero. Raises `RetrievalError` for NaN and infinity."""
    squares = np.einsum("nd,nd->n", vectors, vectors)
    if not np.isfinite(squares).all():
        raise _not_finite(int(np.flatnonzero(~np.isfinite(squares))[0]))
    if len(squares) == 0 or float(np.abs(squares - 1).max()) < 1e-6:  # already normalised
        return vectors
    lengths = np.sqrt(np.where(squares > 0, squares, np.float32(1)))
    return np.asarray(vectors / lengths[:, None], np.float32)


def packed(vectors: Floats) -> NDArray[np.uint8]:
    """Pack signs into bits (N, ceil(dimension / 8)): 1 for positive numbers, padded with zeros."""
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        raise _not_finite(int(np.flatnonzero(~finite)[0]))
    return np.packbits(vectors > 0, axis=1)


def unpacked(codes: NDArray[np.uint8], dimension: int) -> Floats:
    """Unpack bits into unit vectors with these signs."""
    bits = np.unpackbits(codes, axis=1, count=dimension).astype(np.float32)
    return (2 * bits - 1) / np.float32(np.sqrt(dimension))


def _not_finite(row: int) -> RetrievalError:
    return RetrievalError(f"row {row} is NaN or infinite: leave out broken images")


def model_checked(where: str, about: About, model: str) -> None:
    """Raise `WrongModelError` unless the index belongs to this model."""
    if about.model != model:
        of = f" ({about.run})" if about.run else ""
        raise WrongModelError(
            f"{where} was made with another model{of}, and embeddings of different models cannot be compared. "
            "Make another index for this model, or replace this one: nearfar index RUN --rebuild"
        )
