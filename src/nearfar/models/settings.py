"""The settings of an `Embedder`, checked and saved with the model."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal, get_args

from nearfar.errors import InputError
from nearfar.models.pooling import Pool

HeadName = Literal["linear", "mlp", "hash"]
HeadStart = Literal["random", "uniform", "pca", "pca-whiten"]
FreezeBatchNorm = bool | Literal["statistics"]


@dataclass(frozen=True)
class Settings:
    """The settings of an `Embedder`, which documents them, with all defaults resolved."""

    pool: Pool
    parts: tuple[int, ...]
    head: HeadName | None
    dimension: int
    hidden: int | None
    layer_norm: bool
    head_start: HeadStart
    freeze_trunk: bool
    freeze_to: str | None
    freeze_batch_norm: FreezeBatchNorm
    warmup_epochs: int
    batch_norm_momentum: float | None = None  # missing in older models

    def __post_init__(self) -> None:
        if self.head not in ("linear", "mlp", "hash", None):
            raise InputError(f'head must be "linear", "mlp", "hash" or None, not {self.head!r}')
        if self.head_start not in get_args(HeadStart):
            raise InputError(f"head_start must be one of {', '.join(get_args(HeadStart))}, not {self.head_start!r}")
        if self.head_start == "uniform" and self.head != "linear":
            raise InputError(f'head_start="uniform" needs head="linear", not {self.head!r}')
        if self.head is None and self.head_start != "random":
            raise InputError(f"head_start={self.head_start!r} needs a head, not head=None")
        if self.hidden is not None and self.head != "mlp":
            raise InputError(f'hidden needs head="mlp", not {self.head!r}')
        if not self.parts or min(self.parts) < 1:
            raise InputError(f"parts must be numbers of stripes such as (1, 2, 3), not {tuple(self.parts)}")
        if self.dimension < 1 or self.dimension % sum(self.parts):
            raise InputError(f"dimension={self.dimension} must be a positive multiple of the {sum(self.parts)} parts")
        if self.freeze_to is not None and self.freeze_trunk:
            raise InputError("freeze_trunk=True freezes the whole trunk: leave out freeze_to")
        if self.freeze_batch_norm not in (True, False, "statistics"):
            raise InputError(f'freeze_batch_norm must be True, False or "statistics", not {self.freeze_batch_norm!r}')
        if self.batch_norm_momentum is not None and not 0 < self.batch_norm_momentum <= 1:
            raise InputError(f"batch_norm_momentum={self.batch_norm_momentum} must be above 0 and at most 1")
        if self.warmup_epochs < 0:
            raise InputError(f"warmup_epochs must not be negative: {self.warmup_epochs}")

    @property
    def fits_head(self) -> bool:
        """Whether `fit_head` initialises the head."""
        return self.head_start in ("pca", "pca-whiten")

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values. An unset momentum is left out, because a new entry would change the fingerprints
        of older models, and indexes made with them would be refused.
        """
        values = asdict(self)
        if self.batch_norm_momentum is None:
            del values["batch_norm_momentum"]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Settings":
        """The inverse of `to_json`."""
        known = {field.name for field in fields(cls)}
        needed = {field.name for field in fields(cls) if field.default is MISSING}
        if not needed <= values.keys() <= known:
            raise InputError(f"settings need exactly {', '.join(sorted(known))}")
        return cls(**{**values, "parts": tuple(values["parts"])})
