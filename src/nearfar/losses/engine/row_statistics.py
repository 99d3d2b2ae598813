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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nearfar.losses.engine.combination import EachPositive, activate, combined, zeroed
from nearfar.losses.engine.maps import Map, Row
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.reductions import REDUCTIONS, Reduction, State
from nearfar.losses.engine.row_weights import RowWeights
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.tile_terms import NEGATIVE, POSITIVE, Side, Terms, negative_terms, positive_terms

Sweep = tuple[Callable[[Side], None], Callable[[Any], None]]


class Statistic:
    """The terms of one kind of pairs, reduced for all rows of a group, as their tiles come.

    Args:
        reduction: A_p or A_n.
        pairs: (n,) how many pairs of the kind the rows have.
        one_tile: one tile has all pairs of the group.

    Attributes:
        state: the reduction's, of all tiles so far.
        sums: (n,) each, what else is summed over the terms, where the loss needs it: how many are "kept" by mining, how
            many are "active" (not zero), and their "total" for label smoothing.
    """

    def __init__(self, spec: LossSpec, reduction: Reduction, pairs: Tensor, like: Tensor, one_tile: bool):
        self.reduction, self.pairs, self.one_tile = reduction, pairs, one_tile
        self.state = reduction.none(like.new_empty(len(pairs)))
        needed = {"kept": spec.mining is not None, "active": spec.average == "active", "total": spec.smoothing > 0}
        self.sums = {name: like.new_zeros(len(pairs)) for name, wanted in needed.items() if wanted}

    def add(self, rows: slice, tile: State) -> None:
        """Merge the state of a tile of these rows."""
        if self.one_tile:
            self.state = tile
            return
        merged = self.reduction.merge(tuple(part[rows] for part in self.state), tile)
        for whole, part in zip(self.state, merged, strict=True):
            whole[rows] = part

    def add_sums(self, rows: slice, terms: Terms) -> None:
        """Add the terms of a tile of these rows to the sums."""
        for name, total in self.sums.items():
            if name == "active":  # of plain sums, which have zeros where there is no pair, too
                total[rows] += terms.keep(terms.v, 0.0).count_nonzero(1)
            else:
                values = torch.ones_like(terms.v) if name == "kept" else terms.v.clone()
                total[rows] += terms.keep(values, 0.0).sum(1)

    def over_ranks(self, ranks: Any) -> None:
        """Merge the statistics of all ranks, each of which has other columns."""
        self.state = self.reduction.over_ranks(self.state, ranks)
        self.sums = {name: ranks.sum(total) for name, total in self.sums.items()}

    @property
    def count(self) -> Tensor:
        """(n,) the number of terms, once all tiles have come."""
        return self.sums.get("kept", self.pairs)

    def value(self) -> Tensor:
        """P or N (n,); it means nothing where a row has no such pairs."""
        return self.reduction.value(self.state, self.count)

    def factor(self, rows: slice, tile: State) -> Tensor | None:
        """What the shares of a tile of these rows are multiplied by, (b,); None: by 1."""
        state = self.state if tile is self.state else tuple(part[rows] for part in self.state)
        return self.reduction.factor(tile, state, self.count[rows])


class RowStatistics:
    """The statistics of the rows of a group. Lists of two have the positives first, then the negatives.

    Args:
        rows: of the group, among all.
        one_tile: one tile has all pairs of the group.
        by_row, by_column: the gradients by numbers of the rows, (N,), and of the columns, (M,); None: not wanted.
    """

    def __init__(
        self,
        spec: LossSpec,
        pairs: Pairs,
        rows: slice,
        like: Tensor,
        one_tile: bool,
        by_row: Sequence[Tensor | None],
        by_column: Sequence[Tensor | None],
    ):
        self.spec = spec
        self.by_row, self.by_column = [None if g is None else g[rows] for g in by_row], by_column
        self.each, self.mined, self.complete = spec.combine == "each", spec.mining is not None, pairs.complete
        positives, negatives = pairs.positives[rows], pairs.negatives[rows]
        numbers = positives, negatives + positives if spec.others else negatives
        reductions = EachPositive() if self.each else REDUCTIONS[spec.gather[0]], REDUCTIONS[spec.gather[1]]
        self.statistics = [
            Statistic(spec, reduction, number, like, one_tile)
            for reduction, number in zip(reductions, numbers, strict=True)
        ]
        if self.mined:
            self.lowest_positive = torch.full_like(positives, math.inf, dtype=like.dtype)
            self.highest_negative = -self.lowest_positive

    @property
    def sweeps(self) -> list[Sweep]:
        """What looks at all tiles in turn, and what ranks that have other columns then exchange. (An attribute would be
        a reference cycle.)
        """
        sweeps: list[Sweep] = [(self.collect, self._exchange_sums)]
        if self.mined:
            sweeps.insert(0, (self.find_extremes, self._exchange_extremes))
        if self.each:
            sweeps.append((self.collect_positives, self.statistics[POSITIVE].over_ranks))
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
        terms = self._terms(kind, side, first=True)
        self.statistics[kind].add(side.rows, terms.state)
        if side.keep:
            side.terms[kind] = terms
            side.s = None if kind == NEGATIVE else side.s

    # What ranks exchange that have other columns of the same rows

    def _exchange_extremes(self, ranks: Any) -> None:
        self.lowest_positive = ranks.min(self.lowest_positive)
        self.highest_negative = ranks.max(self.highest_negative)

    def _exchange_sums(self, ranks: Any) -> None:
        self.statistics[NEGATIVE].over_ranks(ranks)
        if self.spec.combine in ("joint", "split"):
            self.statistics[POSITIVE].over_ranks(ranks)

    # The terms of a tile

    def _terms(self, kind: int, side: Side, first: bool = False) -> Terms:
        """The terms of one kind, reduced; and counted, when the tile is `first` seen."""
        statistic, smoothing = self.statistics[kind], bool(self.spec.smoothing)
        if kind == NEGATIVE:
            terms = negative_terms(self.spec.negative, side, self.spec.others, self._easy_negatives(side))
        else:
            terms = positive_terms(self.spec.positive, side, self._easy_positives(side))
        if first:
            statistic.add_sums(side.rows, terms)
        if kind == POSITIVE and self.each:
            losses, shares = activate(self.spec.act, terms.v.add_(self.finished_negatives[side.rows].unsqueeze(1)))
            shares = terms.keep(shares, 0.0)
            return terms.hold((terms.keep(losses, 0.0).sum(1), shares.sum(1)), shares, smoothing)
        v = terms.keep(terms.v, statistic.reduction.fill)
        return terms.hold(*statistic.reduction.tile(v, terms.columns), smoothing)

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
            filled = (~side.pairs.vacant).to(side.s.dtype)
            positive = torch.zeros_like(side.s).scatter_add_(1, side.pairs.columns, filled) > 0
            ceiling = (self.highest_negative[side.rows] + self.spec.mining).unsqueeze(1)
            easy = torch.where(positive, side.s >= ceiling, easy)
        return easy

    # The rows' losses

    @functools.cached_property
    def finished_negatives(self) -> Tensor:
        """N (n,); it means nothing where a row has none."""
        return self.statistics[NEGATIVE].value()

    def finish(self, weights: RowWeights, rows: slice) -> Tensor:
        """The rows' losses (n,); keeps what the gradient of their weighted sum needs. A row that is left out, or lacks
        pairs, may have infinite values: they are replaced by zeros before they meet a weight of zero.
        """
        spec, n, pull = self.spec, self.finished_negatives, weights.pull[rows]
        positive, negative = self.statistics
        left_out = None if weights.left_out is None else weights.left_out[rows]
        absent: list[Tensor | None] = [None, None]
        if self.mined or not self.complete:
            absent = [statistic.count == 0 for statistic in self.statistics]
        if self.each:
            number = positive.count.clamp_min(1)
            total, by_n = positive.state
            losses, *by = (zeroed(x / number, *absent) for x in (total, torch.ones_like(n), by_n))
        elif spec.combine == "negatives":  # a joint loss with P = 0
            losses, by = combined(spec, (torch.zeros_like(n), n), [absent[NEGATIVE]] * 2, ())
        else:
            factors: Any = 1.0, 1.0
            if spec.average == "sides":
                factors = weights.positive_side[rows], 1.0
            elif spec.average == "active":
                factors = [weights.over_active(statistic.sums["active"]) for statistic in self.statistics]
            losses, by = combined(spec, (positive.value(), n), absent, factors)
        self.pull = [zeroed(pull * slope, left_out) for slope in by]
        if spec.smoothing:
            number, total = (c.clamp_min(1).to(n.dtype) for c in (positive.count, positive.count + negative.count))
            shares = spec.smoothing * (1 / total - 1 / number), -spec.smoothing / total
            losses = losses + shares[POSITIVE] * positive.sums["total"] + shares[NEGATIVE] * negative.sums["total"]
            self.plain_pull = [zeroed(pull * share, left_out) for share in shares]
        return zeroed(losses, left_out)

    @property
    def nothing_to_learn(self) -> bool:
        """Whether the gradient is known to be zero. Only where mining makes it likely, and looking is cheap."""
        if not self.mined or self.pull[0].device.type != "cpu":
            return False
        return not any(bool(pull.any()) for pull in self.pull)

    # Their gradient

    def gradient(self, side: Side) -> Tensor:
        """The loss's derivative by the similarities of the tile, (b, t); adds those by numbers of rows and columns to
        the ones already there.
        """
        g = self._gradient_of(NEGATIVE, side)
        if side.pairs is None or self.spec.combine == "negatives":
            return g
        return g.scatter_add_(1, side.pairs.columns, self._gradient_of(POSITIVE, side))

    def _gradient_of(self, kind: int, side: Side) -> Tensor:
        """The part of one kind: (b, t) for negatives, (b, K) for positives."""
        rows, terms = side.rows, side.terms.pop(kind, None)
        terms = self._terms(kind, side) if terms is None else terms
        pull, factor = self.pull[kind][rows], self.statistics[kind].factor(rows, terms.state)
        pulls = [pull if factor is None else pull * factor]
        if self.spec.smoothing:
            pulls.append(self.plain_pull[kind][rows])
        g, by_number = terms.gradient(*(pull.unsqueeze(1) for pull in pulls))
        for number, by in by_number:
            if isinstance(number, Row):
                if (of_rows := self.by_row[number.index]) is not None:
                    of_rows[rows] += by[:, 0]
            elif (of_columns := self.by_column[number.index]) is not None and side.pairs is not None:
                of_columns.index_add_(0, (side.pairs.columns + side.first_column).flatten(), by.flatten())
        return g

    def picked(self) -> list[tuple[Map, Tensor, Tensor]]:
        """The entries of the gradient where both reductions pick one pair: for each kind, the map, the columns (n,),
        and the derivatives by the terms there (n,). Where another rank has the column, both are 0.
        """
        entries = []
        for function, statistic, pull in zip(self.spec[:2], self.statistics, self.pull, strict=True):
            column = statistic.state[1]
            here = column >= 0
            entries.append((function, column.clamp_min(0), torch.where(here, pull, 0)))
        return entries
