"""Counts the negatives that are ranked before a match.

The rank of a query's i-th match is i + #{negatives that are at least as similar}. This needs no sorting of the gallery
and no list of neighbours, and treats ties exactly. Similarities have only the precision of float32. A negative so near
to a bound that rounding could decide is not counted but reported as doubtful, to be compared again in float64.

b: queries, g: gallery items of a tile, R: bounds of a query, one for each match, ascending and padded with ∞.
"""

import torch
from torch import Tensor

COMPARE_UP_TO = 16  # bounds; with more, sorting the scores is faster than comparing them with each bound
DOUBTS_UP_TO = 1 / 256  # of a tile's scores; with more, it is faster to compute the whole tile again
DOUBTFUL_AT_A_TIME = 256  # rows searched for doubtful scores at a time


class _Doubts:
    """The scores between `low` and `high` of a bound, at most `allowed`."""

    def __init__(self, allowed: int):
        self._allowed = allowed
        self._entries: list[Tensor] = []

    @property
    def too_many(self) -> bool:
        return self._allowed < 0

    def collect(self, scores: Tensor, low: Tensor, high: Tensor, row: Tensor, bound: Tensor, names: Tensor) -> None:
        """Collect the doubtful scores of some rows (n,), which have at least one each.

        Args:
            scores: (b, g).
            low, high: (n,) the ends of the bound of each row.
            row, bound: (n,) the rows of the scores and the numbers of their bounds.
            names: (b,) the numbers by which the rows are reported.
        """
        if len(row) > self._allowed:
            self._allowed = -1
            return
        for start in range(0, len(row), DOUBTFUL_AT_A_TIME):
            part = slice(start, start + DOUBTFUL_AT_A_TIME)
            near = scores[row[part]]
            index, column = ((near >= low[part, None]) & (near < high[part, None])).nonzero().unbind(1)
            self._entries.append(torch.stack([names[row[part][index]], column, bound[part][index]], 1))
            self._allowed -= len(index)
            if self.too_many:
                return

    def entries(self, device: torch.device) -> Tensor:
        """(n, 3): row, column, bound."""
        return torch.cat([torch.empty(0, 3, dtype=torch.int64, device=device), *self._entries])


def tally(scores: Tensor, low: Tensor, high: Tensor, memory: Tensor) -> tuple[Tensor, Tensor] | None:
    """Count the scores (b, g) that certainly reach each bound, and list the doubtful ones.

    Args:
        low, high: (b, R), ascending along the rows. A score certainly reaches the bound from `high` on, and certainly
            does not below `low`.
        memory: a buffer of the size of the scores, which is overwritten. Allocating one for each tile would take longer
            than the counting.

    Returns the counts (b, R) of `scores >= high` and the doubtful scores (n, 3): row, column, bound. None if there are
    too many of these.
    """
    counts = torch.zeros(low.shape, dtype=torch.int64, device=low.device)
    doubts = _Doubts(int(scores.numel() * DOUBTS_UP_TO))
    top = scores.amax(1)
    # Bounds are ascending, so fewer and fewer rows have a score that reaches them.
    reaching = [rows for rows in (top[:, None] >= low).sum(0).tolist() if rows]
    if len(reaching) <= COMPARE_UP_TO:
        _compare(scores, top, reaching, low, high, memory, counts, doubts)
    else:
        _sort(scores, top, low[:, : len(reaching)], high[:, : len(reaching)], memory, counts, doubts)
    return None if doubts.too_many else (counts, doubts.entries(low.device))


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
    """Compare the scores with one bound after the other; `reaching` has the number of rows that reach each."""
    rows = torch.arange(len(scores), device=scores.device)
    low, high = low.t().contiguous(), high.t().contiguous()  # for fast comparisons
    buffer = _shaped(memory, scores)
    for j, reached in enumerate(reaching):
        if reached <= len(rows) // 2:
            kept = (top >= low[j]).nonzero().flatten()
            scores, top, low, high, rows = scores[kept], top[kept], low[:, kept], high[:, kept], rows[kept]
            buffer = _shaped(memory, scores)
        sure = _count(scores, high[j], buffer)
        counts[rows, j] = sure
        row = (_count(scores, low[j], buffer) - sure).nonzero().flatten()
        doubts.collect(scores, low[j, row], high[j, row], row, torch.full_like(row, j), rows)
        if doubts.too_many:
            return


def _sort(
    scores: Tensor, top: Tensor, low: Tensor, high: Tensor, memory: Tensor, counts: Tensor, doubts: _Doubts
) -> None:
    """Sort the scores of each row and search its bounds among them."""
    rows = (top >= low[:, 0]).nonzero().flatten()
    if len(rows) < len(scores):
        scores, low, high = scores[rows], low[rows], high[rows]
    low, width = low.contiguous(), scores.shape[1]
    ordered = _sort_rows(memory[: scores.numel()].view(scores.shape).copy_(scores))
    first = torch.searchsorted(ordered, low)
    # A bound has doubtful scores if the least score that reaches `low` is below `high`.
    row, bound = ((ordered.gather(1, first.clamp_max(width - 1)) < high) & (first < width)).nonzero().unbind(1)
    doubts.collect(scores, low[row, bound], high[row, bound], row, bound, rows)
    if not doubts.too_many:
        counts[rows, : low.shape[1]] = width - first
        row, _, bound = doubts.entries(rows.device).unbind(1)
        counts.index_put_((row, bound), torch.full_like(row, -1), accumulate=True)


def count_at_least(scores: Tensor, bounds: Tensor) -> Tensor:
    """`(scores[:, None, :] >= bounds[:, :, None]).sum(2)`, (b, g) and (b, R) to (b, R), with less memory."""
    if bounds.shape[1] <= COMPARE_UP_TO:
        buffer = torch.empty_like(scores)
        counts = [_count(scores, bounds[:, j], buffer) for j in range(bounds.shape[1])]
        return torch.stack(counts, 1) if counts else torch.zeros_like(bounds, dtype=torch.int64)
    ordered = _sort_rows(scores.clone(memory_format=torch.contiguous_format))
    return scores.shape[1] - torch.searchsorted(ordered, bounds.contiguous())


def _sort_rows(rows: Tensor) -> Tensor:
    """Sort each row in place. On the CPU numpy does it, ten times as fast as torch."""
    if rows.device.type != "cpu":
        return rows.sort(1).values
    rows.numpy().sort(axis=1)
    return rows


def _shaped(memory: Tensor, scores: Tensor) -> Tensor:
    """A view of the memory with the shape and strides of the scores, which may be the transpose of a tile."""
    part = memory[: scores.numel()]
    return part.view(scores.shape) if scores.is_contiguous() else part.view(scores.shape[::-1]).t()


def _count(scores: Tensor, bound: Tensor, buffer: Tensor) -> Tensor:
    # Comparisons into floats are several times faster than into booleans. float32 sums are exact up to 2^24.
    wide = scores.shape[1] > 2**24
    return torch.ge(scores, bound[:, None], out=buffer).sum(1, dtype=torch.float64 if wide else None).to(torch.int64)
