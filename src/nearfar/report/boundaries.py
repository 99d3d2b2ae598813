"""Decision boundaries of losses in the plane of a negative's similarity s_n and a positive's s_p.

For losses of the form act(f_p(s_p) + f_n(s_n)) the boundary is where the sum is zero: below it gradients are large,
above it small. Losses that treat positives and negatives separately have a corner.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.foundation.run_folder import RunFolder
from nearfar.losses import list_losses

Floats = npt.NDArray[np.float64]
POINTS = 801
_S = np.linspace(-1.0, 1.0, POINTS)


@dataclass(frozen=True)
class Boundary:
    """A boundary: lines (s_n, s_p) within [-1, 1], their formula, and the lowest similarity that a plot should show."""

    loss: str
    lines: tuple[tuple[Floats, Floats], ...]
    formula: str
    corner: float


LEVEL = {
    "class": "a sample and the vector of a class",
    "proxy": "a sample and the proxy of a class",
}


def boundary_of_run(run: RunFolder) -> tuple[Boundary | None, str]:
    """The boundary of the loss of a run, if there is a single one that trained the kept model, and a description of the
    pairs that it applies to.
    """
    if len(run.losses) != 1 or run.metrics.get("kept", "trained") != "trained":
        return None, ""
    loss = run.losses[0]
    for info in list_losses():
        if info.name == loss.get("name"):
            level = "class" if loss.get("class_level") else info.level
            return boundary(info.name, {**info.arguments, **loss}), LEVEL.get(level, "")
    return None, ""


def boundary(loss: str, arguments: Mapping[str, Any]) -> Boundary | None:
    """The boundary of a loss with all its arguments; None if it has none in this plane.

    >>> line = boundary("AMSoftmaxLoss", {"margin": 0.35, "scale": 30.0})
    >>> line.formula
    's_p = s_n + 0.35'
    """
    make = _KINDS.get(loss)
    return None if make is None else make(loss, arguments)


def _line(loss: str, s_p: Floats, formula: str) -> Boundary:
    """The boundary of s_p as a function of s_n."""
    with np.errstate(invalid="ignore"):
        inside = np.abs(s_p) <= 1
    x, y = _S[inside], s_p[inside]
    return Boundary(loss, ((x, y),), formula, 0.0)


def _shift(margin: float) -> Callable[[str, Mapping[str, Any]], Boundary]:
    """s_p = s_n + margin."""
    return lambda loss, arguments: _line(loss, _S + margin, "s_p = s_n" + (f" + {margin:g}" if margin else ""))


def _shift_by(name: str) -> Callable[[str, Mapping[str, Any]], Boundary]:
    return lambda loss, arguments: _shift(float(arguments[name]))(loss, arguments)


def _circle(loss: str, arguments: Mapping[str, Any]) -> Boundary:
    """The lower branch of k_n [s_n - O_n]₊(s_n - Δ_n) = k_p [O_p - s_p]₊(s_p - Δ_p); the paper's circle by default."""
    m, k_p, k_n = float(arguments["m"]), float(arguments.get("slope_p", 1.0)), float(arguments.get("slope_n", 1.0))
    defaults = {"O_p": 1 + m, "O_n": -m, "delta_p": 1 - m, "delta_n": m}
    O_p, O_n, delta_p, delta_n = (
        default if arguments.get(key) is None else float(arguments[key]) for key, default in defaults.items()
    )
    pull = k_n / k_p * np.maximum(_S - O_n, 0) * (_S - delta_n)
    middle, half = (O_p + delta_p) / 2, (O_p - delta_p) / 2
    with np.errstate(invalid="ignore"):
        s_p = middle - np.sqrt(half**2 - pull)
    if any(arguments.get(key) is not None for key in defaults):
        slopes = "" if k_p == k_n else f", slopes {k_n:g} and {k_p:g}"
        formula = f"[s_n − O_n]₊(s_n − Δ_n) = [O_p − s_p]₊(s_p − Δ_p){slopes}"
    elif k_p == k_n:
        formula = f"s_n² + (1 − s_p)² = 2 · {m:g}²"
    else:
        formula = f"{k_n:g} s_n² + {k_p:g} (1 − s_p)² = {k_n + k_p:g} · {m:g}²"
    return _line(loss, s_p, formula)


def _angle(loss: str, multiplier: float, angle: float, offset: float) -> Boundary:
    """s_n = cos(multiplier θ_p + angle) - offset, where it decreases with θ_p."""
    theta = np.arccos(_S)
    argument = multiplier * theta + angle
    s_n = np.cos(argument) - offset
    inside = (argument >= 0) & (argument <= math.pi) & (np.abs(s_n) <= 1)
    term = f"{multiplier:g}θ_p" if multiplier != 1 else "θ_p"
    sign = "+" if angle >= 0 else "−"
    formula = f"s_n = cos({term} {sign} {abs(angle):.4g})" + (f" − {offset:g}" if offset else "")
    return Boundary(loss, ((s_n[inside], _S[inside]),), formula, 0.0)


def _triplet(loss: str, arguments: Mapping[str, Any]) -> Boundary:
    """d_p = d_n - margin."""
    margin, kind = float(arguments["margin"]), arguments["distance"]
    if kind == "l2":
        distance = np.sqrt(2 - 2 * _S) - margin
        s_p = np.where(distance >= 0, 1 - distance**2 / 2, np.nan)
    else:
        s_p = _S + margin / (2 if kind == "squared_l2" else 1)
    return _line(loss, s_p, f"d_p = d_n − {margin:g} ({str(kind).replace('_', ' ')} distance)")


def _corner(loss: str, s_n: float, s_p: float) -> Boundary:
    """The boundary of losses that require s_p of at least, and s_n of at most, a constant."""
    lines = ((np.array([-1.0, s_n]), np.array([s_p, s_p])), (np.array([s_n, s_n]), np.array([s_p, 1.0])))
    return Boundary(loss, lines, f"s_p ≥ {s_p:.4g} and s_n ≤ {s_n:.4g}", min(s_n, s_p))


def _contrastive(loss: str, arguments: Mapping[str, Any]) -> Boundary:
    s_p, s_n = (_similarity(float(arguments[name]), arguments["distance"]) for name in ("pos_margin", "neg_margin"))
    return _corner(loss, s_n, s_p)


def _margin(loss: str, arguments: Mapping[str, Any]) -> Boundary | None:
    if arguments["learn_beta"]:
        return None  # it changes in training
    beta, margin = float(arguments["beta"]), float(arguments["margin"])
    return _corner(loss, _similarity(beta + margin, "l2"), _similarity(beta - margin, "l2"))


def _similarity(distance: float, kind: str) -> float:
    """The cosine similarity of unit vectors at a distance."""
    return 1 - {"l2": distance**2 / 2, "squared_l2": distance / 2, "cosine": distance}[kind]


_KINDS: dict[str, Callable[[str, Mapping[str, Any]], Boundary | None]] = {
    "CircleLoss": _circle,
    "UnifiedLoss": _shift_by("m"),
    "AMSoftmaxLoss": _shift_by("margin"),
    "CosFaceLoss": _shift_by("margin"),
    "SoftTripleLoss": _shift_by("margin"),
    "NormFaceLoss": _shift(0.0),
    "NormalizedSoftmaxLoss": _shift(0.0),
    "ProxyNCALoss": _shift(0.0),
    "NTXentLoss": _shift(0.0),
    "ArcFaceLoss": lambda loss, arguments: _angle(loss, 1, float(arguments["margin"]), 0),
    "SubCenterArcFaceLoss": lambda loss, arguments: _angle(loss, 1, float(arguments["margin"]), 0),
    "TupletMarginLoss": lambda loss, arguments: _angle(loss, 1, -float(arguments["margin"]), 0),
    "CombinedMarginLoss": lambda loss, arguments: _angle(
        loss, float(arguments["m1"]), float(arguments["m2"]), float(arguments["m3"])
    ),
    "TripletMarginLoss": _triplet,
    "ContrastiveLoss": _contrastive,
    "MarginLoss": _margin,
    "MultiSimilarityLoss": lambda loss, arguments: _corner(loss, float(arguments["base"]), float(arguments["base"])),
    "ProxyAnchorLoss": lambda loss, arguments: _corner(loss, -float(arguments["margin"]), float(arguments["margin"])),
    "ThresholdConsistentMarginLoss": lambda loss, arguments: _corner(
        loss, float(arguments["margin_minus"]), float(arguments["margin_plus"])
    ),
}
