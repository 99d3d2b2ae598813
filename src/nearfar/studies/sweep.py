"""What the sweeps share: means over seeds with their intervals, and how they are drawn and put in words."""

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
"""What follows the name of a metric in the name of its interval's column."""
AS_GOOD = 0.01  # of the best: what is within it is called as good in sentences

Row = dict[str, Any]


def over_seeds(cells: Sequence[Mapping[str, Any]], by: Sequence[str], metrics: Sequence[str] = METRICS) -> list[Row]:
    """One row for each combination of the values of `by`, in order: the mean of each metric over the seeds, half the
    width of Student's 95 % interval of that mean (None of a single seed), and how many seeds there are.

    A training that diverged has no metrics: it is left out of the mean, and counted.

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
    found = [row for row in rows if all(row[name] == value for name, value in values.items())]
    if len(found) != 1:
        raise KeyError(f"{len(found)} rows have {values}")
    return found[0]


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
    """The metric by x in per cent, a line for each of the values of `series`, bars for the intervals over seeds.

    Args:
        before: the metric before training, for a line across.
        spread: where a value of x stands, such as `math.log2`; itself by default.
        shown: the value of x in words.
    """
    place: Callable[[float], float] = spread or float
    names = list(dict.fromkeys(row[series] for row in rows))
    marks = sorted({row[x] for row in rows})
    nudge = 0.006 * (place(marks[-1]) - place(marks[0]))  # so that bars do not hide each other
    for number, name in enumerate(names):
        colour, line, marker = style.SERIES[number % len(style.SERIES)]
        own = [row for row in rows if row[series] == name and row[metric] is not None]
        where = [place(row[x]) + (number - (len(names) - 1) / 2) * nudge for row in own]
        axes.errorbar(
            where, [100 * row[metric] for row in own], yerr=[100 * (row[metric + PLUS_MINUS] or 0) for row in own],
            color=colour, linestyle=line, marker=marker, markersize=4.5, elinewidth=1, capsize=2, label=str(name),
        )  # fmt: skip
    if before is not None:
        axes.axhline(100 * before, color=style.FAINT, linewidth=1, linestyle=(0, (2, 2)), label="before training")
    axes.set_xticks([place(mark) for mark in marks], [shown(mark) for mark in marks])
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set(ylabel=f"{metric_name(metric)} in %")


def name_lines(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """The lines' names below all panels, where they hide nothing."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def draw_map(
    axes: Axes, rows: Sequence[Row], x: str, y: str, metric: str, limits: tuple[float, float] | None = None
) -> Any:
    """The metric by x and y in per cent, a square each with its mean and interval over seeds; what it returns,
    `Figure.colorbar` takes.
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
    """As papers write it.

    >>> metric_name("recall@1"), metric_name("map@r")
    ('Recall@1', 'MAP@R')
    """
    return metric.upper() if metric.startswith("map") else metric.capitalize()


def per_cent(row: Mapping[str, Any], metric: str, between: str = " ± ") -> str:
    """A mean with its interval, in per cent, without the sign.

    >>> per_cent({"recall@1": 0.5123, "recall@1 ±": 0.004}, "recall@1")
    '51.2 ± 0.4'
    """
    if row[metric] is None:
        return "diverged"
    width = row.get(metric + PLUS_MINUS)
    return f"{100 * row[metric]:.1f}" + ("" if width is None else f"{between}{100 * width:.1f}")


def best(rows: Sequence[Row], metric: str) -> Row:
    """The row with the highest mean, the first of equals."""
    return max((row for row in rows if row[metric] is not None), key=lambda row: float(row[metric]))


def as_good(rows: Sequence[Row], metric: str) -> list[Row]:
    """The rows whose mean is within a hundredth (a point) of the highest."""
    top = best(rows, metric)[metric]
    return [row for row in rows if row[metric] is not None and row[metric] >= top - AS_GOOD]


def listed(values: Sequence[Any]) -> str:
    """Values in words.

    >>> listed([1, 2, 3])
    '1, 2 and 3'
    """
    words = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
