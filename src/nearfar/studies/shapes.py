"""Boundaries of other shapes than Circle's, all through its target T = (m, 1 - m), on whole small networks.

    circle          the paper's
    tall ellipse    slope_n three times slope_p: larger gradients for negatives, weaker demands on positives
    flat ellipse    the reverse
    wide circle     the centre moved out from (0, 1) to (-0.5, 1.5): between a circle and a straight line
    straight        AM-Softmax, s_p - s_n = 1 - 2 m
    arc             ArcFace, θ_n - θ_p = m', bent away from the corner; the circle is bent towards it

The study shows which shapes' pairs end inside the boundary, where they end, and whether the shape matters for unseen
classes. The paper chooses a circle because weights in proportion to the distance from the optimum lead to it, not
because it performs best.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nearfar.report import style
from nearfar.studies.boundary_figures import STYLES
from nearfar.studies.crossing import CONVERGED, spread_of
from nearfar.studies.margins import Member
from nearfar.studies.study import Row
from nearfar.studies.sweep import best, over_seeds, per_cent
from nearfar.training.config import LossConfig

METRICS = ("recall@1", "map@r", "inside", "s_n", "s_p", "spread")
RATIO, OUT = 3.0, 0.5
STRAIGHT = "straight"


def shapes(m: float, gamma: float) -> dict[str, Member]:
    """The losses by the shape of their boundary, all class-level with the same scale."""
    steep, gentle = 2 * RATIO / (1 + RATIO), 2 / (1 + RATIO)  # 1 on average
    far = {"O_p": 1 + m + 2 * OUT, "O_n": -m - 2 * OUT, "delta_p": 1 - m, "delta_n": m}
    circles: dict[str, Mapping[str, float]] = {
        "circle": {},
        "tall ellipse": {"slope_p": gentle, "slope_n": steep},
        "flat ellipse": {"slope_p": steep, "slope_n": gentle},
        "wide circle": far,
    }
    result = {
        name: Member(
            name, LossConfig("CircleLoss", {"m": m, "gamma": gamma, **settings}, class_level=True), gamma, zero=m
        )
        for name, settings in circles.items()
    }
    straight = LossConfig("AMSoftmaxLoss", {"margin": 1 - 2 * m, "scale": gamma})
    arc = LossConfig("ArcFaceLoss", {"margin": math.acos(m) - math.acos(1 - m), "scale": gamma})
    return result | {STRAIGHT: Member(STRAIGHT, straight, gamma), "arc": Member("arc", arc, gamma)}


def places(training: Mapping[str, Any]) -> dict[str, Any]:
    """The mean and the spread of a training's pairs at the end."""
    s_n, s_p = np.mean(training["last"], 0)
    return {"s_n": float(s_n), "s_p": float(s_p), "spread": spread_of(training["last"])}


def rows(trainings: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The means over seeds, a row for each shape."""
    cells = [{"shape": each["pairs of"], **each, **places(each)} for each in trainings]
    for cell in cells:
        if cell["recall@1"] is None:
            cell |= dict.fromkeys(METRICS)
    return list(over_seeds(cells, ["shape"], METRICS))


def draw(shape_rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw Recall@1 and MAP@R on unseen classes by shape."""
    with style.figure(7.6, 0.42 * len(shape_rows) + 1.2) as drawn:
        panels = drawn.subplots(1, 2, sharey=True)
        for axes, metric, words in zip(panels, METRICS[:2], ("Recall@1", "MAP@R"), strict=True):
            for position, row in enumerate(reversed(shape_rows)):
                if row[metric] is None:
                    continue
                colour, _, marker = STYLES[(len(shape_rows) - 1 - position) % len(STYLES)]
                width = 100 * (row[f"{metric} ±"] or 0)
                axes.errorbar(100 * row[metric], position, xerr=width, color=colour, marker=marker, capsize=2)
            axes.set(xlabel=f"{words} on unseen classes in %")
        panels[0].set_yticks(range(len(shape_rows)), [row["shape"] for row in reversed(shape_rows)])
    return drawn


def sentences(shape_rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe where pairs end, and whether the shape matters for unseen classes."""
    parts = [
        f"{row['shape']} {100 * row['inside']:.0f} % inside, about ({row['s_n']:.2f}, {row['s_p']:.2f}), spread "
        f"{row['spread']:.3f}"
        for row in shape_rows
        if row["inside"] is not None
    ]
    result = [f"Pairs end, by the shape of the boundary: {'; '.join(parts)}."]
    result.append(
        "Unseen classes, Recall@1 in per cent: "
        + ", ".join(f"{row['shape']} {per_cent(row, 'recall@1')}" for row in shape_rows)
        + "."
    )
    known = [dict(row) for row in shape_rows if row["recall@1"] is not None]
    if len(known) < 2:
        return result
    top, low = best(known, "recall@1"), min(known, key=lambda row: float(row["recall@1"]))
    widths = [row["recall@1 ±"] for row in (top, low)]
    gap = top["recall@1"] - low["recall@1"]
    if None in widths or gap <= np.hypot(*widths):
        verdict = "unclear"
    else:
        verdict = f"yes: {top['shape']} is {100 * gap:.1f} points above {low['shape']}"
    converged = [row["shape"] for row in known if row["inside"] >= CONVERGED]
    result.append(
        f"Does the shape matter for unseen classes: {verdict}. Of {len(shape_rows)} shapes, {len(converged)} have most "
        f"of their pairs inside in the end{': ' + ', '.join(converged) if converged else ''}."
    )
    return result
