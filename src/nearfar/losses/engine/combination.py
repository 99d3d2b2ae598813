"""Combinations: the loss of a row, from what it makes of its positives and of its negatives, and its derivatives."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nearfar.losses.engine.maps import softplus
from nearfar.losses.engine.reductions import State, Sum
from nearfar.losses.engine.spec import Act, LossSpec


def activate(act: Act, x: Tensor) -> tuple[Tensor, Tensor]:
    """act(x) and its derivative."""
    if act == "softplus":
        return softplus(x), torch.sigmoid(x)
    if act == "relu":
        return torch.relu(x), (x > 0).to(x.dtype)
    return x, torch.ones_like(x)


class EachPositive(Sum):
    """The sum over a row's positives of act(u + N), for the finished N, with its derivative by N: the state is both."""

    def none(self, like: Tensor) -> State:
        return torch.zeros_like(like), torch.zeros_like(like)


def combined(
    spec: LossSpec, values: Sequence[Tensor], absent: Sequence[Tensor | None], factors: Sequence[Any]
) -> tuple[Tensor, list[Tensor]]:
    """The rows' losses (n,), and their derivatives by P and N, for joint and split.

    Args:
        values: P and N.
        absent: the rows without positives, and those without negatives; their values may be infinite. None: no row.
        factors: k_p and k_n of a split loss.
    """
    if spec.combine != "split":
        loss, slope = (zeroed(x, *absent) for x in activate(spec.act, values[0] + values[1]))
        return loss, [slope, slope]
    losses, slopes = [], []
    for value, none, k, scale in zip(values, absent, factors, spec.side_scale, strict=True):
        loss, slope = (zeroed(x, none) * (k * scale) for x in activate(spec.act, value))
        losses.append(loss)
        slopes.append(slope)
    return losses[0] + losses[1], slopes


def zeroed(values: Tensor, *masks: Tensor | None) -> Tensor:
    """The values, with zero wherever a mask says so, whatever is there."""
    for mask in masks:
        values = values if mask is None else values.masked_fill(mask, 0)
    return values
