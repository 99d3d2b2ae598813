"""The charts, drawn from rows."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from benchmarks.cases import BATCHES, CLASSES, Case
from benchmarks.results import Key, Row

# Okabe and Ito's colours, told apart by every kind of colour vision; markers differ too.
STYLE: dict[str, tuple[str, str, str]] = {
    "nearfar": ("#0072B2", "o", "nearfar"),
    "pml": ("#D55E00", "s", "pytorch-metric-learning"),
    "compiled": ("#CC79A7", "D", "torch.compile"),
    "limit": ("#333333", "", "three matrix products"),
}
GREY, FAINT = "#555555", "#DDDDDD"
RATIO_CASES = ["class-256x100000x512", "pair-1024x512"]
SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "figure.facecolor": "white",
    "savefig.dpi": 160,
    "svg.hashsalt": "nearfar",  # the same rows give the same file
    "svg.fonttype": "path",
}

Rows = dict[Key, Row]


def draw(rows: Rows, folder: Path) -> list[tuple[Path, str]]:
    """Every chart whose rows there are, as SVG and PNG; the SVG files with what they show."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    with mpl.rc_context(SETTINGS):
        for name, alt, chart in (
            ("ratio", "Time of a training step in units of its three matrix products, per loss", ratios),
            ("batch", "Time and memory of pair-level Circle loss against the batch size", over_batches),
            ("classes", "Time and memory of CosFace and Proxy-Anchor against the number of classes", over_classes),
        ):
            figure = chart(rows)
            if figure is None:
                continue
            for suffix in ("svg", "png"):
                metadata = {"Date": None} if suffix == "svg" else {}
                figure.savefig(folder / f"losses-{name}.{suffix}", metadata=metadata, bbox_inches="tight")
            plt.close(figure)
            drawn.append((folder / f"losses-{name}.svg", alt))
    return drawn


def _plain(x: float, _: object = None) -> str:
    """1 million, 1,000 and 0.5, without exponents."""
    return f"{x / 1e6:g} million" if x >= 1e6 else f"{x:,.0f}" if x >= 1 else f"{x:g}"


def _log(axis: Any, ticks: Sequence[float] | None = None) -> None:
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_formatter(NullFormatter())
    if ticks is not None:
        axis.set_ticks(ticks)
        axis.set_minor_locator(NullLocator())


def ratios(rows: Rows) -> Any:
    """A line per loss from ours to pytorch-metric-learning's, in units of the limit; losses both have."""
    panels = []
    for name in RATIO_CASES:
        ours = {k[1]: r for k, r in rows.items() if k[0] == name and k[2] == "nearfar" and r.ratio is not None}
        theirs = {k[1]: r for k, r in rows.items() if k[0] == name and k[2] == "pml" and not r.differs}
        shared = [loss for loss in ours if loss in theirs]
        if shared:
            panels.append((Case.parse(name), [(loss, ours[loss], theirs[loss]) for loss in shared]))
    if not panels:
        return None
    heights = [len(lines) + 1.6 for _, lines in panels]
    figure, axes = plt.subplots(
        len(panels), sharex=True, squeeze=False, figsize=(8, 0.32 * sum(heights) + 0.9), height_ratios=heights
    )
    largest = max(x.ratio for _, lines in panels for _, *pair in lines for x in pair if x.ratio is not None)
    smallest = min(x.ratio for _, lines in panels for _, *pair in lines for x in pair if x.ratio is not None)
    beyond = largest * 1.6  # where what gave no number is
    for ax, (case, lines) in zip(axes[:, 0], panels, strict=True):
        _ratio_panel(ax, case, lines, beyond)
    ax.set_xlim(min(0.7, smallest * 0.85), beyond * 1.9)
    _log(
        ax.xaxis, [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if 0.7 * smallest < t < beyond]
    )
    ax.set_xlabel("time of forward and backward ÷ time of the three matrix products (log scale)")
    figure.tight_layout(h_pad=1.2)
    return figure


def _ratio_panel(ax: Any, case: Case, lines: list[tuple[str, Row, Row]], beyond: float) -> None:
    # The largest gain on top; what failed is the largest of all.
    lines.sort(key=lambda line: (beyond if line[2].ratio is None else line[2].ratio) / (line[1].ratio or 1))
    (blue, dot, ours_name), (red, square, theirs_name) = STYLE["nearfar"], STYLE["pml"]
    ax.set_xscale("log")
    ax.axvline(1, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for y, (_, ours, theirs) in enumerate(lines):
        end = beyond if theirs.ratio is None else theirs.ratio
        ax.plot([ours.ratio, end], [y, y], color=FAINT, linewidth=2.5, zorder=1, solid_capstyle="round")
        ax.plot(ours.ratio, y, dot, color=blue, markersize=7, zorder=3)
        if theirs.ratio is None:
            ax.plot(end, y, "x", color=red, markersize=7, markeredgewidth=2, zorder=3)
            text = theirs.status.partition(":")[0]
        else:
            ax.plot(end, y, square, color=red, markersize=6.5, zorder=3)
            text = f"{end / (ours.ratio or 1):.1f} ×" + (" the time of nearfar" if y == len(lines) - 1 else "")
        right = max(end, ours.ratio or 0)
        ax.annotate(text, (right, y), (8, 0), textcoords="offset points", va="center", fontsize=8.5, color=GREY)
    _, first, last = lines[-1]
    for x, name, colour in ((first.ratio, ours_name, blue), (last.ratio or beyond, theirs_name, red)):
        ax.annotate(
            name,
            (x, len(lines) - 1),
            (0, 9),
            textcoords="offset points",
            ha="center",
            color=colour,
            fontsize=9,
            fontweight="bold",
        )
    ax.set_yticks(range(len(lines)), [loss.replace("Loss", "") for loss, _, _ in lines])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(-1.0, len(lines) + 0.1)
    ax.spines["left"].set_visible(False)
    ax.annotate(
        "three matrix products",
        (1, -0.55),
        (5, 0),
        textcoords="offset points",
        va="center",
        color=GREY,
        fontsize=8.5,
    )
    kind = "classes" if case.level == "class" else "samples"
    ax.set_title(f"{case.rows:,} samples × {case.columns:,} {kind}, dimension {case.dimension}", pad=10)


def over_batches(rows: Rows) -> Any:
    """Pair-level Circle loss: time and memory against B."""
    return _sweep(rows, BATCHES, [("CircleLoss", "Circle, samples × samples")], "batch size", lambda case: case.rows)


def over_classes(rows: Rows) -> Any:
    """CosFace and Proxy-Anchor: time and memory against C."""
    titles = [("CosFaceLoss", "CosFace"), ("ProxyAnchorLoss", "Proxy-Anchor")]
    return _sweep(rows, CLASSES, titles, "classes", lambda case: case.columns)


def _sweep(
    rows: Rows, cases: Sequence[Case], losses: Sequence[tuple[str, str]], what: str, size: Callable[[Case], int]
) -> Any:
    """A row of two panels for each loss: milliseconds, and megabytes."""
    measured = [(loss, title) for loss, title in losses if any((c.name, loss, "nearfar") in rows for c in cases)]
    if not measured:
        return None
    figure, axes = plt.subplots(len(measured), 2, sharex=True, squeeze=False, figsize=(8, 2.7 * len(measured) + 0.9))
    for line, (loss, title) in zip(axes, measured, strict=True):
        for ax, field, unit in zip(
            line, ("p50_ms", "peak_mb"), ("time of a step, ms", "extra memory, MB"), strict=True
        ):
            _curves(ax, rows, cases, loss, field, size)
            ax.set_title(f"{title}: {unit}")
    for ax in axes[-1]:
        ax.set_xlabel(f"{what} (dimension {cases[0].dimension})")
    figure.tight_layout(w_pad=2.5, h_pad=1.5)
    there = {key[2] for key in rows if key[0] in {case.name for case in cases}} | {"limit"}
    styles = {name: style for name, style in STYLE.items() if name in there}
    lines = [
        Line2D([], [], color=colour, marker=marker, linestyle=_dashes(name), label=label)
        for name, (colour, marker, label) in styles.items()
    ]
    legend = figure.legend(handles=lines, loc="lower center", bbox_to_anchor=(0.5, 0.99), ncols=4, frameon=False)
    for text, (colour, *_) in zip(legend.get_texts(), styles.values(), strict=True):
        text.set_color(colour)
    return figure


def _dashes(name: str) -> Any:
    return (0, (4, 3)) if name == "limit" else "-"


def _curves(ax: Any, rows: Rows, cases: Sequence[Case], loss: str, field: str, size: Callable[[Case], int]) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    crosses: list[tuple[float, float, str]] = []
    for name, (colour, marker, _) in reversed(STYLE.items()):  # ours on top
        # The limit as it was measured in turn with ours.
        key, column = ("nearfar", "limit_ms") if name == "limit" else (name, field)
        found = [(size(case), rows[case.name, loss, key]) for case in cases if (case.name, loss, key) in rows]
        points = [(x, max(value, 0.1)) for x, row in found if (value := getattr(row, column)) is not None]
        if not points or (name == "limit" and field == "peak_mb"):
            continue
        ax.plot(*zip(*points, strict=True), color=colour, marker=marker, ms=4.5, lw=1.6, ls=_dashes(name), zorder=3)
        failed = [(x, row.status.partition(":")[0]) for x, row in found if row.status != "ok" and x > points[-1][0]]
        if failed and len(points) > 1 and name != "limit":
            (x0, y0), (x1, y1), (x, status) = points[-2], points[-1], failed[0]
            y = y1 * (x / x1) ** (math.log(y1 / y0) / math.log(x1 / x0))  # where it was going
            ax.plot([x1, x], [y1, y], color=colour, lw=1.2, ls=":", zorder=2)
            ax.plot(x, y, "x", color=colour, ms=7, mew=2, zorder=3)
            crosses.append((y, x, status))
    if crosses:
        top, right, status = max(crosses)
        ax.annotate(
            status, (right, top), (-8, 0), textcoords="offset points", ha="right", va="center", color=GREY, fontsize=8.5
        )
    shown = [size(case) for case in cases if (case.name, loss, "nearfar") in rows]
    tens = [x for x in shown if str(x).strip("0") == "1"]
    _log(ax.xaxis, tens or shown[::-1][::2])
    _log(ax.yaxis)
    ax.yaxis.set_minor_locator(NullLocator())
    ax.grid(axis="y", color=FAINT, linewidth=0.7, zorder=0)
