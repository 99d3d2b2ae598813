"""What one evaluation of a loss is to do."""

from typing import Literal, NamedTuple

from torch import Tensor

from nearfar.losses.memory import Spare
from nearfar.losses.pairs import Pairs
from nearfar.losses.spec import LossSpec, StripSpec

# A tile of about this many similarities stays in the cache through all the passes over it, and is large enough for a
# product to run at full speed.
TILE = 2**20
BUDGET = 104 * 10**6  # bytes of similarities that may be kept


class Plan(NamedTuple):
    """All that one evaluation needs besides the tensors that take gradients.

    Args:
        spec: the loss.
        pairs: which pairs are positive and negative.
        spare: memory for the larger gradient and for what is kept, from step to step.
        row_weight: (N,) of the rows in the mean or sum, in the caller's order; None is all 1.
        column_weight: (M,) of the columns' exponentials, positive, in the caller's order; None is all 1.
        reduction: "mean", "sum" or "none".
        budget: how many bytes of similarities may be kept.
        tile: about how many similarities a tile has.
    """

    spec: LossSpec | StripSpec
    pairs: Pairs
    spare: Spare
    row_weight: Tensor | None = None
    column_weight: Tensor | None = None
    reduction: Literal["mean", "sum", "none"] = "mean"
    budget: int = BUDGET
    tile: int = TILE
