"""What one evaluation of a loss is to do, and the sizes of the blocks that it works in."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from nearfar.losses.engine.memory import Spare
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.spec import LossSpec, StripSpec

BUDGET = 104 * 10**6  # bytes of similarities that may be kept: 256 rows of 100,000 in float32, and some temporaries


@dataclass(frozen=True)
class Sizes:
    """Where work is cut. The results do not depend on it; docs/engine.md says how the numbers were chosen.

    Args:
        tile: about how many similarities a tile has: they stay in the cache through all the passes over them, and a
            product of so many runs at full speed.
        widest: columns of a tile at most.
        square: side of a tile of samples × samples; columns of one that is high, or of every plane of several.
        fewest_rows: of a strip whose tiles are computed again because the budget does not keep them; products of fewer
            run visibly below full speed (1.1 x the time at 128 rows, 1.25 x at 64, 1.5 x at 32).
        whole: elements of vectors up to which they are prepared at once, and not block by block.
        turned: elements of gradients of vectors that are turned into those by the caller's at a time.
        temporaries: matrices of a strip's size that a strip function may keep.
    """

    tile: int = 2**20
    widest: int = 2048
    square: int = 1024
    fewest_rows: int = 256
    whole: int = 2**22
    turned: int = 2**18
    temporaries: int = 12


SIZES = Sizes()


class Plan(NamedTuple):
    """All that one evaluation needs besides the tensors that take gradients.

    Args:
        spec: the loss.
        pairs: which pairs are positive and negative.
        spare: memory for a large gradient, from step to step.
        row_weight: (N,) of the rows in the mean or sum, in the caller's order; None is all 1.
        column_weight: (M,) of the columns' exponentials, positive, in the caller's order; None is all 1.
        reduction: "mean", "sum" or "none".
        budget: how many bytes of similarities may be kept.
        sizes: of the blocks.
        row_parameters: how many of the parameters are numbers of the rows; the rest are of the columns.
    """

    spec: LossSpec | StripSpec
    pairs: Pairs
    spare: Spare
    row_weight: Tensor | None = None
    column_weight: Tensor | None = None
    reduction: Literal["mean", "sum", "none"] = "mean"
    budget: int = BUDGET
    sizes: Sizes = SIZES
    row_parameters: int = 0
