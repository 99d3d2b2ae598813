"""Student's t distribution, and the distribution of the sum of two errors.

References: Abramowitz and Stegun, 26.7.3 and 26.7.4.
"""

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MANY = 1000  # degrees of freedom beyond which the distribution hardly changes
POINTS = 4000  # of the quadrature for the sum of two variables
Error = tuple[float, int]  # scale and degrees of freedom of scale · T


@functools.lru_cache(maxsize=256)
def quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's distribution with `degrees` >= 1 degrees of freedom."""
    if probability < 0.5:
        return -quantile(1 - probability, degrees)
    low, high = 0.0, math.pi / 2  # of atan(t / √degrees)
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, degrees) < 2 * probability - 1 else (low, angle)
    return math.tan(low) * math.sqrt(degrees)


def above(t: Any, degrees: int) -> Any:
    """P(T > t)."""
    return (1 - np.sign(t) * _within(np.arctan(np.abs(t) / math.sqrt(degrees)), degrees)) / 2


def _within(angle: Any, degrees: int) -> Any:
    """P(|T| < √degrees·tan(angle)), which is a finite sum for whole degrees of freedom."""
    sine, cosine = np.sin(angle), np.cos(angle)
    odd = degrees % 2
    term, total = cosine if odd else 1.0, 0.0
    for power in range(2 + odd, degrees + 1, 2):
        total += term
        term = term * cosine**2 * (power - 1) / power
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def beyond(distance: float, errors: tuple[Error, ...]) -> float:
    """The probability that the sum of one or two independent errors is further from 0 than `distance`."""
    errors = tuple((scale, min(degrees, MANY)) for scale, degrees in errors if scale > 0)
    if not errors:
        return float(distance <= 0)
    if len(errors) == 1:
        ((scale, degrees),) = errors
        return float(min(1.0, 2 * above(abs(distance) / scale, degrees)))
    (scale, degrees), (other, more) = sorted(errors, key=lambda error: error[1])
    t, weight = _points(more)
    return float(min(1.0, 2 * (weight * above((abs(distance) - other * t) / scale, degrees)).sum()))


@functools.lru_cache(maxsize=64)
def _points(degrees: int) -> tuple[Floats, Floats]:
    """Quadrature points of T and their weights, from the angle atan(t/√degrees), whose density is a power of cosine."""
    reach = min(math.pi / 2, 15 / math.sqrt(degrees))
    angle = reach * ((2 * np.arange(POINTS) + 1) / POINTS - 1)
    weight = np.cos(angle) ** (degrees - 1)
    return np.tan(angle) * math.sqrt(degrees), weight / weight.sum()


def half_width(errors: tuple[Error, ...], confidence: float) -> float:
    """The distance from 0 that the sum of the errors does not exceed with probability `confidence`."""
    if len(errors) == 1:
        return errors[0][0] * quantile((1 + confidence) / 2, min(errors[0][1], MANY))
    # An upper bound: each error exceeds its term with half of the risk.
    high = sum(scale * quantile(1 - (1 - confidence) / 4, min(degrees, MANY)) for scale, degrees in errors)
    low = 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle, errors) > 1 - confidence else (low, middle)
    return high
