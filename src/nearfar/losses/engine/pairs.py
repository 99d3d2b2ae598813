"""Which pairs are positive, negative or ignored, one tile at a time.

Positives are few, so a tile lists them in a table: `columns[r, k]` is the tile column of the k-th positive of row r,
and `vacant[r, k]` says whether that slot is empty. The terms of a tile are computed as if all pairs were negative;
`hide` then repairs those that are not. There are two sources of pairs: class ids (`ClassPairs`), and boolean matrices,
given or made tile by tile from multi-hot labels (`MaskPairs`).

No tile's shape depends on values on the device, so nothing in the engine's loop waits for it.

Shapes: N rows, M columns; b rows and t columns of a tile; K slots of a row in its table.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from nearfar.losses.distributed.sharing import Spread


class Pairs(ABC):
    """All pairs, tile by tile, in the engine's order of rows and columns.

    Attributes:
        rows, columns: N and M.
        positives, negatives: (N,) how many a row has, on all ranks that share its columns.
        row_order, column_order: the engine's row i is the caller's row row_order[i]; None: the same order.
        towers: where the second tower begins, if rows are compared only across two towers of one set.
        spread: how rows or columns are distributed over ranks; None: this process has all.
    """

    rows: int
    columns: int
    positives: Tensor
    negatives: Tensor
    row_order: Tensor | None = None
    column_order: Tensor | None = None
    towers: int | None = None
    spread: "Spread | None" = None

    @functools.cached_property
    def complete(self) -> bool:
        """Whether every row has positives and negatives, and there is a row: then nothing need be left out."""
        return self.rows > 0 and int(torch.minimum(self.positives, self.negatives).min()) > 0

    @abstractmethod
    def tile(self, rows: slice, columns: slice) -> "TilePairs | None":
        """The pairs of a tile; None where all are negative."""

    @abstractmethod
    def masks(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The positive and the negative pairs of whole rows, as boolean (b, M)."""

    @abstractmethod
    def of_rows(self, index: Tensor) -> "Pairs":
        """The negatives of the rows listed (n,), in ascending order and perhaps repeatedly; the columns stay."""


@dataclass
class TilePairs(ABC):
    """The pairs of one tile."""

    columns: Tensor  # (b, K) tile columns
    vacant: Tensor  # (b, K) whether the slot is empty

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory that they take."""

    @abstractmethod
    def hide(self, v: Tensor, value: float, *, keep_positives: bool = False) -> Tensor:
        """Set `v` (b, t) to `value`, in place, wherever the pair is not negative; with `keep_positives`, only where
        it is ignored.
        """


@dataclass
class _ListedTile(TilePairs):
    """By class: the slots list columns of the row's class, and the empty ones repeat the last of these."""

    itself: Tensor | None  # (b, K) whether the column is the row's own sample; None: no column is
    present: Tensor  # (b, 1) whether the row's class has any columns in the tile

    @property
    def nbytes(self) -> int:
        return self.columns.nbytes + self.vacant.nbytes + (0 if self.itself is None else self.itself.nbytes)

    def hide(self, v: Tensor, value: float, *, keep_positives: bool = False) -> Tensor:
        hidden = self.itself if keep_positives else self.present
        if hidden is None:
            return v
        return v.scatter_(1, self.columns, torch.where(hidden, value, v.gather(1, self.columns)))


class ClassPairs(Pairs):
    """Pairs by class: row r is positive with the sorted columns start[r] .. stop[r]-1, except with itself.

    Args:
        start, stop: (N,) the interval of every row among the sorted columns.
        columns: M.
        column_order: what sorts the columns, if they do not come sorted.
        own: (N,) if the rows are samples of the columns: row r is column own[r].
        row_order: what sorts the rows.
    """

    def __init__(
        self,
        start: Tensor,
        stop: Tensor,
        columns: int,
        column_order: Tensor | None = None,
        own: Tensor | None = None,
        row_order: Tensor | None = None,
    ):
        self.start, self.stop, self.own = start, stop, own
        self.rows, self.columns = start.shape[0], columns
        self.row_order, self.column_order = row_order, column_order
        size = stop - start
        self.positives, self.negatives = size - int(own is not None), columns - size

    @functools.cached_property
    def widest(self) -> int:
        """The largest number of columns that a row lists; waited for once."""
        return int((self.stop - self.start).max()) if self.rows else 0

    @property
    def same(self) -> bool:
        """Whether rows and columns are the same samples, sorted alike."""
        return self.own is not None and self.rows == self.columns

    @classmethod
    def among_samples(cls, ids: Tensor) -> "ClassPairs":
        """Samples × the same samples."""
        sorted_ids, order = torch.sort(ids, stable=True)
        own = torch.arange(len(ids), device=ids.device)
        return cls(*_interval(sorted_ids, sorted_ids), len(ids), order, own, order)

    @classmethod
    def of_part(cls, ids: Tensor, part: slice) -> "ClassPairs":
        """Some of the samples × all of them."""
        sorted_ids, order = torch.sort(ids, stable=True)
        own = ((order >= part.start) & (order < part.stop)).nonzero()[:, 0]
        start, stop = _interval(sorted_ids, sorted_ids[own])
        return cls(start, stop, len(ids), order, own, order[own] - part.start)

    @classmethod
    def to_references(cls, ids: Tensor, reference_ids: Tensor) -> "ClassPairs":
        """Samples × another set of samples."""
        sorted_ids, order = torch.sort(reference_ids, stable=True)
        start, stop = _interval(sorted_ids, ids)
        return cls(start, stop, len(reference_ids), order)

    @classmethod
    def to_classes(cls, ids: Tensor, classes: int) -> "ClassPairs":
        """Samples × classes: one positive column each."""
        return cls(ids, ids + 1, classes)

    @classmethod
    def of_classes(cls, ids: Tensor, classes: int) -> "ClassPairs":
        """Classes × samples (Proxy-Anchor)."""
        return cls.to_references(torch.arange(classes, device=ids.device), ids)

    @functools.cached_property
    def _bounds(self) -> tuple[list[int], list[int]]:
        """The intervals on the host, waited for once."""
        return self.start.tolist(), self.stop.tolist()

    def tile(self, rows: slice, columns: slice) -> TilePairs | None:
        width = columns.stop - columns.start
        if self.own is not None and width < self.columns and rows.start < rows.stop:
            # Sorted rows reach a contiguous range of columns, so whole tiles are known to have no positive.
            starts, stops = self._bounds
            if starts[rows.start] >= columns.stop or stops[rows.stop - 1] <= columns.start:
                return None
        slots = min(self.widest, width)
        if slots == 0:
            return None
        first, stop = self.start[rows, None], self.stop[rows, None]
        if width < self.columns:
            first, stop = ((bound - columns.start).clamp_(0, width) for bound in (first, stop))
        column = first + torch.arange(slots, device=first.device)
        vacant, column = column >= stop, torch.minimum(column, stop - 1).clamp_min_(0)
        itself = None if self.own is None else column == self.own[rows, None] - columns.start
        return _ListedTile(column, vacant if itself is None else vacant | itself, itself, first < stop)

    def masks(self, rows: slice) -> tuple[Tensor, Tensor]:
        column = torch.arange(self.columns, device=self.start.device)
        listed = (column >= self.start[rows, None]) & (column < self.stop[rows, None])
        positive = listed if self.own is None else listed & (column != self.own[rows, None])
        return positive, ~listed

    def of_rows(self, index: Tensor) -> "ClassPairs":
        return ClassPairs(self.start[index], self.stop[index], self.columns)


class TowerPairs(ClassPairs):
    """Two towers of n samples each as one set of 2n rows: i and n + i belong together, and rows are compared only with
    those of the other tower.
    """

    def __init__(self, n: int, device: torch.device):
        partner = torch.arange(2 * n, device=device).roll(n)
        super().__init__(partner, partner + 1, 2 * n)
        self.towers = n
        self.negatives = self.negatives - n

    def masks(self, rows: slice) -> tuple[Tensor, Tensor]:
        assert self.towers is not None
        positive, negative = super().masks(rows)
        second = torch.arange(self.columns, device=self.start.device) >= self.towers
        return positive, negative & (second[rows, None] != second)


def _interval(sorted_ids: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return torch.searchsorted(sorted_ids, ids), torch.searchsorted(sorted_ids, ids, right=True)


@dataclass
class _MaskedTile(TilePairs):
    """By boolean matrices."""

    negative: Tensor  # (b, t)
    others: Tensor  # (b, t): negative or positive

    @property
    def nbytes(self) -> int:
        return self.columns.nbytes + 3 * self.negative.nbytes

    def hide(self, v: Tensor, value: float, *, keep_positives: bool = False) -> Tensor:
        return v.masked_fill_(~(self.others if keep_positives else self.negative), value)


MaskFunction = Callable[[slice, slice], tuple[Tensor, Tensor]]


class MaskPairs(Pairs):
    """Pairs by boolean masks: `mask(rows, columns)` gives the (positive, negative) pairs of a tile."""

    def __init__(self, mask: MaskFunction, rows: int, columns: int, block: int):
        self.mask, self.rows, self.columns = mask, rows, columns
        counts = [
            torch.stack([side.sum(1) for side in mask(slice(i, min(i + block, rows)), slice(0, columns))])
            for i in range(0, rows, block)
        ]
        self.positives, self.negatives = torch.cat(counts, 1) if counts else torch.zeros(2, 0, dtype=torch.long)

    @functools.cached_property
    def widest(self) -> int:
        """The largest number of positives of a row; waited for once."""
        return int(self.positives.max()) if self.rows else 0

    def tile(self, rows: slice, columns: slice) -> TilePairs | None:
        positive, negative = self.mask(rows, columns)
        slots = max(1, min(self.widest, columns.stop - columns.start))
        table, filled = table_of(positive, slots)
        return _MaskedTile(table, ~filled, negative, positive | negative)

    def masks(self, rows: slice) -> tuple[Tensor, Tensor]:
        return self.mask(rows, slice(0, self.columns))

    def of_rows(self, index: Tensor) -> "MaskPairs":
        def listed(rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
            at = index[rows]
            first, last = int(at[0]), int(at[-1])
            positive, negative = self.mask(slice(first, last + 1), columns)
            return positive[at - first], negative[at - first]

        return MaskPairs(listed, len(index), self.columns, block=max(1, len(index)))


def table_of(mask: Tensor, slots: int | None = None) -> tuple[Tensor, Tensor]:
    """The columns where each row of `mask` (b, t) is true, ascending, as a table (b, slots), and which of its slots are
    filled; the others hold some column. By default there are as many slots as the fullest row needs.
    """
    b, t = mask.shape
    if slots is None and torch.compiler.is_compiling():  # where the fullest row is not known
        slots = t
    if slots is None:
        slots = max(1, int(mask.sum(1).max())) if b else 1
    # Of numbers that fall from column to column the largest come first.
    number, column = (mask * torch.arange(t, 0, -1, dtype=torch.int32, device=mask.device)).topk(slots, 1)
    return column, number > 0


def over_all_rows(pairs: Pairs, part: Tensor) -> Tensor:
    """A sum over this process's rows, added up over the rows of all ranks."""
    spread = pairs.spread
    return part if spread is None or spread.over == "columns" else spread.ranks.sum(part)
