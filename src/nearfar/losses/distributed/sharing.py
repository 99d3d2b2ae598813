"""`Spread`: how the pairs of a batch are shared out among ranks. `nearfar.losses.distributed` makes it; the engine and
the weights of the rows read it.

Over the *rows*: every rank has all columns of its own rows, so that only sums over rows pass between ranks. Over the
*columns*: every rank has all rows and some of their columns, and the rows' statistics are merged.

Shapes: C classes of K vectors each; D dimensions.
"""

import itertools
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from nearfar.losses.distributed.ranks import Ranks, weighed_gradient


@dataclass(frozen=True)
class Shard:
    """The classes first .. stop - 1 of all `classes`, which are this rank's.

    Args:
        ranks: among which the classes are cut into consecutive ranges of equal size, the last perhaps smaller or empty.
        classes: C.
        chosen: (k,) of this rank's classes, those that take part, counted from its first and ascending; None is all.
    """

    ranks: Ranks
    classes: int
    chosen: Tensor | None = None

    @property
    def largest(self) -> int:
        """How many classes a rank has, the last ranks excepted."""
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

        Every rank has its own rows' whole gradient: that is what a shard needs. What is the same on all ranks will be
        averaged over them, and gets N times as much.
        """
        own = local_part(table)
        if own is None:
            rows = table[self.first * vectors_per_class : self.stop * vectors_per_class]
            own = weighed_gradient(rows, self.ranks.size)
        own = own.reshape(-1, own.shape[-1]) if own.ndim > 1 else own
        if self.chosen is None:
            return own
        rows = own.reshape(-1, vectors_per_class, own.shape[1]) if vectors_per_class > 1 else own
        return rows.index_select(0, self.chosen).reshape(-1, *own.shape[1:])

    def held(self, labels: Tensor) -> Tensor:
        """Which of these classes (n,) are this rank's."""
        return (labels >= self.first) & (labels < self.stop)


def local_part(table: Tensor) -> Tensor | None:
    """This rank's part of a sharded table; None if the table is whole."""
    to_local = getattr(table, "to_local", None)  # a DTensor, which need not be imported to be recognised
    return None if to_local is None else to_local()


@dataclass(frozen=True)
class Spread:
    """
    Args:
        ranks: who shares the pairs.
        over: what is shared out.
        shard: the classes here, where rows or columns are classes.
        weight: (N,) what the rows here count for, where some stand for others that were left out; None is 1 each.
        total: how many rows all ranks have, where some were left out.
        counts: how many rows every rank has, where the rows are samples.
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
        """Rows, columns and numbers of rows, with the gradient that averaging over ranks expects.

        The classes here are a part of what the samples' gradient is made of, which N ranks' values depend on; the
        gradient of the classes themselves is all here.
        """
        if self.shard is None:
            return rows, columns, numbers
        size = self.ranks.size
        numbers = tuple(weighed_gradient(number, size) for number in numbers)
        if anchors == "proxies":
            return rows, None if columns is None else weighed_gradient(columns, size), numbers
        return weighed_gradient(rows, size), columns, numbers
