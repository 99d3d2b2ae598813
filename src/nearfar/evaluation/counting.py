"""Counting the negatives that stand before a match.

The rank of a query's i-th match is i + #{negatives that are as similar or more}: no sorting of the gallery, no list of
neighbours that may turn out too short, and no luck with ties. Where similarities are known to a float32's precision
only, a negative so near to a bound that rounding could decide is not counted but named, to be looked at again.

b: queries, g: gallery items of a tile, R: bounds, one for each match of a query, rising, the rows filled up with ∞.
"""

import numpy as np
import torch
from torch import Tensor

COMPARE_UP_TO = 32  # bounds; with more of them, sorting the scores is faster than a comparison with each
DOUBTS_UP_TO = 1 / 128  # of a tile's scores; with more of them, it is faster to compute them all again
COLUMN = 2**32 - 1


def tally(scores: Tensor, low: Tensor, high: Tensor, memory: Tensor) -> tuple[Tensor, Tensor] | None:
    """How many scores (b, g) surely reach each bound, and which ones may.

    Args:
        low, high: (b, R), rising along the rows: from `high` on a score surely reaches the bound, below `low` surely
            not.
        memory: as many numbers as there are scores, to be overwritten: fresh memory for each tile costs more time than
            the counting.

    Returns the counts (b, R) of `scores >= high`, and the doubts (n, 3): row, column, bound. None if these are many.
    """
    return _compare(scores, low, high, memory) if low.shape[1] <= COMPARE_UP_TO else _sort(scores, low, high)


def _compare(scores: Tensor, low: Tensor, high: Tensor, memory: Tensor) -> tuple[Tensor, Tensor] | None:
    counts = torch.zeros(low.shape, dtype=torch.int64, device=low.device)
    doubts, allowed = [], int(scores.numel() * DOUBTS_UP_TO)
    top = scores.amax(1)
    rows = torch.arange(len(scores), device=scores.device)
    low, high = low.t().contiguous(), high.t().contiguous()  # comparisons are fast with what is contiguous
    buffer = _shaped(memory, scores)
    # Bounds rise, so fewer and fewer rows have a score that reaches them; with good embeddings soon none.
    for j, reached in enumerate((top >= low).sum(1).tolist()):
        if reached == 0:
            break
        if reached <= len(rows) // 2:
            kept = (top >= low[j]).nonzero().flatten()
            scores, top, low, high, rows = scores[kept], top[kept], low[:, kept], high[:, kept], rows[kept]
            buffer = _shaped(memory, scores)
        sure = _count(scores, high[j], buffer)
        counts[rows, j] = sure
        open_rows = (_count(scores, low[j], buffer) - sure).nonzero().flatten()
        if len(open_rows):
            near = scores[open_rows]
            row, column = ((near >= low[j, open_rows, None]) & (near < high[j, open_rows, None])).nonzero().unbind(1)
            doubts.append(torch.stack([rows[open_rows[row]], column, torch.full_like(row, j)], 1))
            allowed -= len(row)
            if allowed < 0:
                return None
    return counts, torch.cat(doubts) if doubts else rows.new_empty(0, 3)


def _sort(scores: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor] | None:
    # Sorted whole numbers, each a score and its column.
    width = scores.shape[1]
    keys = _key(scores.contiguous()).bitwise_or_(torch.arange(width, device=scores.device))
    keys = _sorted(keys)
    low, high = _key(low), _key(high)
    counts = width - torch.searchsorted(keys, low)
    # Of the scores that reach `low`, the least come first. Those below `high` are doubts.
    row, bound = (counts > 0).nonzero().unbind(1)
    at = width - counts[row, bound]
    doubts, allowed = [], int(scores.numel() * DOUBTS_UP_TO)
    while len(row):
        key = keys[row, at]
        doubtful = (key < high[row, bound]).nonzero().flatten()
        row, bound, at = row[doubtful], bound[doubtful], at[doubtful] + 1
        doubts.append(torch.stack([row, key[doubtful] & COLUMN, bound], 1))
        counts[row, bound] -= 1
        allowed -= len(row)
        if allowed < 0:
            return None
        inside = (at < width).nonzero().flatten()
        row, bound, at = row[inside], bound[inside], at[inside]
    return counts, torch.cat(doubts) if doubts else counts.new_empty(0, 3)


def _key(scores: Tensor) -> Tensor:
    """Whole numbers that are ordered as float32 scores are, and leave 32 bits free."""
    bits = scores.view(torch.int32)
    return torch.bitwise_xor(bits, (bits >> 31) & 0x7FFFFFFF).to(torch.int64).bitwise_left_shift_(32)


def _sorted(rows: Tensor) -> Tensor:
    """Each row, rising. On the CPU by numpy, which is ten times as fast as torch."""
    return torch.from_numpy(np.sort(rows.numpy(), axis=1)) if rows.device.type == "cpu" else rows.sort(1).values


def count_at_least(scores: Tensor, bounds: Tensor) -> Tensor:
    """`(scores[:, None, :] >= bounds[:, :, None]).sum(2)`: (b, g) and (b, R) to (b, R), without the memory."""
    if bounds.shape[1] <= COMPARE_UP_TO:
        buffer = torch.empty_like(scores)
        counts = [_count(scores, bounds[:, j], buffer) for j in range(bounds.shape[1])]
        return torch.stack(counts, 1) if counts else torch.zeros_like(bounds, dtype=torch.int64)
    return scores.shape[1] - torch.searchsorted(_sorted(scores.contiguous()), bounds.contiguous())


def _shaped(memory: Tensor, scores: Tensor) -> Tensor:
    """Of the shape and the strides of the scores, which may be the transpose of a tile."""
    part = memory[: scores.numel()]
    return part.view(scores.shape) if scores.is_contiguous() else part.view(scores.shape[::-1]).t()


def _count(scores: Tensor, bound: Tensor, buffer: Tensor) -> Tensor:
    # Into floats: comparisons into booleans are several times slower. Whole numbers up to 2^24 add up exactly.
    wide = scores.shape[1] > 2**24
    return torch.ge(scores, bound[:, None], out=buffer).sum(1, dtype=torch.float64 if wide else None).to(torch.int64)
