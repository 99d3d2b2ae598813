"""Row statistics: what a row must know of all its pairs, gathered tile by tile, and the gradient that follows from it.

Statistics are monoids: they start empty, take in tiles in any order, and merge; so column tiles, mirrored tiles and
    shards all use the same `add`.
A state lives for one group of rows. The engine shows it every tile of the group once per sweep, then calls `finish`,
and then, if gradients are wanted, asks for `gradient(view)` of every tile.

Shapes: n rows of the group; b rows and t columns of a tile; K slots of its table of positives.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.losses.pairs import TilePairs
from nearfar.losses.spec import LossSpec
from nearfar.losses.weights import Sides


@dataclass
class View:
    """One tile as its rows see it."""

    rows: slice  # within the group
    s: Tensor  # (b, t) similarities; never written to
    pairs: TilePairs | None
    column_offset: int = 0  # the tile's first column
    log_weight: Tensor | None = None  # (t,) log of the columns' weights
    row_norm: Tensor | None = None  # (b,) norms that s keeps, where a map asks for them
    column_norm: Tensor | None = None  # (t,)

    def pair_norm(self, pairs: TilePairs) -> Tensor | None:
        if self.row_norm is None:
            return None
        norm = self.row_norm[:, None].expand_as(pairs.columns)
        return norm if self.column_norm is None else norm * self.column_norm[pairs.columns]


class LogSumExp:
    """log sum_c exp(v_rc), as (top, total): the largest value so far, and the sum of exp(v - top)."""

    empty = -math.inf

    def __init__(self, n: int, like: Tensor):
        self.top = like.new_full((n,), -math.inf)
        self.total = like.new_zeros(n)
        self.lowest = torch.finfo(like.dtype).min

    def add(self, rows: slice, v: Tensor) -> None:
        """Take in the values `v` (b, t), which are used up."""
        before = self.top[rows]
        top = torch.maximum(before, v.amax(1))
        finite = top.clamp_min(self.lowest)  # of a row still empty: -inf - lowest is -inf, not NaN
        total = _exp_below(v, finite).sum(1)
        self.total[rows] = self.total[rows] * (before - finite).exp_() + total
        self.top[rows] = top

    def value(self) -> Tensor:
        return self.top + self.total.log()

    def share(self, rows: slice, v: Tensor) -> tuple[Tensor, Tensor]:
        """d value / d v as (b, t) in place of `v`, times a factor (b, 1): more exact than exp(v - value)."""
        share = _exp_below(v, self.top[rows].clamp_min(self.lowest))
        total = self.total[rows, None]
        return share, torch.where(total > 0, 1 / total, 0)


def _exp_below(v: Tensor, top: Tensor) -> Tensor:
    """exp(v - top), in place of `v`. Results near the smallest normal number (e^-80 in float32, far under the rounding
    of their row's sum) are zero: denormal numbers take twenty times as long.
    """
    negligible = 0.92 * math.log(torch.finfo(v.dtype).tiny)
    return torch.threshold_(v.sub_(top[:, None]), negligible, -math.inf).exp_()


class Sum:
    """sum_c v_rc, and how many terms of it are not zero. With `count` given, the mean."""

    empty = 0.0

    def __init__(self, n: int, like: Tensor, count: Tensor | None = None):
        self.total = like.new_zeros(n)
        self.active = like.new_zeros(n)
        self.factor = None if count is None else 1 / count.clamp_min(1).to(like.dtype)

    def add(self, rows: slice, v: Tensor) -> None:
        self.total[rows] += v.sum(1)
        self.active[rows] += torch.count_nonzero(v, dim=1)

    def value(self) -> Tensor:
        return self.total if self.factor is None else self.total * self.factor

    def share(self, rows: slice, v: Tensor) -> tuple[Tensor | float, Tensor | float]:
        return 1.0, 1.0 if self.factor is None else self.factor[rows, None]


class EachPositive:
    """mean over a row's positives of softplus(u + N): needs N, so it is gathered in a sweep of its own."""

    empty = -math.inf

    def __init__(self, negatives: Tensor, count: Tensor):
        self.negatives = negatives
        self.factor = 1 / count.clamp_min(1).to(negatives.dtype)
        self.total = torch.zeros_like(negatives)
        self.pull = torch.zeros_like(negatives)  # d l / d N

    def add(self, rows: slice, u: Tensor) -> None:
        x = u + self.negatives[rows, None]
        self.pull[rows] += torch.sigmoid(x).sum(1) * self.factor[rows]
        self.total[rows] += softplus(x).sum(1) * self.factor[rows]

    def share(self, rows: slice, u: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sigmoid(u + self.negatives[rows, None]), self.factor[rows, None]


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


class GatheredRows:
    """The state of rows whose every pair counts: lse, sum and mean."""

    def __init__(self, spec: LossSpec, n: int, like: Tensor, positives: Tensor):
        self.spec = spec
        self.count = positives
        self.negative = Sum(n, like) if spec.gather[1] == "sum" else LogSumExp(n, like)
        self.positive: LogSumExp | Sum | EachPositive
        if spec.gather[0] == "lse":
            self.positive = LogSumExp(n, like)
        else:
            self.positive = Sum(n, like, positives if spec.gather[0] == "mean" else None)
        self.sweeps = [self.collect]
        if spec.mining is not None:
            self.lowest_positive = like.new_full((n,), math.inf)
            self.highest_negative = like.new_full((n,), -math.inf)
            self.sweeps.insert(0, self.find_extremes)
        if spec.combine == "each":
            self.sweeps.append(self.collect_each)

    def find_extremes(self, view: View) -> None:
        s = view.s.clone()
        if view.pairs is not None:
            listed = s.gather(1, view.pairs.columns).masked_fill_(~view.pairs.positive, math.inf)
            self.lowest_positive[view.rows] = torch.minimum(self.lowest_positive[view.rows], listed.amin(1))
            view.pairs.hide(s, -math.inf)
        self.highest_negative[view.rows] = torch.maximum(self.highest_negative[view.rows], s.amax(1))

    def collect(self, view: View) -> None:
        self.negative.add(view.rows, self._negative_slopes(view, value_only=True)[0])
        if view.pairs is not None and self.spec.combine != "each":
            self.positive.add(view.rows, self._positive_slopes(view, view.pairs)[0])

    def collect_each(self, view: View) -> None:
        if not isinstance(self.positive, EachPositive):
            self.positive = EachPositive(self.negative.value(), self.count)
        if view.pairs is not None:
            self.positive.add(view.rows, self._positive_slopes(view, view.pairs)[0])

    def _negative_slopes(self, view: View, value_only: bool = False) -> tuple[Tensor, Tensor | float]:
        s = view.s
        if self.spec.mining is not None:
            # A row's threshold as a threshold at zero, which is one cheap pass; -inf passes through the (linear) map.
            floor = (self.lowest_positive[view.rows] - self.spec.mining).clamp_max_(torch.finfo(s.dtype).max)[:, None]
            s = torch.threshold_(s - floor, 0.0, -math.inf).add_(floor)
        v: Tensor
        slope: Tensor | float = 0.0
        if value_only:
            v = self.spec.negative.value(s)
        else:
            v, slope, _ = self.spec.negative.slopes(s)
        if view.log_weight is not None:
            v.add_(view.log_weight)
        if view.pairs is not None:
            view.pairs.hide(v, self.negative.empty, keep_positives=self.spec.others)
        return v, slope

    def _positive_slopes(self, view: View, pairs: TilePairs) -> tuple[Tensor, Tensor | float, Tensor | None]:
        s = view.s.gather(1, pairs.columns)
        u, slope, norm_slope = self.spec.positive.slopes(s, view.pair_norm(pairs))
        if view.log_weight is not None:
            u.add_(view.log_weight[pairs.columns])
        kept = pairs.positive
        if self.spec.mining is not None:
            kept = kept & (s < (self.highest_negative[view.rows] + self.spec.mining)[:, None])
        return u.masked_fill_(~kept, self.positive.empty), slope, norm_slope

    def finish(self, weight: Tensor, counted: Tensor, sides: Sides) -> Tensor:
        """The rows' losses; keeps what the gradient of sum_r weight_r l_r needs."""
        n = self.negative.value()
        if isinstance(self.positive, EachPositive):
            losses, by_p, by_n = self.positive.total, torch.ones_like(n), self.positive.pull
        elif self.spec.combine == "joint":
            losses, by_p = activate(self.spec.act, self.positive.value() + n)
            by_n = by_p
        else:
            a, b = sides[0] * self.spec.side_scale[0], sides[1] * self.spec.side_scale[1]
            loss_p, by_p = activate(self.spec.act, self.positive.value())
            loss_n, by_n = activate(self.spec.act, n)
            losses, by_p, by_n = loss_p * a + loss_n * b, by_p * a, by_n * b
        self.pull_p, self.pull_n = (weight * torch.where(counted, d, 0) for d in (by_p, by_n))
        return torch.where(counted, losses, 0)

    def active_sides(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The factors that make the mean one over the pairs whose terms are not zero, positives and negatives apart."""
        assert isinstance(self.positive, Sum) and isinstance(self.negative, Sum)
        return active_side(self.positive.active, weight), active_side(self.negative.active, weight)

    def gradient(self, view: View) -> tuple[Tensor, Tensor | None]:
        """d loss / d s of the tile (b, t), and d loss / d norm of its listed pairs (b, K), if the maps use norms."""
        v, slope = self._negative_slopes(view)
        share, factor = self.negative.share(view.rows, v)
        g = _product(share, slope, self.pull_n[view.rows, None] * factor)
        if view.pairs is None:
            return g, None
        if self.negative.empty == 0:  # a sum's share does not vanish by itself
            view.pairs.hide(g, 0.0)
        u, slope, norm_slope = self._positive_slopes(view, view.pairs)
        kept = view.pairs.positive if self.positive.empty == 0 else u > -math.inf
        share, factor = self.positive.share(view.rows, u)
        pull = torch.where(kept, share * (self.pull_p[view.rows, None] * factor), 0)
        g.scatter_add_(1, view.pairs.columns, pull * slope)
        return g, None if norm_slope is None else pull * norm_slope


def _product(share: Tensor | float, slope: Tensor | float, pull: Tensor) -> Tensor:
    """share * slope * pull, in place where there is a tile to write on."""
    if isinstance(share, Tensor):
        return share.mul_(slope).mul_(pull) if isinstance(slope, Tensor) else share.mul_(pull * slope)
    assert isinstance(slope, Tensor)
    return slope.mul_(pull)


def active_side(active: Tensor, weight: Tensor) -> Tensor:
    """sum of the weights / weighted number of active pairs."""
    total = (active * weight).sum()
    return torch.where(total > 0, weight.sum() / total, 0)


class HardestRows:
    """The state of rows of which only the hardest pairs count: the least similar positive and the most similar
    negative.

    The maps are monotone, so the hardest pair is found among the similarities themselves, and the gradient is two
    entries a row.
    """

    def __init__(self, spec: LossSpec, n: int, like: Tensor):
        self.spec = spec
        self.sweeps = [self.collect]
        self.positive = like.new_full((n,), math.inf)
        self.negative = like.new_full((n,), -math.inf)
        self.positive_column = torch.zeros(n, dtype=torch.long, device=like.device)
        self.negative_column = torch.zeros_like(self.positive_column)

    def collect(self, view: View) -> None:
        s = view.s
        if view.pairs is not None:
            listed = s.gather(1, view.pairs.columns).masked_fill_(~view.pairs.positive, math.inf)
            hardest, slot = listed.min(1)
            column = view.pairs.columns.gather(1, slot[:, None])[:, 0] + view.column_offset
            closer = hardest < self.positive[view.rows]
            self.positive[view.rows] = torch.where(closer, hardest, self.positive[view.rows])
            self.positive_column[view.rows] = torch.where(closer, column, self.positive_column[view.rows])
            s = view.pairs.hide(s.clone(), -math.inf)
        hardest, column = s.max(1)
        closer = hardest > self.negative[view.rows]
        self.negative[view.rows] = torch.where(closer, hardest, self.negative[view.rows])
        self.negative_column[view.rows] = torch.where(
            closer, column + view.column_offset, self.negative_column[view.rows]
        )

    def finish(self, weight: Tensor, counted: Tensor, sides: Sides) -> Tensor:
        u, slope_p, _ = self.spec.positive.slopes(torch.where(counted, self.positive, 0))
        v, slope_n, _ = self.spec.negative.slopes(torch.where(counted, self.negative, 0))
        losses, by = activate(self.spec.act, u + v)
        pull = weight * torch.where(counted, by, 0)
        self.entries = [(self.positive_column, pull * slope_p), (self.negative_column, pull * slope_n)]
        return torch.where(counted, losses, 0)
