"""Losses outside the formula: what a function of a strip of similarities gives, and its derivatives.

Shapes: b rows of the strip, M columns.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nearfar.losses.engine.row_weights import RowWeights, only
from nearfar.losses.engine.spec import StripSpec
from nearfar.losses.engine.vectors import cut

TEMPORARIES = 12  # matrices of a strip's size that its function may keep


def strip_height(budget: int, row_bytes: int) -> int:
    """How many rows a strip has, of so many bytes each."""
    return max(1, budget // (TEMPORARIES * max(1, row_bytes)))


class Strip(NamedTuple):
    """What the function gives of the rows of a strip."""

    losses: Tensor  # (b,)
    active: Tensor | None  # (b,) how many of the terms are active, if the average is over these
    counted: Tensor | None  # (b,) whether the row counts; None: all do
    inputs: list[Tensor]  # the similarities (b, M) and the parameters (b,), which `losses` depends on
    closed: bool
    slopes: list[Tensor] | None = None  # of a closed function: the derivatives by them; None: nothing is active

    def gradient(self, pull: Tensor) -> list[Tensor] | None:
        """The derivatives of sum_r pull_r l_r by the inputs; None where nothing is active."""
        if not self.closed:
            return list(torch.autograd.grad(self.losses, self.inputs, pull, allow_unused=True, materialize_grads=True))
        if self.slopes is None:
            return None
        pull = only(self.counted, pull)
        return [slope.mul_(pull if slope.ndim == 1 else pull.unsqueeze(1)) for slope in self.slopes]


def of_strip(
    spec: StripSpec,
    rows: slice,
    inputs: list[Tensor],
    masks: tuple[Tensor, Tensor],
    column_parameters: list[Tensor],
    weights: RowWeights,
    wanted: bool,
) -> Strip:
    """Call the function.

    Args:
        rows: of the strip.
        inputs: the similarities and the rows' parameters.
        masks: of the positive and the negative pairs.
        column_parameters: what it takes besides.
        wanted: whether its derivatives will be asked for.
    """
    s, *parameters = inputs
    with torch.set_grad_enabled(wanted and not spec.closed):
        if not spec.closed:
            for each in inputs:
                each.requires_grad_(wanted)
        result: Any = spec.function(s, *masks, *parameters, *column_parameters)
        slopes, active = None, None
        if spec.closed:
            *result, slopes = result
            result = result if len(result) > 1 else result[0]
        if spec.average == "sides":
            assert weights.positive_side is not None
            losses = result[0] * cut(weights.positive_side, rows) + result[1]
        elif spec.average == "active":  # the number of active terms in all rows divides it, in the end
            losses, active = result[0], result[1].detach()
        else:
            losses = result
        counted = None if weights.counted is None else cut(weights.counted, rows)
        return Strip(only(counted, losses), active, counted, inputs, spec.closed, slopes)
