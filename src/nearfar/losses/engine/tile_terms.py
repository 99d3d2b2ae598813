"""The terms of a tile: what its pairs of one kind add to the rows' statistics and to the gradient.

Shapes: b rows and t columns of a tile; K slots of a row in its table of positives. Terms of negatives are (b, t), those
of positives (b, K).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nearfar.losses.engine.maps import Column, Map, Row, bound, placeholders
from nearfar.losses.engine.pairs import TilePairs
from nearfar.losses.engine.reductions import State

POSITIVE, NEGATIVE = 0, 1
Keep = Callable[[Tensor, float], Tensor]  # sets to a value, in place, whatever is not a pair of the kind


@dataclass
class Side:
    """One tile as its rows see it. With `keep`, its terms stay here from the first sweep on."""

    rows: slice  # within the group
    s: Tensor | None  # (b, t) similarities; given up once terms take their place
    pairs: TilePairs | None
    first_column: int
    log_weight: Tensor | None  # (t,) log of the columns' weights
    row_numbers: list[Tensor]  # (b,) each
    column_numbers: list[Tensor]  # (t,) each
    pool_shares: Tensor | None = None  # of the vectors of a class, where a pool made `s`
    keep: bool = False
    terms: dict[int, "Terms"] = field(default_factory=dict)  # by kind

    def __post_init__(self) -> None:
        self.listed: Tensor | None = None  # (b, K) the similarities in the pairs' table
        if self.pairs is not None and self.s is not None:
            self.listed = self.s.gather(1, self.pairs.columns)

    @property
    def nbytes(self) -> int:
        """The memory that keeping it takes."""
        assert self.s is not None
        listed = 0 if self.listed is None else 3 * self.listed.nbytes  # with their terms and slopes
        pooled = 0 if self.pool_shares is None else self.pool_shares.nbytes
        return self.s.nbytes + listed + pooled + (0 if self.pairs is None else self.pairs.nbytes)


class Terms:
    """The terms of one kind of pairs in a tile.

    A reduction makes a state and shares of them (`hold`). Their part of the gradient then lacks only a number a row
    (`gradient`).

    Args:
        function: the map.
        s: similarities, (b, t) or (b, K).
        numbers: of the rows and of the columns, for the map.
        log_weight: of the columns, added to the values.
        keep: sets everything that is not a pair of the kind to a value, in place.
        columns: where the terms are: (b, K) columns, or the first of consecutive ones.

    Attributes:
        v: the values, until a reduction uses their memory.
        state: what the reduction makes of them.
    """

    state: State

    def __init__(
        self,
        function: Map,
        s: Tensor,
        numbers: tuple[list[Tensor], list[Tensor]],
        log_weight: Tensor | None,
        keep: Keep,
        columns: Tensor | int,
    ):
        complete = bound(function, *numbers)
        self.v, self.slope = complete.slopes(s)
        if log_weight is not None:
            self.v.add_(log_weight)
        self.keep, self.columns = keep, columns
        self.derivatives = [(number, complete.by(s, name)) for name, number in placeholders(function).items()]

    def hold(self, state: State, shares: Tensor, smoothing: bool) -> "Terms":
        """Keep what the gradient needs: the shares, weighed by the slopes if nothing else needs these."""
        self.state, self.shares = state, self.keep(shares, 0.0)
        del self.v
        by_number = []
        for number, derivative in self.derivatives:
            parts = [self.shares * derivative, *([self.keep(derivative.clone(), 0.0)] if smoothing else [])]
            by_number.append((number, [x.sum(1, keepdim=True) for x in parts] if isinstance(number, Row) else parts))
        self.by_number, self.derivatives = by_number, []
        if isinstance(self.slope, Tensor) and not smoothing:
            self.shares, self.slope = self.shares.mul_(self.slope), 1.0
        return self

    def gradient(self, *pulls: Tensor) -> tuple[Tensor, list[tuple[Row | Column, Tensor]]]:
        """The derivatives by the similarities, and by the numbers: (b, 1) for one of the rows, (b, K) for one of the
        columns. The shares are used up.

        Args:
            pulls: (b, 1) the loss's derivative by the row's value, times the tile's factor; with smoothing, its
                derivative by the plain sum of the terms, too.
        """
        by_number = [
            (number, sum((part * pull for part, pull in zip(parts, pulls, strict=True)), torch.zeros_like(parts[0])))
            for number, parts in self.by_number
        ]
        if len(pulls) == 1:
            return self.shares.mul_(pulls[0] * self.slope), by_number
        return self.keep(self.shares.mul_(pulls[0]).add_(pulls[1]), 0.0).mul_(self.slope), by_number


def negative_terms(function: Map, side: Side, others: bool, dropped: Tensor | None) -> Terms:
    """All pairs of the tile as if they were negative.

    Args:
        others: positives count as well.
        dropped: (b, t) what mining leaves out.
    """
    assert side.s is not None
    numbers = [number.unsqueeze(1) for number in side.row_numbers]

    def keep(x: Tensor, value: float) -> Tensor:
        x = x if side.pairs is None else side.pairs.hide(x, value, keep_positives=others)
        return x if dropped is None else x.masked_fill_(dropped, value)

    return Terms(function, side.s, (numbers, []), side.log_weight, keep, side.first_column)


def positive_terms(function: Map, side: Side, dropped: Tensor | None) -> Terms:
    """The pairs in the table.

    Args:
        dropped: (b, K) what mining leaves out.
    """
    assert side.pairs is not None and side.listed is not None
    columns, vacant = side.pairs.columns, side.pairs.vacant
    numbers = [number.unsqueeze(1) for number in side.row_numbers], [number[columns] for number in side.column_numbers]
    empty = vacant if dropped is None else dropped | vacant

    def keep(x: Tensor, value: float) -> Tensor:
        return x.masked_fill_(empty, value)

    log_weight = None if side.log_weight is None else side.log_weight[columns]
    return Terms(function, side.listed, numbers, log_weight, keep, columns + side.first_column)
