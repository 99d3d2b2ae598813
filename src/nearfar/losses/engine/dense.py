"""The specs computed the plain way: the whole matrix of similarities, masks, and autograd.

The engine equals this in value and gradient. It is the oracle of the engine's tests: the two share only the spec and
the maps, and here pairs are masks.

Shapes: N rows, M columns, D dimensions; C columns of pairs, M or, where K vectors stand for each, M / K.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nearfar.losses.engine.maps import bound, through
from nearfar.losses.engine.spec import LossSpec, StripSpec


def evaluate(
    spec: LossSpec | StripSpec,
    rows: Tensor,
    columns: Tensor | None,
    positive: Tensor,
    negative: Tensor,
    *,
    bias: Tensor | None = None,
    row_numbers: Sequence[Tensor] = (),
    column_numbers: Sequence[Tensor] = (),
    row_weight: Tensor | None = None,
    column_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The loss, a scalar or (N,), by autograd.

    Args:
        rows: (N, D).
        columns: (M, D); None: they are the rows.
        positive, negative: (N, C) masks of the pairs.
        bias: (M,), added to the similarities.
        row_numbers, column_numbers: (N,) and (C,) each, for maps or a strip function.
        row_weight, column_weight: (N,) weights of the rows in the mean, (C,) of the columns' exponentials.
        reduction: "mean", "sum" or "none".
    """
    dtype = torch.promote_types(rows.dtype if columns is None else columns.dtype, torch.float32)
    dtype = torch.promote_types(rows.dtype, dtype)
    x, y = rows.to(dtype), (rows if columns is None else columns).to(dtype)
    x, y = (_unit(t) if normalize else t for t, normalize in zip((x, y), spec.normalize, strict=True))
    s = x @ y.t()
    s = s if bias is None else s + bias.to(dtype)
    log_weight = s.new_zeros(positive.shape[1]) if column_weight is None else column_weight.to(dtype).log()
    weight = s.new_ones(len(positive)) if row_weight is None else row_weight.to(dtype)
    penalty: Any = 0.0
    if isinstance(spec, StripSpec):
        extra = [*row_numbers, log_weight] if spec.anchors == "proxies" else list(row_numbers)
        losses: Tensor = _of_function(spec, s, positive, negative, extra, weight)
    else:
        if spec.pool is not None:
            s = spec.pool.value(s.view(len(s), -1, spec.pool.size).permute(2, 0, 1))
            units = _unit(y).view(-1, spec.pool.size, y.shape[1])
            if (term := spec.pool.penalty(units.detach())) is not None:
                penalty = term[0] + (term[1] * (units - units.detach())).sum()
        numbers = [number[:, None] for number in row_numbers], column_numbers
        u, v = (through(bound(f, *numbers), s) for f in (spec.positive, spec.negative))
        losses = spec.scale * _of_formula(spec, s, u + log_weight, v + log_weight, positive, negative, weight)
    counted = _counted(spec.average, positive, negative)
    losses = torch.where(counted > 0, losses, 0)
    if reduction != "mean":
        losses = (losses + penalty) * weight
        return losses if reduction == "none" else losses.sum()
    weight = weight * counted
    mean: Tensor = (losses * weight).sum() / weight.sum().clamp_min(torch.finfo(dtype).tiny)
    return mean + penalty  # type: ignore[no-any-return]


def _unit(vectors: Tensor) -> Tensor:
    """The vectors with length 1; a zero vector stays zero, and so does its gradient."""
    norm = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return torch.where(norm > 0, vectors / torch.where(norm > 0, norm, 1), 0)


def _counted(average: str, positive: Tensor, negative: Tensor) -> Tensor:
    """(N,) how often every row counts in the mean."""
    if average in ("all", "sides", "active"):
        return torch.ones_like(positive.sum(1))
    both = positive.any(1) & (negative.any(1) | (average == "positive"))
    return both * positive.sum(1) if average == "pairs" else both.long()


def _of_formula(
    spec: LossSpec, s: Tensor, u: Tensor, v: Tensor, positive: Tensor, negative: Tensor, weight: Tensor
) -> Tensor:
    """The rows' losses (N,)."""
    if spec.mining is not None:
        lowest = s.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
        highest = s.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
        negative_kept, positive_kept = negative & (s > lowest - spec.mining), positive & (s < highest + spec.mining)
    else:
        negative_kept, positive_kept = negative, positive
    denominator = negative_kept | positive_kept if spec.others else negative_kept
    some_p, some_n = positive_kept.any(1), denominator.any(1)
    n = torch.where(some_n, _gather(spec.gather[1], v, denominator), 0)
    if spec.combine == "negatives":
        return torch.where(some_n, _act(spec.act, n), 0)
    if spec.combine == "each":
        terms = torch.where(positive_kept, _act(spec.act, torch.where(positive_kept, u, 0) + n[:, None]), 0)
        return torch.where(some_n, terms.sum(1) / positive_kept.sum(1).clamp_min(1), 0)
    p = torch.where(some_p, _gather(spec.gather[0], u, positive_kept), 0)
    if spec.combine == "joint":
        losses = torch.where(some_p & some_n, _act(spec.act, p + n), 0)
        if spec.smoothing:
            number, total = (t.sum(1).clamp_min(1).to(s.dtype) for t in (positive, positive | negative))
            share = 1 / total
            of_u = torch.where(positive, u, 0).sum(1) * (1 / number - share)
            losses = losses - spec.smoothing * (of_u + torch.where(negative, v, 0).sum(1) * share)
        return losses
    sides = [torch.where(some_p, _act(spec.act, p), 0), torch.where(some_n, _act(spec.act, n), 0)]
    if spec.average == "sides":
        sides[0] = sides[0] * _over_present(positive, s)
    elif spec.average == "active":
        for kind, (terms, mask) in enumerate(((u, positive_kept), (v, denominator))):
            sides[kind] = sides[kind] * _over_active(((terms != 0) & mask).sum(1), weight)
    return sides[0] * spec.side_scale[0] + sides[1] * spec.side_scale[1]


def _act(act: str, x: Tensor) -> Tensor:
    if act == "softplus":
        return torch.logaddexp(x, torch.zeros_like(x))
    return torch.relu(x) if act == "relu" else x


def _over_present(positive: Tensor, like: Tensor) -> Tensor:
    """(N,) the factors that make the mean over rows a mean over rows with a positive."""
    present = positive.any(1).to(like.dtype)
    return present * (len(present) / present.sum().clamp_min(1))


def _over_active(active: Tensor, weight: Tensor) -> Tensor:
    """The factor that makes the mean over rows a mean over terms, of which the rows have `active` (N,)."""
    return (weight.sum() / (weight * active).sum()).nan_to_num(0, 0)


def _gather(how: str, v: Tensor, mask: Tensor) -> Tensor:
    """A { v } of every row (N,); anything where a row has no pairs."""
    if how in ("sum", "mean"):
        return torch.where(mask, v, 0).sum(1) / (mask.sum(1).clamp_min(1) if how == "mean" else 1)
    if how in ("min", "softmin"):
        return -_gather("max" if how == "min" else "lse", -v, mask)
    v = torch.where(mask.any(1, keepdim=True), torch.where(mask, v, -torch.inf), 0)  # a row of -inf has NaN slopes
    return torch.logsumexp(v, 1) if how == "lse" else v.gather(1, v.argmax(1, keepdim=True))[:, 0]


def _of_function(
    spec: StripSpec, s: Tensor, positive: Tensor, negative: Tensor, extra: list[Tensor], weight: Tensor
) -> Tensor:
    """The rows' losses (N,) by a strip function."""
    result = spec.function(s, positive, negative, *extra)
    if spec.closed:
        *parts, slopes = result
        for slope, tensor in zip(slopes or (), [s, *extra], strict=bool(slopes)):
            change = slope.detach() * (tensor - tensor.detach())
            parts[0] = parts[0].detach() if tensor is s else parts[0]
            parts[0] = parts[0] + (change.sum(1) if change.ndim == 2 else change)
        result = parts if len(parts) > 1 else parts[0]
    if spec.average == "sides":
        return result[0] * _over_present(positive, s) + result[1]  # type: ignore[no-any-return]
    return result[0] * _over_active(result[1].detach(), weight) if spec.average == "active" else result  # type: ignore[no-any-return]
