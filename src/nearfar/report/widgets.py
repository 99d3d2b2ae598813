"""The parts of a page that answer to a pointer: the map and the threshold.

page.js moves them; without it they are still to be seen.
"""

import numpy as np
import numpy.typing as npt

from nearfar.report import figures, style
from nearfar.report.markup import Markup, json_text, readable, text
from nearfar.report.thresholds import Accepted

Rows = npt.NDArray[np.int64]
WIDTH, HEIGHT, ROOM = 1000, 640, 24  # of the map, in its own units


def embedding_map(
    places: npt.NDArray[np.floating],
    labels: Rows,
    found: Rows,
    names: list[str],
    sheet: Markup | None,
    across: int,
) -> Markup:
    """A map of pictures, with the picture under the pointer and its class lit up.

    Args:
        places: (N, 2) from 0 to 1.
        labels: (N,) index into names.
        found: (N,) label of the nearest other picture; -1 if there is none.
        names: of the classes.
        sheet: the pictures in one, `across` to a row, each in a square; None if there are none to show.
    """
    x = np.round(ROOM + places[:, 0] * (WIDTH - 2 * ROOM), 1)
    y = np.round(ROOM + (1 - places[:, 1]) * (HEIGHT - 2 * ROOM), 1)
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
        "found": [number.get(int(one), -1) for one in found],
        "right": right.tolist(),
        "names": [readable(names[int(old)]) for old in used],
        "sheet": sheet or "",
        "across": across,
        "width": WIDTH,
    }
    return Markup(
        f'<div class="map"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{text(f"Map of {len(x)} pictures, those near each other alike")}">{"".join(marks)}</svg>'
        '<div class="tip" hidden><i></i><span></span><small></small></div>'
        f'<script type="application/json">{json_text(data)}</script></div>'
    )


def threshold_slider(accepted: Accepted, chosen: float | None = None) -> Markup:
    """Precision and recall by threshold, and a slider that tells them; `chosen` is the threshold it starts at."""
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
    """Where precision and recall are most alike."""
    return int(np.nanargmin(np.abs(accepted.precision - accepted.recall)))
