"""Reductions: what a row makes of the terms of its pairs, whether it sees all of them at once or tile by tile.

    tile      the state of the rows of one tile, and the shares: the derivatives of the tile's value by the terms
    merge     the state of two tiles together; tiles of any order, and of any rank (`over_ranks`), can be merged
    value     the number that the state stands for
    factor    what turns a tile's shares into the derivatives of the row's value, one number a row

So a tile can be turned into its gradient, but for one number a row, before the row is complete. `fill` is the term
where there is no pair. It is finite where infinity is meant, so that a row without pairs makes no NaN; the value of
such a row means nothing.

Shapes: b rows and t columns of a tile.
"""

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

State = tuple[Tensor, ...]  # (b,) each
NO_PAIR = -1e30
ELSEWHERE = -1  # the column of a largest term that another rank has


class Reduction(Protocol):
    """How terms become one number."""

    fill: float

    def none(self, like: Tensor) -> State:
        """The state of rows that have no terms yet, shaped `like` (b,)."""
        ...

    def tile(self, v: Tensor, columns: Tensor | int) -> tuple[State, Tensor]:
        """The state and the shares of the terms `v` (b, t), whose memory may be used. Where there is no pair, shares
        mean nothing.

        Args:
            columns: of the terms: (b, t) columns, or the first of consecutive ones.
        """
        ...

    def merge(self, a: State, b: State) -> State:
        """The state of the terms of both."""
        ...

    def over_ranks(self, state: State, ranks: Any) -> State:
        """The state of the terms of all ranks."""
        ...

    def value(self, state: State, count: Tensor) -> Tensor:
        """The value (b,) of rows that have `count` (b,) terms."""
        ...

    def factor(self, tile: State, state: State, count: Tensor) -> Tensor | None:
        """What the shares (b, t) of a tile with the state `tile` are multiplied by, (b,); None: by 1."""
        ...


def softmax_(v: Tensor) -> Tensor:
    """Along the columns, in place; transposed where it lies so, which is several times as fast."""
    if v.is_contiguous():
        return torch.softmax(v, 1, out=v)
    if v.t().is_contiguous():
        return torch.softmax(v.t(), 0, out=v.t()).t()
    return torch.softmax(v, 1)


class LogSumExp:
    """log sum exp v. State: the largest term, and the sum of exp(v - largest)."""

    fill = NO_PAIR

    def none(self, like: Tensor) -> State:
        return torch.full_like(like, NO_PAIR), torch.zeros_like(like)

    def tile(self, v: Tensor, columns: Tensor | int) -> tuple[State, Tensor]:
        top, shares = v.amax(1), softmax_(v)
        return (top, shares.amax(1).reciprocal_()), shares  # the largest share is 1 / sum exp(v - top)

    def merge(self, a: State, b: State) -> State:
        top = torch.maximum(a[0], b[0])
        return top, a[1] * (a[0] - top).exp_() + b[1] * (b[0] - top).exp_()

    def over_ranks(self, state: State, ranks: Any) -> State:
        top = ranks.max(state[0])
        return top, ranks.sum(state[1] * (state[0] - top).exp_())

    def value(self, state: State, count: Tensor) -> Tensor:
        return state[1].log().add_(state[0])

    def factor(self, tile: State, state: State, count: Tensor) -> Tensor | None:
        return None if tile is state else (tile[0] - state[0]).exp_().mul_(tile[1]).div_(state[1])


class Sum:
    """sum v."""

    fill = 0.0

    def none(self, like: Tensor) -> State:
        return (torch.zeros_like(like),)

    def tile(self, v: Tensor, columns: Tensor | int) -> tuple[State, Tensor]:
        return (v.sum(1),), torch.ones_like(v)

    def merge(self, a: State, b: State) -> State:
        return tuple(x + y for x, y in zip(a, b, strict=True))

    def over_ranks(self, state: State, ranks: Any) -> State:
        return tuple(ranks.sum(torch.stack(state)))

    def value(self, state: State, count: Tensor) -> Tensor:
        return state[0]

    def factor(self, tile: State, state: State, count: Tensor) -> Tensor | None:
        return None


class Mean(Sum):
    """sum v / count."""

    def value(self, state: State, count: Tensor) -> Tensor:
        return state[0] / count.clamp_min(1)

    def factor(self, tile: State, state: State, count: Tensor) -> Tensor | None:
        return count.clamp_min(1).to(state[0].dtype).reciprocal_()


class Max:
    """max v, the first of equal ones. State: the largest term, and its column."""

    fill = NO_PAIR

    def none(self, like: Tensor) -> State:
        return torch.full_like(like, NO_PAIR), torch.zeros_like(like, dtype=torch.long)

    def tile(self, v: Tensor, columns: Tensor | int) -> tuple[State, Tensor]:
        top, at = v.max(1, keepdim=True)
        column = columns.gather(1, at) if isinstance(columns, Tensor) else at + columns
        return (top[:, 0], column[:, 0]), v.zero_().scatter_(1, at, 1.0)

    def merge(self, a: State, b: State) -> State:
        larger = b[0] > a[0]
        return torch.where(larger, b[0], a[0]), torch.where(larger, b[1], a[1])

    def over_ranks(self, state: State, ranks: Any) -> State:
        """The first rank that has the largest term has its column."""
        top = ranks.max(state[0])
        owner = ranks.min(torch.where(state[0] == top, ranks.rank, ranks.size))
        return top, torch.where(owner == ranks.rank, state[1], ELSEWHERE)

    def value(self, state: State, count: Tensor) -> Tensor:
        return state[0]

    def factor(self, tile: State, state: State, count: Tensor) -> Tensor | None:
        return None if tile is state else (tile[1] == state[1]).to(state[0].dtype)


class Negated:
    """-A { -v }, of log-sum-exp the smooth minimum, of the maximum the minimum."""

    def __init__(self, reduction: LogSumExp | Max):
        self.of, self.fill = reduction, -reduction.fill
        self.merge, self.over_ranks, self.factor = reduction.merge, reduction.over_ranks, reduction.factor
        self.none = reduction.none

    def tile(self, v: Tensor, columns: Tensor | int) -> tuple[State, Tensor]:
        return self.of.tile(v.neg_(), columns)

    def value(self, state: State, count: Tensor) -> Tensor:
        return -self.of.value(state, count)


Gather = Literal["lse", "softmin", "sum", "mean", "max", "min"]
REDUCTIONS: dict[Gather, Reduction] = {
    "lse": LogSumExp(),
    "softmin": Negated(LogSumExp()),
    "sum": Sum(),
    "mean": Mean(),
    "max": Max(),
    "min": Negated(Max()),
}
PICKS = ("max", "min")  # one term, whose gradient is one entry a row
