"""`Spread`: how the pairs of a batch are distributed over ranks. `Distribution` makes it, the engine reads it.

Over the *rows*: every rank has all columns of its own rows, so that only sums over rows pass between ranks. Over the
*columns*: every rank has all rows and a part of their columns, and the rows' statistics are merged.

Shapes: C classes of K vectors each; D dimensions.
"""

import itertools
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from nearfar.losses.distributed.ranks import Ranks, weighed_gradient


@dataclass(frozen=True)
class Shard:
    """This rank's classes, first .. stop - 1 of all `classes`.

    Args:
        ranks: every rank has a range of consecutive classes, all of equal size but the last, which may be empty.
        classes: C.
        chosen: (k,) which of this rank's classes take part, counted from its first and ascending; None is all.
    """

    ranks: Ranks
    classes: int
    chosen: Tensor | None = None

    @property
    def largest(self) -> int:
        """The number of classes of the largest range."""
        return -(-self.classes // self.ranks.size)

    @property
    def first(self) -> int:
        return min(self.ranks.rank * self.largest, self.classes)

    @property
    def stop(self) -> int:
        return min(self.first + self.largest, self.classes)

    @property
    def ranges(self) -> list[slice]:
        """The classes of every rank."""
        cuts = [min(rank * self.largest, self.classes) for rank in range(self.ranks.size + 1)]
        return [slice(*cut) for cut in itertools.pairwise(cuts)]

    def part(self, table: Tensor, vectors_per_class: int = 1) -> Tensor:
        """This rank's part of a table by classes, whether sharded or the same on all ranks, as (k K, D) or (k,);
        differentiable.

        The gradient of a shard is complete. That of a table that all ranks have will be averaged over them, so it is
        multiplied by N.
        """
        part = local_part(table)
        if part is None:
            rows = table[self.first * vectors_per_class : self.stop * vectors_per_class]
            part = weighed_gradient(rows, self.ranks.size)
        part = part.reshape(-1, part.shape[-1]) if part.ndim > 1 else part
        if self.chosen is None:
            return part
        rows = part.reshape(-1, vectors_per_class, part.shape[1]) if vectors_per_class > 1 else part
        return rows.index_select(0, self.chosen).reshape(-1, *part.shape[1:])

    def held(self, labels: Tensor) -> Tensor:
        """Which of the classes `labels` (n,) are this rank's."""
        return (labels >= self.first) & (labels < self.stop)


def local_part(table: Tensor) -> Tensor | None:
    """This rank's part of a sharded table; None if the table is whole."""
    to_local = getattr(table, "to_local", None)  # a DTensor, which need not be imported to be recognised
    return None if to_local is None else to_local()


@dataclass(frozen=True)
class Spread:
    """
    Args:
        ranks: the processes that share the pairs.
        over: whether each has a part of the rows, or of the columns.
        shard: this rank's classes, where rows or columns are classes.
        weight: (N,) the weights of this rank's rows, where drawn classes represent others; None is 1 each.
        total: the number of rows that the drawn ones represent, on all ranks.
        counts: the number of rows of every rank, where the rows are samples.
    """

    ranks: Ranks
    over: Literal["rows", "columns"]
    shard: Shard | None = None
    weight: Tensor | None = None
    total: int | None = None
    counts: list[int] | None = None

    def weighed(
        self, anchors: str, rows: Tensor, columns: Tensor | None, numbers: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        """Rows, columns and numbers of rows, whose gradients are scaled for the average over ranks.

        The gradient of the samples is a sum over all classes, of which this rank adds its part: it gets a factor N. The
        gradient of this rank's classes is complete.
        """
        if self.shard is None:
            return rows, columns, numbers
        size = self.ranks.size
        numbers = tuple(weighed_gradient(number, size) for number in numbers)
        if anchors == "proxies":
            return rows, None if columns is None else weighed_gradient(columns, size), numbers
        return weighed_gradient(rows, size), columns, numbers
