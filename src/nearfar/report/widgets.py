"""Interactive parts of a page: the map and the threshold slider.

page.js handles their events. They are visible without it.
"""

import numpy as np
import numpy.typing as npt

from nearfar.report import figures, style
from nearfar.report.markup import Markup, json_text, readable, text
from nearfar.report.thresholds import Accepted

Rows = npt.NDArray[np.int64]
WIDTH, HEIGHT, MARGIN = 1000, 640, 24  # of the map, in SVG units


def embedding_map(
    places: npt.NDArray[np.floating],
    labels: Rows,
    found: Rows,
    names: list[str],
    sheet: Markup | None,
    across: int,
) -> Markup:
    """A map of images that shows the image under the pointer and highlights its class.

    Args:
        places: (N, 2) positions from 0 to 1.
        labels: (N,) index into names.
        found: (N,) label of the nearest other image; -1 if there is none.
        names: the names of the classes.
        sheet: the sheet of the images; None if there are no images.
        across: images per row of the sheet.
    """
    x = np.round(MARGIN + places[:, 0] * (WIDTH - 2 * MARGIN), 1)
    y = np.round(MARGIN + (1 - places[:, 1]) * (HEIGHT - 2 * MARGIN), 1)
    right = labels == found
    marks = []
    for p in range(len(x)):
        if right[p] or found[p] < 0:
            marks.append(f'<circle data-p="{p}" class="hit" cx="{x[p]:g}" cy="{y[p]:g}" r="5.5"/>')
        else:
            a, b, c, d = x[p] - 5, y[p] - 5, x[p] + 5, y[p] + 5
            marks.append(f'<path data-p="{p}" class="miss" d="M{a:g} {b:g}L{c:g} {d:g}M{a:g} {d:g}L{c:g} {b:g}"/>')
    used, label = np.unique(np.r_[labels, found[found >= 0]], return_inverse=True)
    number = {int(old): new for new, old in enumerate(used)}
    data = {
        "x": x.tolist(),
        "y": y.tolist(),
        "label": label[: len(labels)].tolist(),
        "found": [number.get(int(nearest), -1) for nearest in found],
        "right": right.tolist(),
        "names": [readable(names[int(old)]) for old in used],
        "sheet": sheet or "",
        "across": across,
        "width": WIDTH,
    }
    return Markup(
        f'<div class="map"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{text(f"Map of {len(x)} images, with similar ones close together")}">{"".join(marks)}</svg>'
        '<div class="tip" hidden><i></i><span></span><small></small></div>'
        f'<script type="application/json">{json_text(data)}</script></div>'
    )


def threshold_slider(accepted: Accepted, chosen: float | None = None) -> Markup:
    """A plot of precision and recall by threshold with a slider, which starts at `chosen`."""
    drawn = style.svg(figures.threshold(accepted.at, accepted.precision, accepted.recall, chosen))
    left, bottom, right, top = figures.PLOT
    start = int(np.abs(accepted.at - chosen).argmin()) if chosen is not None else _balanced(accepted)
    data = {
        "at": np.round(accepted.at, 4).tolist(),
        "same": accepted.same.tolist(),
        "other": accepted.other.tolist(),
        "pairs": int(accepted.same[0] + accepted.other[0]),
        "left": left,
        "right": right,
    }
    return Markup(
        f'<div class="threshold"><div class="plot">{drawn}'
        f'<div class="cursor" style="top:{100 * (1 - top):g}%;bottom:{100 * bottom:g}%"></div></div>'
        f'<input type="range" aria-label="threshold" min="0" max="{len(accepted.at) - 1}" value="{start}" '
        f'style="margin-left:calc({100 * left:g}% - 8px);width:calc({100 * (right - left):g}% + 16px)">'
        f'<output></output><script type="application/json">{json_text(data)}</script></div>'
    )


def _balanced(accepted: Accepted) -> int:
    """The index at which precision and recall differ least."""
    return int(np.nanargmin(np.abs(accepted.precision - accepted.recall)))
