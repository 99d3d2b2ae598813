"""Heads: modules that map the features of a trunk to embeddings."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from nearfar.errors import InputError


def pca(features: Tensor, dimension: int, *, whiten: bool = True) -> tuple[Tensor, Tensor]:
    """Weight (dimension, C) and bias (dimension,) of the linear map x -> W (x - mean) onto the principal components of
    `features` (N, C), in order of descending variance.

    With `whiten`, component i is divided by sqrt(variance_i + mean variance of the C features). The second term keeps
    weak components, which are mostly noise, from being amplified to the size of the others.

    N features span at most N - 1 directions. Further components are a random projection of the orthogonal complement,
    scaled to keep squared lengths on average.
    """
    count, channels = features.shape
    if count < 2 or dimension > channels:
        raise InputError(
            f"{count} features of {channels} dimensions do not have {dimension} principal components: give at least "
            "two features, and a dimension that is not larger than theirs"
        )
    x = features.detach().double()
    mean = x.mean(0)
    covariance = (x - mean).T @ (x - mean) / (count - 1)
    # numpy, because torch's solver sometimes fails with fewer features than dimensions.
    variances, components = np.linalg.eigh(covariance.cpu().numpy())
    variances, components = variances[::-1][:dimension], components[:, ::-1][:, :dimension]
    known = int((variances > variances[0] * channels * np.finfo(np.float64).eps).sum())
    if known < dimension:
        rest = _random_directions(components[:, :known], dimension - known)
        components = np.concatenate([components[:, :known], rest], 1)
    weight = torch.from_numpy(components.T.copy()).to(covariance)
    if whiten:
        weight = (
            weight / (torch.from_numpy(variances.copy()).to(covariance) + covariance.trace() / channels).sqrt()[:, None]
        )
    return weight.to(features.dtype), -(weight @ mean).to(features.dtype)


def _random_directions(components: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Directions (C, count) orthogonal to components (C, k) and to each other, of length √((C - k) / count)."""
    channels, known = components.shape
    drawn = np.random.default_rng(0).normal(size=(channels, count))
    directions, _ = np.linalg.qr(drawn - components @ (components.T @ drawn))
    return np.asarray(np.sqrt((channels - known) / count) * directions)


class LinearHead(nn.Module):
    """W x + b. The initialisation is He's normal distribution (fan-out) with b = 0, or, if `uniform`, that of
    `nn.Linear`: W and b between ±1 / √channels.
    """

    def __init__(self, channels: int, dimension: int, *, uniform: bool = False):
        super().__init__()
        self.linear = nn.Linear(channels, dimension)
        if not uniform:
            nn.init.kaiming_normal_(self.linear.weight, mode="fan_out")
            nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.linear(x))

    def start_at(self, weight: Tensor, bias: Tensor) -> None:
        """Set the head to a linear map."""
        with torch.no_grad():
            self.linear.weight.copy_(weight)
            self.linear.bias.copy_(bias)


class MLPHead(nn.Module):
    """W x + b + V relu(U x + c). Initially V = 0, so that it starts like the linear head."""

    def __init__(self, channels: int, dimension: int, hidden: int):
        super().__init__()
        self.skip = LinearHead(channels, dimension)
        self.up = nn.Linear(channels, hidden)
        self.down = nn.Linear(hidden, dimension, bias=False)
        nn.init.kaiming_normal_(self.up.weight, nonlinearity="relu")
        nn.init.zeros_(self.up.bias)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.skip(x) + self.down(functional.relu(self.up(x))))

    def start_at(self, weight: Tensor, bias: Tensor) -> None:
        """Set the head to a linear map."""
        self.skip.start_at(weight, bias)
        nn.init.zeros_(self.down.weight)
