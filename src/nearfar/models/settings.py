"""How an embedder is put together: what `Embedder` is given, checked, and what is saved with it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from nearfar.errors import InputError
from nearfar.models.pooling import Pool

HeadName = Literal["linear", "mlp", "hash"]
HeadStart = Literal["random", "pca", "pca-whiten"]


@dataclass(frozen=True)
class Settings:
    """See `Embedder` for what each means; nothing is left to a default here."""

    pool: Pool
    parts: tuple[int, ...]
    head: HeadName | None
    dimension: int
    hidden: int | None
    layer_norm: bool
    head_start: HeadStart
    freeze_trunk: bool
    freeze_to: str | None
    freeze_batch_norm: bool
    warmup_epochs: int

    def __post_init__(self) -> None:
        if self.head not in ("linear", "mlp", "hash", None):
            raise InputError(f'head must be "linear", "mlp", "hash" or None, not {self.head!r}')
        if self.head_start not in ("random", "pca", "pca-whiten"):
            raise InputError(f'head_start must be "random", "pca" or "pca-whiten", not {self.head_start!r}')
        if self.head is None and self.head_start != "random":
            raise InputError(f"head=None gives the features themselves: head_start={self.head_start!r} starts nothing")
        if self.hidden is not None and self.head != "mlp":
            raise InputError(f'hidden goes with head="mlp", not {self.head!r}')
        if not self.parts or min(self.parts) < 1:
            raise InputError(f"parts must be numbers of stripes such as (1, 2, 3), not {tuple(self.parts)}")
        if self.dimension < 1 or self.dimension % sum(self.parts):
            raise InputError(f"dimension={self.dimension} cannot be shared equally by {sum(self.parts)} parts")
        if self.freeze_to is not None and self.freeze_trunk:
            raise InputError("freeze_trunk=True keeps the whole trunk as it is: freeze_to goes without it")
        if self.warmup_epochs < 0:
            raise InputError(f"warmup_epochs must not be negative: {self.warmup_epochs}")

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Settings":
        """From what `to_json` wrote."""
        known = {field.name for field in fields(cls)}
        if values.keys() != known:
            raise InputError(f"settings need exactly {', '.join(sorted(known))}")
        return cls(**{**values, "parts": tuple(values["parts"])})
