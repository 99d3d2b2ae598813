"""What one evaluation of a loss is to do, and the sizes of the blocks that it works in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from nearfar.losses.engine.memory import Spare
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.spec import LossSpec, StripSpec

BUDGET = 104 * 10**6  # bytes of similarities that may be kept: 256 rows of 100,000 in float32, and some temporaries


@dataclass(frozen=True)
class Sizes:
    """Where work is cut. Results do not depend on it; docs/engine.md says how the numbers were chosen.

    Args:
        tile: similarities of a tile, about: they stay in the cache through all passes over them, and the product of a
            tile this large runs at full speed.
        widest: columns of a tile, at most.
        square: side of a tile of samples × samples; columns of a tile with many rows, or with several planes.
        fewest_rows: of a strip whose tiles are computed again because the budget does not keep them. Products of fewer
            rows run visibly below full speed.
        whole: elements of the vectors of one side, up to which they are prepared together instead of block by block.
        turned: elements of a gradient that go through the norms together.
        reused: bytes of a gradient from which on its memory is kept for the next step.
        temporaries: matrices of a strip's size that a strip function may keep.
    """

    tile: int = 2**20
    widest: int = 2048
    square: int = 1024
    fewest_rows: int = 256
    whole: int = 2**22
    turned: int = 2**18
    reused: int = 2**24
    temporaries: int = 12


SIZES = Sizes()


class Plan(NamedTuple):
    """All that one evaluation needs besides the tensors that take gradients.

    Args:
        spec: the loss.
        pairs: which pairs are positive and negative.
        spare: memory for a large gradient, from step to step.
        row_weight: (N,) weights of the rows in the mean or sum, in the caller's order; None: all are 1.
        column_weight: (M,) weights of the columns' exponentials, positive, in the caller's order; None: all are 1.
        reduction: "mean", "sum" or "none".
        budget: bytes of similarities that may be kept.
        sizes: of the blocks.
        row_parameters: how many of the parameters are numbers of the rows; the others are numbers of the columns.
        watch: called with every part of the gradient by the similarities.
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
    watch: Callable[[Tensor], None] | None = None
