"""Combinations: the loss of a row, from what it makes of its positives and of its negatives, and its derivatives."""

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
    spec: LossSpec,
    p: Tensor | None,
    n: Tensor,
    absent: tuple[Tensor | None, Tensor | None],
    sides: tuple[Any, Any],
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows' losses (n,), and their derivatives by P and N, for joint, split and negatives.

    Args:
        p, n: P and N; no P where the loss is over negatives only.
        absent: which rows have no positives, and which no negatives; None: every row has some.
        sides: k_p and k_n of a split loss; None is 1.
    """
    if spec.combine == "split":
        assert p is not None
        losses, derivatives = [], []
        for side, none, k, scale in zip((p, n), absent, sides, spec.side_scale, strict=True):
            loss, by_side = (without_pairs(x, none) for x in activate(spec.act, side))
            factor = scale if k is None else k * scale
            losses.append(loss * factor)
            derivatives.append(by_side * factor)
        return losses[0] + losses[1], derivatives[0], derivatives[1]
    total, derivative = activate(spec.act, n if p is None else p + n)
    for none in absent:
        total, derivative = without_pairs(total, none), without_pairs(derivative, none)
    return total, derivative, derivative


def without_pairs(values: Tensor, absent: Tensor | None) -> Tensor:
    """Zero where a row has no pairs of a kind, whatever was computed there."""
    return values if absent is None else values.masked_fill(absent, 0.0)
