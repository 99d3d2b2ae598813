"""Heat maps in the style of the reports: from nearly white to blue, light enough to write on, for every kind of vision.

A map keeps its light colours on a dark page. So what is written on it must not follow the page: `ON_HEAT` does not.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

Floats = npt.NDArray[np.floating]
HEAT = LinearSegmentedColormap.from_list("heat", ["#f6f9fc", "#cbe0ef", "#8dc0e1", "#4c9acd"])
ON_HEAT = "#1c2026"


def heat(axes: Axes, x: Floats, y: Floats, values: Floats, limits: tuple[float, float] | None = None) -> Any:
    """Values (y, x) as colours around even places x and y; what it returns, `Figure.colorbar` takes."""
    low, high = limits or (float(np.nanmin(values)), float(np.nanmax(values)))
    drawn = axes.pcolormesh(x, y, values, cmap=HEAT, vmin=low, vmax=high, shading="nearest", rasterized=True)
    axes.grid(visible=False)
    return drawn


def squares(
    axes: Axes,
    columns: Sequence[str],
    rows: Sequence[str],
    values: Floats,
    texts: Sequence[Sequence[str]],
    limits: tuple[float, float] | None = None,
) -> Any:
    """A square for each value (rows, columns), the first row below, with its text in it."""
    drawn = heat(axes, np.arange(float(len(columns))), np.arange(float(len(rows))), values, limits)
    for r, line in enumerate(texts):
        for c, words in enumerate(line):
            axes.text(c, r, words, ha="center", va="center", fontsize=8, color=ON_HEAT)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.spines[:].set_visible(False)
    return drawn
