"""Lists of nearest neighbours within a set, in bounded memory, without an (N, N) matrix."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SIMILARITIES_AT_A_TIME = 2**25  # 128 MB
NUMBERS_AT_A_TIME = 2**20  # gathered by pair_products, small enough for the CPU's cache


@dataclass(frozen=True)
class Neighbours:
    """The nearest rows of every row of a set of N: `indices` (N, k) starts with the row itself and then descends in
    similarity, with the lower index first among equals; `farthest` (N,) is the lowest similarity to any row.
    """

    indices: npt.NDArray[np.int64]
    farthest: npt.NDArray[np.float32]


def products(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """`left @ right.T` for float32. On the CPU numpy computes it, which was faster than torch where it was measured."""
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

    Similarities are symmetric, so each strip of rows is compared only with itself and later rows, and searched along
    rows and columns. `progress` is called with the number of products of each strip, N² in total.
    """
    n = len(x)
    k = min(k, n)
    best = torch.empty(n, 0, device=x.device)  # nearest earlier rows of the rows from `start` on
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
        strip.diagonal().fill_(torch.inf)  # a row comes before its duplicates
        merged = _merge(best[:height], indices[:height], strip, start, k)
        result.indices[start:stop] = merged[1].cpu().numpy()
        below = strip[:, height:].t().contiguous()
        best, indices = _merge(best[height:], indices[height:], below, start, k)
        lowest = lowest[height:]
        progress(height * (2 * width - height))
    return result


def _merge(best: Tensor, indices: Tensor, rows: Tensor, first: int, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest of the known ones and the columns of `rows`, which are numbered from `first` on.

    The known ones have lower numbers, so a stable sort orders equal similarities by number.
    """
    columns = nearest(rows, k)
    best, indices = torch.cat([best, rows.gather(1, columns)], 1), torch.cat([indices, columns + first], 1)
    order = best.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return best.gather(1, order), indices.gather(1, order)


def nearest(rows: Tensor, k: int) -> Tensor:
    """The columns of the k largest values of each row, descending, with the lower column first among equals.

    `torch.topk` does not define which of several equal values it returns, nor their order.
    """
    if k >= rows.shape[1]:
        return rows.sort(dim=1, descending=True, stable=True).indices
    values, columns = rows.topk(k + 1, dim=1)
    split = values[:, k - 1] == values[:, k]
    columns, by_column = columns[:, :k].sort(dim=1)
    by_value = values.gather(1, by_column).sort(dim=1, descending=True, stable=True).indices
    columns = columns.gather(1, by_value)
    for row in split.nonzero().flatten().tolist():  # equal values on both sides of position k
        columns[row] = rows[row].sort(descending=True, stable=True).indices[:k]
    return columns
