"""Means over seeds, lines, maps and words."""

import math

import numpy as np
import pytest

from nearfar.report import style
from nearfar.studies.sweep import as_good, best, draw_lines, draw_map, listed, one, over_seeds, per_cent

CELLS = [
    {"loss": loss, "x": x, "seed": seed, "recall@1": value, "map@r": value / 2}
    for loss, x, values in (
        ("A", 1, (0.50, 0.52, 0.54)),
        ("A", 4, (0.60, 0.60, 0.60)),
        ("B", 1, (0.40, 0.30, 0.20)),
        ("B", 4, (0.595, 0.595, 0.595)),
    )
    for seed, value in enumerate(values)
]


def test_over_seeds() -> None:
    """By hand: of 0.50, 0.52, 0.54 the standard deviation is 0.02, and t(0.975, 2) = 4.3027."""
    rows = over_seeds(CELLS, ["loss", "x"])
    assert [(row["loss"], row["x"], row["seeds"], row["diverged"]) for row in rows] == [
        ("A", 1, 3, 0), ("A", 4, 3, 0), ("B", 1, 3, 0), ("B", 4, 3, 0),
    ]  # fmt: skip
    first = one(rows, loss="A", x=1)
    assert first["recall@1"] == pytest.approx(0.52) and first["map@r"] == pytest.approx(0.26)
    assert first["recall@1 ±"] == pytest.approx(4.302653 * 0.02 / math.sqrt(3))
    assert one(rows, loss="A", x=4)["recall@1 ±"] == pytest.approx(0, abs=1e-12)
    with pytest.raises(KeyError, match="2 rows have"):
        one(rows, x=1)


def test_what_diverged_is_counted_and_left_out() -> None:
    cells = [{"x": 1, "recall@1": value} for value in (None, 0.5, 0.7)] + [{"x": 2, "recall@1": None}]
    rows = over_seeds(cells, ["x"], ["recall@1"])
    assert rows[0]["recall@1"] == pytest.approx(0.6) and rows[0]["diverged"] == 1 and rows[0]["seeds"] == 3
    assert rows[1]["recall@1"] is None and rows[1]["recall@1 ±"] is None and rows[1]["diverged"] == 1
    assert per_cent(rows[1], "recall@1") == "diverged"
    assert over_seeds(cells[1:2], ["x"], ["recall@1"])[0]["recall@1 ±"] is None  # one seed has no interval


def test_best_and_as_good() -> None:
    rows = over_seeds(CELLS, ["loss", "x"])
    assert best(rows, "recall@1")["loss"] == "A"
    assert [(row["loss"], row["x"]) for row in as_good(rows, "recall@1")] == [("A", 4), ("B", 4)]
    assert listed([0.5]) == "0.5" and listed([32, 64]) == "32 and 64"
    assert per_cent(rows[0], "recall@1") == "52.0 ± 5.0"


def test_lines_show_the_means_and_the_intervals() -> None:
    rows = over_seeds(CELLS, ["loss", "x"])
    with style.figure() as drawn:
        axes = drawn.subplots()
        draw_lines(axes, rows, "x", "loss", "recall@1", before=0.45, spread=math.log2)
        drawn.canvas.draw()
    lines = {container.get_label(): container for container in axes.containers}
    assert np.allclose(lines["A"][0].get_ydata(), [52, 60]) and np.allclose(lines["B"][0].get_ydata(), [30, 59.5])
    assert np.allclose(lines["A"][0].get_xdata(), [0, 2], atol=0.05)  # log2 of 1 and 4
    (low, high) = lines["A"][1]
    assert np.allclose(high.get_ydata() - low.get_ydata(), [2 * 100 * rows[0]["recall@1 ±"], 0])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]
    assert axes.get_lines()[-1].get_ydata()[0] == pytest.approx(45)
    assert axes.get_ylabel() == "Recall@1 in %"


def test_maps_show_every_mean_in_its_place() -> None:
    cells = [{"g": g, "m": m, "recall@1": g / 1000 + m} for m in (0.1, 0.2) for g in (1, 2, 3)]
    cells[4]["recall@1"] = None
    with style.figure() as drawn:
        axes = drawn.subplots()
        draw_map(axes, over_seeds(cells, ["g", "m"], ["recall@1"]), "g", "m", "recall@1")
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts == {
        (0, 0): "10.1", (1, 0): "10.2", (2, 0): "10.3", (0, 1): "20.1", (1, 1): "diverged", (2, 1): "20.3",
    }  # fmt: skip
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0.1", "0.2"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("g", "m")
