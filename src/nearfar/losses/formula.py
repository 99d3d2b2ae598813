"""The formula, straight: of similarities that are all at hand, the rows' losses and G = dL/dS.

    N = A_n { f_n(s) },   P = A_p { f_p(s) },   l = combine(P, N)
    G = l_N dN/ds + l_P dP/ds,   the latter at the positives that the table lists

Shapes: N rows, M columns; K slots of the table of positives. What every row has one of is (N, 1).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nearfar.losses.maps import softplus
from nearfar.losses.pairs import MatrixTile, Pairs, TilePairs, no_positives
from nearfar.losses.rows import activate, times
from nearfar.losses.spec import Gather, LossSpec
from nearfar.losses.weights import RowWeights, only

SLACK = 1e-3  # of similarities: nearer to the border of the mining, one cannot be sure without a closer look
# What is no pair counts as if it had this: in a row without pairs, infinity would make NaN.
NO_PAIR: dict[Gather, float] = {"lse": -1e30, "max": -1e30, "softmin": 1e30, "min": 1e30, "sum": 0.0, "mean": 0.0}


class Norms(NamedTuple):
    """The norms of the rows (N, 1), and of the columns (M, 1) where the similarities keep them: a pair's is |x|, or
    |x||w|.
    """

    rows: Tensor | None
    columns: Tensor | None

    def of_pairs(self, table: Tensor) -> Tensor:
        """(N, K)."""
        assert self.rows is not None
        return self.rows.expand_as(table) if self.columns is None else self.rows * self.columns[:, 0][table]

    def gradient(self, by_pair: Tensor, table: Tensor) -> tuple[Tensor, Tensor | None]:
        """The derivatives by both, from those by the pairs' (N, K)."""
        if self.columns is None:
            return by_pair.sum(1, keepdim=True), None
        assert self.rows is not None
        columns = self.columns[:, 0]
        by_column = torch.zeros_like(columns).index_add_(0, table.flatten(), (by_pair * self.rows).flatten())
        return (by_pair * columns[table]).sum(1, keepdim=True), by_column.unsqueeze(1)


class Slopes(NamedTuple):
    """The rows' losses (N,), and the derivatives of their weighted sum."""

    losses: Tensor
    g: Tensor | None  # (N, M) by the similarities; None: it is known that all are zero
    by_norms: tuple[Tensor | None, Tensor | None] = (None, None)  # of the rows (N, 1) and of the columns (M, 1)
    by_parameters: tuple[Tensor | None, ...] = ()


class _Gathered(NamedTuple):
    """P or N of the rows, and its derivatives."""

    value: Tensor  # (N, 1)
    g: Tensor | None  # by the similarities, but for a number; None: 1 for all
    scale: float  # that number
    active: Tensor | None  # (N,) how many terms are not zero, if the average is over these
    by_norm: Tensor | None = None  # by the norms of the pairs, if the map uses them
    by_n: Tensor | None = None  # (N, 1) by N, if each positive is compared with all negatives


def of_formula(
    spec: LossSpec,
    pairs: Pairs,
    weights: RowWeights,
    s: Tensor,
    norms: Norms | None,
    by_row: list[Tensor],
    log_weight: Tensor | None,
    wanted: bool,
) -> Slopes:
    """The losses of all rows, and G.

    Args:
        s: (N, M) similarities, which are not written to.
        norms: if a map uses them.
        by_row: (N,) the parameters of the rows: the border, if the loss has one.
        log_weight: (M,) of the columns; None: they weigh the same.
        wanted: whether somebody will look at G.
    """
    assert norms is not None or not spec.positive.uses_norm
    tile = pairs.tile(slice(0, s.shape[0]), slice(0, s.shape[1])) or no_positives(s)
    table, vacant = tile.columns, tile.vacant
    listed = s if table is None else s.gather(1, table)
    if spec.mining is not None:
        lowest = (listed if vacant is None else listed.masked_fill(vacant, math.inf)).amin(1, keepdim=True)
        negatives = tile.hide(s.clone(), -math.inf)
        highest = negatives.amax(1, keepdim=True)
        # On a GPU one would have to wait for the answer; and ranks wait for each other.
        if s.device.type == "cpu" and pairs.spread is None and float((lowest - highest).amin()) > spec.mining + SLACK:
            return Slopes(s.new_zeros(s.shape[0]), None)
        easy = listed >= highest + spec.mining
        vacant = easy if vacant is None else vacant | easy
        tile = MatrixTile(vacant, negatives <= lowest - spec.mining)
    n = _of_negatives(spec, s, tile, by_row[0].unsqueeze(1) if spec.border else None, log_weight, pairs.complete)
    p = None
    if spec.combine != "negatives":
        norm = None if norms is None or table is None else norms.of_pairs(table)
        weight = log_weight if log_weight is None or table is None else log_weight[table]
        p = _of_positives(spec, listed, vacant, norm, weight, n.value, pairs)

    losses, by_p, by_n = _combined(spec, p, n, weights, pairs.complete)
    losses = losses.view(-1)
    if not wanted:
        return Slopes(only(weights.counted, losses), s)
    pull = weights.pull.unsqueeze(1)
    if weights.counted is not None:
        # What is not counted may be infinite, and times a weight of zero it would be NaN.
        counted, same = weights.counted.unsqueeze(1), by_p is by_n
        losses, pull, by_n = only(weights.counted, losses), only(counted, pull), only(counted, by_n)
        by_p = by_n if same else only(counted, by_p)
    pull_n = times(pull, by_n)
    assert n.g is not None
    g = n.g.mul_(times(pull_n, n.scale * spec.side_scale[1]))
    if p is None:
        return Slopes(losses, g)
    pull_p = times(pull_n if by_p is by_n else times(pull, by_p), p.scale * spec.side_scale[0])
    if table is None:
        assert p.g is not None
        return Slopes(losses, g.addcmul_(p.g, pull_p))
    by_listed = pull_p if p.g is None else p.g * pull_p
    g.scatter_add_(1, table, by_listed if by_listed.shape == table.shape else by_listed.expand_as(table))
    return Slopes(
        losses, g, (None, None) if p.by_norm is None or norms is None else norms.gradient(p.by_norm * pull_p, table)
    )


def _of_negatives(
    spec: LossSpec,
    s: Tensor,
    tile: TilePairs,
    border: Tensor | None,
    log_weight: Tensor | None,
    complete: bool,
) -> _Gathered:
    kind = spec.gather[1]
    v, slope, _ = spec.negative.slopes(s, border)
    if log_weight is not None:
        v.add_(log_weight)
    tile.hide(v, NO_PAIR[kind], keep_positives=spec.others)
    active = v.count_nonzero(1) if spec.average == "active" else None
    value, share = _gathered(kind, v)
    summed = share is None
    if share is None:
        share, slope = slope if isinstance(slope, Tensor) else v.fill_(slope), 1.0
    if summed or not complete:  # in a row that has no negatives, all columns had the same share
        tile.hide(share, 0.0, keep_positives=spec.others)
    return _Gathered(value, *_product(share, slope), active)


def _of_positives(
    spec: LossSpec,
    listed: Tensor,
    vacant: Tensor | None,
    norm: Tensor | None,
    log_weight: Tensor | None,
    n: Tensor,
    pairs: Pairs,
) -> _Gathered:
    u, slope, norm_slope = spec.positive.slopes(listed, norm)
    if log_weight is not None:
        u.add_(log_weight)
    if spec.combine == "each":
        return _of_each_positive(u, slope, vacant, n, pairs)
    kind = spec.gather[0]
    if vacant is not None:
        u.masked_fill_(vacant, NO_PAIR[kind])
    active = u.count_nonzero(1) if spec.average == "active" else None
    if vacant is None and u.shape[1] == 1:  # all that can be gathered of one value is that value
        return _Gathered(u, *_product(None, slope), active, norm_slope)
    value, share = _gathered(kind, u)
    by_norm, summed = norm_slope, share is None
    if share is None:
        share, slope = slope if isinstance(slope, Tensor) else u.fill_(slope), 1.0
    elif by_norm is not None:
        by_norm = by_norm * share
    if vacant is not None and (summed or not pairs.complete):
        share.masked_fill_(vacant, 0.0)
        by_norm = None if by_norm is None else by_norm.masked_fill(vacant, 0.0)
    if kind == "mean":
        part = _part(pairs, u)
        value, share = value.mul_(part), share.mul_(part)
        by_norm = None if by_norm is None else by_norm * part
    return _Gathered(value, *_product(share, slope), active, by_norm)


def _of_each_positive(u: Tensor, slope: Tensor | float, vacant: Tensor | None, n: Tensor, pairs: Pairs) -> _Gathered:
    """The mean over a row's positives of softplus(u + N)."""
    if vacant is not None:
        u.masked_fill_(vacant, NO_PAIR["lse"])
    part = _part(pairs, u)
    value, share = softplus(u.add_(n)).sum(1, keepdim=True).mul_(part), u.sigmoid_().mul_(part)
    by_n = share.sum(1, keepdim=True)
    return _Gathered(value, *_product(share, slope), None, by_n=by_n)


def _part(pairs: Pairs, like: Tensor) -> Tensor:
    """(N, 1) what one positive is of all that its row has."""
    return pairs.positives.clamp_min(1).to(like.dtype).reciprocal_().unsqueeze(1)


def _gathered(kind: Gather, v: Tensor) -> tuple[Tensor, Tensor | None]:
    """A { v } of every row, (N, 1), and its derivatives by v, which is used up; None: they are 1. A mean is a sum."""
    if kind in ("softmin", "min"):
        value, share = _gathered("lse" if kind == "softmin" else "max", v.neg_())
        return value.neg_(), share
    if kind == "lse":
        top = v.amax(1, keepdim=True)
        share = torch.softmax(v, 1, out=v)
        return top.sub_(share.amax(1, keepdim=True).log_()), share  # the largest share is 1 / sum exp(v - top)
    if kind == "max":
        value, column = v.max(1, keepdim=True)
        return value, torch.zeros_like(v).scatter_(1, column, 1.0)
    return v.sum(1, keepdim=True), None


def _product(share: Tensor | None, slope: Tensor | float) -> tuple[Tensor | None, float]:
    """The derivatives as a matrix and a number; None: 1 for all."""
    if isinstance(slope, Tensor):
        return slope if share is None else share.mul_(slope), 1.0
    return share, slope


def _combined(
    spec: LossSpec, p: _Gathered | None, n: _Gathered, weights: RowWeights, complete: bool
) -> tuple[Tensor, Tensor | float, Tensor | float]:
    """The rows' losses (N, 1), and their derivatives by P and N. If the negatives are all, a row without any has the
    logarithm of zero.
    """
    if p is None:
        value = n.value if complete else n.value.masked_fill(n.value < NO_PAIR["lse"] / 2, -math.inf)
        losses, by = activate(spec.act, value)
        return losses, by, by
    if p.by_n is not None:
        return p.value, 1.0, p.by_n
    if spec.combine == "joint":
        losses, by = activate(spec.act, p.value + n.value)
        return losses, by, by
    (loss_p, by_p), (loss_n, by_n) = activate(spec.act, p.value), activate(spec.act, n.value)
    a, b = spec.side_scale
    if spec.average not in ("sides", "active"):
        return torch.add(times(loss_p, a), loss_n, alpha=b), by_p, by_n
    side_p, side_n = weights.sides
    if p.active is not None and n.active is not None:
        side_p, side_n = weights.over_active(p.active), weights.over_active(n.active)
    elif isinstance(side_p, Tensor):
        side_p = side_p.unsqueeze(1)
    losses = torch.add(times(times(loss_p, side_p), a), times(loss_n, side_n), alpha=b)
    return losses, times(by_p, side_p), times(by_n, side_n)
