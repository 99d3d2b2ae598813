"""The specs executed the plain way: the whole matrix of similarities, and autograd. The reference of the engine, and
its contract.

`evaluate` equals `nearfar.losses.engine.evaluate` in arguments, value and gradient; it needs memory for several rows
× columns matrices.
"""

import math

import torch
from torch import Tensor

from nearfar.losses.maps import softplus, through
from nearfar.losses.plan import Plan
from nearfar.losses.pools import Pool
from nearfar.losses.spec import LossSpec, StripSpec
from nearfar.losses.vectors import at_least_float32, norms, unit
from nearfar.losses.weights import RowWeights, only, ordered, restored


def evaluate(
    plan: Plan, rows: Tensor, columns: Tensor | None, bias: Tensor | None = None, *parameters: Tensor
) -> Tensor:
    """As the engine's, by autograd."""
    spec, pairs = plan.spec, plan.pairs
    dtype = at_least_float32(rows, columns)
    x = ordered(rows, pairs.row_order).to(dtype)
    y = x
    if columns is not None or pairs.crossed:
        y = ordered(rows if columns is None else columns, pairs.column_order).to(dtype)
    s = (unit(x) if spec.normalize[0] else x) @ (unit(y) if spec.normalize[1] else y).t()
    if bias is not None:
        s = s + ordered(bias, pairs.column_order)
    weights = RowWeights(plan, rows.new_empty(0, dtype=dtype))
    masks = pairs.masks(slice(0, len(x)))
    penalty = None
    losses: Tensor
    if isinstance(spec, StripSpec):
        extra = [ordered(p, pairs.row_order) for p in parameters]
        if spec.anchors == "proxies":
            weight = plan.column_weight
            extra.append(s.new_zeros(len(y)) if weight is None else ordered(weight, pairs.column_order).log())
        result = spec.function(s, *masks, *extra)
        if spec.closed:
            *result, slopes = result
            result[0] = _with_slopes(result[0], slopes, [s, *extra])
        if spec.average == "sides":
            losses = result[0] * weights.sides[0] + result[1] * weights.sides[1]
        elif spec.average == "active":
            losses = result[0] * weights.over_active(result[1].detach())
        else:
            losses = result[0] if spec.closed else result
    else:
        pair_norm = norms(x)[:, None] * (1 if spec.normalize[1] else norms(y)) if spec.positive.uses_norm else None
        log_weight = None if plan.column_weight is None else ordered(plan.column_weight, pairs.column_order).log()
        border = ordered(parameters[0], pairs.row_order)[:, None] if spec.border else None
        if spec.pool is not None:
            s = spec.pool.value(s.view(len(s), -1, spec.pool.size).permute(2, 0, 1))
            penalty = _penalty(spec.pool, unit(y))
        losses = _losses(spec, s, *masks, pair_norm, log_weight, weights, border)
    losses = only(weights.counted, losses)
    if plan.reduction == "none":
        losses = losses if penalty is None else losses + penalty
        size = rows.shape[0] if pairs.crossed else None
        return restored(losses * weights.factor, pairs.row_order, size)
    loss = losses @ weights.pull
    return loss if penalty is None else loss + penalty * weights.of_columns


def _with_slopes(losses: Tensor, slopes: list[Tensor], inputs: list[Tensor]) -> Tensor:
    """A strip function's losses under autograd, with the slopes that it states."""
    losses = losses.detach()
    for slope, tensor in zip(slopes, inputs, strict=True):
        change = slope.detach() * (tensor - tensor.detach())
        losses = losses + (change.sum(1) if change.ndim == 2 else change)
    return losses


def _penalty(pool: Pool, columns: Tensor) -> Tensor | None:
    """The pool's term of the class vectors, with the gradient that it states."""
    units = columns.view(-1, pool.size, columns.shape[1])
    term = pool.penalty(units.detach())
    return None if term is None else term[0] + (term[1] * (units - units.detach())).sum()


def _losses(
    spec: LossSpec,
    s: Tensor,
    positive: Tensor,
    negative: Tensor,
    norm: Tensor | None,
    log_weight: Tensor | None,
    weights: RowWeights,
    border: Tensor | None,
) -> Tensor:
    if spec.mining is not None:
        lowest, highest = s.masked_fill(~positive, math.inf).amin(1), s.masked_fill(~negative, -math.inf).amax(1)
        negative = negative & (s > lowest[:, None] - spec.mining)
        positive = positive & (s < highest[:, None] + spec.mining)
    u, v = through(spec.positive, s, norm), through(spec.negative, s, border)
    if log_weight is not None:
        u, v = u + log_weight, v + log_weight
    denominator = positive | negative if spec.others else negative
    n = _gather(spec.gather[1], v, denominator)
    if spec.combine == "negatives":
        return _act(spec.act, n)
    if spec.combine == "each":
        each = torch.where(positive, softplus(torch.where(positive, u, 0) + n[:, None]), 0)
        return each.sum(1) / positive.sum(1).clamp_min(1)
    p = _gather(spec.gather[0], u, positive)
    if spec.combine == "joint":
        return _act(spec.act, p + n)
    a, b = weights.sides
    if spec.average == "active":
        sides = (u, positive), (v, negative)
        a, b = (weights.over_active(((t != 0) & mask).sum(1).to(t.dtype)) for t, mask in sides)
    return _act(spec.act, p) * a * spec.side_scale[0] + _act(spec.act, n) * b * spec.side_scale[1]


def _act(act: str, x: Tensor) -> Tensor:
    return softplus(x) if act == "softplus" else torch.relu(x) if act == "relu" else x


def _gather(how: str, v: Tensor, mask: Tensor) -> Tensor:
    if how in ("sum", "mean"):
        total = torch.where(mask, v, 0).sum(1)
        return total / mask.sum(1).clamp_min(1) if how == "mean" else total
    if how in ("min", "softmin"):
        return -_gather("max" if how == "min" else "lse", -v, mask)
    some = mask.any(1)
    v = torch.where(mask, v, -math.inf).where(some[:, None], 0)  # an empty row would give NaN slopes
    return torch.where(some, torch.logsumexp(v, 1) if how == "lse" else v.max(1).values, -math.inf)
