"""Combinations: the loss of a row, from what it makes of its positives and of its negatives, and its derivatives."""

from typing import Any

import torch
from torch import Tensor

from nearfar.losses.engine.maps import softplus
from nearfar.losses.engine.reductions import Mean, State
from nearfar.losses.engine.spec import Act, LossSpec


def activate(act: Act, x: Tensor) -> tuple[Tensor, Tensor]:
    """act(x) and its derivative."""
    if act == "softplus":
        return softplus(x), torch.sigmoid(x)
    if act == "relu":
        return torch.relu(x), (x > 0).to(x.dtype)
    return x, torch.ones_like(x)


class EachPositive(Mean):
    """mean over a row's positives of act(u + N), for the finished N; its state holds the derivatives by N besides."""

    def __init__(self, act: Act):
        self.act = act

    def none(self, like: Tensor) -> State:
        return torch.zeros_like(like), torch.zeros_like(like)

    def terms(self, u: Tensor, negatives: Tensor, left_out: Tensor | None) -> tuple[State, Tensor]:
        """The state, and the shares of the terms `u` (p, K) of rows with such N (p,)."""
        losses, shares = activate(self.act, u.add_(negatives[:, None]))
        if left_out is not None:
            losses, shares = losses.masked_fill_(left_out, 0.0), shares.masked_fill_(left_out, 0.0)
        return (losses.sum(1), shares.sum(1)), shares


def combined(
    spec: LossSpec,
    p: Tensor | None,
    n: Tensor,
    absent: tuple[Tensor | None, Tensor | None],
    sides: tuple[Any, Any],
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows' losses (n,), and their derivatives by P and N, of joint, split and negatives.

    Args:
        p, n: P and N; no P where the loss is of negatives.
        absent: which rows have no positives and no negatives; None: all have some.
        sides: k_p and k_n of a split loss.
    """
    if spec.combine == "split":
        assert p is not None
        sum_of_sides: list[Tensor] = []
        slopes: list[Tensor] = []
        for side, without, k, scale in zip((p, n), absent, sides, spec.side_scale, strict=True):
            loss, by = (without_pairs(x, without) for x in activate(spec.act, side))
            factor = scale if k is None else k * scale
            sum_of_sides.append(loss * factor)
            slopes.append(by * factor)
        return sum_of_sides[0] + sum_of_sides[1], slopes[0], slopes[1]
    losses, by = activate(spec.act, n if p is None else p + n)
    for without in absent:
        losses, by = without_pairs(losses, without), without_pairs(by, without)
    return losses, by, by


def without_pairs(values: Tensor, absent: Tensor | None) -> Tensor:
    """Zero where a row has no pairs of a kind, whatever was computed there."""
    return values if absent is None else values.masked_fill(absent, 0.0)
