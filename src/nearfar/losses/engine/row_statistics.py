"""Row statistics: what the rows of a group know of all their pairs, and the gradient that follows from it.

The loop shows it every tile of the group, as its rows see it (`Side`), once per sweep:

    find_extremes      of the similarities, for mining only
    collect            P and N, and the tile's contribution to the gradient, but for a number a row
    collect_positives  each positive with the finished N, where they are combined so

then calls `finish`, and, if gradients are wanted, asks for `gradient(side)` of every tile.

Shapes: n rows of the group; b rows and t columns of a tile; K slots of a row in its table of positives.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nearfar.losses.engine.combination import EachPositive, activate, combined
from nearfar.losses.engine.maps import Map, Row
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.reductions import REDUCTIONS, Statistic
from nearfar.losses.engine.row_weights import RowWeights
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.tile_terms import (
    NEGATIVE,
    POSITIVE,
    Side,
    Terms,
    negative_terms,
    positive_terms,
)

Sweep = tuple[Callable[[Side], None], Callable[[Any], None]]


class RowStatistics:
    """The statistics of the rows of a group. Lists of two have the positives first, then the negatives.

    Args:
        rows: of the group, among all.
    """

    def __init__(self, spec: LossSpec, pairs: Pairs, rows: slice, like: Tensor):
        self.spec, self.like = spec, like
        n = rows.stop - rows.start
        self.each = spec.combine == "each"
        reductions = EachPositive() if self.each else REDUCTIONS[spec.gather[0]], REDUCTIONS[spec.gather[1]]
        self.statistics = [Statistic(reduction, n, like) for reduction in reductions]
        self.mined = spec.mining is not None
        self.lowest_positive, self.highest_negative = like.new_full((n,), math.inf), like.new_full((n,), -math.inf)
        self.sums = [like.new_zeros(n), like.new_zeros(n)]  # of all terms, for smoothing
        self.active = [like.new_zeros(n), like.new_zeros(n)] if spec.average == "active" else None  # terms not zero
        if self.mined:
            self.counts = [like.new_zeros(n), like.new_zeros(n)]  # of the terms that are kept
        else:
            positives, negatives = pairs.positives[rows], pairs.negatives[rows]
            self.counts = [positives, negatives + positives if spec.others else negatives]
        self.by_row_number: dict[int, Tensor] = {}  # the gradients (n,) by numbers of the rows

    @property
    def sweeps(self) -> list[Sweep]:
        """What looks at all tiles in turn, and what ranks that have other columns then exchange. (An attribute would be
        a reference cycle.)
        """
        sweeps: list[Sweep] = [(self.collect, self._exchange_sums)]
        if self.mined:
            sweeps.insert(0, (self.find_extremes, self._exchange_extremes))
        if self.each:
            sweeps.append((self.collect_positives, self._exchange_each))
        return sweeps

    def find_extremes(self, side: Side) -> None:
        """The least similar positive and the most similar negative."""
        assert side.s is not None
        s = side.s
        if side.pairs is not None and side.listed is not None:
            listed = side.listed.masked_fill(side.pairs.vacant, math.inf)
            lowest = self.lowest_positive[side.rows]
            torch.minimum(lowest, listed.amin(1), out=lowest)
            s = side.pairs.hide(s.clone(), -math.inf)
        highest = self.highest_negative[side.rows]
        torch.maximum(highest, s.amax(1), out=highest)

    def collect(self, side: Side) -> None:
        """P and N."""
        self._add(NEGATIVE, side)
        if self.spec.combine in ("joint", "split"):
            self._add(POSITIVE, side)

    def collect_positives(self, side: Side) -> None:
        """What every positive makes of N."""
        self._add(POSITIVE, side)

    def _add(self, kind: int, side: Side) -> None:
        if kind == POSITIVE and side.pairs is None:
            return
        terms = self._terms(kind, side, count=True)
        self.statistics[kind].add(side.rows, terms.state)
        if side.keep:
            side.terms[kind] = terms
            side.s = None if kind == NEGATIVE else side.s

    # What ranks exchange that have other columns of the same rows

    def _exchange_extremes(self, ranks: Any) -> None:
        self.lowest_positive = ranks.min(self.lowest_positive)
        self.highest_negative = ranks.max(self.highest_negative)

    def _exchange_sums(self, ranks: Any) -> None:
        for kind in (POSITIVE, NEGATIVE):
            if kind == NEGATIVE or self.spec.combine in ("joint", "split"):
                self.statistics[kind].over_ranks(ranks)
        if self.mined:
            self.counts = list(ranks.sum(torch.stack(self.counts)))
        if self.active is not None:
            self.active = list(ranks.sum(torch.stack(self.active)))
        if self.spec.smoothing:
            self.sums = list(ranks.sum(torch.stack(self.sums)))

    def _exchange_each(self, ranks: Any) -> None:
        self.statistics[POSITIVE].over_ranks(ranks)
        if self.mined:
            self.counts[POSITIVE] = ranks.sum(self.counts[POSITIVE])

    # The terms of a tile

    def _terms(self, kind: int, side: Side, count: bool = False) -> Terms:
        """The terms of one kind, reduced; `count` them, too, when the tile is first seen."""
        spec, rows, reduction = self.spec, side.rows, self.statistics[kind].reduction
        if kind == NEGATIVE:
            terms = negative_terms(spec.negative, side, spec.others, self._easy_negatives(side))
        else:
            terms = positive_terms(spec.positive, side, self._easy_positives(side))
        if count and spec.smoothing:
            self.sums[kind][rows] += terms.keep(terms.v.clone(), 0.0).sum(1)
        if count and self.mined:
            self.counts[kind][rows] += terms.keep(torch.ones_like(terms.v), 0.0).sum(1)
        if kind == POSITIVE and self.each:
            losses, shares = activate(spec.act, terms.v.add_(self.finished_negatives[rows].unsqueeze(1)))
            shares = terms.keep(shares, 0.0)
            return terms.hold((terms.keep(losses, 0.0).sum(1), shares.sum(1)), shares, smoothing=False)
        v = terms.keep(terms.v, reduction.fill)
        if count and self.active is not None:
            self.active[kind][rows] += v.count_nonzero(1)
        return terms.hold(*reduction.tile(v, terms.columns), smoothing=bool(spec.smoothing))

    def _easy_positives(self, side: Side) -> Tensor | None:
        """(b, K) which positives mining leaves out."""
        if self.spec.mining is None or side.listed is None:
            return None
        return side.listed >= (self.highest_negative[side.rows] + self.spec.mining).unsqueeze(1)

    def _easy_negatives(self, side: Side) -> Tensor | None:
        """(b, t) which pairs mining leaves out of N: by the negatives' rule, and by their own the positives in it."""
        if self.spec.mining is None or side.s is None:
            return None
        # A row without positives, whose least similarity is infinite, mines nothing.
        easy = side.s <= (self.lowest_positive[side.rows] - self.spec.mining).unsqueeze(1)
        if self.spec.others and side.pairs is not None:
            filled = ~side.pairs.vacant
            positive = torch.zeros_like(side.s).scatter_add_(1, side.pairs.columns, filled.to(side.s.dtype)) > 0
            ceiling = (self.highest_negative[side.rows] + self.spec.mining).unsqueeze(1)
            easy = torch.where(positive, side.s >= ceiling, easy)
        return easy

    # The rows' losses

    @functools.cached_property
    def finished_negatives(self) -> Tensor:
        """N (n,), zero where a row has none."""
        return self._value(NEGATIVE)

    def _value(self, kind: int) -> Tensor:
        return self.statistics[kind].value(self.counts[kind]).masked_fill(self.counts[kind] == 0, 0)

    def finish(self, weights: RowWeights, rows: slice) -> Tensor:
        """The rows' losses (n,); keeps what the gradient of their weighted sum needs."""
        spec, n = self.spec, self.finished_negatives
        absent = [count == 0 for count in self.counts]
        if spec.combine == "each":
            number, none = self.counts[POSITIVE].clamp_min(1), absent[POSITIVE] | absent[NEGATIVE]
            total, by_n = self.statistics[POSITIVE].state
            losses, *by = ((x / number).masked_fill(none, 0) for x in (total, torch.ones_like(n), by_n))
        elif spec.combine == "negatives":  # a joint loss with P = 0
            losses, by = combined(spec, (torch.zeros_like(n), n), [absent[NEGATIVE]] * 2, ())
        else:
            factors: Any = weights.positive_side[rows], 1.0
            if self.active is not None:
                factors = [weights.over_active(number) for number in self.active]
            losses, by = combined(spec, (self._value(POSITIVE), n), absent, factors)
        counted, pull = weights.counted[rows], weights.pull[rows]
        if spec.smoothing:
            number, total = (
                c.clamp_min(1).to(n.dtype)
                for c in (self.counts[POSITIVE], self.counts[POSITIVE] + self.counts[NEGATIVE])
            )
            shares = spec.smoothing * (1 / total - 1 / number), -spec.smoothing / total
            losses = losses + shares[POSITIVE] * self.sums[POSITIVE] + shares[NEGATIVE] * self.sums[NEGATIVE]
            self.plain_pull = [pull * share for share in shares]
        # What is not counted may be infinite, and times a weight of zero it would be NaN.
        self.pull = [torch.where(counted, pull * slope, 0) for slope in by]
        return torch.where(counted, losses, 0)

    @property
    def nothing_to_learn(self) -> bool:
        """Whether the gradient is known to be zero. Only where mining makes it likely, and looking is cheap."""
        if not self.mined or self.like.device.type != "cpu":
            return False
        return not any(bool(pull.any()) for pull in self.pull)

    # Their gradient

    def gradient(self, side: Side, by_column_number: list[Tensor | None]) -> Tensor:
        """The loss's derivative by the similarities of the tile, (b, t); adds those by numbers of rows and columns to
        the ones already there.
        """
        g = self._gradient_of(NEGATIVE, side, by_column_number)
        if side.pairs is None or self.spec.combine == "negatives":
            return g
        return g.scatter_add_(1, side.pairs.columns, self._gradient_of(POSITIVE, side, by_column_number))

    def _gradient_of(self, kind: int, side: Side, by_column_number: list[Tensor | None]) -> Tensor:
        """The part of one kind: (b, t) for negatives, (b, K) for positives."""
        rows, terms = side.rows, side.terms.pop(kind, None)
        terms = self._terms(kind, side) if terms is None else terms
        factor = self.statistics[kind].factor(rows, terms.state, self.counts[kind])
        pulls = [self.pull[kind][rows] * factor]
        if self.spec.smoothing:
            pulls.append(self.plain_pull[kind][rows])
        g, by_number = terms.gradient(*(pull.unsqueeze(1) for pull in pulls))
        for number, by in by_number:
            if isinstance(number, Row):
                total = self.by_row_number.setdefault(number.index, torch.zeros_like(self.pull[kind]))
                total[rows] += by[:, 0]
            elif (of_columns := by_column_number[number.index]) is not None and side.pairs is not None:
                of_columns.index_add_(0, (side.pairs.columns + side.first_column).flatten(), by.flatten())
        return g

    def picked(self, slopes_at: Callable[[Map, Tensor], Tensor]) -> list[tuple[Tensor, Tensor]]:
        """The entries of the gradient where both reductions pick one pair: for each kind, the columns (n,) and the
        derivatives by their similarities (n,). Where another rank has the column, both are 0.

        Args:
            slopes_at: of a map, at the columns of each row.
        """
        entries = []
        for kind, function in ((POSITIVE, self.spec.positive), (NEGATIVE, self.spec.negative)):
            column, pull = self.statistics[kind].state[1], self.pull[kind]
            present = (column >= 0) & (pull != 0)
            column = torch.where(present, column, 0)
            entries.append((column, torch.where(present, pull * slopes_at(function, column), 0)))
        return entries
