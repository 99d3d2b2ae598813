"""Row statistics: what a row must know of all its pairs, gathered tile by tile, and the gradient that follows from it.

Statistics are monoids: tiles of any order, mirrored ones among them, and ranks that have other columns (`exchange`) are
merged by maxima and sums. Each tile of a row has a place in a table, so that all are merged at once when they are asked
for, and none of the small tensors of one tile lies between the large ones of the next. A state lives for one group of
rows. The engine shows it every tile of the group once per sweep (after which ranks exchange), then calls `finish`, and
then, if gradients are wanted, asks for `gradient(view)` of every tile.

Shapes: n rows of the group; b rows and t columns of a tile; K slots of its table of positives, of p of its rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import torch
from torch import Tensor

from nearfar.losses.maps import softplus
from nearfar.losses.pairs import Pairs, TilePairs
from nearfar.losses.ranks import Ranks
from nearfar.losses.spec import LossSpec
from nearfar.losses.vectors import cut
from nearfar.losses.weights import Sides, only


class Place(NamedTuple):
    """Where the statistics of a tile's rows are kept: tables have one line for each tile of a row, one column a row."""

    line: int
    rows: slice


@dataclass
class View:
    """One tile as its rows see it. With `keep`, what the gradient needs is formed in the first sweep and stays here."""

    rows: slice  # within the group
    s: Tensor | None  # (b, t) similarities; given up once `held` takes their place
    pairs: TilePairs | None
    listed: Tensor | None  # (p, K) the similarities in the pairs' table
    column_offset: int = 0  # the tile's first column
    line: int | None = None  # which tile of its rows this is; None: the only one, of all the group's rows
    keep: bool = False
    keep_s: bool = False  # the similarities too, which the gradient will look at
    store: Tensor | None = None  # (b, t) memory to keep it in
    scratch: Tensor | None = None  # (b, t) memory for the gradient that the next tile may use again
    held: "Held | None" = None
    positives: "HeldPositives | None" = None
    log_weight: Tensor | None = None  # (t,) log of the columns' weights
    row_norm: Tensor | None = None  # (b,) the rows' norms, where a map asks for them
    column_norm: Tensor | None = None  # (t,) the columns', where s keeps them
    border: Tensor | None = None  # (b, 1) what f_n takes besides of every row, where it does
    shares: Tensor | None = None  # of several vectors of a class in `s`: what a pool says of them
    planes: Tensor | None = None  # (K, b, t) memory for the gradient by each

    @property
    def nbytes(self) -> int:
        """What keeping it takes."""
        assert self.s is not None
        listed = 0 if self.listed is None else 3 * self.listed.nbytes  # with their terms and slopes
        return self.s.nbytes * (1 + self.keep_s) + listed + (0 if self.pairs is None else self.pairs.nbytes)

    @property
    def listing(self) -> slice:
        """The rows, within the group, that the pairs' table is of."""
        return self.rows if self.pairs is None else within(self.rows, self.pairs.rows)

    def place(self, rows: slice) -> Place | None:
        """Of a statistic of these rows; None: it is all there is."""
        return None if self.line is None else Place(self.line, rows)

    def pair_norm(self, pairs: TilePairs) -> Tensor | None:
        """(p, K) the norms of the listed pairs."""
        if self.row_norm is None:
            return None
        assert pairs.columns is not None
        norm = (self.row_norm if pairs.rows is None else self.row_norm[pairs.rows])[:, None].expand_as(pairs.columns)
        return norm if self.column_norm is None else norm * self.column_norm[pairs.columns]


def within(rows: slice, some: slice | None) -> slice:
    """A range of a range; None is all of it."""
    return rows if some is None else slice(rows.start + some.start, rows.start + some.stop)


@dataclass
class Held:
    """The negatives of a tile on their way to a gradient: d N / d s, but for a factor that needs the whole row."""

    g: Tensor  # (b, t)
    scale: float  # the map's slope, where it is one number


@dataclass
class HeldPositives:
    """The same of the listed pairs, by their similarities and by their norms; zero in slots that hold no positive."""

    g: Tensor | None  # (p, K); None: 1 for all
    scale: float
    by_norm: Tensor | None


class Table:
    """Numbers (lines, n) of a group's rows, one line for each of a row's tiles; or (n,), if there is but one tile."""

    def __init__(self, lines: int, n: int, like: Tensor, empty: float):
        self.shape, self.like, self.empty = (max(1, lines), n), like, empty  # a rank may have no tile at all
        self._values: Tensor | None = None

    def put(self, place: Place | None, reduce: Callable[..., Tensor], v: Tensor) -> Tensor:
        """Reduce `v` (b, t) along its columns, into that place."""
        if place is None:
            self._values = reduce(v, 1)
            return self._values
        return reduce(v, 1, out=self.values[place])

    def set(self, place: Place | None, values: Tensor) -> None:
        """The same, of what is reduced already (b,)."""
        if place is None:
            self._values = values
        else:
            self.values[place] = values

    @property
    def values(self) -> Tensor:
        if self._values is None:
            self._values = self.like.new_full(self.shape, self.empty)
        return self._values


class LogSumExp:
    """log sum_c exp(v_rc), as (top, total): the largest value, and the sum of exp(v - top)."""

    empty = -math.inf

    def __init__(self, lines: int, n: int, like: Tensor):
        self.lowest = torch.finfo(like.dtype).min
        self.tops, self.totals = Table(lines, n, like, -math.inf), Table(lines, n, like, 0.0)
        self._gathered: tuple[Tensor, Tensor] | None = None

    def gather(self, place: Place | None, v: Tensor) -> Tensor:
        """Take in the values `v` (b, t) of a tile, which become exp(v - the tile's top), what the gradient needs."""
        top = self.tops.put(place, torch.amax, v)
        # Of an empty row: -inf - lowest is -inf, not NaN. Results near the smallest normal number (e^-80 in float32,
        # far under the rounding of their row's sum) are zero: denormal numbers take twenty times as long.
        v.sub_(top.clamp_min(self.lowest).unsqueeze(1))
        torch.threshold_(v, 0.92 * math.log(torch.finfo(v.dtype).tiny), -math.inf).exp_()
        self.totals.put(place, torch.sum, v)
        return v

    @property
    def gathered(self) -> tuple[Tensor, Tensor]:
        """(top, total) of all that has been taken in."""
        if self._gathered is None:
            top, total = self.tops.values, self.totals.values
            if top.ndim == 2:
                top = top.amax(0)
                total = (self.tops.values - top.clamp_min(self.lowest)).exp_().mul_(total).sum(0)
            self._gathered = top, total
        return self._gathered

    def raise_to(self, top: Tensor) -> None:
        """The same sum, of exponentials less another top, which is no lower."""
        before, total = self.gathered
        self._gathered = top, total * (before - top.clamp_min(self.lowest)).exp_()

    def sums(self) -> Tensor:
        """(1, n) what ranks add up, once they have one top."""
        return self.gathered[1][None]

    def take_sums(self, sums: Tensor) -> None:
        self._gathered = self.gathered[0], sums[0]

    def value(self) -> Tensor:
        """(n,)."""
        top, total = self.gathered
        return total.log().add_(top)

    def hand_out(self, pull: Tensor) -> None:
        """Of (n,) d loss / d value, each tile has its part; exact where that by exp(v - value) would be rounded."""
        top, total = self.gathered
        pull = pull / total.clamp_min(1)  # what is less than 1 is the 0 of an empty row
        own = self.tops.values
        self._pull = pull if own is top else (own - top.clamp_min(self.lowest)).exp_().mul_(pull)

    def pull(self, place: Place | None) -> Tensor:
        """(b, 1) what turns a tile's own exp(v - top) into d loss / d v."""
        return (self._pull if place is None else self._pull[place]).unsqueeze(1)


class SoftMin(LogSumExp):
    """-log sum_c exp(-u_rc)."""

    empty = math.inf

    def gather(self, place: Place | None, v: Tensor) -> Tensor:
        """Take in the values `v` (p, K), which become exp(-v - top); d value / d v has its sign."""
        return super().gather(place, v.neg_())

    def value(self) -> Tensor:
        return -super().value()


class Sum:
    """sum_c v_rc, and, if asked to count, how many terms of it are not zero; the mean, if `number` is given."""

    empty = 0.0

    def __init__(self, lines: int, n: int, like: Tensor, number: Tensor | None = None, count: bool = False):
        self.totals = Table(lines, n, like, 0.0)
        self.counts = Table(lines, n, like, 0.0) if count else None
        self.scale = None if number is None else 1 / number.clamp_min(1).to(like.dtype)
        self._gathered: list[Tensor] | None = None

    def gather(self, place: Place | None, v: Tensor) -> Tensor:
        """Take in the values `v` (b, t) of a tile, which stay as they are: the derivatives are 1."""
        self.totals.put(place, torch.sum, v)
        if self.counts is not None:
            self.counts.set(place, torch.count_nonzero(v, dim=1))
        return v

    @property
    def gathered(self) -> list[Tensor]:
        """The total and, if counted, how many terms are not zero, of all that has been taken in."""
        if self._gathered is None:
            tables = [self.totals.values] if self.counts is None else [self.totals.values, self.counts.values]
            self._gathered = [table if table.ndim == 1 else table.sum(0) for table in tables]
        return self._gathered

    def sums(self) -> Tensor:
        """(1 or 2, n) what ranks add up."""
        return torch.stack(self.gathered)

    def take_sums(self, sums: Tensor) -> None:
        self._gathered = list(sums)

    def value(self) -> Tensor:
        return self.gathered[0] if self.scale is None else self.gathered[0] * self.scale

    def hand_out(self, pull: Tensor) -> None:
        self._pull = pull if self.scale is None else pull * self.scale

    def pull(self, place: Place | None) -> Tensor:
        return _of_rows(self._pull, place)


def _of_rows(pull: Tensor, place: Place | None) -> Tensor:
    """(b, 1) of what is the same for all tiles of a row (n,)."""
    return (pull if place is None else pull[place.rows]).unsqueeze(1)


def exchange(statistics: "Sequence[LogSumExp | Sum]", ranks: Ranks) -> None:
    """Merge what every rank has gathered of the columns that it has."""
    exponentials = [s for s in statistics if isinstance(s, LogSumExp)]
    if exponentials:
        tops = ranks.max(torch.stack([s.gathered[0] for s in exponentials]))
        for statistic, top in zip(exponentials, tops, strict=True):
            statistic.raise_to(top)
    parts = [s.sums() for s in statistics]
    sums = torch.split(ranks.sum(torch.cat(parts)), [len(part) for part in parts])
    for one, some in zip(statistics, sums, strict=True):
        one.take_sums(some)


class EachPositive:
    """mean over a row's positives of softplus(u + N): needs N, so it is gathered in a sweep of its own."""

    def __init__(self, lines: int, negatives: Tensor, count: Tensor):
        n = len(negatives)
        self.negatives = negatives
        self.scale = 1 / count.clamp_min(1).to(negatives.dtype)
        self.totals, self.slopes = Table(lines, n, negatives, 0.0), Table(lines, n, negatives, 0.0)
        self._gathered: Tensor | None = None

    def gather(self, place: Place | None, u: Tensor) -> None:
        """Take in the terms `u` (p, K), which become sigmoid(u + N)."""
        u.add_(_of_rows(self.negatives, place))
        self.totals.put(place, torch.sum, softplus(u))
        self.slopes.put(place, torch.sum, u.sigmoid_())

    @property
    def gathered(self) -> Tensor:
        """(2, n) the mean, and its derivative by N."""
        if self._gathered is None:
            tables = self.totals.values, self.slopes.values
            self._gathered = torch.stack([x if x.ndim == 1 else x.sum(0) for x in tables]).mul_(self.scale)
        return self._gathered

    def exchange(self, ranks: Ranks) -> None:
        self._gathered = ranks.sum(self.gathered)

    def hand_out(self, pull: Tensor) -> None:
        self._pull = pull * self.scale

    def pull(self, place: Place | None) -> Tensor:
        return _of_rows(self._pull, place)


def activate(act: str, x: Tensor) -> tuple[Tensor, Tensor | float]:
    """act(x) and its derivative."""
    if act == "softplus":
        return softplus(x), torch.sigmoid(x)
    if act == "relu":
        return torch.relu(x), (x > 0).to(x.dtype)
    return x, 1.0


@overload
def times(x: Tensor, factor: Tensor | float) -> Tensor: ...
@overload
def times(x: Tensor | float, factor: Tensor | float) -> Tensor | float: ...
def times(x: Tensor | float, factor: Tensor | float) -> Tensor | float:
    """x factor, without a number where that is 1 or -1, and without a pass where one of them is 1."""
    if isinstance(factor, float) and abs(factor) == 1:
        return x if factor == 1 else -x
    return factor if isinstance(x, float) and x == 1 else x * factor


def _alike(a: Tensor | float, b: Tensor | float) -> bool:
    """Whether two factors are known to be the same."""
    return a is b or (isinstance(a, float) and isinstance(b, float) and a == b)


Sweep = tuple[Callable[[View], None], Callable[[Ranks], None]]  # what sees every tile, and what ranks then exchange


class GatheredRows:
    """The state of rows whose every pair counts: lse, sum and mean."""

    def __init__(self, spec: LossSpec, lines: int, n: int, like: Tensor, pairs: Pairs, rows: slice):
        self.spec, self.lines, self.pairs, self.rows = spec, lines, pairs, rows
        count = spec.average == "active"
        self.negative: LogSumExp | Sum
        self.negative = LogSumExp(lines, n, like) if spec.gather[1] == "lse" else Sum(lines, n, like, count=count)
        self.positive: LogSumExp | Sum
        if pairs.one_positive and spec.mining is None:  # lse, sum and mean of one value are that value
            self.positive = Sum(lines, n, like, count=count)
        elif spec.gather[0] == "lse":
            self.positive = LogSumExp(lines, n, like)
        elif spec.gather[0] == "softmin":
            self.positive = SoftMin(lines, n, like)
        else:
            number = cut(pairs.positives, rows) if spec.gather[0] == "mean" else None
            self.positive = Sum(lines, n, like, number, count)
        self.each: EachPositive | None = None
        if spec.mining is not None:
            self.lowest_positive = like.new_full((n,), math.inf)
            self.highest_negative = like.new_full((n,), -math.inf)

    @property
    def sweeps(self) -> list[Sweep]:
        """What looks at all tiles, in turn. (Kept here, the list would keep the state from being freed at once.)"""
        sweeps: list[Sweep] = [(self.collect, self._exchange_sums)]
        if self.spec.mining is not None:
            sweeps.insert(0, (self.find_extremes, self._exchange_extremes))
        if self.spec.combine == "each":
            sweeps.append((self.collect_positives, self._exchange_each))
        return sweeps

    def find_extremes(self, view: View) -> None:
        """The least similar positive and the most similar negative, for the mining."""
        assert view.s is not None
        s, listed = view.s, view.listed
        if view.pairs is not None and listed is not None:
            if view.pairs.vacant is not None:
                listed = listed.masked_fill(view.pairs.vacant, math.inf)
            lowest = self.lowest_positive[view.listing]
            torch.minimum(lowest, listed.amin(1), out=lowest)
            s = view.pairs.hide(s.clone(), -math.inf)
        highest = self.highest_negative[view.rows]
        torch.maximum(highest, s.amax(1), out=highest)

    def collect(self, view: View) -> None:
        """P and N."""
        held = self._hold(view, gradient=view.keep)
        if view.keep:
            view.held, view.s = held, view.s if view.keep_s else None
        if self.spec.combine in ("joint", "split"):
            self.collect_positives(view)

    def collect_positives(self, view: View) -> None:
        """P, or what every positive makes of N."""
        if view.pairs is not None:
            positives = self._hold_positives(view, view.pairs)
            if view.keep:
                view.positives = positives

    def _exchange_extremes(self, ranks: Ranks) -> None:
        self.lowest_positive = ranks.min(self.lowest_positive)
        self.highest_negative = ranks.max(self.highest_negative)

    def _exchange_sums(self, ranks: Ranks) -> None:
        exchange([self.negative] if self.spec.combine == "negatives" else [self.negative, self.positive], ranks)

    def _exchange_each(self, ranks: Ranks) -> None:
        self._of_each_positive().exchange(ranks)

    def _of_each_positive(self) -> EachPositive:
        if self.each is None:
            self.each = EachPositive(self.lines, self.negative.value(), self.pairs.positives[self.rows])
        return self.each

    def _hold(self, view: View, gradient: bool) -> Held:
        s = view.s
        assert s is not None
        if self.spec.mining is not None:
            # A row's threshold as one at zero, which is a cheap pass; what is left out passes through the (linear) map.
            floor = self.lowest_positive[view.rows] - self.spec.mining
            floor = floor.clamp_max_(torch.finfo(s.dtype).max).unsqueeze(1)
            s = torch.threshold_(s - floor, 0.0, self.negative.empty).add_(floor)
        slope: Tensor | float = 1.0
        if gradient:
            v, slope, _ = self.spec.negative.slopes(s, view.border, out=view.store)
        else:
            v = self.spec.negative.value(s, view.border)
        if view.log_weight is not None:
            v.add_(view.log_weight)
        if view.pairs is not None:
            view.pairs.hide(v, self.negative.empty, keep_positives=self.spec.others)
        v = self.negative.gather(view.place(view.rows), v)
        if isinstance(self.negative, Sum):
            g, slope = slope if isinstance(slope, Tensor) else v.fill_(slope), 1.0
            if view.pairs is not None:
                view.pairs.hide(g, 0.0, keep_positives=self.spec.others)
        elif isinstance(slope, Tensor):
            g, slope = v.mul_(slope), 1.0
        else:
            g = v
        if gradient and view.store is not None and g.data_ptr() != view.store.data_ptr():
            g = view.store.copy_(g)
        return Held(g, slope)

    def _hold_positives(self, view: View, pairs: TilePairs) -> HeldPositives:
        s = view.listed
        assert s is not None
        u, slope, norm_slope = self.spec.positive.slopes(s, view.pair_norm(pairs))
        if view.log_weight is not None:
            u.add_(view.log_weight if pairs.columns is None else view.log_weight[pairs.columns])
        left_out = pairs.vacant
        if self.spec.mining is not None:
            easy = s >= (self.highest_negative[view.listing] + self.spec.mining).unsqueeze(1)
            left_out = easy if left_out is None else left_out | easy
        if left_out is not None:
            u.masked_fill_(left_out, self.positive.empty)
        place = view.place(view.listing)
        if self.spec.combine == "each":
            self._of_each_positive().gather(place, u)
        else:
            u = self.positive.gather(place, u)
            if isinstance(self.positive, Sum):  # d P / d u is 1
                if left_out is None:
                    g, scale = (slope, 1.0) if isinstance(slope, Tensor) else (None, slope)
                    return HeldPositives(g, scale, norm_slope)
                g = slope if isinstance(slope, Tensor) else u.fill_(slope)
                by_norm = None if norm_slope is None else norm_slope.masked_fill(left_out, 0.0)
                return HeldPositives(g.masked_fill_(left_out, 0.0), 1.0, by_norm)
        by_norm = None if norm_slope is None else u * norm_slope
        return HeldPositives(u * slope, 1.0, by_norm) if isinstance(slope, Tensor) else HeldPositives(u, slope, by_norm)

    def finish(self, weight: Tensor, counted: Tensor | None, sides: Sides) -> Tensor:
        """The rows' losses (n,); keeps what the gradient of sum_r weight_r l_r needs."""
        losses: Tensor
        by_p: Tensor | float
        by_n: Tensor | float
        if self.each is not None:
            by_p = 1.0
            losses, by_n = self.each.gathered
        elif self.spec.combine == "negatives":
            losses, by_n = activate(self.spec.act, self.negative.value())
            by_p = by_n
        elif self.spec.combine == "joint":
            losses, by_p = activate(self.spec.act, self.positive.value() + self.negative.value())
            by_n = by_p
        else:
            loss_p, by_p = activate(self.spec.act, self.positive.value())
            loss_n, by_n = activate(self.spec.act, self.negative.value())
            a, b = self.spec.side_scale
            losses = torch.add(times(times(loss_p, sides[0]), a), times(loss_n, sides[1]), alpha=b)
            by_p, by_n = times(by_p, sides[0]), times(by_n, sides[1])
        weight = only(counted, weight)
        # What is not counted may be infinite, and times a weight of zero it would be NaN.
        pull_p = times(weight, only(counted, by_p))
        self.negative.hand_out(pull_p if _alike(by_p, by_n) else times(weight, only(counted, by_n)))
        if self.spec.combine != "negatives":
            (self.each or self.positive).hand_out(pull_p)
        return only(counted, losses)

    def active(self) -> tuple[Tensor, Tensor]:
        """(n,) each: how many positive and negative pairs of the rows have a term that is not zero."""
        assert isinstance(self.positive, Sum) and isinstance(self.negative, Sum)
        return self.positive.gathered[1], self.negative.gathered[1]

    def gradient(self, view: View) -> tuple[Tensor, Tensor | None]:
        """d loss / d s of the tile (b, t), and d loss / d norm of its listed pairs (p, K), if the maps use norms."""
        held = view.held or self._hold(view, gradient=True)
        scales = self.spec.side_scale
        pull = times(self.negative.pull(view.place(view.rows)), held.scale * scales[1])
        # What is in store is left there: its memory may be where the product of `g` goes.
        g = held.g.mul_(pull) if view.store is None else torch.mul(held.g, pull, out=view.scratch)
        if view.pairs is None or self.spec.combine == "negatives":
            return g, None
        positives = view.positives or self._hold_positives(view, view.pairs)
        pull = times((self.each or self.positive).pull(view.place(view.listing)), positives.scale * scales[0])
        columns, rows = view.pairs.columns, view.pairs.rows
        if columns is None and positives.g is not None:
            g.addcmul_(positives.g, pull)
        else:
            assert columns is not None
            by_listed = pull if positives.g is None else positives.g * pull
            by_listed = by_listed if by_listed.shape == columns.shape else by_listed.expand_as(columns)
            (g if rows is None else g[rows]).scatter_add_(1, columns, by_listed)
        return g, None if positives.by_norm is None else positives.by_norm * pull


ELSEWHERE = -1  # the column of a hardest pair that another rank has


class HardestRows:
    """The state of rows of which one pair of each kind counts: the hardest ("max"), or the easiest positive ("min").

    The maps are monotone, so the pair is found among the similarities, and the gradient is two entries a row.
    """

    def __init__(self, spec: LossSpec, n: int, like: Tensor):
        self.spec = spec
        self.sign = 1 if spec.gather[0] == "max" else -1  # the least of sign * s is sought among the positives
        self.positive = like.new_full((n,), math.inf)
        self.negative = like.new_full((n,), -math.inf)
        self.positive_column = torch.zeros(n, dtype=torch.long, device=like.device)
        self.negative_column = torch.zeros_like(self.positive_column)

    @property
    def sweeps(self) -> list[Sweep]:
        """What looks at all tiles."""
        return [(self.collect, self._exchange)]

    def collect(self, view: View) -> None:
        """The hardest pairs so far, and where they are."""
        s, rows = view.s, view.rows
        assert s is not None
        if view.pairs is not None and view.listed is not None:
            listed, vacant = view.listed * self.sign, view.pairs.vacant
            hardest, slot = (listed if vacant is None else listed.masked_fill_(vacant, math.inf)).min(1)
            table = view.pairs.columns
            column = (slot if table is None else table.gather(1, slot[:, None])[:, 0]) + view.column_offset
            some = view.listing
            harder = hardest < self.positive[some]
            self.positive[some] = torch.where(harder, hardest, self.positive[some])
            self.positive_column[some] = torch.where(harder, column, self.positive_column[some])
            s = view.pairs.hide(s.clone(), -math.inf)
        hardest, column = s.max(1)
        harder = hardest > self.negative[rows]
        self.negative[rows] = torch.where(harder, hardest, self.negative[rows])
        self.negative_column[rows] = torch.where(harder, column + view.column_offset, self.negative_column[rows])

    def _exchange(self, ranks: Ranks) -> None:
        """The hardest pairs of all ranks. The first rank that has one has its entry in the gradient."""
        for values, columns, hardest in (
            (self.positive, self.positive_column, ranks.min(self.positive)),
            (self.negative, self.negative_column, ranks.max(self.negative)),
        ):
            owner = torch.where(values == hardest, ranks.rank, ranks.size)
            columns.masked_fill_(ranks.min(owner) != ranks.rank, ELSEWHERE)
            values.copy_(hardest)

    def finish(self, weight: Tensor, counted: Tensor | None, sides: Sides) -> Tensor:
        """The rows' losses (n,), and the gradient's two entries a row: (columns, d loss / d s)."""
        u, slope_p, _ = self.spec.positive.slopes(only(counted, self.positive * self.sign))
        v, slope_n, _ = self.spec.negative.slopes(only(counted, self.negative))
        losses, by = activate(self.spec.act, u + v)
        pull = weight * only(counted, by)
        entries = [(self.positive_column, pull * slope_p), (self.negative_column, pull * slope_n)]
        self.entries = [(c.clamp_min(0), torch.where(c == ELSEWHERE, 0, by)) for c, by in entries]
        return only(counted, losses)
