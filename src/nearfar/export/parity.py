"""Compares the embeddings of an exported file with those of PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.export.network import ExportError

MIN_COSINE = 0.9999
"""The cosine that every row must reach."""

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Parity:
    """Cosines between the embeddings of an exported file and those of PyTorch."""

    rows: int
    source: str
    least: float
    mean: float


def parity(reference: Network, exported: Network, inputs: Tensor, source: str) -> Parity:
    """Compare two networks row by row; the exported one gets batches of one, of two and of the rest.

    Args:
        inputs: (N, ...), preprocessed images or features.
        source: the origin of the inputs, for messages.
    """
    batches = [batch for batch in (inputs[:1], inputs[1:3], inputs[3:]) if len(batch)]
    similarity = cosines(reference(inputs), torch.cat([exported(batch) for batch in batches]))
    return Parity(len(inputs), source, float(similarity.min()), float(similarity.mean()))


def check(parity: Parity, file: str) -> None:
    """Raise if the embeddings of a file differ from PyTorch's."""
    if not parity.least >= MIN_COSINE:  # also for NaN
        raise ExportError(
            f"{file} does not reproduce PyTorch's embeddings: on {parity.rows} rows of {parity.source}, the cosine "
            f"is {parity.least:.6f} at least and {parity.mean:.6f} on average, but every row needs {MIN_COSINE}. "
            "Nothing was written"
        )


def cosines(a: Tensor, b: Tensor) -> NDArray[np.float64]:
    """Cosines between the rows of two matrices (N, D); 1 where both are zero."""
    if a.shape != b.shape:
        raise ExportError(f"the exported model returns shape {tuple(b.shape)}, but PyTorch returns {tuple(a.shape)}")
    x, y = a.double().cpu().numpy(), b.double().cpu().numpy()
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    both_zero = ~(x.any(1) | y.any(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        result: NDArray[np.float64] = np.where(lengths > 0, (x * y).sum(1) / lengths, np.where(both_zero, 1.0, 0.0))
    result[~np.isfinite(x).all(1) | ~np.isfinite(y).all(1)] = np.nan
    return result
