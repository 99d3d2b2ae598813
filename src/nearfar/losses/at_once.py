"""The engine's straight way, where all similarities are one tile or one strip:

    S = X Y^T;   the rows' losses and G = dL/dS;   dX = G Y,  dY = G^T X

It has nothing of what cuts, keeps and merges several tiles, which would be a third of the time of few samples.

Shapes: N rows, M columns, D dimensions.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nearfar.losses.formula import Norms, Slopes, of_formula
from nearfar.losses.memory import keep_freed_memory
from nearfar.losses.plan import Plan
from nearfar.losses.spec import LossSpec, StripSpec
from nearfar.losses.strips import of_strip, strip_height
from nearfar.losses.vectors import at_least_float32, unit
from nearfar.losses.weights import RowWeights, ordered, restored

LONGEST = 1024  # rows or columns of the one tile
FEW = 2**13  # pairs: up to so many, the gradient by the hardest of them is a matrix like any other

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
        between = Norms(x.norm, None if y.normalized else y.norm) if norms else None
        slopes = of_formula(spec, pairs, weights, s, between, by_row, log_weight, any(needs))
    else:
        planes = s.view(len(s), -1, spec.pool.size).permute(2, 0, 1)
        pooled, shares = spec.pool.gather(planes, None)
        slopes = of_formula(spec, pairs, weights, pooled, None, by_row, log_weight, any(needs))
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
    slopes: Slopes, x: _Side, y: _Side, crossed: bool, needs: tuple[bool, ...], by_columns: Tensor | None
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
) -> Slopes:
    """What a function of similarities gives."""
    by_column = []
    if spec.anchors == "proxies":
        by_column = [s.new_zeros(s.shape[1]) if log_weight is None else log_weight]
    inputs, masks = [s, *(p.detach() for p in by_row)], plan.pairs.masks(slice(0, plan.pairs.rows))
    strip = of_strip(spec, inputs, masks, by_column, weights.sides, weights.counted, wanted)
    losses = strip.losses if spec.closed else strip.losses.detach()
    if spec.closed and strip.slopes is None and plan.pairs.spread is None:
        return Slopes(losses, None)
    scale = None if strip.active is None else weights.over_active(strip.active)
    if scale is not None:
        losses = losses * scale
    if not wanted:
        return Slopes(losses, s)
    g, *by_parameters = strip.gradient(spec.closed, weights.pull if scale is None else weights.pull * scale)
    return Slopes(losses, g, by_parameters=tuple(by_parameters))
