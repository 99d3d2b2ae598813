"""Cosine, distances and angles. At singular points a function of s is its value plus a stated slope."""

import math
from collections.abc import Callable

from torch import Tensor

EPS = 2.220446049250313e-16


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """s = a.b / (|a| |b|); 0 with gradient 0 if either vector is zero."""
    if not a.any() or not b.any():
        return 0 * a.sum() + 0 * b.sum()
    s: Tensor = a @ b / (a.norm() * b.norm())
    return s


def unit(x: Tensor) -> Tensor:
    """x / |x|; a zero vector stays zero, with gradient 0."""
    return x / x.norm() if x.any() else 0 * x


def linear(s: Tensor, value: float, slope: float) -> Tensor:
    """A function of s given by its value and slope at this s."""
    return value + slope * (s - s.detach())


def distance(s: Tensor, kind: str) -> Tensor:
    """Distance of normalised vectors: 1 - s, 2 - 2s or sqrt(2 - 2s), the last floored at 2 - 2s = 4 EPS."""
    if kind == "cosine":
        return 1 - s
    if kind == "squared_l2":
        return 2 - 2 * s
    if kind == "l2":
        d = math.sqrt(max(2 - 2 * s.item(), 4 * EPS))
        return linear(s, d, -1 / d)
    raise ValueError(f"unknown distance {kind!r}")


def angle(s: Tensor) -> float:
    """theta = acos(s), for s rounded past +-1 too."""
    return math.acos(max(-1.0, min(1.0, s.item())))


def of_angle(s: Tensor, h: Callable[[float], float], slope: Callable[[float], float]) -> Tensor:
    """h(theta) as a function of s: dh/ds = -h'(theta) / sin(theta), sin(theta)^2 floored at EPS."""
    theta = angle(s)
    sine = math.sqrt(max(1 - s.item() ** 2, EPS))
    return linear(s, h(theta), -slope(theta) / sine)
