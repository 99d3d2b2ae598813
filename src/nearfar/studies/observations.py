"""The Circle paper's three observations in numbers (Sun et al., 2020, Sections 2 and 3.3).

Circle loss is compared with the losses whose straight boundary, s_p - s_n = 1 - 2 m, touches its circle:

    balanced    the share of s_p in the gradient, at state A's s_n: always half, or less the better s_p is
    attenuated  the size of the gradient on the straight way from A to the corner (0, 1): constant until shortly before
                the boundary, or decreasing
    target      the points where gradient descent crosses the boundary, from many starts: anywhere, or in a small region
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nearfar.report.page import Cell
from nearfar.studies.fields import Floats, build, slopes
from nearfar.studies.gradient_cases import Case, Place, paper_case

Row = Mapping[str, Cell]
WAYS = 100  # points on a way
STARTS = np.linspace(0.1, 0.9, 7)  # similarities at which descent starts, with s_p at most s_n
STRIDE, MOST_STRIDES = 0.02, 150


def touching(m: float, gamma: float) -> list[Case]:
    """Triplet, AM-Softmax and Circle, with boundaries that touch in (m, 1 - m)."""
    straight = 1 - 2 * m
    return [
        paper_case("Triplet", straight, gamma),
        paper_case("AM-Softmax", straight, gamma),
        paper_case("Circle", m, gamma),
    ]


def balanced(cases: Sequence[Case], a: Place) -> list[Row]:
    """The share of s_p in the gradient, |dL/ds_p| / (|dL/ds_p| + |dL/ds_n|), by s_p, at the s_n of A."""
    rows: list[Row] = []
    for case in cases:
        loss = build(case.loss)
        for s_p in np.linspace(0.0, 0.98, WAYS).tolist():
            _, by_n, by_p = (abs(value) for value in slopes(loss, a[0], s_p))
            if by_n + by_p > 1e-3 * case.scale:
                rows.append({"loss": case.name, "m": case.m, "s_n": a[0], "s_p": s_p, "share": by_p / (by_p + by_n)})
    return rows


def attenuated(cases: Sequence[Case], a: Place) -> list[Row]:
    """The size of the gradient relative to A, on the way from A to the corner; `way` goes from 0 to 1."""
    rows: list[Row] = []
    for case in cases:
        loss = build(case.loss)
        first = _size(loss, a)
        for way in np.linspace(0.0, 0.99, WAYS).tolist():
            place = a[0] * (1 - way), a[1] + (1 - a[1]) * way
            rows.append({"loss": case.name, "m": case.m, "way": way, "s_n": place[0], "s_p": place[1],
                         "pull": _size(loss, place) / first})  # fmt: skip
    return rows


def target(cases: Sequence[Case]) -> list[Row]:
    """The points where descent crosses the boundary, from every start below it."""
    rows: list[Row] = []
    for case in cases:
        loss = build(case.loss)
        for s_n in STARTS.tolist():
            for s_p in STARTS[s_n + 1e-9 >= STARTS].tolist():
                end = _descend(loss, (s_n, s_p), 0.0 if case.name == "Triplet" else math.log(2))
                if end is not None:
                    rows.append({"loss": case.name, "m": case.m, "from s_n": s_n, "from s_p": s_p,
                                 "s_n": end[0], "s_p": end[1]})  # fmt: skip
    return rows


def width(rows: Sequence[Row], loss: str) -> float:
    """The part of the way on which the gradient falls from 90 % to 10 % of its size at A."""
    points = [(float(r["way"]), float(r["pull"])) for r in _of(rows, loss)]  # type: ignore[arg-type]
    ways, pulls = np.array(points).T
    first, last = (int(np.argmax(pulls < share)) for share in (0.9, 0.1))
    return float(ways[last] - ways[first]) if pulls.min() < 0.1 else math.nan


def spread(rows: Sequence[Row], loss: str) -> float:
    """The standard deviation of s_n at the crossings of the boundary."""
    return float(np.std([float(row["s_n"]) for row in _of(rows, loss)]))  # type: ignore[arg-type]


def sentences(
    cases: Sequence[Case],
    states: Mapping[str, Place],
    first: Sequence[Row],
    second: Sequence[Row],
    third: Sequence[Row],
) -> list[str]:
    """Describe each observation with its numbers, and whether it is confirmed."""
    names = [case.name for case in cases]
    circle = cases[-1]
    shares = {name: [float(row["share"]) for row in _of(first, name)] for name in names}  # type: ignore[arg-type]
    kept = ", ".join(f"{min(own):.2f} to {max(own):.2f} under {name}" for name, own in shares.items())
    falls = all(np.diff(shares["Circle"]) < 1e-9)
    result = [
        f"Balanced optimisation {_verdict(falls and max(shares['AM-Softmax']) - min(shares['AM-Softmax']) < 1e-3)}: at "
        f"s_n = {states['A'][0]:g}, the share of s_p in the gradient is {kept}, as s_p rises from 0."
    ]
    if "B" in states:
        parts, at_b = [], {}
        for case in cases:
            loss = build(case.loss)
            at_b[case.name] = _size(loss, states["B"]) / _size(loss, states["A"])
            parts.append(f"{100 * at_b[case.name]:.0f} % under {case.name}")
        widths = ", ".join(f"{width(second, name):.2f} under {name}" for name in names)
        good = at_b["Circle"] < min(at_b["Triplet"], at_b["AM-Softmax"])
        result.append(
            f"Gradually attenuated gradients {_verdict(good)}: at B {_at(states['B'])}, nearer the boundary, the "
            f"gradient is {', '.join(parts)} of that at A {_at(states['A'])}; on the way to the corner it falls from "
            f"90 % to 10 % within {widths} of the way."
        )
    spreads = {name: spread(third, name) for name in names}
    words = ", ".join(f"{value:.3f} under {name}" for name, value in spreads.items())
    m = float(circle.m or 0)
    result.append(
        f"A definite target {_verdict(spreads['Circle'] < 0.8 * spreads['AM-Softmax'])}: descent "
        f"from {len(_of(third, 'Circle'))} places crosses the boundary at values of s_n that spread (standard "
        f"deviation) by {words}; the smallest gap s_p − s_n on Circle's boundary is {1 - 2 * m:.2f}, at T "
        f"({m:g}, {1 - m:g}), while on a straight one it is the same everywhere."
    )
    return result


def _verdict(holds: bool) -> str:
    return "is confirmed" if holds else "is not confirmed"


def _at(place: Place) -> str:
    return f"({place[0]:g}, {place[1]:g})"


def _of(rows: Sequence[Row], loss: str) -> list[Row]:
    return [row for row in rows if row["loss"] == loss]


def _size(loss: Any, place: Place) -> float:
    return math.hypot(*slopes(loss, *place)[1:])


def _descend(loss: Any, start: Place, boundary: float) -> Place | None:
    """Follow the gradient in strides of equal length within [0, 1] until the loss reaches its value at the boundary."""
    place: Floats = np.array(start)
    for _ in range(MOST_STRIDES):
        value, by_n, by_p = slopes(loss, float(place[0]), float(min(place[1], 0.999)))
        length = math.hypot(by_n, by_p)
        if value <= boundary:
            return float(place[0]), float(place[1])
        if not length:
            return None
        place = np.clip(place - STRIDE * np.array([by_n, by_p]) / length, 0, 1)
    return None
