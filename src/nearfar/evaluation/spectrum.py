"""The spectrum of an embedding: how many directions it uses."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FLOOR = 2**-23  # of the largest singular value: the resolution of float32 embeddings
COLLAPSED = 1e-6  # of the largest variance
ROWS_AT_A_TIME = 2**13


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of the unit vectors as a matrix (N, D)."""

    singular_values: npt.NDArray[np.float64]  # (min(N, D),) descending, not centred
    variances: npt.NDArray[np.float64]  # (D,) eigenvalues of the covariance, descending
    decay: float  # KL(uniform ‖ singular values / their sum) (Roth et al. 2020); 0 if all directions are used equally
    effective_rank: (
        float  # exp(entropy of the centred singular values) (Roy and Vetterli 2007); 0 if all rows are equal
    )
    collapsed_dimensions: int  # directions with less than 1e-6 of the largest variance


def spectrum(x: Tensor) -> Spectrum:
    """The spectrum of x (N, D), in float64. `decay` clips singular values at 2^-23 of the largest."""
    n, dimension = x.shape
    second = torch.zeros(dimension, dimension, dtype=torch.float64, device=x.device)
    mean = torch.zeros(dimension, dtype=torch.float64, device=x.device)
    for start in range(0, n, ROWS_AT_A_TIME):
        wide = x[start : start + ROWS_AT_A_TIME].double()
        second.addmm_(wide.t(), wide)
        mean += wide.sum(0)
    mean /= n
    singular = _descending_eigenvalues(second)[: min(n, dimension)] ** 0.5
    variances = _descending_eigenvalues(second / n - torch.outer(mean, mean))
    if variances[0] < FLOOR**2:  # all rows are equal up to rounding
        variances[:] = 0
    return Spectrum(
        singular_values=singular,
        variances=variances,
        decay=_divergence(singular),
        effective_rank=_effective_rank(variances**0.5),
        collapsed_dimensions=int((variances <= COLLAPSED * variances[0]).sum()),
    )


def _descending_eigenvalues(matrix: Tensor) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = torch.linalg.eigvalsh(matrix).flip(0).clamp_min(0).cpu().numpy()
    return values


def _divergence(singular: npt.NDArray[np.float64]) -> float:
    if singular[0] == 0:
        return float("nan")  # zero vectors only
    shares = np.maximum(singular, FLOOR * singular[0])
    shares = shares / shares.sum()
    return float(-np.mean(np.log(shares)) - np.log(len(shares)))


def _effective_rank(singular: npt.NDArray[np.float64]) -> float:
    used = singular[singular > 0]
    if not len(used):
        return 0.0
    shares = used / used.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))
