"""Losses outside the formula: a function of a strip of similarities, evaluated and differentiated one strip at a time.

Shapes: N rows, M columns; b rows of a strip.
"""

from typing import Any

import torch
from torch import Tensor

from nearfar.losses.engine.combination import zeroed
from nearfar.losses.engine.plan import Plan, Sizes
from nearfar.losses.engine.products import Numbers, Products
from nearfar.losses.engine.row_weights import RowWeights
from nearfar.losses.engine.spec import StripSpec
from nearfar.losses.engine.vectors import blocks


def strip_height(budget: int, row_bytes: int, sizes: Sizes) -> int:
    """The number of rows of a strip, each of which takes `row_bytes`."""
    return max(1, budget // (sizes.temporaries * max(1, row_bytes)))


def of_function(
    spec: StripSpec,
    plan: Plan,
    products: Products,
    row_numbers: Numbers,
    log_weight: Tensor | None,
    weights: RowWeights,
    wanted: bool,
) -> Tensor:
    """The rows' losses (N,); if it is `wanted`, adds their gradient to that of the products and of the numbers."""
    k = spec.vectors_per_class if spec.anchors == "proxies" else 1
    columns, empty = slice(0, products.y.shape[0]), products.like.new_zeros(0)
    log_weights: list[Tensor] = []  # of the samples, where these are the columns
    if spec.anchors == "proxies":
        log_weights = [empty.new_zeros(columns.stop) if log_weight is None else log_weight]
    losses, active = [empty], [empty]
    for rows in blocks(plan.pairs.rows, strip_height(plan.budget, columns.stop * k * empty.element_size(), plan.sizes)):
        vectors = slice(rows.start * k, rows.stop * k)
        numbers = [number[rows].detach() for number in row_numbers.values]
        inputs = [products.similarities(vectors, columns), *numbers]
        of_rows, number, slopes = _of_strip(spec, rows, inputs, plan.pairs.masks(rows), log_weights, weights, wanted)
        losses.append(of_rows)
        active.append(number)
        if slopes is not None:
            if plan.watch is not None:
                plan.watch(slopes[0])
            products.add(vectors, columns, slopes[0])
            for total, by_row in zip(row_numbers.gradients, slopes[1:], strict=True):
                if total is not None:
                    total[rows] = by_row
    if spec.average != "active":
        return torch.cat(losses)
    scale = weights.over_active(torch.cat(active))
    products.scale(scale)
    for gradient in row_numbers.gradients:
        if gradient is not None:
            gradient.mul_(scale)
    return torch.cat(losses) * scale


def _of_strip(
    spec: StripSpec,
    rows: slice,
    inputs: list[Tensor],
    masks: tuple[Tensor, Tensor],
    log_weights: list[Tensor],
    weights: RowWeights,
    wanted: bool,
) -> tuple[Tensor, Tensor, list[Tensor] | None]:
    """The losses (b,), the numbers of active terms (b,) if the average is over these, and the derivatives of
    sum_r pull_r l_r by the inputs; None where these are not wanted, or known to be zero.

    Args:
        inputs: the similarities (b, M) and the rows' numbers (b,).
        masks: of the positive and the negative pairs.
    """
    s, *numbers = inputs
    slopes: list[Tensor] | None = None
    with torch.set_grad_enabled(wanted and not spec.closed):
        if not spec.closed:
            for each in inputs:
                each.requires_grad_(wanted)
        result: Any = spec.function(s, *masks, *numbers, *log_weights)
        if spec.closed:
            *result, slopes = result
            result = result if len(result) > 1 else result[0]
        active = s.new_zeros(0)
        if spec.average == "sides":
            losses = result[0] * weights.positive_side[rows] + result[1]
        elif spec.average == "active":  # the number of active terms in all rows divides it, in the end
            losses, active = result[0], result[1].detach()
        else:
            losses = result
        left_out = None if weights.left_out is None else weights.left_out[rows]
        losses, pull = (zeroed(x, left_out) for x in (losses, weights.pull[rows]))
    if not wanted:
        slopes = None
    elif not spec.closed:
        slopes = list(torch.autograd.grad(losses, inputs, pull, allow_unused=True, materialize_grads=True))
    elif slopes is not None:
        slopes = [slope.mul_(pull if slope.ndim == 1 else pull.unsqueeze(1)) for slope in slopes]
    return losses.detach(), active, slopes
