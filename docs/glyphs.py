"""Draw docs/figures/glyphs.png: what the embedded data set looks like."""

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

from nearfar.data import Table, glyphs
from nearfar.data.embedded import HELD_OUT

OUT = Path(__file__).parent / "figures" / "glyphs.png"
CHARACTERS, EACH = 10, 16
DIFFICULTIES = (0.0, 0.5, 1.0, 1.5, 2.0)
SIDE, GAP = 32, 3
FRAME = "#e8590c"


def sheet(rows: list[list[np.ndarray]]) -> np.ndarray:
    """Images in rows, with white between them."""
    step = SIDE + GAP
    page = np.full((len(rows) * step - GAP, len(rows[0]) * step - GAP), 255, np.uint8)
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            page[y * step : y * step + SIDE, x * step : x * step + SIDE] = image
    return page


def by_character(table: Table, labels: np.ndarray) -> list[np.ndarray]:
    """The rows of each class, held-out faces last."""
    held_out = np.isin(np.array(table.names["face"])[table.columns["face"]], HELD_OUT)
    return [
        rows[np.argsort(held_out[rows], kind="stable")] for rows in (np.flatnonzero(table.labels == c) for c in labels)
    ]


def draw() -> None:
    """The whole picture."""
    test = glyphs().split("test")
    chosen = test.classes[12 : 12 + CHARACTERS]
    rows = by_character(test, chosen)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 4.6), width_ratios=(EACH, len(DIFFICULTIES) + 0.3), layout="constrained"
    )
    images = test.images
    assert images is not None
    left.imshow(sheet([[np.asarray(images[i]) for i in row] for row in rows]), cmap="gray", vmin=0, vmax=255)
    for y, row in enumerate(rows):
        for x, i in enumerate(row):
            if test.names["face"][test.columns["face"][i]] in HELD_OUT:
                corner = x * (SIDE + GAP) - 1.5, y * (SIDE + GAP) - 1.5
                left.add_patch(Rectangle(corner, SIDE + 2, SIDE + 2, fill=False, color=FRAME, linewidth=1.6))
    left.set_title("ten of the 600 test characters; framed: faces that training never sees", fontsize=10, loc="left")
    columns = []
    for difficulty in DIFFICULTIES:
        part = glyphs(difficulty=difficulty).split("test")
        assert part.images is not None
        columns.append([np.asarray(part.images[row[0]]) for row in by_character(part, chosen)])
    right.imshow(sheet([list(row) for row in zip(*columns, strict=True)]), cmap="gray", vmin=0, vmax=255)
    right.set_title("difficulty", fontsize=10, loc="left")
    right.set_xticks([i * (SIDE + GAP) + SIDE / 2 for i in range(len(DIFFICULTIES))], [f"{d:g}" for d in DIFFICULTIES])
    left.set_xticks([])
    right.tick_params(length=0)
    for axes in (left, right):
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    figure.savefig(OUT, dpi=110)


if __name__ == "__main__":
    draw()
