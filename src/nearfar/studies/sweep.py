"""Means over seeds with their intervals, and their figures and texts."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nearfar.compare.statistics import half_width
from nearfar.report import style
from nearfar.studies.heads import METRICS
from nearfar.studies.heat import squares

PLUS_MINUS = " ±"
"""The suffix of a metric's name in the name of its interval's column."""
AS_GOOD = 0.01  # settings within this difference of the best are called as good

Row = dict[str, Any]


def over_seeds(cells: Sequence[Mapping[str, Any]], by: Sequence[str], metrics: Sequence[str] = METRICS) -> list[Row]:
    """Average over seeds. Returns a row for each combination of the values of `by`, in order, with the mean of each
    metric, half the width of Student's 95 % interval of it (None for a single seed), and the number of seeds.

    Diverged trainings have no metrics: they are left out of the mean, and counted.

    >>> cells = [{"m": 1, "seed": s, "recall@1": r} for s, r in enumerate((0.5, 0.6, None))]
    >>> over_seeds(cells, ["m"], ["recall@1"])[0]["recall@1"], over_seeds(cells, ["m"], ["recall@1"])[0]["diverged"]
    (0.55, 1)
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[name] for name in by), []).append(cell)
    rows = []
    for key, group in groups.items():
        row: Row = dict(zip(by, key, strict=True))
        for metric in metrics:
            values = [float(cell[metric]) for cell in group if cell[metric] is not None]
            row[metric] = float(np.mean(values)) if values else None
            width = half_width(values)
            row[metric + PLUS_MINUS] = None if math.isnan(width) else width
        row["seeds"] = len(group)
        row["diverged"] = sum(cell[metrics[0]] is None for cell in group)
        rows.append(row)
    return rows


def one(rows: Sequence[Row], **values: Any) -> Row:
    """The row with these values."""
    matches = [row for row in rows if all(row[name] == value for name, value in values.items())]
    if len(matches) != 1:
        raise KeyError(f"{len(matches)} rows have {values}")
    return matches[0]


def draw_lines(
    axes: Axes,
    rows: Sequence[Row],
    x: str,
    series: str,
    metric: str,
    *,
    before: float | None = None,
    spread: Callable[[float], float] | None = None,
    shown: Callable[[float], str] = "{:g}".format,
) -> None:
    """Draw the metric by x in per cent, a line for each value of `series`, with bars for the intervals over seeds.

    Args:
        before: the metric before training, drawn as a horizontal line.
        spread: maps x to its position, such as `math.log2`; by default the identity.
        shown: formats a value of x.
    """
    position: Callable[[float], float] = spread or float
    names = list(dict.fromkeys(row[series] for row in rows))
    marks = sorted({row[x] for row in rows})
    nudge = 0.006 * (position(marks[-1]) - position(marks[0]))  # separates overlapping bars
    for number, name in enumerate(names):
        colour, line, marker = style.SERIES[number % len(style.SERIES)]
        series_rows = [row for row in rows if row[series] == name and row[metric] is not None]
        where = [position(row[x]) + (number - (len(names) - 1) / 2) * nudge for row in series_rows]
        axes.errorbar(
            where, [100 * row[metric] for row in series_rows],
            yerr=[100 * (row[metric + PLUS_MINUS] or 0) for row in series_rows],
            color=colour, linestyle=line, marker=marker, markersize=4.5, elinewidth=1, capsize=2, label=str(name),
        )  # fmt: skip
    if before is not None:
        axes.axhline(100 * before, color=style.FAINT, linewidth=1, linestyle=(0, (2, 2)), label="before training")
    axes.set_xticks([position(mark) for mark in marks], [shown(mark) for mark in marks])
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set(ylabel=f"{metric_name(metric)} in %")


def name_lines(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """Draw the legend below all panels."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def draw_map(
    axes: Axes, rows: Sequence[Row], x: str, y: str, metric: str, limits: tuple[float, float] | None = None
) -> Any:
    """Draw the metric by x and y in per cent, as squares with mean and interval over seeds; the result is an argument
    for `Figure.colorbar`.
    """
    columns, lines = ([*dict.fromkeys(row[name] for row in rows)] for name in (x, y))
    values = np.full((len(lines), len(columns)), np.nan)
    texts = [["diverged"] * len(columns) for _ in lines]
    for row in rows:
        r, c = lines.index(row[y]), columns.index(row[x])
        if row[metric] is not None:
            values[r, c] = 100 * row[metric]
            texts[r][c] = per_cent(row, metric, "\n± ")
    drawn = squares(axes, [f"{v:g}" for v in columns], [f"{v:g}" for v in lines], values, texts, limits)
    axes.set(xlabel=x, ylabel=y)
    return drawn


def metric_name(metric: str) -> str:
    """A metric's name as papers write it.

    >>> metric_name("recall@1"), metric_name("map@r")
    ('Recall@1', 'MAP@R')
    """
    return metric.upper() if metric.startswith("map") else metric.capitalize()


def per_cent(row: Mapping[str, Any], metric: str, between: str = " ± ") -> str:
    """Format a mean with its interval in per cent, without the sign.

    >>> per_cent({"recall@1": 0.5123, "recall@1 ±": 0.004}, "recall@1")
    '51.2 ± 0.4'
    """
    if row[metric] is None:
        return "diverged"
    width = row.get(metric + PLUS_MINUS)
    return f"{100 * row[metric]:.1f}" + ("" if width is None else f"{between}{100 * width:.1f}")


def best(rows: Sequence[Row], metric: str) -> Row:
    """The row with the highest mean; of equal ones, the first."""
    return max((row for row in rows if row[metric] is not None), key=lambda row: float(row[metric]))


def as_good(rows: Sequence[Row], metric: str) -> list[Row]:
    """The rows whose mean is within 0.01 (a point) of the highest."""
    top = best(rows, metric)[metric]
    return [row for row in rows if row[metric] is not None and row[metric] >= top - AS_GOOD]


def listed(values: Sequence[Any]) -> str:
    """Format values as a list.

    >>> listed([1, 2, 3])
    '1, 2 and 3'
    """
    words = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
