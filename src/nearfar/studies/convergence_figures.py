"""The figures of the convergence study."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nearfar.report import style
from nearfar.report.figures import PER_CENT, thinned
from nearfar.studies.boundary_figures import ACROSS, STYLES

SMOOTHED = 60  # points of a line of similarities


def recall(curves: Sequence[Mapping[str, Any]], losses: Sequence[str]) -> Figure:
    """Draw Recall@1 by steps and by seconds, means over seeds; a row for defaults, one for the best of the search."""
    rows = list(dict.fromkeys(curve["settings"] for curve in curves))
    titles = {"defaults": "defaults", "best": "best of the search"}
    with style.figure(7.6, 2.9 * len(rows) + 0.6) as drawn:
        grid = drawn.subplots(len(rows), 2, sharey=True, squeeze=False)
        for settings, panels in zip(rows, grid, strict=True):
            for name, (colour, line, marker) in zip(losses, STYLES, strict=False):
                loss_curves = [
                    c for c in curves if c["loss"] == name and c["settings"] == settings and not c["diverged"]
                ]
                if not loss_curves:
                    continue
                values = np.array([curve["recall@1"] for curve in loss_curves], float).mean(0)
                seconds = np.array([curve["seconds"] for curve in loss_curves], float).mean(0)
                for axes, x in zip(panels, (loss_curves[0]["looked at"], seconds), strict=True):
                    axes.plot(x, values, color=colour, linestyle=line, marker=marker, markersize=3.5, label=name)
            for axes in panels:
                axes.set_title(titles.get(settings, settings))
                axes.yaxis.set_major_formatter(PER_CENT)
            panels[0].set_ylabel("Recall@1")
        for axes, label in zip(grid[-1], ("step", "CPU seconds"), strict=True):
            axes.set(xlabel=label)
        lines, labels = grid[0, 0].get_legend_handles_labels()
        drawn.legend(lines, labels, loc="outside lower center", ncols=3)
    return drawn


def similarities(curves: Sequence[Mapping[str, Any]], losses: Sequence[str]) -> Figure:
    """Draw the mean similarities of positive and negative pairs by steps, means over seeds."""
    with style.figure(7.6, 3.5) as drawn:
        panels = drawn.subplots(1, 2)
        for name, (colour, line, _) in zip(losses, STYLES, strict=False):
            loss_curves = [curve for curve in curves if curve["loss"] == name and not curve["diverged"]]
            if not loss_curves:
                continue
            for axes, key in zip(panels, ("s_p", "s_n"), strict=True):
                values = np.nanmean(np.array([curve[key] for curve in loss_curves], float), 0)
                known = ~np.isnan(values)
                x, y = thinned(np.arange(1.0, len(values) + 1)[known], values[known], SMOOTHED)
                axes.plot(x, y, color=colour, linestyle=line, label=name)
        for axes, label in zip(panels, ("sₚ, positive pairs", "sₙ, negative pairs"), strict=True):
            axes.set(xlabel="step", title=label)
        panels[0].set_ylabel("mean similarity")
        lines, labels = panels[0].get_legend_handles_labels()
        drawn.legend(lines, labels, loc="outside lower center", ncols=3)
    return drawn


def pairs(
    trainings: Sequence[Mapping[str, Any]],
    boundaries: Mapping[str, tuple[Any, Any]],
    target: tuple[float, float] | None = None,
) -> Figure:
    """Draw pairs when they crossed the boundary and in the end; a panel for each loss, with the target T."""
    points = np.array([point for row in trainings for when in ("crossed", "last") for point in row[when]], float)
    low = np.floor(10 * min(0.0, float(points.min()))) / 10
    across = min(ACROSS, len(trainings))
    down = math.ceil(len(trainings) / across)
    with style.figure(2.55 * max(2, across), 2.75 * down + 0.35) as drawn:
        panels = drawn.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        for axes, row in zip(panels.ravel(), trainings, strict=False):
            for when, colour, marker, alpha, label in (
                ("last", style.THREE, "o", 0.4, "in the end"),
                ("crossed", style.ONE, "x", 1.0, "crossing"),
            ):
                x, y = np.array(row[when], float).reshape(-1, 2).T
                axes.plot(x, y, marker, color=colour, markersize=3, alpha=alpha, markeredgewidth=0.9, label=label)
            line = boundaries[row["pairs of"]]
            axes.plot(*line, color=style.TWO, linestyle=(0, (4, 2)), linewidth=1.6, label="boundary")
            if target is not None:
                axes.plot(*target, "D", color=style.INK, markersize=4, label="T")
            axes.set_title(f"{row['pairs of']}: {100 * row['inside']:.0f} % inside", fontsize=9)
            axes.set(xlim=(low, 1), ylim=(low, 1), aspect="equal")
        for axes in panels[-1]:
            axes.set_xlabel("sₙ")
        for axes in panels[:, 0]:
            axes.set_ylabel("sₚ")
        lines, labels = panels[0, 0].get_legend_handles_labels()
        drawn.legend(lines, labels, loc="outside lower center", ncols=4)
    return drawn
