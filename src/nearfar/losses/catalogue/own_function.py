"""Your own row-local loss as a plain function of similarities, in bounded memory."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from nearfar.losses.engine.spec import StripSpec
from nearfar.losses.hyperparameters import check_choice
from nearfar.losses.loss import Loss


def masked_logsumexp(v: Tensor, mask: Tensor) -> Tensor:
    """log sum exp of the values (b, t) in the mask; -inf, with no gradient, where a row has none."""
    some = mask.any(1, keepdim=True)
    inside = v.masked_fill(~mask, -math.inf).masked_fill(~some, 0)  # a row of -inf would give NaN slopes
    return torch.logsumexp(inside, 1).masked_fill(~some[:, 0], -math.inf)


class StripLoss(Loss):
    """A loss written as a differentiable function of one strip of rows.

        l = function(s, positive, negative)

    `s` (b, M) are the cosine similarities of b rows to all columns, `positive` and `negative` (b, M) boolean masks;
    the function gives the b losses, and must treat every row by itself. The engine cuts the batch into strips that
    fit the memory budget and takes the gradients.

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

    def __init__(
        self,
        function: Callable[[Tensor, Tensor, Tensor], Tensor],
        *,
        average: Literal["both", "positive", "all"] = "both",
        num_classes: int | None = None,
        embedding_size: int | None = None,
        normalize: bool = True,
        **options: Any,
    ):
        super().__init__(**options)
        check_choice("average", average, ("both", "positive", "all"))
        self.function, self.average, self.normalize = function, average, normalize
        if num_classes is not None or embedding_size is not None:
            self.add_classes(num_classes, embedding_size)

    def spec(self) -> StripSpec:
        return StripSpec(self.function, self.average, (self.normalize, self.normalize))
