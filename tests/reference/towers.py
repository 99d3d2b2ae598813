"""Losses of two towers: sample i and column i are two views of one thing. The masks of the case are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .geometry import cosine
from .reduction import attached_zero, average, lse, stack

if TYPE_CHECKING:
    from . import Case


def info_nce(case: Case, *, temperature: float | Tensor = 0.07) -> tuple[Tensor, Tensor]:
    """The mean of -log exp(s_ii/t) / sum_j exp(s_ij/t) and of -log exp(s_ii/t) / sum_j exp(s_ji/t).
    van den Oord et al., arXiv 1807.03748; symmetric: Radford et al., ICML 2021, arXiv 2103.00020."""
    n = range(len(case.x))
    z = [[cosine(x, y) / temperature for y in case.columns] for x in case.x]
    losses = [(lse(z[i]) + lse([z[j][i] for j in n])) / 2 - z[i][i] for i in n]
    return average(case, losses)


def siglip(case: Case, *, temperature: float | Tensor = 10.0, bias: float | Tensor = -10.0) -> tuple[Tensor, Tensor]:
    """-1/N sum_i sum_j log sigmoid(z_ij (temperature s_ij + bias)), z = 1 where i = j, else -1.
    Zhai et al., ICCV 2023, arXiv 2303.15343."""
    losses: list[Tensor] = []
    for i, x in enumerate(case.x):
        logits = [temperature * cosine(x, y) + bias for y in case.columns]
        losses.append(-torch.stack([logsigmoid(z if i == j else -z) for j, z in enumerate(logits)]).sum())
    return average(case, losses)


def vic_reg(
    case: Case,
    *,
    invariance_lambda: float = 25,
    variance_mu: float = 25,
    covariance_v: float = 1,
    eps: float = 1e-4,
) -> tuple[Tensor, Tensor]:
    """invariance_lambda mean (x - y)^2 + sum over both towers of variance_mu/2 mean_d [1 - sqrt(var_d + eps)]_+ +
    covariance_v/D sum_d!=e cov_de^2, with the unbiased variances and covariances of unnormalised vectors; the half is
    pytorch-metric-learning's. No rows, no weights; N >= 2. Bardes et al., ICLR 2022, arXiv 2105.04906."""
    count, dimension = case.x.shape
    loss = invariance_lambda * ((case.x - case.columns) ** 2).mean()
    for tower in (case.x, case.columns):
        centred = tower - tower.mean(0)
        for d in range(dimension):
            for e in range(dimension):
                covariance = centred[:, d] @ centred[:, e] / (count - 1)
                if d == e:
                    loss = loss + variance_mu / 2 * torch.relu(1 - torch.sqrt(covariance + eps)) / dimension
                else:
                    loss = loss + covariance_v * covariance**2 / dimension
    return loss + attached_zero(case), stack(case, [])
