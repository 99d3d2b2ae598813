"""Numbers in the maps of a spec: tensors, for which the engine takes placeholders and a list of numbers."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from nearfar.losses.engine.maps import Column, Row
from nearfar.losses.engine.spec import LossSpec


def with_placeholders(spec: LossSpec, rows: int, columns: int) -> tuple[LossSpec, list[Tensor], list[Tensor]]:
    """The spec without tensors in its maps; the numbers () that all rows share, for which it has `Row(rows)` and on;
    and those by class (C,), for which it has `Column(columns)` and on.
    """
    shared: list[Tensor] = []
    by_class: list[Tensor] = []
    changed: dict[str, Any] = {}
    for side in ("positive", "negative"):
        function = getattr(spec, side)
        for name in function.parameters:
            value = getattr(function, name)
            if isinstance(value, Tensor):
                numbers, placeholder = (
                    (by_class, Column(columns + len(by_class))) if value.ndim else (shared, Row(rows + len(shared)))
                )
                numbers.append(value)
                changed[side] = replace(changed.get(side, function), **{name: placeholder})
    return spec._replace(**changed) if changed else spec, shared, by_class
