"""What losses of distances share: a kind of distance, between unit vectors or between vectors as they are."""

from dataclasses import KW_ONLY
from typing import Any, Literal

from torch import Tensor

from nearfar.errors import InputError
from nearfar.losses.engine.maps import Distance, EuclideanDistance
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.spec import LossSpec, StripSpec
from nearfar.losses.engine.vectors import differences
from nearfar.losses.loss import Loss

DistanceKind = Literal["l2", "squared_l2", "cosine"]


class DistanceLoss(Loss):
    """A loss of distances.

    Args:
        normalize: whether vectors are divided by their norms first; False compares them as they are.
    """

    _: KW_ONLY
    normalize: bool = True

    def set_up(self) -> None:
        super().set_up()
        if not self.normalize and getattr(self, "distance", "l2") == "cosine":
            raise InputError(
                'distance="cosine" needs normalize=True: take "l2" or "squared_l2" for vectors of any norm'
            )
        self.free_norm = not self.normalize

    @property
    def normalized(self) -> tuple[bool, bool]:
        """What a spec says of rows and columns."""
        return self.normalize, self.normalize

    def distance_map(self, kind: DistanceKind = "l2", sign: int = 1, offset: float = 0.0) -> Distance:
        """sign * d + offset, of the similarities that `evaluate` forms."""
        return (Distance if self.normalize else EuclideanDistance)(kind, sign, offset)

    def evaluate(
        self, spec: LossSpec | StripSpec, pairs: Pairs, rows: Tensor, columns: Tensor | None, *args: Any, **options: Any
    ) -> Tensor:
        if not self.normalize:
            rows, columns = differences(rows, rows if columns is None else columns)
        return super().evaluate(spec, pairs, rows, columns, *args, **options)
