"""The engine's straight way, where all similarities are one tile or one strip:

    S = X Y^T;   the rows' losses and G = dL/dS;   dX = G Y,  dY = G^T X

It has nothing of what cuts, keeps and merges several tiles, which would be a third of the time of few samples.

Shapes: N rows, M columns; K slots of the table of positives. What every row has one of is (N, 1).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nearfar.losses.maps import softplus
from nearfar.losses.memory import keep_freed_memory
from nearfar.losses.pairs import MatrixTile, Pairs, TilePairs, no_positives
from nearfar.losses.plan import Plan
from nearfar.losses.rows import activate, times
from nearfar.losses.spec import Gather, LossSpec, StripSpec
from nearfar.losses.strips import of_strip, strip_height
from nearfar.losses.vectors import at_least_float32, unit
from nearfar.losses.weights import RowWeights, only, ordered, restored

LONGEST = 1024  # rows or columns of the one tile
FEW = 2**13  # pairs: up to so many, the gradient by the hardest of them is a matrix like any other
SLACK = 1e-3  # of similarities: nearer to the border of the mining, one cannot be sure without a closer look
# What is no pair counts as if it had this: in a row without pairs, infinity would make NaN.
NO_PAIR: dict[Gather, float] = {"lse": -1e30, "max": -1e30, "softmin": 1e30, "min": 1e30, "sum": 0.0, "mean": 0.0}

Grads = tuple[Tensor | None, ...]


def fits(plan: Plan, rows: Tensor, columns: Tensor | None) -> bool:
    """Whether all is one tile, of which five can be kept, or one strip; and no other rank has a part of its rows."""
    spec, pairs = plan.spec, plan.pairs
    n, m = pairs.rows, pairs.columns if columns is None else columns.shape[0]
    size = max(4, rows.element_size())
    if not (0 < n <= LONGEST and 0 < m <= LONGEST):
        return False
    if isinstance(spec, StripSpec):
        return n <= strip_height(plan.budget, m * size * spec.vectors_per_class)
    if n * m > plan.tile or 5 * n * m * size > plan.budget:
        return False
    if spec.gather[1] == "max" and n * m > FEW:
        return False
    return pairs.towers is None and (pairs.spread is None or pairs.spread.over != "columns")


class _Side(NamedTuple):
    """The rows or the columns."""

    raw: Tensor  # as the caller has them
    order: Tensor | None
    vectors: Tensor  # (n, D) in the engine's order and precision, of length 1 if the loss says so
    norm: Tensor | None  # (n, 1)
    divisor: Tensor | None  # (n, 1)
    normalized: bool

    def gradient(self, grad: Tensor, by_norm: Tensor | None = None) -> Tensor:
        """By what the caller has, from that by `vectors`, which is used up, and by the norms (n, 1)."""
        self.turn(grad, by_norm)
        if self.order is not None:
            grad = restored(grad, self.order, self.raw.shape[0])
        return grad if grad.dtype == self.raw.dtype else grad.to(self.raw.dtype)

    def turn(self, grad: Tensor, by_norm: Tensor | None = None) -> None:
        """The same in place, still in the engine's order and precision."""
        if self.normalized:
            assert self.divisor is not None
            grad.addcmul_(self.vectors, (grad * self.vectors).sum(1, keepdim=True), value=-1).div_(self.divisor)
        if by_norm is not None:
            assert self.divisor is not None
            grad.addcmul_(self.vectors, by_norm if self.normalized else by_norm / self.divisor)


def _side(raw: Tensor, order: Tensor | None, normalize: bool, keep_norm: bool, dtype: torch.dtype) -> _Side:
    vectors = raw if order is None else raw.index_select(0, order)
    if vectors.dtype != dtype:
        vectors = vectors.to(dtype)
    if not (normalize or keep_norm):
        return _Side(raw, order, vectors, None, None, False)
    norm = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    divisor = torch.threshold(norm, 0.0, math.inf)  # a zero vector stays zero, and so does its gradient
    return _Side(raw, order, vectors / divisor if normalize else vectors, norm, divisor, normalize)


class _Slopes(NamedTuple):
    """The rows' losses (N,), and the derivatives of their weighted sum."""

    losses: Tensor
    g: Tensor | None  # (N, M) by the similarities; None: it is known that all are zero
    by_norms: tuple[Tensor | None, Tensor | None] = (None, None)  # of the rows (N, 1) and of the columns (M, 1)
    by_parameters: Grads = ()


def evaluate(
    plan: Plan, tensors: Grads, needs: tuple[bool, ...], upstream: Tensor | None = None
) -> tuple[Tensor, Grads]:
    """The loss, or the rows' losses for reduction "none", and the gradients by the tensors that need one."""
    rows, columns, bias, *parameters = tensors
    spec, pairs = plan.spec, plan.pairs
    assert rows is not None
    if rows.device.type == "cpu":
        keep_freed_memory()
    dtype, norms = at_least_float32(rows, columns), isinstance(spec, LossSpec) and spec.positive.uses_norm
    x = y = _side(rows, pairs.row_order, spec.normalize[0], norms, dtype)
    if columns is not None or pairs.crossed:
        y = _side(rows if columns is None else columns, pairs.column_order, spec.normalize[1], norms, dtype)
    s = torch.mm(x.vectors, y.vectors.t())
    if bias is not None:
        s.add_(ordered(bias, pairs.column_order).to(dtype))
    weights = RowWeights(plan, s, upstream)
    by_row = [ordered(p, pairs.row_order).to(dtype) for p in parameters if p is not None] if parameters else []
    log_weight = plan.column_weight
    if log_weight is not None:
        log_weight = ordered(log_weight, pairs.column_order).to(dtype).log()
    penalty = None
    if isinstance(spec, StripSpec):
        slopes = _of_function(spec, plan, s, weights, by_row, log_weight, any(needs))
    elif spec.pool is None:
        slopes = _of_formula(spec, plan, s, weights, by_row, log_weight, x, y)
    else:
        planes = s.view(len(s), -1, spec.pool.size).permute(2, 0, 1)
        pooled, shares = spec.pool.gather(planes, None)
        slopes = _of_formula(spec, plan, pooled, weights, by_row, log_weight, x, y)
        assert slopes.g is not None
        spec.pool.expand(slopes.g, shares, out=planes)
        slopes = slopes._replace(g=s)
        units = y.vectors if y.normalized else unit(y.vectors)
        penalty = spec.pool.penalty(units.view(-1, spec.pool.size, units.shape[1]))
    by_columns = None if penalty is None else penalty[1].view(y.vectors.shape) * weights.of_columns
    grads = _gradients(slopes, x, y, pairs.crossed, needs, by_columns)
    losses = slopes.losses
    if plan.reduction == "none":
        losses = losses if penalty is None else losses + penalty[0]
        return restored(losses * weights.factor, pairs.row_order, len(rows) if pairs.crossed else None), grads
    loss = losses.sum() if slopes.g is None else torch.dot(losses, weights.pull)
    return loss if penalty is None else loss + penalty[0] * weights.of_columns, grads


def _gradients(
    slopes: _Slopes, x: _Side, y: _Side, crossed: bool, needs: tuple[bool, ...], by_columns: Tensor | None
) -> Grads:
    """By the rows, the columns, the bias and the parameters; `by_columns` is what a penalty adds."""
    g, grad_x, grad_y, grad_bias = slopes.g, None, None, None
    if g is None:
        grad_x = torch.zeros_like(x.raw) if needs[0] else None
        grad_y = torch.zeros_like(y.raw) if needs[1] else None
    elif y is x:
        if needs[0]:  # H = G + G^T turns products 2 and 3 into one
            grad_x = x.gradient(torch.mm(g + g.t(), x.vectors))
    else:
        if needs[0]:
            grad_x = x.gradient(torch.mm(g, y.vectors), slopes.by_norms[0])
        if needs[1]:
            grad_y = torch.mm(g.t(), x.vectors)
            grad_y = y.gradient(grad_y if by_columns is None else grad_y.add_(by_columns), slopes.by_norms[1])
        elif crossed and grad_x is not None:
            assert y.order is not None
            others = torch.mm(g.t(), x.vectors)
            y.turn(others)
            grad_x.index_copy_(0, y.order, others.to(grad_x.dtype))
        if needs[2]:
            grad_bias = restored(g.sum(0), y.order)
    if len(needs) == 3:
        return grad_x, grad_y, grad_bias
    by_parameters = slopes.by_parameters or (None,) * (len(needs) - 3)
    wanted = zip(by_parameters, needs[3:], strict=True)
    return grad_x, grad_y, grad_bias, *(restored(p, x.order) if p is not None and need else None for p, need in wanted)


def _of_function(
    spec: StripSpec,
    plan: Plan,
    s: Tensor,
    weights: RowWeights,
    by_row: list[Tensor],
    log_weight: Tensor | None,
    wanted: bool,
) -> _Slopes:
    """What a function of similarities gives."""
    by_column = []
    if spec.anchors == "proxies":
        by_column = [s.new_zeros(s.shape[1]) if log_weight is None else log_weight]
    inputs, masks = [s, *(p.detach() for p in by_row)], plan.pairs.masks(slice(0, plan.pairs.rows))
    strip = of_strip(spec, inputs, masks, by_column, weights.sides, weights.counted, wanted)
    losses = strip.losses if spec.closed else strip.losses.detach()
    if spec.closed and strip.slopes is None and plan.pairs.spread is None:
        return _Slopes(losses, None)
    scale = None if strip.active is None else weights.over_active(strip.active)
    if scale is not None:
        losses = losses * scale
    if not wanted:
        return _Slopes(losses, s)
    g, *by_parameters = strip.gradient(spec.closed, weights.pull if scale is None else weights.pull * scale)
    return _Slopes(losses, g, by_parameters=tuple(by_parameters))


class _Gathered(NamedTuple):
    """P or N of the rows, and its derivatives."""

    value: Tensor  # (N, 1)
    g: Tensor | None  # by the similarities, but for a number; None: 1 for all
    scale: float  # that number
    active: Tensor | None  # (N,) how many terms are not zero, if the average is over these
    by_norm: Tensor | None = None  # by the norms of the pairs, if the map uses them
    by_n: Tensor | None = None  # (N, 1) by N, if each positive is compared with all negatives


def _of_formula(
    spec: LossSpec,
    plan: Plan,
    s: Tensor,
    weights: RowWeights,
    by_row: list[Tensor],
    log_weight: Tensor | None,
    x: _Side,
    y: _Side,
) -> _Slopes:
    """What the formula gives."""
    pairs = plan.pairs
    tile = pairs.tile(slice(0, s.shape[0]), slice(0, s.shape[1])) or no_positives(s)
    table, vacant = tile.columns, tile.vacant
    listed = s if table is None else s.gather(1, table)
    if spec.mining is not None:
        lowest = (listed if vacant is None else listed.masked_fill(vacant, math.inf)).amin(1, keepdim=True)
        negatives = tile.hide(s.clone(), -math.inf)
        highest = negatives.amax(1, keepdim=True)
        # On a GPU one would have to wait for the answer; and ranks wait for each other.
        if s.device.type == "cpu" and pairs.spread is None and float((lowest - highest).amin()) > spec.mining + SLACK:
            return _Slopes(s.new_zeros(s.shape[0]), None)
        easy = listed >= highest + spec.mining
        vacant = easy if vacant is None else vacant | easy
        tile = MatrixTile(vacant, negatives <= lowest - spec.mining)
    n = _of_negatives(spec, s, tile, by_row[0].unsqueeze(1) if spec.border else None, log_weight, pairs.complete)
    p = None
    if spec.combine != "negatives":
        norm = _pair_norms(x, y, table) if spec.positive.uses_norm else None
        weight = log_weight if log_weight is None or table is None else log_weight[table]
        p = _of_positives(spec, listed, vacant, norm, weight, n.value, pairs)

    losses, by_p, by_n = _combined(spec, p, n, weights, pairs.complete)
    losses, pull = losses.view(-1), weights.pull.unsqueeze(1)
    if weights.counted is not None:
        # What is not counted may be infinite, and times a weight of zero it would be NaN.
        counted, same = weights.counted.unsqueeze(1), by_p is by_n
        losses, pull, by_n = only(weights.counted, losses), only(counted, pull), only(counted, by_n)
        by_p = by_n if same else only(counted, by_p)
    pull_n = times(pull, by_n)
    assert n.g is not None
    g = n.g.mul_(times(pull_n, n.scale * spec.side_scale[1]))
    if p is None:
        return _Slopes(losses, g)
    pull_p = times(pull_n if by_p is by_n else times(pull, by_p), p.scale * spec.side_scale[0])
    if table is None:
        assert p.g is not None
        return _Slopes(losses, g.addcmul_(p.g, pull_p))
    by_listed = pull_p if p.g is None else p.g * pull_p
    g.scatter_add_(1, table, by_listed if by_listed.shape == table.shape else by_listed.expand_as(table))
    return _Slopes(losses, g, (None, None) if p.by_norm is None else _by_norms(p.by_norm * pull_p, x, y, table))


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
    if share is None:
        share, slope = slope if isinstance(slope, Tensor) else v.fill_(slope), 1.0
        tile.hide(share, 0.0, keep_positives=spec.others)
    elif not complete:  # in a row that has no negatives, all columns had the same share
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


def _pair_norms(x: _Side, y: _Side, table: Tensor | None) -> Tensor:
    """(N, K) the norms of the pairs listed: |x|, or |x||w| where the similarities keep that."""
    assert x.norm is not None and y.norm is not None and table is not None
    return x.norm.expand_as(table) if y.normalized else x.norm * y.norm[:, 0][table]


def _by_norms(by_pair: Tensor, x: _Side, y: _Side, table: Tensor) -> tuple[Tensor, Tensor | None]:
    """The derivatives by the norms of the rows (N, 1) and the columns (M, 1), from those by the pairs' (N, K)."""
    if y.normalized:
        return by_pair.sum(1, keepdim=True), None
    assert x.norm is not None and y.norm is not None
    by_column = torch.zeros_like(y.norm[:, 0]).index_add_(0, table.flatten(), (by_pair * x.norm).flatten())
    return (by_pair * y.norm[:, 0][table]).sum(1, keepdim=True), by_column.unsqueeze(1)
