"""Row statistics: what the rows of a group know of all their pairs, and the gradient that follows from it.

The loop shows it every tile of the group, as its rows see it (`Side`), once per sweep:

    find_extremes      of the similarities, for mining only
    collect            P and N, and the tile's contribution to the gradient, but for a number a row
    collect_positives  each positive with the finished N, where they are combined so

then calls `finish`, and, if gradients are wanted, asks for `gradient(side)` of every tile.

Shapes: n rows of the group; b rows and t columns of a tile; K slots of its table of positives, of p of its rows.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nearfar.losses.engine.combination import EachPositive, combined, without_pairs
from nearfar.losses.engine.maps import Map, Row, bound, placeholders
from nearfar.losses.engine.pairs import Pairs, TilePairs
from nearfar.losses.engine.reductions import REDUCTIONS, State, Statistic
from nearfar.losses.engine.row_weights import RowWeights, only
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.vectors import cut


@dataclass
class Contribution:
    """What the terms of a tile add to the gradient, but for one number a row; zero where no such pair is."""

    state: State
    g: Tensor | None  # by the similarities: shares times slopes; None: 1 for all
    scale: float  # a factor of g
    slope: Tensor | float  # of a linear map, for smoothing
    by: list["ByNumber"] = field(default_factory=list)


@dataclass
class ByNumber:
    """The derivatives by a number of the row or the column: of negatives (b,), summed, of listed positives (p, K)."""

    row: int | None
    column: int | None
    shared: Tensor
    plain: Tensor | None  # without the shares, for smoothing


@dataclass
class Side:
    """One tile as its rows see it. With `keep`, its contributions are formed in the first sweep and stay here."""

    rows: slice  # within the group
    s: Tensor | None  # (b, t) similarities; given up once a contribution takes their place
    pairs: TilePairs | None
    listed: Tensor | None  # (p, K) the similarities in the pairs' table
    first_column: int
    log_weight: Tensor | None  # (t,) log of the columns' weights
    row_numbers: list[Tensor]  # (b,) each
    column_numbers: list[Tensor]  # (t,) each
    keep: bool = False
    negative: Contribution | None = None
    positive: Contribution | None = None
    shares: Tensor | None = None  # of several vectors of a class in `s`: what the pool says of them

    @property
    def nbytes(self) -> int:
        """What keeping it takes."""
        assert self.s is not None
        listed = 0 if self.listed is None else 3 * self.listed.nbytes  # with their terms and slopes
        pooled = 0 if self.shares is None else self.shares.nbytes
        return self.s.nbytes + listed + pooled + (0 if self.pairs is None else self.pairs.nbytes)

    @property
    def listing(self) -> slice:
        """The rows, within the group, that the pairs' table is of."""
        some = None if self.pairs is None else self.pairs.rows
        return self.rows if some is None else slice(self.rows.start + some.start, self.rows.start + some.stop)


class RowStatistics:
    """
    Args:
        rows: of the group, among all.
        single: one tile has all pairs of the group.
        wanted: gradients will be asked for.
    """

    def __init__(self, spec: LossSpec, pairs: Pairs, rows: slice, like: Tensor, single: bool, wanted: bool):
        self.spec, self.pairs, self.like, self.wanted = spec, pairs, like, wanted
        n = rows.stop - rows.start
        self.negative = Statistic(REDUCTIONS[spec.gather[1]], n, like, single)
        self.each = EachPositive(spec.act) if spec.combine == "each" else None
        self.positive = Statistic(self.each or REDUCTIONS[spec.gather[0]], n, like, single)
        self.linear = [like.new_zeros(n), like.new_zeros(n)] if spec.smoothing else []  # sums of u and of v
        self.mined, self.active = spec.mining is not None, spec.average == "active"
        if self.mined:
            self.lowest_positive = like.new_full((n,), math.inf)
            self.highest_negative = like.new_full((n,), -math.inf)
        if self.mined or self.active:
            self.counts = [like.new_zeros(n), like.new_zeros(n)]  # of the terms kept, or not zero
        else:
            positives, negatives = cut(pairs.positives, rows), cut(pairs.negatives, rows)
            self.counts = [positives, negatives + positives if spec.others else negatives]
        self.row_gradients: dict[int, Tensor] = {}

    @property
    def sweeps(self) -> list[tuple[Callable[[Side], None], Callable[[Any], None]]]:
        """What looks at all tiles in turn, and what ranks that have other columns then exchange. (Kept here, the list
        would be a reference cycle.)
        """
        sweeps: list[tuple[Callable[[Side], None], Callable[[Any], None]]] = [(self.collect, self._exchange_sums)]
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
            listed = side.listed
            if side.pairs.vacant is not None:
                listed = listed.masked_fill(side.pairs.vacant, math.inf)
            lowest = self.lowest_positive[side.listing]
            torch.minimum(lowest, listed.amin(1), out=lowest)
            s = side.pairs.hide(s.clone(), -math.inf)
        highest = self.highest_negative[side.rows]
        torch.maximum(highest, s.amax(1), out=highest)

    def collect(self, side: Side) -> None:
        """P and N."""
        contribution = self._negatives(side, count=True)
        self.negative.add(side.rows, contribution.state)
        if side.keep:
            side.negative, side.s = contribution, None
        if self.spec.combine in ("joint", "split"):
            self.collect_positives(side)

    def collect_positives(self, side: Side) -> None:
        """P, or what every positive makes of N."""
        if side.pairs is not None:
            contribution = self._positives(side, side.pairs, count=True)
            self.positive.add(side.listing, contribution.state)
            if side.keep:
                side.positive = contribution

    def _exchange_extremes(self, ranks: Any) -> None:
        self.lowest_positive = ranks.min(self.lowest_positive)
        self.highest_negative = ranks.max(self.highest_negative)

    def _exchange_sums(self, ranks: Any) -> None:
        self.negative.over_ranks(ranks)
        if self.spec.combine in ("joint", "split"):
            self.positive.over_ranks(ranks)
        mine = [*(self.counts if self.mined or self.active else []), *self.linear]
        if mine:
            sums = list(ranks.sum(torch.stack(mine)))
            if self.mined or self.active:
                self.counts = [sums.pop(0), sums.pop(0)]
            self.linear = sums

    def _exchange_each(self, ranks: Any) -> None:
        self.positive.over_ranks(ranks)
        if self.mined:
            self.counts[0] = ranks.sum(self.counts[0])

    # The contributions of a tile

    def _negatives(self, side: Side, count: bool = False) -> Contribution:
        spec, s, rows = self.spec, side.s, side.rows
        assert s is not None
        function = bound(spec.negative, [number.unsqueeze(1) for number in side.row_numbers], ())
        v, slope = function.slopes(s) if self.wanted else (function.value(s), 1.0)
        if side.log_weight is not None:
            v.add_(side.log_weight)

        def only_pairs(x: Tensor, value: float) -> Tensor:
            return x if side.pairs is None else side.pairs.hide(x, value, keep_positives=spec.others)

        kept = self._kept_negatives(side, s) if self.mined else None
        if count and self.mined and kept is not None:
            self.counts[1][rows] += only_pairs(kept.clone(), 0.0).sum(1)
        if count and spec.smoothing:
            self.linear[1][rows] += only_pairs(v.clone(), 0.0).sum(1)
        reduction = self.negative.reduction
        if kept is not None:  # numbers, as passes over booleans are slow; what is dropped rounds to `fill`
            v = v.add_(kept - 1, alpha=-reduction.fill) if reduction.fill else v.mul_(kept)
        v = only_pairs(v, reduction.fill)
        if count and self.active:
            self.counts[1][rows] += v.count_nonzero(1)
        state, shares = reduction.tile(v, side.first_column)
        if not self.wanted:
            return Contribution(state, v, 1.0, 1.0)

        def shared(x: Tensor | float, out: Tensor) -> Tensor:
            """What the terms' shares make of their derivatives."""
            if shares is not None:
                return torch.mul(shares, x, out=out)
            out = only_pairs(out.fill_(x) if isinstance(x, float | int) else out.copy_(x), 0.0)
            return out if kept is None else out.mul_(kept)

        by = []
        for name, number in placeholders(spec.negative).items():
            derivative = function.by(s, name)
            plain = only_pairs(derivative.clone(), 0.0).sum(1) if spec.smoothing else None
            by.append(ByNumber(number.index, None, shared(derivative, torch.empty_like(s)).sum(1), plain))
        if shares is not None and not isinstance(slope, Tensor):
            return Contribution(state, shares, slope, slope, by)
        return Contribution(state, shared(slope, v if shares is None else shares), 1.0, slope, by)

    def _kept_negatives(self, side: Side, s: Tensor) -> Tensor:
        """(b, t) 1 where mining keeps a pair that is no positive, and, if A_n runs over these too, a positive."""
        assert self.spec.mining is not None
        floor = (self.lowest_positive[side.rows] - self.spec.mining).clamp_max_(torch.finfo(s.dtype).max)
        kept = torch.gt(s, floor.unsqueeze(1), out=torch.empty_like(s))
        if self.spec.others and side.pairs is not None and side.listed is not None:
            part = kept if side.pairs.rows is None else kept[side.pairs.rows]
            filled = torch.ones_like(side.listed) if side.pairs.vacant is None else (~side.pairs.vacant).to(s.dtype)
            positive = torch.zeros_like(part).scatter_add_(1, side.pairs.columns, filled)
            ceiling = (self.highest_negative[side.listing] + self.spec.mining).unsqueeze(1)
            similar = s if side.pairs.rows is None else s[side.pairs.rows]
            part.copy_(torch.where(positive > 0, (similar < ceiling).to(s.dtype), part))
        return kept

    def _positives(self, side: Side, pairs: TilePairs, count: bool = False) -> Contribution:
        spec, s, rows = self.spec, side.listed, side.listing
        assert s is not None
        some = pairs.rows or slice(0, s.shape[0])
        function = bound(
            spec.positive,
            [number[some].unsqueeze(1) for number in side.row_numbers],
            [number[pairs.columns] for number in side.column_numbers],
        )
        u, slope = function.slopes(s)
        if side.log_weight is not None:
            u.add_(side.log_weight[pairs.columns])
        left_out = pairs.vacant
        if spec.mining is not None:
            easy = s >= (self.highest_negative[rows] + spec.mining).unsqueeze(1)
            left_out = easy if left_out is None else left_out | easy
            if count:
                self.counts[0][rows] += (~left_out).sum(1)
        if count and spec.smoothing:
            self.linear[0][rows] += _without(u, left_out).sum(1)
        reduction = self.positive.reduction
        shares: Tensor | None
        if self.each is not None:
            state, shares = self.each.terms(u, self._finished_negatives[rows], left_out)
        else:
            u = u if left_out is None else u.masked_fill_(left_out, reduction.fill)
            if count and self.active:
                self.counts[0][rows] += u.count_nonzero(1)
            state, shares = reduction.tile(u, pairs.columns + side.first_column)
        by = []
        for name, number in placeholders(spec.positive).items() if self.wanted else ():
            derivative = _without(function.by(s, name), left_out)
            by.append(
                ByNumber(
                    number.index if isinstance(number, Row) else None,
                    None if isinstance(number, Row) else number.index,
                    derivative if shares is None else derivative * shares,
                    derivative if spec.smoothing else None,
                )
            )
        if isinstance(slope, Tensor):
            slope = _without(slope, left_out)
            return Contribution(state, slope if shares is None else shares.mul_(slope), 1.0, slope, by)
        if shares is None and left_out is not None:
            shares = _without(torch.ones_like(s), left_out)
        return Contribution(state, shares, slope, slope, by)

    # The rows' losses

    @functools.cached_property
    def _finished_negatives(self) -> Tensor:
        """N (n,), zero where a row has none."""
        return without_pairs(self.negative.reduction.value(self.negative.complete(), self.counts[1]), self._absent(1))

    def _absent(self, kind: int) -> Tensor | None:
        """Which rows have no positives (0) or negatives (1) that count; None: all have some."""
        if self.pairs.complete and not self.mined:
            return None
        statistic = self.positive if kind == 0 else self.negative
        told = None if self.each and kind == 0 else statistic.reduction.empty(statistic.complete())
        if told is not None:
            return told
        # Sums do not tell. The average over active terms needs no telling: their sum of no terms is zero anyway.
        return None if self.active else self.counts[kind] == 0

    def finish(self, weights: RowWeights, rows: slice) -> Tensor:
        """The rows' losses (n,); keeps what the gradient of their weighted sum needs."""
        spec = self.spec
        absent = None if spec.combine == "negatives" else self._absent(0), self._absent(1)
        n = without_pairs(self.negative.reduction.value(self.negative.complete(), self.counts[1]), absent[1])
        by_p: Tensor
        if self.each is not None:
            number = self.counts[0].clamp_min(1)
            losses, by_n = (part / number for part in self.positive.complete())
            by_p = torch.ones_like(losses)
            for without in absent:
                losses, by_p, by_n = (without_pairs(x, without) for x in (losses, by_p, by_n))
        else:
            p = None
            if spec.combine != "negatives":
                p = self.positive.reduction.value(self.positive.complete(), self.counts[0])
                p = without_pairs(p, absent[0])
            sides: tuple[Any, Any] = (weights.positive_side, None)
            if self.active:
                sides = weights.over_active(self.counts[0]), weights.over_active(self.counts[1])
            elif weights.positive_side is not None:
                sides = cut(weights.positive_side, rows), None
            losses, by_p, by_n = combined(spec, p, n, absent, sides)
        counted = None if weights.counted is None else cut(weights.counted, rows)
        pull = only(counted, cut(weights.pull, rows))
        if spec.smoothing:
            positives, total = (c.clamp_min(1).to(n.dtype) for c in (self.counts[0], self.counts[0] + self.counts[1]))
            of_p = spec.smoothing * (1 / total - 1 / positives)
            of_n = -spec.smoothing / total
            losses = losses + of_p * self.linear[0] + of_n * self.linear[1]
            self.pull_linear = pull * of_p, pull * of_n
        # What is not counted may be infinite, and times a weight of zero it would be NaN.
        self.pull_p, self.pull_n = pull * only(counted, by_p), pull * only(counted, by_n)
        return only(counted, losses)

    @property
    def nothing_to_learn(self) -> bool:
        """Whether the gradient is known to be zero. Only where mining makes it likely, and looking is cheap."""
        if not self.mined or self.like.device.type != "cpu":
            return False
        return not bool(self.pull_n.any()) and not bool(self.pull_p.any())

    # Their gradient

    def gradient(self, side: Side, column_gradients: list[Tensor | None]) -> Tensor:
        """d loss / d s of the tile (b, t); adds the derivatives by numbers of rows and columns to what there is."""
        held = side.negative or self._negatives(side)
        assert held.g is not None
        pull = _times(self.pull_n[side.rows], self.negative.factor(side.rows, held.state, self.counts[1]))
        g = held.g.mul_((pull * held.scale).unsqueeze(1))
        for number in held.by:
            by_row = pull * number.shared
            if number.plain is not None:
                by_row = by_row + self.pull_linear[1][side.rows] * number.plain
            self._add_row_gradient(number.row, side.rows, by_row)
        if self.spec.smoothing:
            slope = held.slope[:, 0] if isinstance(held.slope, Tensor) else held.slope
            g = g.add_((self.pull_linear[1][side.rows] * slope).unsqueeze(1))
            g = g if side.pairs is None else side.pairs.hide(g, 0.0)
        if side.pairs is None or self.spec.combine == "negatives":
            return g
        held, rows, columns = side.positive or self._positives(side, side.pairs), side.listing, side.pairs.columns
        pull = _times(self.pull_p[rows], self.positive.factor(rows, held.state, self.counts[0])).unsqueeze(1)
        by_listed = pull * held.scale if held.g is None else held.g * (pull * held.scale)  # it may be expanded
        plain = self.pull_linear[0][rows].unsqueeze(1) if self.spec.smoothing else None
        if plain is not None:
            slope = _without(torch.ones_like(columns, dtype=g.dtype) * held.slope, side.pairs.vacant)
            by_listed = by_listed + plain * slope
        part = g if side.pairs.rows is None else g[side.pairs.rows]
        part.scatter_add_(1, columns, by_listed.expand_as(columns))
        for number in held.by:
            by_pair = pull * number.shared
            if number.plain is not None and plain is not None:
                by_pair = by_pair + plain * number.plain
            if number.row is not None:
                self._add_row_gradient(number.row, rows, by_pair.sum(1))
            elif number.column is not None and (total := column_gradients[number.column]) is not None:
                total.index_add_(0, (columns + side.first_column).flatten(), by_pair.expand_as(columns).flatten())
        return g

    def _add_row_gradient(self, index: int | None, rows: slice, by_row: Tensor) -> None:
        assert index is not None
        if index not in self.row_gradients:
            self.row_gradients[index] = torch.zeros_like(self.pull_n)
        self.row_gradients[index][rows] += by_row

    def picked(self, slopes_at: Callable[[Map, Tensor], Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Of reductions to one pair, the gradient's entries: (columns (n,), d loss / d s (n,)), one a row and kind.

        Args:
            slopes_at: of a map, at the columns of each row.
        """
        entries = []
        for statistic, function, pull in (
            (self.positive, self.spec.positive, self.pull_p),
            (self.negative, self.spec.negative, self.pull_n),
        ):
            column = statistic.state[1]
            here = (column >= 0) & (pull != 0)
            column = torch.where(here, column, 0)
            entries.append((column, torch.where(here, pull * slopes_at(function, column), 0)))
        return entries


def _times(pull: Tensor, factor: Tensor | None) -> Tensor:
    return pull if factor is None else pull * factor


def _without(values: Tensor, left_out: Tensor | None) -> Tensor:
    return values if left_out is None else values.masked_fill(left_out, 0.0)
