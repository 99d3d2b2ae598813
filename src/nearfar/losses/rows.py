"""Row statistics: what a row must know of all its pairs, gathered tile by tile, and the gradient that follows from it.

Statistics are monoids: they start empty, take in tiles in any order, and merge; so column tiles and mirrored tiles use
the same `merge`, and ranks that have other columns the same maxima and sums (`exchange`). A state lives for one group
of rows. The engine shows it every tile of the group once per sweep (after which ranks exchange), then calls `finish`,
and then, if gradients are wanted, asks for `gradient(view)` of every tile.

Shapes: n rows of the group; b rows and t columns of a tile; K slots of its table of positives.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.losses.pairs import Pairs, TilePairs
from nearfar.losses.ranks import Ranks
from nearfar.losses.spec import LossSpec
from nearfar.losses.spread import over_all_rows
from nearfar.losses.weights import Sides, only


@dataclass
class View:
    """One tile as its rows see it. With `keep`, what the gradient needs is formed in the first sweep and stays here."""

    rows: slice  # within the group
    s: Tensor | None  # (b, t) similarities, not written to; given up once `held` takes their place
    pairs: TilePairs | None
    listed: Tensor | None  # (b, K) the similarities in the pairs' table
    column_offset: int = 0  # the tile's first column
    keep: bool = False
    store: Tensor | None = None  # (b, t) memory to keep it in
    scratch: Tensor | None = None  # (b, t) memory for the gradient that the next tile may use again
    held: "Held | None" = None
    positives: "HeldPositives | None" = None
    log_weight: Tensor | None = None  # (t,) log of the columns' weights
    row_norm: Tensor | None = None  # (b,) the rows' norms, where a map asks for them
    column_norm: Tensor | None = None  # (t,) the columns', where s keeps them
    target: Tensor | None = None  # (b, 1) the rows' similarities to their own class, where f_n asks for them
    shares: Tensor | None = None  # of several vectors of a class in `s`: what a pool says of them
    planes: Tensor | None = None  # (K, b, t) memory for the gradient by each

    @property
    def nbytes(self) -> int:
        """What keeping it takes."""
        assert self.s is not None
        listed = 0 if self.listed is None else 3 * self.listed.nbytes  # with their terms and slopes
        return self.s.nbytes + listed + (0 if self.pairs is None else self.pairs.nbytes)

    def pair_norm(self, pairs: TilePairs) -> Tensor | None:
        """(b, K) the norms of the listed pairs."""
        if self.row_norm is None:
            return None
        norm = self.row_norm[:, None].expand_as(pairs.columns)
        return norm if self.column_norm is None else norm * self.column_norm[pairs.columns]


@dataclass
class Held:
    """The negatives of a tile on their way to a gradient: d N / d s, but for a factor that needs the whole row."""

    g: Tensor  # (b, t)
    part: tuple[Tensor, Tensor]  # the tile's own statistic
    scale: float  # the map's slope, where it is one number


@dataclass
class HeldPositives:
    """The same of the listed pairs, by their similarities and by their norms; zero in slots that hold no positive."""

    g: Tensor  # (b, K)
    by_norm: Tensor | None
    part: tuple[Tensor, Tensor]


class LogSumExp:
    """log sum_c exp(v_rc), as (top, total): the largest value, and the sum of exp(v - top)."""

    empty = -math.inf

    def __init__(self, n: int, like: Tensor):
        self.n, self.like, self.lowest = n, like, torch.finfo(like.dtype).min
        self.part: tuple[Tensor, Tensor] | None = None

    def gather(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The statistic of the values `v` (b, t), which become exp(v - top)."""
        top = v.amax(1)
        if v.shape[1] == 1:  # of one value there is nothing to add up
            return top, v.copy_(v > -math.inf).sum(1)
        # Of an empty row: -inf - lowest is -inf, not NaN. Results near the smallest normal number (e^-80 in float32,
        # far under the rounding of their row's sum) are zero: denormal numbers take twenty times as long.
        v.sub_(top.clamp_min(self.lowest)[:, None])
        torch.threshold_(v, 0.92 * math.log(torch.finfo(v.dtype).tiny), -math.inf).exp_()
        return top, v.sum(1)

    def merge(self, rows: slice, part: tuple[Tensor, Tensor]) -> None:
        """Take in the statistic of a tile of these rows."""
        whole = rows == slice(0, self.n)
        if self.part is None:
            if whole:
                self.part = part
                return
            self.part = self.like.new_full((self.n,), -math.inf), self.like.new_zeros(self.n)
        (tops, totals), (top, total) = self.part, part
        before = tops[rows]
        both = torch.maximum(before, top)
        finite = both.clamp_min(self.lowest)
        total = totals[rows] * (before - finite).exp_() + total * (top - finite).exp_()
        if whole:  # never written to: the first tile's own statistic may be in there
            self.part = both, total
        else:
            tops[rows], totals[rows] = both, total

    @property
    def gathered(self) -> tuple[Tensor, Tensor]:
        """(top, total) of what has been taken in so far."""
        if self.part is None:
            self.part = self.like.new_full((self.n,), -math.inf), self.like.new_zeros(self.n)
        return self.part

    def raise_to(self, top: Tensor) -> None:
        """The same sum, of exponentials less another top, which is no lower."""
        before, total = self.gathered
        self.part = top, total * (before - top.clamp_min(self.lowest)).exp_()

    def sums(self) -> Tensor:
        """(1, n) what ranks add up, once they have one top."""
        return self.gathered[1][None]

    def take_sums(self, sums: Tensor) -> None:
        self.part = self.gathered[0], sums[0]

    def value(self) -> Tensor:
        """(n,)."""
        top, total = self.gathered
        return top + total.log()

    def factor(self, rows: slice, part: tuple[Tensor, Tensor]) -> Tensor:
        """(b, 1) what turns a tile's own exp(v - top) into d value / d v; more exact than exp(v - value)."""
        assert self.part is not None
        tops, totals = self.part
        totals = totals[rows].clamp_min(1)  # what is less is the 0 of an empty row
        if part is self.part:
            return totals.reciprocal_()[:, None]
        return (part[0] - tops[rows].clamp_min(self.lowest)).exp_().div_(totals)[:, None]


class SoftMin(LogSumExp):
    """-log sum_c exp(-u_rc)."""

    empty = math.inf

    def gather(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The statistic of the values `v` (b, K), which become exp(-v - top); d value / d v has its sign."""
        return super().gather(v.neg_())

    def value(self) -> Tensor:
        return -super().value()


class Sum:
    """sum_c v_rc, and, if asked to count, how many terms of it are not zero; the mean, if `number` is given."""

    empty = 0.0

    def __init__(self, n: int, like: Tensor, number: Tensor | None = None, count: bool = False):
        self.n, self.like, self.count = n, like, count
        self.scale = None if number is None else 1 / number.clamp_min(1).to(like.dtype)
        self.part: tuple[Tensor, Tensor] | None = None

    def gather(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The statistic of the values `v` (b, t), which stay as they are: the derivatives are 1."""
        return v.sum(1), torch.count_nonzero(v, dim=1).to(v.dtype) if self.count else self.like

    def merge(self, rows: slice, part: tuple[Tensor, Tensor]) -> None:
        if self.part is None and rows == slice(0, self.n):
            self.part = part
            return
        total, active = self.gathered
        total[rows].add_(part[0])
        if self.count:
            active[rows].add_(part[1])

    @property
    def gathered(self) -> tuple[Tensor, Tensor]:
        """(total, how many terms are not zero, if counted) of what has been taken in so far."""
        if self.part is None:
            self.part = self.like.new_zeros(self.n), self.like.new_zeros(self.n) if self.count else self.like
        return self.part

    def sums(self) -> Tensor:
        """(1 or 2, n) what ranks add up."""
        return torch.stack(self.gathered if self.count else self.gathered[:1])

    def take_sums(self, sums: Tensor) -> None:
        self.part = sums[0], sums[1] if self.count else self.like

    def value(self) -> Tensor:
        total, _ = self.gathered
        return total if self.scale is None else total * self.scale

    def factor(self, rows: slice, part: tuple[Tensor, Tensor]) -> Tensor | float:
        return 1.0 if self.scale is None else self.scale[rows, None]


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

    empty = -math.inf

    def __init__(self, negatives: Tensor, count: Tensor):
        self.negatives = negatives
        self.scale = 1 / count.clamp_min(1).to(negatives.dtype)
        self.total = torch.zeros_like(negatives)
        self.pull = torch.zeros_like(negatives)  # d l / d N

    def gather(self, rows: slice, u: Tensor) -> tuple[Tensor, Tensor]:
        """The statistic of the terms `u` (b, K), which become sigmoid(u + N)."""
        u.add_(self.negatives[rows, None])
        return softplus(u).sum(1), u.sigmoid_().sum(1)

    def merge(self, rows: slice, part: tuple[Tensor, Tensor]) -> None:
        self.total[rows] += part[0] * self.scale[rows]
        self.pull[rows] += part[1] * self.scale[rows]

    def exchange(self, ranks: Ranks) -> None:
        self.total, self.pull = ranks.sum(torch.stack([self.total, self.pull]))


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exactly (torch's own is linear above 20), and 0 at -inf."""
    return torch.logaddexp(x, x.new_zeros(()))


def activate(act: str, x: Tensor) -> tuple[Tensor, Tensor | float]:
    """act(x) and its derivative."""
    if act == "softplus":
        return softplus(x), torch.sigmoid(x)
    if act == "relu":
        return torch.relu(x), (x > 0).to(x.dtype)
    return x, 1.0


def times(x: Tensor, factor: Tensor | float) -> Tensor:
    """x factor, without a pass for a factor of 1."""
    return x if isinstance(factor, float) and factor == 1 else x * factor


def _alike(a: Tensor | float, b: Tensor | float) -> bool:
    """Whether two factors are known to be the same."""
    return a is b or (isinstance(a, float) and isinstance(b, float) and a == b)


Sweep = tuple[Callable[[View], None], Callable[[Ranks], None]]  # what sees every tile, and what ranks then exchange


class GatheredRows:
    """The state of rows whose every pair counts: lse, sum and mean."""

    def __init__(self, spec: LossSpec, n: int, like: Tensor, pairs: Pairs, rows: slice):
        self.spec, self.pairs, self.rows = spec, pairs, rows
        count = spec.average == "active"
        self.negative = Sum(n, like, count=count) if spec.gather[1] == "sum" else LogSumExp(n, like)
        self.positive: LogSumExp | Sum
        if spec.gather[0] in ("lse", "softmin"):
            self.positive = (LogSumExp if spec.gather[0] == "lse" else SoftMin)(n, like)
        else:
            self.positive = Sum(n, like, pairs.positives[rows] if spec.gather[0] == "mean" else None, count)
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
            sweeps.append((self.collect_each, self._exchange_each))
        return sweeps

    def find_extremes(self, view: View) -> None:
        """The least similar positive and the most similar negative, for the mining."""
        assert view.s is not None
        s = view.s
        if view.pairs is not None and view.listed is not None:
            listed, positive = view.listed, view.pairs.positive
            listed = listed if positive is None else listed.masked_fill(~positive, math.inf)
            self.lowest_positive[view.rows] = torch.minimum(self.lowest_positive[view.rows], listed.amin(1))
            s = view.pairs.hide(s.clone(), -math.inf)
        self.highest_negative[view.rows] = torch.maximum(self.highest_negative[view.rows], s.amax(1))

    def collect(self, view: View) -> None:
        """P and N."""
        held = self._hold(view, gradient=view.keep)
        self.negative.merge(view.rows, held.part)
        if view.keep:
            view.held, view.s = held, None
        if self.spec.combine != "each":
            self._collect_positives(view, self.positive)

    def collect_each(self, view: View) -> None:
        """What every positive makes of N."""
        self._collect_positives(view, self._of_each_positive())

    def _collect_positives(self, view: View, statistic: "LogSumExp | Sum | EachPositive") -> None:
        if view.pairs is not None:
            positives = self._hold_positives(view, view.pairs)
            statistic.merge(view.rows, positives.part)
            if view.keep:
                view.positives = positives

    def _exchange_extremes(self, ranks: Ranks) -> None:
        self.lowest_positive = ranks.min(self.lowest_positive)
        self.highest_negative = ranks.max(self.highest_negative)

    def _exchange_sums(self, ranks: Ranks) -> None:
        exchange([self.negative, self.positive], ranks)

    def _exchange_each(self, ranks: Ranks) -> None:
        self._of_each_positive().exchange(ranks)

    def _of_each_positive(self) -> EachPositive:
        if self.each is None:
            self.each = EachPositive(self.negative.value(), self.pairs.positives[self.rows])
        return self.each

    def _hold(self, view: View, gradient: bool) -> Held:
        s = view.s
        assert s is not None
        if self.spec.mining is not None:
            # A row's threshold as one at zero, which is a cheap pass; -inf passes through the (linear) map.
            floor = self.lowest_positive[view.rows] - self.spec.mining
            floor = floor.clamp_max_(torch.finfo(s.dtype).max)[:, None]
            s = torch.threshold_(s - floor, 0.0, -math.inf).add_(floor)
        slope: Tensor | float = 1.0
        if gradient:
            v, slope, _ = self.spec.negative.slopes(s, view.target, out=view.store)
        else:
            v = self.spec.negative.value(s, view.target)
        if view.log_weight is not None:
            v.add_(view.log_weight)
        if view.pairs is not None:
            view.pairs.hide(v, self.negative.empty, keep_positives=self.spec.others)
        part = self.negative.gather(v)
        if isinstance(self.negative, Sum):
            g, slope = slope if isinstance(slope, Tensor) else v.fill_(slope), 1.0
            if view.pairs is not None:
                view.pairs.hide(g, 0.0)
        elif isinstance(slope, Tensor):
            g, slope = v.mul_(slope), 1.0
        else:
            g = v
        if gradient and view.store is not None and g.data_ptr() != view.store.data_ptr():
            g = view.store.copy_(g)
        return Held(g, part, slope)

    def _hold_positives(self, view: View, pairs: TilePairs) -> HeldPositives:
        s = view.listed
        assert s is not None
        u, slope, norm_slope = self.spec.positive.slopes(s, view.pair_norm(pairs))
        if view.log_weight is not None:
            u.add_(view.log_weight[pairs.columns])
        kept = pairs.positive
        if self.spec.mining is not None:
            mined = s < (self.highest_negative[view.rows] + self.spec.mining)[:, None]
            kept = mined if kept is None else kept & mined
        if kept is not None:
            u.masked_fill_(~kept, self.positive.empty)
        if self.spec.combine == "each":
            part = self._of_each_positive().gather(view.rows, u)
        else:
            part = self.positive.gather(u)
            if isinstance(self.positive, Sum):  # d P / d u is 1
                if kept is None and isinstance(slope, Tensor):
                    return HeldPositives(slope, norm_slope, part)
                u = torch.ones_like(u) if kept is None else u.copy_(kept)
        return HeldPositives(times(u, slope), None if norm_slope is None else u * norm_slope, part)

    def finish(self, weight: Tensor, counted: Tensor | None, sides: Sides) -> Tensor:
        """The rows' losses (n,); keeps what the gradient of sum_r weight_r l_r needs."""
        by_p: Tensor | float
        by_n: Tensor | float
        if self.each is not None:
            losses, by_p, by_n = self.each.total, self.each.scale, self.each.pull
        elif self.spec.combine == "joint":
            losses, by_p = activate(self.spec.act, self.positive.value() + self.negative.value())
            by_n = by_p
        else:
            a, b = sides[0] * self.spec.side_scale[0], sides[1] * self.spec.side_scale[1]
            loss_p, by_p = activate(self.spec.act, self.positive.value())
            loss_n, by_n = activate(self.spec.act, self.negative.value())
            losses = times(loss_p + loss_n, a) if _alike(a, b) else times(loss_p, a) + times(loss_n, b)
            by_p, by_n = by_p * a, by_n * b
        weight = only(counted, weight)
        # What is not counted may be infinite, and times a weight of zero it would be NaN.
        self.pull_p = times(weight, only(counted, by_p))
        self.pull_n = self.pull_p if _alike(by_p, by_n) else times(weight, only(counted, by_n))
        return only(counted, losses)

    def active(self) -> tuple[Tensor, Tensor]:
        """(n,) each: how many positive and negative pairs of the rows have a term that is not zero."""
        assert isinstance(self.positive, Sum) and isinstance(self.negative, Sum)
        return self.positive.gathered[1], self.negative.gathered[1]

    def gradient(self, view: View) -> tuple[Tensor, Tensor | None]:
        """d loss / d s of the tile (b, t), and d loss / d norm of its listed pairs (b, K), if the maps use norms."""
        held = view.held or self._hold(view, gradient=True)
        factor = self.negative.factor(view.rows, held.part)
        pull = times(times(self.pull_n[view.rows, None], held.scale), factor)
        # What is in store is left there: its memory may be where the product of `g` goes.
        g = held.g.mul_(pull) if view.store is None else torch.mul(held.g, pull, out=view.scratch)
        if view.pairs is None:
            return g, None
        positives = view.positives or self._hold_positives(view, view.pairs)
        pull = self.pull_p[view.rows, None]
        if self.each is None:
            pull = times(pull, self.positive.factor(view.rows, positives.part))
        g.scatter_add_(1, view.pairs.columns, positives.g * pull)
        return g, None if positives.by_norm is None else positives.by_norm * pull


def active_side(pairs: Pairs, active: Tensor, weight: Tensor) -> Tensor:
    """sum of the weights / weighted number of active pairs: what makes the mean one over the latter."""
    weights, total = over_all_rows(pairs, torch.stack([weight.sum(), (active * weight).sum()]))
    return torch.where(total > 0, weights / total, 0)


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
            listed, positive = view.listed * self.sign, view.pairs.positive
            hardest, slot = (listed if positive is None else listed.masked_fill_(~positive, math.inf)).min(1)
            column = view.pairs.columns.gather(1, slot[:, None])[:, 0] + view.column_offset
            harder = hardest < self.positive[rows]
            self.positive[rows] = torch.where(harder, hardest, self.positive[rows])
            self.positive_column[rows] = torch.where(harder, column, self.positive_column[rows])
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
