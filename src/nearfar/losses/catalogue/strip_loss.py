"""A row-local loss of your own, as a plain function of similarities, in bounded memory."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar
from typing import Literal

import torch
from torch import Tensor

from nearfar.losses.engine.spec import StripSpec
from nearfar.losses.loss import Loss
from nearfar.losses.settings import PositiveInt


def masked_logsumexp(v: Tensor, mask: Tensor) -> Tensor:
    """log sum exp of the values (b, t) in the mask; -inf, with no gradient, where a row has none."""
    filled = mask.any(1, keepdim=True)
    inside = v.masked_fill(~mask, -math.inf).masked_fill(~filled, 0)  # a row of -inf would give NaN slopes
    return torch.logsumexp(inside, 1).masked_fill(~filled[:, 0], -math.inf)


class StripLoss(Loss):
    """A loss written as a differentiable function of one strip of rows.

        l = function(s, positive, negative)

    `s` (b, M) are the cosine similarities of b rows to all columns, `positive` and `negative` (b, M) boolean masks;
    the function returns the b losses, and must treat every row by itself. The engine cuts the batch into strips that
    fit the memory budget, and computes the gradients.

    Args:
        function: as above.
        average: which rows count: those with "both" a positive and a negative, with a "positive", or "all".
        num_classes, embedding_size: give both for samples × classes.
        normalize: False compares by dot products.

    Example:
        >>> import torch
        >>> def worst_negative(s, positive, negative):
        ...     return s.masked_fill(~negative, -1).amax(1)
        >>> loss = StripLoss(worst_negative)
        >>> float(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])))
        0.0
    """

    row_local = True
    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    _: KW_ONLY
    average: Literal["both", "positive", "all"] = "both"
    num_classes: InitVar[PositiveInt | None] = None
    embedding_size: InitVar[PositiveInt | None] = None
    normalize: bool = True

    def spec(self) -> StripSpec:
        return StripSpec(self.function, self.average, (self.normalize, self.normalize))
