"""Checks of hyper-parameters: errors that say what is wrong and what to do."""

import math
from collections.abc import Sequence

from nearfar.errors import InputError


def check_positive(name: str, value: float) -> None:
    """A finite number above zero."""
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{name} must be a positive number, not {value}")


def check_not_negative(name: str, value: float) -> None:
    """Zero, or a finite number above it."""
    if not 0 <= value < math.inf:
        raise InputError(f"{name} must be a number that is not negative, not {value}")


def check_share(name: str, value: float) -> None:
    """At least 0, and below 1."""
    if not 0 <= value < 1:
        raise InputError(f"{name} must be at least 0 and below 1, not {value}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """One of a few."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def check_angle(name: str, value: float) -> None:
    """An angle that is added to another, in radians."""
    if not 0 <= value <= math.pi:
        raise InputError(
            f"{name}={value} is not an angle between 0 and pi: angles are radians here; "
            f"if these are degrees, {name}=math.radians({value}) is {math.radians(value):.4g}"
        )


def check_multiplier(name: str, value: float) -> None:
    """What an angle is multiplied by."""
    if not (value >= 1 and math.isfinite(value)):
        raise InputError(f"{name} multiplies the angle and must be at least 1, not {value}")
