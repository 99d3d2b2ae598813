"""Whether an exported file gives the vectors that PyTorch gives."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.export.network import ExportError

LEAST = 0.9999
"""The cosine that every row must reach."""

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Parity:
    """Cosines between the vectors of an exported file and those of PyTorch."""

    rows: int
    of: str
    least: float
    mean: float


def parity(reference: Network, exported: Network, inputs: Tensor, of: str) -> Parity:
    """Compare two networks, row by row; the second sees batches of one, of two and of the rest.

    Args:
        inputs: (N, ...), prepared images or features.
        of: where they come from, for the report.
    """
    parts = [part for part in (inputs[:1], inputs[1:3], inputs[3:]) if len(part)]
    found = cosines(reference(inputs), torch.cat([exported(part) for part in parts]))
    return Parity(len(inputs), of, float(found.min()), float(found.mean()))


def check(found: Parity, what: str) -> None:
    """Raise if the file is not the model."""
    if not found.least >= LEAST:  # also where it is no number
        raise ExportError(
            f"{what} does not give the vectors that PyTorch gives: on {found.rows} rows of {found.of}, the cosine "
            f"between them is {found.least:.6f} at least, {found.mean:.6f} on average; {LEAST} is asked of each. "
            "Nothing was written"
        )


def cosines(a: Tensor, b: Tensor) -> NDArray[np.float64]:
    """Of the rows of two matrices (N, D); 1 where both are zero."""
    if a.shape != b.shape:
        raise ExportError(f"the exported model gives {tuple(b.shape)} where PyTorch gives {tuple(a.shape)}")
    x, y = a.double().cpu().numpy(), b.double().cpu().numpy()
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    both_zero = ~(x.any(1) | y.any(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        result: NDArray[np.float64] = np.where(lengths > 0, (x * y).sum(1) / lengths, np.where(both_zero, 1.0, 0.0))
    result[~np.isfinite(x).all(1) | ~np.isfinite(y).all(1)] = np.nan
    return result
