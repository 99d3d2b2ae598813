"""The figures of the boundary study."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nearfar.report import style
from nearfar.studies.margins import Floats, Member, arcs, zones

STYLES = (*style.SERIES, (style.INK, (0, (6, 1.5)), "v"), (style.FAINT, "-", "P"))
"""Colour, line and marker of up to six series."""
ACROSS = 3
JITTER = 0.28  # radial jitter of dots on the circle, to avoid overlap


class Shown(Protocol):
    """A trained toy."""

    @property
    def member(self) -> Member: ...
    @property
    def embeddings(self) -> Floats: ...
    @property
    def weight(self) -> Floats: ...


def logits(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the target's logit by the angle."""
    with style.figure(style.WIDTH + 0.4, style.HEIGHT + 0.7) as drawn:
        axes = drawn.subplots()
        for name, (colour, line, _) in zip(dict.fromkeys(row["loss"] for row in rows), STYLES, strict=False):
            loss_rows = [row for row in rows if row["loss"] == name]
            axes.plot(
                [row["degrees"] for row in loss_rows],
                [row["target"] for row in loss_rows],
                color=colour,
                linestyle=line,
                label=name,
            )
        axes.set(xlabel="angle to the class θ", ylabel="target logit / scale", xlim=(0, 180))
        _degrees(axes, "x")
        axes.legend(loc="lower left")
    return drawn


def boundaries(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the largest angle to the sample's class by the angle to another class."""
    with style.figure(style.WIDTH + 0.4, style.HEIGHT + 0.7) as drawn:
        axes = drawn.subplots()
        for name, (colour, line, _) in zip(dict.fromkeys(row["loss"] for row in rows), STYLES, strict=False):
            loss_rows = [row for row in rows if row["loss"] == name and row["own"] is not None]
            axes.plot(
                [row["other"] for row in loss_rows],
                [row["own"] for row in loss_rows],
                color=colour,
                linestyle=line,
                label=name,
            )
        axes.set(xlabel="angle to another class", ylabel="largest angle to its class", xlim=(0, 180), ylim=(0, 180))
        _degrees(axes, "x")
        _degrees(axes, "y")
        axes.legend(loc="upper left")
    return drawn


def _degrees(axes: Axes, side: str) -> None:
    ticks = range(0, 181, 45)
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_ticks(list(ticks), [f"{tick}°" for tick in ticks])


def circle(toys: Sequence[Shown], labels: npt.NDArray[np.int64], held_out: npt.NDArray[np.bool_]) -> Figure:
    """Draw two-dimensional toys: dots on the circle, class vectors, and the arcs that keep the margin."""
    down = math.ceil(len(toys) / ACROSS)
    out = np.random.default_rng(0).uniform(0.08, 0.08 + JITTER, len(labels))
    with style.figure(7.6, 2.6 * down) as drawn:
        panels = drawn.subplots(down, ACROSS, squeeze=False).ravel()
        for axes, toy in zip(panels, toys, strict=False):
            turn = np.linspace(0, 2 * np.pi, 361)
            axes.plot(np.cos(turn), np.sin(turn), color=style.LINE, linewidth=1)
            for label, begin, stop in arcs(toy.member, toy.weight):
                turn = np.linspace(begin, stop, 60)
                axes.plot(0.93 * np.cos(turn), 0.93 * np.sin(turn), color=STYLES[label % len(STYLES)][0], linewidth=4)
            for label, (x, y) in enumerate(toy.weight):
                colour, _, marker = STYLES[label % len(STYLES)]
                axes.plot([0, x], [0, y], color=colour, linewidth=1.2)
                chosen = (labels == label) & held_out
                points = toy.embeddings[chosen] * (1 + out[chosen, None])
                axes.plot(
                    points[:, 0], points[:, 1], marker, color=colour, markersize=3.2, alpha=0.8, markeredgewidth=0
                )
            axes.set(title=toy.member.name, xlim=(-1.42, 1.42), ylim=(-1.42, 1.42), aspect="equal")
            axes.set_axis_off()
        for axes in panels[len(toys) :]:
            axes.set_axis_off()
    return drawn


def sphere(toys: Sequence[Shown], labels: npt.NDArray[np.int64], held_out: npt.NDArray[np.bool_]) -> Figure:
    """Draw three-dimensional toys on Mollweide's map of the sphere."""
    down = math.ceil(len(toys) / ACROSS)
    longitude, latitude = np.meshgrid(np.linspace(-np.pi, np.pi, 181), np.linspace(-np.pi / 2, np.pi / 2, 91))
    points = np.stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)], -1
    ).reshape(-1, 3)
    with style.figure(7.6, 1.75 * down) as drawn:
        panels = drawn.subplots(down, ACROSS, squeeze=False, subplot_kw={"projection": "mollweide"}).ravel()
        for axes, toy in zip(panels, toys, strict=False):
            labels_of_points = zones(toy.member, toy.weight, points).reshape(longitude.shape)
            for label in range(len(toy.weight)):
                colour, _, marker = STYLES[label % len(STYLES)]
                inside = (labels_of_points == label).astype(float)
                if inside.any():
                    axes.contourf(longitude, latitude, inside, levels=[0.5, 1.5], colors=[colour], alpha=0.25)
                x, y, z = toy.embeddings[(labels == label) & held_out].T
                axes.plot(np.arctan2(y, x), np.arcsin(z), marker, color=colour, markersize=2.8, markeredgewidth=0)
                x, y, z = toy.weight[label]
                axes.plot(np.arctan2(y, x), np.arcsin(z), "*", color=style.INK, markersize=7)
            axes.set_title(toy.member.name, loc="left")
            axes.set(xticks=[], yticks=[])
        for axes in panels[len(toys) :]:
            axes.set_axis_off()
    return drawn
