"""Pools the queries of person re-identification by person and camera."""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.evaluation.inputs import Rows, encode

Pooling = Literal["mean", "max"]
ROWS_AT_A_TIME = 2**13


def pool_queries(
    rows: Rows, labels: NDArray[Any], cameras: NDArray[Any], how: Pooling, *, normalize: bool
) -> tuple[Tensor, NDArray[Any], NDArray[Any]]:
    """Pool queries into one for each pair of label and camera, in the order of first occurrence.

    Its vector is the coordinate-wise mean or maximum of its images' vectors. With `normalize` these are scaled to unit
    length first, so that long vectors do not dominate.

    Returns the vectors, their labels and their cameras.
    """
    (person, _), (camera, _) = encode(labels, None, "labels"), encode(cameras, None, "cameras")
    pair = person * (int(camera.max(initial=0)) + 1) + camera
    _, first, group = np.unique(pair, return_index=True, return_inverse=True)
    order = np.argsort(first)
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    into = torch.from_numpy(position[group]).to(rows.device)
    start = 0.0 if how == "mean" else -torch.inf
    pooled = torch.full((len(first), rows.dimension), start, device=rows.device)
    for begin in range(0, len(rows), ROWS_AT_A_TIME):
        part = slice(begin, min(begin + ROWS_AT_A_TIME, len(rows)))
        x = rows.normalized(part) if normalize else rows.float32(part)
        if how == "mean":
            pooled.index_add_(0, into[part], x)
        else:
            pooled.scatter_reduce_(0, into[part, None].expand_as(x), x, "amax")
    if how == "mean":
        pooled /= torch.bincount(into, minlength=len(first))[:, None]
    return pooled, labels[first[order]], cameras[first[order]]
