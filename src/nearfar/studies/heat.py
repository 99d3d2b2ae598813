"""Heat maps in the style of the reports: from nearly white to blue, light enough for text, safe for colour blindness.

A map keeps its light colours on a dark page, so text on it has the fixed colour `ON_HEAT`.
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
    """Draw values (y, x) as colours on an even grid; the result is an argument for `Figure.colorbar`."""
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
    """Draw a square with text for each value (rows, columns), the first row at the bottom."""
    drawn = heat(axes, np.arange(float(len(columns))), np.arange(float(len(rows))), values, limits)
    for r, line in enumerate(texts):
        for c, words in enumerate(line):
            axes.text(c, r, words, ha="center", va="center", fontsize=8, color=ON_HEAT)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.spines[:].set_visible(False)
    return drawn
