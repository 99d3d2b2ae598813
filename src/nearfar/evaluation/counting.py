"""Counting the negatives that stand before a match.

The rank of a query's i-th match is i + #{negatives that are as similar or more}: no sorting of the gallery, no list of
neighbours that may turn out too short, and no luck with ties. Where similarities are known to a float32's precision
only, a negative so near to a bound that rounding could decide is not counted but named, to be looked at again.

b: queries, g: gallery items of a tile, R: bounds, one for each match of a query, rising, the rows filled up with ∞.
"""

import torch
from torch import Tensor

COMPARE_UP_TO = 16  # bounds; with more of them, sorting the scores is faster than a comparison with each
DOUBTS_UP_TO = 1 / 256  # of a tile's scores; with more of them, it is faster to compute them all again
DOUBTFUL_AT_A_TIME = 256  # rows that are looked through for them


class _Doubts:
    """Scores between the two ends of a bound, so many of them at the most."""

    def __init__(self, allowed: int):
        self._allowed = allowed
        self._found: list[Tensor] = []

    @property
    def too_many(self) -> bool:
        return self._allowed < 0

    def look(self, scores: Tensor, low: Tensor, high: Tensor, row: Tensor, bound: Tensor, names: Tensor) -> None:
        """In the given rows of the scores, each for its own bound between low and high (n,), which some score is in.
        `names` are what all the rows are called.
        """
        if len(row) > self._allowed:  # there is one in each at least
            self._allowed = -1
            return
        for start in range(0, len(row), DOUBTFUL_AT_A_TIME):
            part = slice(start, start + DOUBTFUL_AT_A_TIME)
            near = scores[row[part]]
            at, column = ((near >= low[part, None]) & (near < high[part, None])).nonzero().unbind(1)
            self._found.append(torch.stack([names[row[part][at]], column, bound[part][at]], 1))
            self._allowed -= len(at)
            if self.too_many:
                return

    def found(self, device: torch.device) -> Tensor:
        """(n, 3): row, column, bound."""
        return torch.cat([torch.empty(0, 3, dtype=torch.int64, device=device), *self._found])


def tally(scores: Tensor, low: Tensor, high: Tensor, memory: Tensor) -> tuple[Tensor, Tensor] | None:
    """How many scores (b, g) surely reach each bound, and which ones may.

    Args:
        low, high: (b, R), rising along the rows: from `high` on a score surely reaches the bound, below `low` surely
            not.
        memory: as many numbers as there are scores, to be overwritten: fresh memory for each tile costs more time than
            the counting.

    Returns the counts (b, R) of `scores >= high`, and the doubts (n, 3): row, column, bound. None if these are many.
    """
    counts = torch.zeros(low.shape, dtype=torch.int64, device=low.device)
    doubts = _Doubts(int(scores.numel() * DOUBTS_UP_TO))
    top = scores.amax(1)
    # Bounds rise, so fewer and fewer rows have a score that reaches them; with good embeddings soon none.
    reaching = [rows for rows in (top[:, None] >= low).sum(0).tolist() if rows]
    if len(reaching) <= COMPARE_UP_TO:
        _compare(scores, top, reaching, low, high, memory, counts, doubts)
    else:
        _sort(scores, top, low[:, : len(reaching)], high[:, : len(reaching)], memory, counts, doubts)
    return None if doubts.too_many else (counts, doubts.found(low.device))


def _compare(
    scores: Tensor,
    top: Tensor,
    reaching: list[int],
    low: Tensor,
    high: Tensor,
    memory: Tensor,
    counts: Tensor,
    doubts: _Doubts,
) -> None:
    """With one bound after the other, each of which so many rows reach."""
    rows = torch.arange(len(scores), device=scores.device)
    low, high = low.t().contiguous(), high.t().contiguous()  # comparisons are fast with what is contiguous
    buffer = _shaped(memory, scores)
    for j, reached in enumerate(reaching):
        if reached <= len(rows) // 2:
            kept = (top >= low[j]).nonzero().flatten()
            scores, top, low, high, rows = scores[kept], top[kept], low[:, kept], high[:, kept], rows[kept]
            buffer = _shaped(memory, scores)
        sure = _count(scores, high[j], buffer)
        counts[rows, j] = sure
        row = (_count(scores, low[j], buffer) - sure).nonzero().flatten()
        doubts.look(scores, low[j, row], high[j, row], row, torch.full_like(row, j), rows)
        if doubts.too_many:
            return


def _sort(
    scores: Tensor, top: Tensor, low: Tensor, high: Tensor, memory: Tensor, counts: Tensor, doubts: _Doubts
) -> None:
    """The scores of each row, and seek all of its bounds among them."""
    rows = (top >= low[:, 0]).nonzero().flatten()
    if len(rows) < len(scores):
        scores, low, high = scores[rows], low[rows], high[rows]
    low, width = low.contiguous(), scores.shape[1]
    ordered = _sort_rows(memory[: scores.numel()].view(scores.shape).copy_(scores))
    at = torch.searchsorted(ordered, low)
    # The least score that reaches `low` tells whether any are below `high`.
    row, bound = ((ordered.gather(1, at.clamp_max(width - 1)) < high) & (at < width)).nonzero().unbind(1)
    doubts.look(scores, low[row, bound], high[row, bound], row, bound, rows)
    if not doubts.too_many:
        counts[rows, : low.shape[1]] = width - at
        row, _, bound = doubts.found(rows.device).unbind(1)
        counts.index_put_((row, bound), torch.full_like(row, -1), accumulate=True)


def count_at_least(scores: Tensor, bounds: Tensor) -> Tensor:
    """`(scores[:, None, :] >= bounds[:, :, None]).sum(2)`: (b, g) and (b, R) to (b, R), without the memory."""
    if bounds.shape[1] <= COMPARE_UP_TO:
        buffer = torch.empty_like(scores)
        counts = [_count(scores, bounds[:, j], buffer) for j in range(bounds.shape[1])]
        return torch.stack(counts, 1) if counts else torch.zeros_like(bounds, dtype=torch.int64)
    ordered = _sort_rows(scores.clone(memory_format=torch.contiguous_format))
    return scores.shape[1] - torch.searchsorted(ordered, bounds.contiguous())


def _sort_rows(rows: Tensor) -> Tensor:
    """Each row, rising, in place. On the CPU by numpy, which is ten times as fast as torch."""
    if rows.device.type != "cpu":
        return rows.sort(1).values
    rows.numpy().sort(axis=1)
    return rows


def _shaped(memory: Tensor, scores: Tensor) -> Tensor:
    """Of the shape and the strides of the scores, which may be the transpose of a tile."""
    part = memory[: scores.numel()]
    return part.view(scores.shape) if scores.is_contiguous() else part.view(scores.shape[::-1]).t()


def _count(scores: Tensor, bound: Tensor, buffer: Tensor) -> Tensor:
    # Into floats: comparisons into booleans are several times slower. Whole numbers up to 2^24 add up exactly.
    wide = scores.shape[1] > 2**24
    return torch.ge(scores, bound[:, None], out=buffer).sum(1, dtype=torch.float64 if wide else None).to(torch.int64)
