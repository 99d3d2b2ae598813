"""Matplotlib figures. `style.svg` converts them for a page, `savefig` saves them to a file."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nearfar.evaluation.diagnostics import Histogram
from nearfar.report import style
from nearfar.report.boundaries import Boundary

Floats = npt.NDArray[np.floating]
Series = Mapping[str, tuple[Sequence[float] | Floats, Sequence[float] | Floats]]
PLOT = (0.125, 0.155, 0.985, 0.97)
"""Left, bottom, right and top of the axes of `threshold` in the figure, with which the slider is aligned."""
CURVE_POINTS = 400  # of a line at most
BARS = 80  # of a histogram at most
PER_CENT = FuncFormatter(lambda x, _: f"{100 * x:.6g} %")


def curves(series: Series, label: str, *, marked: float | None = None, shares: bool = False) -> Figure:
    """Lines by training step.

    Args:
        series: name -> (steps, values).
        label: the label of the values.
        marked: a step to mark as the best.
        shares: show the values in per cent.
    """
    with style.figure() as drawn:
        axes = drawn.subplots()
        for (name, (steps, values)), (colour, line, marker) in zip(series.items(), _styles(len(series)), strict=True):
            x, y = thinned(np.asarray(steps, float), np.asarray(values, float))
            few = len(x) <= 30
            axes.plot(x, y, line, color=colour, marker=marker if few else "", markersize=4, label=name)
        if marked is not None:
            axes.axvline(marked, color=style.FAINT, linewidth=1, linestyle=(0, (2, 2)), label="best of validation")
        axes.set(xlabel="step", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        if shares:
            axes.yaxis.set_major_formatter(PER_CENT)
        if len(series) > 1 or marked is not None:
            axes.legend(loc="best")
    return drawn


def thinned(x: Floats, y: Floats, most: int = CURVE_POINTS) -> tuple[Floats, Floats]:
    """Thin out a long line by averaging consecutive points. NaN is left out.

    >>> thinned(np.arange(5.0), np.array([1.0, 3.0, np.nan, 5.0, 7.0]), most=2)
    (array([0.5, 3.5]), array([2., 6.]))
    """
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= most:
        return x, y
    runs = [slice(part[0], part[-1] + 1) for part in np.array_split(np.arange(len(x)), most)]
    return np.array([x[run].mean() for run in runs]), np.array([y[run].mean() for run in runs])


def similarities(histogram: Histogram, threshold: float | None = None) -> Figure:
    """Histograms of the similarities within classes and between classes, each normalised."""
    with style.figure() as drawn:
        axes = drawn.subplots()
        histogram = coarser(histogram)
        edges = histogram.edges
        kinds = (
            ("same class", histogram.positive, style.ONE, "-"),
            ("different classes", histogram.negative, style.TWO, "--"),
        )
        for name, counts, colour, line in kinds:
            heights = counts / max(counts.sum(), 1) / np.diff(edges)
            axes.stairs(heights, edges, fill=True, color=colour, alpha=0.22)
            axes.stairs(heights, edges, color=colour, linestyle=line, linewidth=1.5, label=name)
        if threshold is not None:
            axes.axvline(threshold, color=style.INK, linewidth=1, linestyle=(0, (2, 2)), label="threshold")
        axes.set(xlabel="similarity of two images", ylabel="density", xlim=span(histogram))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, columnspacing=1.2, handlelength=1.6)
    return drawn


def coarser(histogram: Histogram, most: int = BARS) -> Histogram:
    """Merge bins until at most about `most` bins are in use, to smooth the histogram."""
    used = np.flatnonzero(histogram.positive + histogram.negative)
    width = 1 if not len(used) else -(-int(used[-1] + 1 - used[0]) // most)
    while len(histogram.positive) % width:
        width += 1
    positive, negative = (counts.reshape(-1, width).sum(1) for counts in (histogram.positive, histogram.negative))
    return Histogram(histogram.edges[::width], positive, negative)


def span(histogram: Histogram) -> tuple[float, float]:
    """The range of the similarities that occur, with a margin."""
    used = np.flatnonzero(histogram.positive + histogram.negative)
    if not len(used):
        return -1.0, 1.0
    low, high = histogram.edges[used[0]], histogram.edges[used[-1] + 1]
    margin = max(0.02 * (high - low), 0.01)
    return max(float(low - margin), -1.0), min(float(high + margin), 1.0)


def plane(
    negative: Floats, positive: Floats, boundary: Boundary | None = None, *, width: float = style.WIDTH
) -> Figure:
    """A scatter plot of queries by their similarities to the nearest image of another class and of their own class.

    Above the diagonal the nearest image is right. `boundary` is the decision boundary of the loss.
    """
    right = positive > negative
    with style.figure(width, width) as drawn:
        axes = drawn.subplots()
        axes.plot([-1, 1], [-1, 1], color=style.FAINT, linewidth=1, label="equal similarities")
        points = ((right, style.ONE, "o", "right"), (~right, style.TWO, "x", "wrong"))
        for mask, colour, marker, name in points:
            axes.plot(
                negative[mask], positive[mask], marker, color=colour, markersize=3, alpha=0.5, markeredgewidth=0.9,
                label=f"nearest is {name}: {mask.mean():.1%}" if len(mask) else name,
            )  # fmt: skip
        if boundary is not None:
            for number, (x, y) in enumerate(boundary.lines):
                axes.plot(x, y, "--", color=style.INK, linewidth=1.6, label="" if number else boundary.loss)
        _square(axes, negative, positive, boundary)
        axes.set(xlabel="sₙ: nearest of another class", ylabel="sₚ: nearest of the same class")
        axes.legend(loc="best", handletextpad=0.4)
    return drawn


def _square(axes: Axes, x: Floats, y: Floats, boundary: Boundary | None) -> None:
    """Set the same range on both axes, which includes all points and the corner of the boundary."""
    values = [np.asarray(part, float) for part in (x, y)]
    low = float(min((part.min() for part in values if len(part)), default=0.0))
    if boundary is not None:
        low = min(low, boundary.corner)
    low = max(low - 0.05, -1.0)
    axes.set(xlim=(low, 1.02), ylim=(low, 1.02), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6))


def threshold(at: Floats, precision: Floats, recall: Floats, chosen: float | None = None) -> Figure:
    """Precision and recall by threshold, with axes at `PLOT`."""
    left, bottom, right, top = PLOT
    with style.figure(4.8, 2.9) as drawn:
        drawn.set_layout_engine("none")
        axes = drawn.add_axes((left, bottom, right - left, top - bottom))
        axes.plot(at, precision, "-", color=style.ONE, label="precision")
        axes.plot(at, recall, "--", color=style.TWO, label="recall")
        if chosen is not None and at[0] <= chosen <= at[-1]:
            axes.axvline(chosen, color=style.THREE, linewidth=1.4, linestyle=":", label="calibrated")
        axes.set(xlabel="similarity", xlim=(at[0], at[-1]), ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(PER_CENT)
        axes.legend(loc="best")
    return drawn


def _styles(count: int) -> list[tuple[str, str, str]]:
    return [style.SERIES[number % len(style.SERIES)] for number in range(count)]
