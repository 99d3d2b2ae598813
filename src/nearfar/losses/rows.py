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
    log_weight: Tensor | None = None  # (t,) log of the columns' weights
    row_norm: Tensor | None = None  # (b,) the rows' norms, where a map asks for them
    column_norm: Tensor | None = None  # (t,) the columns', where s keeps them
    target: Tensor | None = None  # (b, 1) the rows' similarities to their own class, where f_n asks for them
    planes: Tensor | None = None  # (K, b, t) the similarities that a pool makes `s` of

    @property
    def nbytes(self) -> int:
        """What keeping it takes."""
        assert self.s is not None
        similarities = self.s if self.planes is None else self.planes
        return similarities.nbytes + (0 if self.pairs is None else self.pairs.nbytes)

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


class LogSumExp:
    """log sum_c exp(v_rc), as (top, total): the largest value, and the sum of exp(v - top)."""

    empty = -math.inf

    def __init__(self, n: int, like: Tensor):
        self.n, self.like, self.lowest = n, like, torch.finfo(like.dtype).min
        self.part: tuple[Tensor, Tensor] | None = None

    def gather(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The statistic of the values `v` (b, t), which become exp(v - top)."""
        top = v.amax(1)
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
        tops, totals = self.part[0][rows], self.part[1][rows]
        scaled = (part[0] - tops.clamp_min(self.lowest)).exp_().div_(totals)
        return torch.where(totals > 0, scaled, 0)[:, None]


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
        self.total, self.active, self.count = like.new_zeros(n), like.new_zeros(n), count
        self.scale = None if number is None else 1 / number.clamp_min(1).to(like.dtype)

    def gather(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The statistic of the values `v` (b, t), which stay as they are: the derivatives are 1."""
        return v.sum(1), torch.count_nonzero(v, dim=1) if self.count else self.active[:0]

    def merge(self, rows: slice, part: tuple[Tensor, Tensor]) -> None:
        self.total[rows] += part[0]
        if self.count:
            self.active[rows] += part[1]

    def sums(self) -> Tensor:
        """(2, n) what ranks add up."""
        return torch.stack([self.total, self.active])

    def take_sums(self, sums: Tensor) -> None:
        self.total, self.active = sums

    def value(self) -> Tensor:
        return self.total if self.scale is None else self.total * self.scale

    def factor(self, rows: slice, part: tuple[Tensor, Tensor] | None = None) -> Tensor | float:
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

    def add(self, rows: slice, u: Tensor) -> None:
        """Take in the terms `u` (b, K), which become sigmoid(u + N)."""
        u.add_(self.negatives[rows, None])
        self.total[rows] += softplus(u).sum(1) * self.scale[rows]
        self.pull[rows] += u.sigmoid_().sum(1) * self.scale[rows]

    def exchange(self, ranks: Ranks) -> None:
        self.total, self.pull = ranks.sum(torch.stack([self.total, self.pull]))


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exactly (torch's own is linear above 20), and 0 at -inf."""
    return torch.logaddexp(x, x.new_zeros(()))


def activate(act: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """act(x) and its derivative."""
    if act == "softplus":
        return softplus(x), torch.sigmoid(x)
    if act == "relu":
        return torch.relu(x), (x > 0).to(x.dtype)
    return x, torch.ones_like(x)


Sweep = tuple[Callable[[View], None], Callable[[Ranks], None]]  # what sees every tile, and what ranks then exchange


class GatheredRows:
    """The state of rows whose every pair counts: lse, sum and mean."""

    def __init__(self, spec: LossSpec, n: int, like: Tensor, positives: Tensor):
        self.spec = spec
        self.count = positives
        count = spec.average == "active"
        self.negative = Sum(n, like, count=count) if spec.gather[1] == "sum" else LogSumExp(n, like)
        self.positive: LogSumExp | Sum
        if spec.gather[0] in ("lse", "softmin"):
            self.positive = (LogSumExp if spec.gather[0] == "lse" else SoftMin)(n, like)
        else:
            self.positive = Sum(n, like, positives if spec.gather[0] == "mean" else None, count)
        self.each: EachPositive | None = None
        self.sweeps: list[Sweep] = [(self.collect, self._exchange_sums)]
        if spec.mining is not None:
            self.lowest_positive = like.new_full((n,), math.inf)
            self.highest_negative = like.new_full((n,), -math.inf)
            self.sweeps.insert(0, (self.find_extremes, self._exchange_extremes))
        if spec.combine == "each":
            self.sweeps.append((self.collect_each, self._exchange_each))

    def find_extremes(self, view: View) -> None:
        """The least similar positive and the most similar negative, for the mining."""
        assert view.s is not None
        s = view.s
        if view.pairs is not None and view.listed is not None:
            listed = view.listed.masked_fill(~view.pairs.positive, math.inf)
            self.lowest_positive[view.rows] = torch.minimum(self.lowest_positive[view.rows], listed.amin(1))
            s = view.pairs.hide(s.clone(), -math.inf)
        self.highest_negative[view.rows] = torch.maximum(self.highest_negative[view.rows], s.amax(1))

    def collect(self, view: View) -> None:
        """P and N."""
        held = self._hold(view, gradient=view.keep)
        self.negative.merge(view.rows, held.part)
        if view.keep:
            view.held, view.s = held, None
        if view.pairs is not None and self.spec.combine != "each":
            u, _, _ = self._positive_terms(view, view.pairs)
            self.positive.merge(view.rows, self.positive.gather(u))

    def collect_each(self, view: View) -> None:
        """What every positive makes of N."""
        each = self._of_each_positive()
        if view.pairs is not None:
            each.add(view.rows, self._positive_terms(view, view.pairs)[0])

    def _exchange_extremes(self, ranks: Ranks) -> None:
        self.lowest_positive = ranks.min(self.lowest_positive)
        self.highest_negative = ranks.max(self.highest_negative)

    def _exchange_sums(self, ranks: Ranks) -> None:
        exchange([self.negative, self.positive], ranks)

    def _exchange_each(self, ranks: Ranks) -> None:
        self._of_each_positive().exchange(ranks)

    def _of_each_positive(self) -> EachPositive:
        if self.each is None:
            self.each = EachPositive(self.negative.value(), self.count)
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

    def _positive_terms(self, view: View, pairs: TilePairs) -> tuple[Tensor, Tensor | float, Tensor | None]:
        """u (b, K), empty where there is no positive pair, and the map's slopes."""
        s = view.listed
        assert s is not None
        u, slope, norm_slope = self.spec.positive.slopes(s, view.pair_norm(pairs))
        if view.log_weight is not None:
            u.add_(view.log_weight[pairs.columns])
        kept = pairs.positive
        if self.spec.mining is not None:
            kept = kept & (s < (self.highest_negative[view.rows] + self.spec.mining)[:, None])
        return u.masked_fill_(~kept, self.positive.empty), slope, norm_slope

    def finish(self, weight: Tensor, counted: Tensor | None, sides: Sides) -> Tensor:
        """The rows' losses (n,); keeps what the gradient of sum_r weight_r l_r needs."""
        if self.each is not None:
            losses, by_p, by_n = self.each.total, self.each.scale, self.each.pull
        elif self.spec.combine == "joint":
            losses, by_p = activate(self.spec.act, self.positive.value() + self.negative.value())
            by_n = by_p
        else:
            a, b = sides[0] * self.spec.side_scale[0], sides[1] * self.spec.side_scale[1]
            loss_p, by_p = activate(self.spec.act, self.positive.value())
            loss_n, by_n = activate(self.spec.act, self.negative.value())
            losses, by_p, by_n = loss_p * a + loss_n * b, by_p * a, by_n * b
        weight = only(counted, weight)
        # What is not counted may be infinite, and times a weight of zero it would be NaN.
        self.pull_p = weight * only(counted, by_p)
        self.pull_n = self.pull_p if by_n is by_p else weight * only(counted, by_n)
        return only(counted, losses)

    def active(self) -> tuple[Tensor, Tensor]:
        """(n,) each: how many positive and negative pairs of the rows have a term that is not zero."""
        assert isinstance(self.positive, Sum) and isinstance(self.negative, Sum)
        return self.positive.active, self.negative.active

    def gradient(self, view: View) -> tuple[Tensor, Tensor | None]:
        """d loss / d s of the tile (b, t), and d loss / d norm of its listed pairs (b, K), if the maps use norms."""
        held = view.held or self._hold(view, gradient=True)
        pull = self.pull_n[view.rows, None] * held.scale
        pull = pull * self.negative.factor(view.rows, held.part)
        # What is in store is left there: its memory may be where the product of `g` goes.
        g = held.g.mul_(pull) if view.store is None else torch.mul(held.g, pull, out=view.scratch)
        if view.pairs is None:
            return g, None
        u, slope, norm_slope = self._positive_terms(view, view.pairs)
        kept = view.pairs.positive if self.positive.empty == 0 else u != self.positive.empty
        pull = self.pull_p[view.rows, None]
        if self.each is not None:
            u.add_(self.each.negatives[view.rows, None]).sigmoid_()
        elif isinstance(self.positive, Sum):
            pull = pull * self.positive.factor(view.rows)
            u.fill_(1)
        else:
            pull = pull * self.positive.factor(view.rows, self.positive.gather(u))
        h = torch.where(kept, u * pull, 0)
        g.scatter_add_(1, view.pairs.columns, h * slope)
        return g, None if norm_slope is None else h * norm_slope


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
        self.sweeps: list[Sweep] = [(self.collect, self._exchange)]
        self.sign = 1 if spec.gather[0] == "max" else -1  # the least of sign * s is sought among the positives
        self.positive = like.new_full((n,), math.inf)
        self.negative = like.new_full((n,), -math.inf)
        self.positive_column = torch.zeros(n, dtype=torch.long, device=like.device)
        self.negative_column = torch.zeros_like(self.positive_column)

    def collect(self, view: View) -> None:
        """The hardest pairs so far, and where they are."""
        s, rows = view.s, view.rows
        assert s is not None
        if view.pairs is not None and view.listed is not None:
            hardest, slot = (view.listed * self.sign).masked_fill_(~view.pairs.positive, math.inf).min(1)
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
