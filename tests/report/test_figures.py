"""Figures as the data has it, and as parts of a page: no ids shared, no colours of their own, nothing from outside."""

import re

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt

from nearfar.evaluation.diagnostics import Histogram
from nearfar.report import figures, style
from nearfar.report.boundaries import boundary
from nearfar.report.thresholds import accepted


def histogram(positive: list[int], negative: list[int]) -> Histogram:
    edges = np.linspace(-1, 1, len(positive) + 1)
    return Histogram(edges, np.array(positive, np.int64), np.array(negative, np.int64))


HISTOGRAM = histogram([0, 0, 1, 2, 5, 2, 0, 0], [0, 8, 4, 2, 1, 0, 0, 0])


def drawings() -> dict[str, str]:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0.2, 0.8, 40), rng.uniform(0.3, 0.9, 40)
    curve = accepted(HISTOGRAM)
    assert curve is not None
    return {
        "curves": style.svg(figures.curves({"a <b>": ([1, 2], [3.0, 4.0]), "$x^2$": ([1, 2], [1.0, 2.0])}, "loss")),
        "similarities": style.svg(figures.similarities(HISTOGRAM, 0.1)),
        "plane": style.svg(figures.plane(x, y, boundary("CircleLoss", {"m": 0.4}))),
        "threshold": style.svg(figures.threshold(curve.at, curve.precision, curve.recall, 0.2)),
    }


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return drawings()


def test_the_same_data_gives_the_same_figure(drawn: dict[str, str]) -> None:
    assert drawings() == drawn


def test_figures_share_no_ids_and_refer_to_their_own(drawn: dict[str, str]) -> None:
    ids = [re.findall(r'\bid="([^"]+)"', svg) for svg in drawn.values()]
    together = [name for names in ids for name in names]
    assert len(together) == len(set(together)) > 20
    for svg, names in zip(drawn.values(), ids, strict=True):
        used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)
        assert used
        assert {a or b for a, b in used} <= set(names)


def test_figures_take_their_colours_from_the_page(drawn: dict[str, str]) -> None:
    for svg in drawn.values():
        assert "var(--ink)" in svg and "var(--faint)" in svg
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {"#000000", "#ffffff"}, "a colour that dark paper swallows"
        assert not re.findall(r"(?:fill|stroke): #ffffff", svg)


def test_figures_hold_nothing_from_outside_nor_from_here(drawn: dict[str, str]) -> None:
    for svg in drawn.values():
        assert svg.startswith("<svg") and svg.endswith("</svg>")
        assert not re.search(r"<metadata|<!--|matplotlib\.org|DejaVu|<script|<\?xml", svg)
        assert set(re.findall(r"https?://[^\"]+", svg)) <= {
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1999/xlink",
        }
        assert not re.search(r'<svg[^>]* (width|height)="', svg)


def test_labels_are_text_and_not_formulas(drawn: dict[str, str]) -> None:
    assert "a &lt;b&gt;" in drawn["curves"]
    assert "$x^2$" in drawn["curves"]


def test_the_users_own_style_and_windows_are_left_alone() -> None:
    with mpl.rc_context({"axes.grid": False, "font.size": 33, "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        drawings()
        assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == []


def test_histograms_are_densities_of_each_kind() -> None:
    figure = figures.similarities(HISTOGRAM)
    steps = [patch.get_data() for patch in figure.axes[0].patches]
    assert len(steps) == 4  # filled, and its outline, of each kind
    for data, counts in zip(steps[::2], (HISTOGRAM.positive, HISTOGRAM.negative), strict=True):
        np.testing.assert_allclose(data.values, counts / counts.sum() / 0.25)
    assert figure.axes[0].get_xlim() == pytest.approx((-0.775, 0.525))


def test_wider_bins_keep_every_count() -> None:
    rng = np.random.default_rng(1)
    fine = histogram(rng.integers(0, 9, 400).tolist(), rng.integers(0, 9, 400).tolist())
    wide = figures.coarser(fine, 80)
    assert len(wide.positive) == 80 and len(wide.edges) == 81
    assert wide.positive[3] == fine.positive[15:20].sum() and wide.negative.sum() == fine.negative.sum()
    assert figures.coarser(HISTOGRAM, 80).positive.tolist() == HISTOGRAM.positive.tolist()
    empty = histogram([0] * 7, [0] * 7)
    assert figures.span(figures.coarser(empty)) == (-1.0, 1.0)
    prime = figures.coarser(histogram([1] * 7, [0] * 7), 3)  # no width but 1 and 7 divides 7
    assert prime.positive.tolist() == [7]


def test_the_plane_tells_right_from_wrong_by_the_diagonal() -> None:
    x, y = np.array([0.1, 0.5, 0.6, 0.3]), np.array([0.2, 0.4, 0.6, 0.9])
    axes = figures.plane(x, y).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    right, wrong = lines["nearest is right: 50.0%"], lines["nearest is wrong: 50.0%"]
    assert right.get_xdata().tolist() == [0.1, 0.3]
    assert wrong.get_xdata().tolist() == [0.5, 0.6]  # a tie counts against the model
    assert right.get_marker() != wrong.get_marker()


def test_a_plane_without_queries_is_empty_and_no_error() -> None:
    assert "<svg" in style.svg(figures.plane(np.zeros(0), np.zeros(0), boundary("CosFaceLoss", {"margin": 0.3})))


def test_long_curves_are_thinned_and_gaps_left_out() -> None:
    x = np.arange(10_000.0)
    steps, values = figures.thinned(x, np.where(x % 2, np.nan, x), 100)
    assert len(steps) == len(values) == 100
    np.testing.assert_allclose(values[0], np.arange(0, 100, 2).mean())


def test_accepted_pairs_by_hand() -> None:
    curve = accepted(histogram([0, 1, 3], [2, 4, 0]))
    assert curve is not None
    np.testing.assert_allclose(curve.at, [-1, -1 / 3, 1 / 3, 1])
    assert curve.same.tolist() == [4, 4, 3, 0]
    assert curve.other.tolist() == [6, 4, 0, 0]
    np.testing.assert_allclose(curve.precision, [0.4, 0.5, 1, np.nan])
    np.testing.assert_allclose(curve.recall, [1, 1, 0.75, 0])
    cut = accepted(histogram([0, 0, 5, 0], [0, 0, 5, 0]))
    assert cut is not None and cut.at.tolist() == [0, 0.5]
    assert accepted(histogram([0, 0], [3, 3])) is None
