"""Losses outside the formula: what a function of a strip of similarities gives, and its derivatives.

Shapes: b rows of the strip, M columns.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nearfar.losses.spec import StripSpec
from nearfar.losses.weights import Sides, only

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
    slopes: list[Tensor] | None  # of a closed function: the derivatives by them; None: nothing is active

    def gradient(self, closed: bool, pull: Tensor) -> tuple[Tensor | None, ...]:
        """The derivatives of sum_r pull_r l_r by the inputs; none of them where nothing is active."""
        if not closed:
            return torch.autograd.grad(self.losses, self.inputs, pull, allow_unused=True, materialize_grads=True)
        if self.slopes is None:
            return (None,) * len(self.inputs)
        pull = only(self.counted, pull)
        return tuple(slope.mul_(pull if slope.ndim == 1 else pull.unsqueeze(1)) for slope in self.slopes)


def of_strip(
    spec: StripSpec,
    inputs: list[Tensor],
    masks: tuple[Tensor, Tensor],
    column_parameters: list[Tensor],
    sides: Sides,
    counted: Tensor | None,
    wanted: bool,
) -> Strip:
    """Call the function.

    Args:
        inputs: the similarities and the rows' parameters.
        masks: of the positive and the negative pairs.
        column_parameters: what it takes besides.
        sides: factors of its positive and negative terms, if it gives these.
        counted: (b,) whether the row counts; None: all do.
        wanted: whether its derivatives will be asked for.
    """
    s, *parameters = inputs
    if spec.closed:
        *result, slopes = spec.function(s, *masks, *parameters, *column_parameters)
        losses, active = _losses(spec, result, sides)
        return Strip(only(counted, losses), active, counted, inputs, slopes)
    with torch.set_grad_enabled(wanted):
        for each in inputs:
            each.requires_grad_(wanted)
        losses, active = _losses(spec, spec.function(s, *masks, *parameters, *column_parameters), sides)
        return Strip(only(counted, losses), None if active is None else active.detach(), counted, inputs, None)


def _losses(spec: StripSpec, result: Any, sides: Sides) -> tuple[Tensor, Tensor | None]:
    if spec.average == "sides":
        return result[0] * sides[0] + result[1] * sides[1], None
    if spec.average == "active":
        return result[0], result[1]  # the number of active terms in all rows divides it, in the end
    return result[0] if spec.closed else result, None
