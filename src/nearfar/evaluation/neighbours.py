"""Who is whose neighbour within one set, in bounded memory: lists of the nearest, never an (N, N) matrix."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SIMILARITIES_AT_A_TIME = 2**25  # 128 MB
NUMBERS_AT_A_TIME = 2**20  # gathered by pair_products: few enough to stay in the cache


@dataclass(frozen=True)
class Neighbours:
    """Of every row of a set of N: `indices` (N, k) of the nearest rows, itself first, then by falling similarity, the
    lower index first where similarities are equal; `farthest` (N,) is the lowest similarity in its row.
    """

    indices: npt.NDArray[np.int64]
    farthest: npt.NDArray[np.float32]


def products(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """left @ right.T, of float32. On the CPU by numpy, whose library of matrix products is the faster one there on the
    machines this was measured on.
    """
    if left.device.type == "cpu":
        store = None if out is None else out.numpy()
        return torch.from_numpy(np.matmul(left.numpy(), right.numpy().T, out=store))
    return torch.mm(left, right.t(), out=out)


def pair_products(x: Tensor, left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """x[left[i]] · x[right[i]] for every i."""
    result = np.empty(len(left), dtype=np.float32)
    step = max(1, NUMBERS_AT_A_TIME // x.shape[1])
    for start in range(0, len(left), step):
        part = slice(start, start + step)
        if x.device.type == "cpu":
            np.einsum("id,id->i", x.numpy()[left[part]], x.numpy()[right[part]], out=result[part])
        else:
            a, b = (torch.from_numpy(index[part]).to(x.device) for index in (left, right))
            result[part] = (x[a] * x[b]).sum(1).cpu().numpy()
    return result


def neighbours(x: Tensor, k: int, progress: Callable[[int], None] = lambda rows: None) -> Neighbours:
    """The k nearest rows (itself included) of every row of x (N, D), by inner product; all rows if there are fewer.

    Similarities are symmetric: each strip of rows is compared only with itself and what follows, and is searched along
    its rows and along its columns. `progress` is told how many products have been settled since the last time: N² in
    all.
    """
    n = len(x)
    k = min(k, n)
    best = torch.empty(n, 0, device=x.device)  # of the rows from `start` on: the nearest among the rows before
    indices = torch.empty(n, 0, dtype=torch.int64, device=x.device)
    lowest = torch.full((n,), torch.inf, device=x.device)
    result = Neighbours(np.empty((n, k), dtype=np.int64), np.empty(n, dtype=np.float32))
    step = max(1, min(n, SIMILARITIES_AT_A_TIME // n))
    store = torch.empty(step * n, device=x.device)
    for start in range(0, n, step):
        stop = min(n, start + step)
        height, width = stop - start, n - start
        strip = products(x[start:stop], x[start:], store[: height * width].view(height, width))
        lowest = torch.minimum(lowest, strip.amin(0))
        result.farthest[start:stop] = torch.minimum(lowest[:height], strip.amin(1)).cpu().numpy()
        strip.diagonal().fill_(torch.inf)  # first in its own list, whatever has the same vector
        merged = _merge(best[:height], indices[:height], strip, start, k)
        result.indices[start:stop] = merged[1].cpu().numpy()
        below = strip[:, height:].t().contiguous()
        best, indices = _merge(best[height:], indices[height:], below, start, k)
        lowest = lowest[height:]
        progress(height * (2 * width - height))
    return result


def _merge(best: Tensor, indices: Tensor, rows: Tensor, first: int, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest of those known and of the columns of `rows`, which are numbered from `first` on.

    The known ones have lower numbers, so that a stable sort keeps the order of equal similarities right.
    """
    columns = nearest(rows, k)
    best, indices = torch.cat([best, rows.gather(1, columns)], 1), torch.cat([indices, columns + first], 1)
    order = best.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return best.gather(1, order), indices.gather(1, order)


def nearest(rows: Tensor, k: int) -> Tensor:
    """The columns of the k largest of each row, in falling order, the lower column first where values are equal.

    `torch.topk` leaves the order of equal values open, and which of them it takes.
    """
    if k >= rows.shape[1]:
        return rows.sort(dim=1, descending=True, stable=True).indices
    values, columns = rows.topk(k + 1, dim=1)
    split = values[:, k - 1] == values[:, k]
    columns, by_column = columns[:, :k].sort(dim=1)
    by_value = values.gather(1, by_column).sort(dim=1, descending=True, stable=True).indices
    columns = columns.gather(1, by_value)
    for row in split.nonzero().flatten().tolist():  # equal values on both sides of the cut
        columns[row] = rows[row].sort(descending=True, stable=True).indices[:k]
    return columns
