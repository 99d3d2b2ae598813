"""The figures of the gradients study."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from nearfar.report import style
from nearfar.studies.fields import Field, Floats
from nearfar.studies.gradient_cases import TARGETS, Case, Place, paper_case
from nearfar.studies.heat import ON_HEAT, heat

ARROWS = 9  # per axis


def _panel(
    axes: Axes, case: Case, field: Field, values: Floats, most: float, arrows: bool, states: Mapping[str, Place]
) -> Any:
    drawn = heat(axes, field.s_n, field.s_p, values, (0.0, most))
    if arrows:
        step = max(1, len(field.s_n) // ARROWS)
        rows = slice(step // 2, None, step)
        u, v = -field.by_n[rows, rows], -field.by_p[rows, rows]
        length = np.hypot(u, v)
        visible = length > 0.02 * np.hypot(field.by_n, field.by_p).max()
        x, y = np.meshgrid(field.s_n[rows], field.s_p[rows])
        u, v = (np.divide(part, length, out=np.zeros_like(part), where=visible) for part in (u, v))
        axes.quiver(
            x[visible],
            y[visible],
            u[visible],
            v[visible],
            color=ON_HEAT,
            scale=13,
            width=0.007,
            headwidth=4,
            pivot="mid",
        )
    _marks(axes, case, field, states)
    return drawn


def _marks(axes: Axes, case: Case, field: Field, states: Mapping[str, Place]) -> None:
    line = case.boundary
    for x, y in () if line is None else line.lines:
        axes.plot(x, y, color=style.TWO, linewidth=1.8, linestyle=(0, (4, 2)))
    for state, (s_n, s_p) in states.items():
        axes.plot(s_n, s_p, "o", color="#ffffff", markeredgecolor=ON_HEAT, markersize=5)
        away = (4, -9 if s_p > 0.8 else 4)
        label = axes.annotate(state, (s_n, s_p), away, textcoords="offset points", color=ON_HEAT, fontsize=9)
        label.set_path_effects([withStroke(linewidth=2.5, foreground="#f6f9fc")])  # legible over arrows
    half = (field.s_n[1] - field.s_n[0]) / 2
    low, high = field.s_n[0] - half, field.s_n[-1] + half
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    ticks = np.linspace(round(low, 2), 1, 3)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def _size(case: Case, field: Field) -> Floats:
    size: Floats = np.hypot(field.by_n, field.by_p) / case.scale
    return size


def grid(cases: Sequence[Case], fields: Sequence[Field], states: Mapping[str, Place], across: int) -> Figure:
    """Draw the fields, a row for each loss, a column for each margin."""
    down = len(cases) // across
    with style.figure(max(2.4 * across, 3.4) + 0.6, 2.35 * down + 0.3) as drawn:
        axes = drawn.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        for row in range(down):
            row_cases = list(range(row * across, (row + 1) * across))
            most = max(_size(cases[i], fields[i]).max() for i in row_cases)
            for column, i in enumerate(row_cases):
                shown = _panel(axes[row, column], cases[i], fields[i], _size(cases[i], fields[i]), most, True, states)
                axes[row, column].set_title(cases[i].title)
            axes[row, 0].set_ylabel("sₚ")
            drawn.colorbar(shown, ax=list(axes[row]), fraction=0.05, pad=0.02)
        for each in axes[-1]:
            each.set_xlabel("sₙ")
    return drawn


def sides(cases: Sequence[Case], fields: Sequence[Field], states: Mapping[str, Place]) -> Figure:
    """Draw the slopes by s_p above those by s_n; a column for each loss with its own colour scale."""
    with style.figure(2.55 * len(cases) + 0.4, 4.9) as drawn:
        axes = drawn.subplots(2, len(cases), squeeze=False, sharex=True, sharey=True)
        for column, (case, field) in enumerate(zip(cases, fields, strict=True)):
            sides = (np.abs(field.by_p) / case.scale, np.abs(field.by_n) / case.scale)
            most = max(side.max() for side in sides)
            for row, (side, word) in enumerate(zip(sides, ("sₚ", "sₙ"), strict=True)):
                shown = _panel(axes[row, column], case, field, side, most, False, states)
                axes[row, column].set_title(f"{case.name}: |∂L/∂{word}|")
            drawn.colorbar(shown, ax=list(axes[:, column]), location="bottom", fraction=0.05, pad=0.03)
        for each in axes[:, 0]:
            each.set_ylabel("sₚ")
        for each in axes[-1]:
            each.set_xlabel("sₙ")
    return drawn


def beside(cases: Sequence[Case], fields: Sequence[Field], states: Mapping[str, Place]) -> Figure:
    """Draw a row for each loss: the field, and the two slopes separately."""
    with style.figure(7.6, 2.6 * len(cases) + 0.3) as drawn:
        axes = drawn.subplots(len(cases), 3, squeeze=False, sharex=True, sharey=True)
        for row, (case, field) in enumerate(zip(cases, fields, strict=True)):
            parts = (_size(case, field), np.abs(field.by_p), np.abs(field.by_n))
            most = float(parts[0].max())
            for column, (values, words) in enumerate(zip(parts, ("", "|∂L/∂sₚ|", "|∂L/∂sₙ|"), strict=True)):
                shown = _panel(axes[row, column], case, field, values, most, column == 0, states)
                axes[row, column].set_title(words or case.title)
            axes[row, 0].set_ylabel("sₚ")
            drawn.colorbar(shown, ax=list(axes[row]), fraction=0.04, pad=0.02)
        for each in axes[-1]:
            each.set_xlabel("sₙ")
    return drawn


def observations(
    cases: Sequence[Case],
    states: Mapping[str, Place],
    balanced: Sequence[Mapping[str, Any]],
    attenuated: Sequence[Mapping[str, Any]],
    target: Sequence[Mapping[str, Any]],
) -> Figure:
    """Draw a panel for each of the three observations, with the values at the states."""
    a, b = states["A"], states.get("B")
    with style.figure(8.6, 3.5) as drawn:
        first, second, third = drawn.subplots(1, 3)
        for place, (case, (colour, line, marker)) in enumerate(zip(cases, style.SERIES, strict=False)):
            loss_rows = [row for row in balanced if row["loss"] == case.name]
            first.plot(
                [row["s_p"] for row in loss_rows],
                [row["share"] for row in loss_rows],
                line,
                color=colour,
                label=case.title,
            )
            near = min(loss_rows, key=lambda row: abs(row["s_p"] - a[1]))
            _number(first, near["s_p"], near["share"], colour, marker, place)
            loss_rows = [row for row in attenuated if row["loss"] == case.name]
            second.plot([row["way"] for row in loss_rows], [row["pull"] for row in loss_rows], line, color=colour)
            if b is not None:
                near = min(loss_rows, key=lambda row: (row["s_n"] - b[0]) ** 2 + (row["s_p"] - b[1]) ** 2)
                _number(second, near["way"], near["pull"], colour, marker, place)
            if case.name == "Triplet":  # its descent is that of AM-Softmax
                continue
            loss_rows = [row for row in target if row["loss"] == case.name]
            for x, y in () if case.boundary is None else case.boundary.lines:
                third.plot(x, y, line, color=colour, linewidth=1.2)
            places = [row["s_n"] for row in loss_rows], [row["s_p"] for row in loss_rows]
            third.plot(*places, marker, color=colour, markersize=4.5, alpha=0.7)
            words = f"{case.name}: sₙ ± {np.std(places[0]):.3f}"
            third.text(
                0.97, 0.18 - 0.08 * place, words, color=colour, ha="right", transform=third.transAxes, fontsize=8.5
            )
        m = cases[-1].m or 0.0
        third.plot(m, 1 - m, "D", color=style.INK, markersize=5)
        third.annotate("T", (m, 1 - m), (7, -9), textcoords="offset points")
        first.set(title="1  balanced", xlabel=f"sₚ, at sₙ = {a[0]:g}", ylabel="share of the pull at sₚ", ylim=(0, 1))
        second.set(title="2  attenuated", xlabel="way from A to (0, 1)", ylabel="pull, over that at A", ylim=(0, 1.15))
        third.set(title="3  a definite target", xlabel="sₙ", ylabel="sₚ, where descent crosses")
        third.set(xlim=(-0.02, 0.8 - m / 2), ylim=(0.5 - m / 2, 1.02))
        lines, labels = first.get_legend_handles_labels()
        drawn.legend(lines, labels, loc="outside lower center", ncols=3)
    return drawn


def _number(axes: Axes, x: float, y: float, colour: str, marker: str, place: int) -> None:
    """Mark a value with its number; numbers of equal values are placed above and below."""
    axes.plot(x, y, marker, color=colour, markersize=5.5)
    away = ((6, 7), (6, -13), (6, 6))[place]
    label = axes.annotate(f"{y:.2f}", (x, y), away, textcoords="offset points", color=colour, fontsize=8.5)
    label.set_path_effects([withStroke(linewidth=2.5, foreground="#ffffff")])


def targets(rows: Sequence[Mapping[str, Any]], gamma: float) -> Figure:
    """Draw T, T′ and the boundaries."""
    with style.figure(style.WIDTH, style.WIDTH) as drawn:
        axes = drawn.subplots()
        for (name, m), (colour, line, _) in zip({(r["loss"], r["m"]): 0 for r in rows}, style.SERIES, strict=False):
            boundary = paper_case(name, m, gamma).boundary
            assert boundary is not None
            axes.plot(*boundary.lines[0], line, color=colour, label=f"{name}, m = {m:g}")
        for row in {row["target"]: row for row in rows}.values():
            touching = row["target"] not in TARGETS
            axes.plot(row["s_n"], row["s_p"], "D" if touching else "o", color=style.INK, markersize=5)
            words = "touching" if touching else row["target"]
            axes.annotate(words, (row["s_n"], row["s_p"]), (7, -10), textcoords="offset points")
        axes.set(xlabel="sₙ", ylabel="sₚ", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.legend(loc="lower right")
    return drawn


def hardness(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the shares of samples in a proxy's gradient by similarity."""
    with style.figure(7.6, 3.3) as drawn:
        panels = drawn.subplots(1, 2, sharey=True)
        for axes, kind in zip(panels, ("positive", "negative"), strict=True):
            looks = iter(style.SERIES)
            for loss in ("Proxy-Anchor", "Proxy-NCA"):
                for mates in ("hard", "easy"):
                    selected = [r for r in rows if (r["loss"], r["kind"], r["mates"]) == (loss, kind, mates)]
                    colour, line, _ = next(looks)
                    label = f"{loss}, {mates} others"
                    axes.plot(
                        [r["s"] for r in selected], [r["share"] for r in selected], line, color=colour, label=label
                    )
            axes.set(title=f"{kind}s of a proxy", xlabel="similarity s to the proxy", ylim=(0, 1.03))
        panels[0].set_ylabel("share of the pull")
        lines, labels = panels[0].get_legend_handles_labels()
        drawn.legend(lines, labels, loc="outside lower center", ncols=2)
    return drawn
