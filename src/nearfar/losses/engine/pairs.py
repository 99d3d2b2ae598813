"""Which pairs are positive, negative or ignored, one tile at a time.

Positives are few, so a tile lists them in a table: `columns[r, k]` is the tile column of the k-th positive of row r,
and `vacant[r, k]` says whether that slot is empty. The terms of a tile are computed as if all pairs were negative;
`hide` then repairs those that are not.

There are two sources of pairs:
- `ClassPairs`: class ids. With the columns sorted by id, the columns of a row's class are one interval.
- `MaskPairs`: boolean matrices, given or made tile by tile from multi-hot labels.

No tile's shape depends on values on the device, so nothing in the engine's loop waits for it.

Shapes: N rows, M columns; b rows and t columns of a tile; K slots of a row in its table.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from nearfar.losses.engine.vectors import cut

if TYPE_CHECKING:
    from nearfar.losses.distributed.sharing import Spread


class TilePairs(Protocol):
    """The pairs of one tile."""

    columns: Tensor  # (b, K) tile columns
    vacant: Tensor | None  # (b, K) whether the slot is empty; None: no slot is

    @property
    def nbytes(self) -> int: ...

    def hide(self, v: Tensor, value: float, *, keep_positives: bool = False) -> Tensor:
        """Set `v` (b, t) to `value`, in place, wherever the pair is not negative; with `keep_positives`, only where
        it is ignored.
        """
        ...


class Pairs(Protocol):
    """All pairs, tile by tile, in the engine's order of rows and columns."""

    row_order: Tensor | None  # the engine's row i is the caller's row row_order[i]; None: the same order
    column_order: Tensor | None
    rows: int  # N
    columns: int  # M
    towers: int | None  # where the second tower begins, if rows are compared only across two towers of one set
    complete: bool  # every row has both kinds, and there is a row
    spread: "Spread | None"  # how rows or columns are shared out among ranks; None: this process has all

    @property
    def positives(self) -> Tensor:
        """(N,) how many positives a row has, on all ranks that share its columns."""
        ...

    @property
    def negatives(self) -> Tensor:
        """(N,) how many negatives a row has, on the same ranks."""
        ...

    def tile(self, rows: slice, columns: slice) -> TilePairs | None:
        """The pairs of a tile; None where all are negative."""
        ...

    def masks(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The positive and the negative pairs of whole rows, as boolean (b, M)."""
        ...

    def of_rows(self, index: Tensor) -> "Pairs":
        """The negatives of the rows listed (n,), in ascending order and perhaps repeatedly; the columns stay."""
        ...


@dataclass
class _ListedTile:
    """The pairs of a tile, by class. A slot lists a column of the row's class: a positive, or the row's own sample."""

    columns: Tensor
    vacant: Tensor | None
    own: Tensor | None  # (b, K) whether the slot's column is the row's own sample; None: no slot's is
    lists: Tensor | None  # (b, 1) whether the row lists any column; None: every row does

    @property
    def nbytes(self) -> int:
        return self.columns.nbytes + sum(t.nbytes for t in (self.vacant, self.own) if t is not None)

    def hide(self, v: Tensor, value: float, *, keep_positives: bool = False) -> Tensor:
        hidden = self.own if keep_positives else self.lists
        if hidden is not None:
            return v.scatter_(1, self.columns, torch.where(hidden, value, v.gather(1, self.columns)))
        return v if keep_positives else v.scatter_(1, self.columns, value)


class ClassPairs:
    """Pairs by class: row r is positive with the sorted columns start[r] .. stop[r]-1, except with itself.

    Args:
        start, stop: (N,) the interval of every row among the sorted columns.
        columns: M.
        column_order: what sorts the columns, if they do not come sorted.
        own: (N,) if the rows are samples of the columns: row r is column own[r].
        row_order: what sorts the rows.
    """

    towers: int | None = None
    spread: "Spread | None" = None

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
        fewest, self.widest = 0, columns  # what is known of a graph that is compiled
        if not torch.compiler.is_compiling():
            fewest, self.widest = (int(n) for n in torch.aminmax(stop - start)) if self.rows else (0, 0)
        self.complete = int(own is not None) < fewest and self.widest < columns
        self.even = fewest == self.widest  # every row lists as many columns

    @property
    def same(self) -> bool:
        """Whether rows and columns are the same samples, sorted alike."""
        return self.own is not None and self.rows == self.columns

    @functools.cached_property
    def positives(self) -> Tensor:
        return self.stop - self.start - int(self.own is not None)

    @functools.cached_property
    def negatives(self) -> Tensor:
        return self.start - self.stop + self.columns

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
        sorted_ids, order = torch.sort(ids, stable=True)
        return cls(*_interval(sorted_ids, torch.arange(classes, device=ids.device)), len(ids), order)

    @functools.cached_property
    def _bounds(self) -> tuple[list[int], list[int]]:
        """The intervals on the host, waited for once."""
        return self.start.tolist(), self.stop.tolist()

    def tile(self, rows: slice, columns: slice) -> TilePairs | None:
        whole = columns == slice(0, self.columns)
        if self.own is not None and not whole and rows.start < rows.stop:
            # Sorted rows reach a contiguous range of columns, so whole tiles are known to have no positive.
            starts, stops = self._bounds
            if starts[rows.start] >= columns.stop or stops[rows.stop - 1] <= columns.start:
                return None
        slots = min(self.widest, columns.stop - columns.start)
        if slots == 0:
            return None
        first = cut(self.start, rows).unsqueeze(1)
        if not whole:
            first = first.clamp(columns.start, columns.stop) - columns.start
        column = first + torch.arange(slots, device=first.device) if slots > 1 else first
        vacant = lists = own = None
        if not (whole and self.even):  # some slots are empty: they repeat the last listed column
            last = self.stop[rows, None].clamp(columns.start, columns.stop) - columns.start
            vacant, lists = column >= last, first < last
            column = torch.minimum(column, last - 1).clamp_min_(0)
        if self.own is not None:
            own = column == self.own[rows, None] - columns.start
            vacant = own if vacant is None else vacant | own
        return _ListedTile(column, vacant, own, lists)

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
        self.complete = n > 1

    @functools.cached_property
    def negatives(self) -> Tensor:
        return super().negatives - self.rows // 2

    def masks(self, rows: slice) -> tuple[Tensor, Tensor]:
        assert self.towers is not None
        positive, negative = super().masks(rows)
        second = torch.arange(self.columns, device=self.start.device) >= self.towers
        return positive, negative & (second[rows, None] != second)


def _interval(sorted_ids: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return torch.searchsorted(sorted_ids, ids), torch.searchsorted(sorted_ids, ids, right=True)


@dataclass
class _MaskedTile:
    """The pairs of a tile, by boolean matrices."""

    columns: Tensor
    vacant: Tensor | None
    negative: Tensor  # (b, t)
    others: Tensor  # (b, t): negative or positive

    @property
    def nbytes(self) -> int:
        return self.columns.nbytes + 3 * self.negative.nbytes

    def hide(self, v: Tensor, value: float, *, keep_positives: bool = False) -> Tensor:
        return v.masked_fill_(~(self.others if keep_positives else self.negative), value)


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


MaskFunction = Callable[[slice, slice], tuple[Tensor, Tensor]]


class MaskPairs:
    """Pairs by boolean masks: `mask(rows, columns)` gives the (positive, negative) pairs of a tile."""

    row_order: Tensor | None = None
    column_order: Tensor | None = None
    towers: int | None = None
    spread: "Spread | None" = None

    def __init__(self, mask: MaskFunction, rows: int, columns: int, block: int):
        self.mask, self.rows, self.columns = mask, rows, columns
        counts = [
            torch.stack([side.sum(1) for side in mask(slice(i, min(i + block, rows)), slice(0, columns))])
            for i in range(0, rows, block)
        ]
        self.positives, self.negatives = torch.cat(counts, 1) if counts else torch.zeros(2, 0, dtype=torch.long)
        self.widest, self.complete = columns, False  # what is known of a graph that is compiled
        if torch.compiler.is_compiling():
            return
        self.widest = int(self.positives.max()) if rows else 0
        self.complete = rows > 0 and bool((self.positives > 0).all()) and bool((self.negatives > 0).all())

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
