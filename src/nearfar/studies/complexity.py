"""The cost of a training step by batch size and by number of classes, beside the claims of papers.

Times are CPU seconds of forward and backward, so that other work on the machine matters little. The growth is modelled
as a power, t ~ B^b C^c, fitted to the largest sizes. The claims are those of Kim et al., Proxy Anchor Loss, 2020,
Table 1, for one batch: comparisons of a batch with all proxies, all pairs, or all triplets.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from nearfar.report import style
from nearfar.studies.boundary_figures import STYLES
from nearfar.studies.study import Drawing, Findings, Progress, Row, StudyOptions, cells
from nearfar.training.build import build_loss
from nearfar.training.config import LossConfig, option
from nearfar.training.options import ConfigError

PER_CLASS = 4
FITTED = 3  # number of sizes to fit, the largest ones
SHORTEST = 0.02  # seconds of a measurement; faster steps are repeated
OFF = 0.3  # tolerance of exponents


@dataclass(frozen=True)
class Case:
    """A loss, and the powers of B and C that papers claim for one batch; None without a claim."""

    name: str
    loss: LossConfig
    batch: float | None
    classes: float | None


CASES = (
    Case("Contrastive", LossConfig("ContrastiveLoss"), 2, 0),
    Case("Triplet, all", LossConfig("TripletMarginLoss", {"mining": "all"}), 3, 0),
    Case("Triplet, semi-hard", LossConfig("TripletMarginLoss", {"mining": "semihard"}), 3, 0),
    Case("N-pair", LossConfig("NPairsLoss"), 3, 0),
    Case("Lifted structure", LossConfig("LiftedStructureLoss"), 3, 0),
    Case("Multi-Similarity", LossConfig("MultiSimilarityLoss"), None, 0),
    Case("Circle, pairs", LossConfig("CircleLoss"), None, 0),
    Case("Proxy-NCA", LossConfig("ProxyNCALoss"), 1, 1),
    Case("Proxy-Anchor", LossConfig("ProxyAnchorLoss"), 1, 1),
    Case("SoftTriple, 4 centres", LossConfig("SoftTripleLoss", {"centers_per_class": 4}), 1, 1),
    Case("Circle, classes", LossConfig("CircleLoss", class_level=True), None, 1),
)


@dataclass(frozen=True)
class Options(StudyOptions):
    """The sizes to measure."""

    batches: tuple[int, ...] = option((256, 512, 1024, 2048), "batch sizes B")
    classes: tuple[int, ...] = option((1024, 2048, 4096, 8192), "numbers of classes C")
    batch: int = option(256, "B while C varies")
    class_count: int = option(1024, "C while B varies")
    dimension: int = option(128, "dimension of the embeddings")
    repeats: int = option(3, "repetitions of every measurement; the median is used")

    def __post_init__(self) -> None:
        if min(len(self.batches), len(self.classes)) < 2 or self.repeats < 1:
            raise ConfigError("complexity needs at least two batches, two classes and one repeat")
        if min(*self.batches, self.batch) < 2 * PER_CLASS:
            raise ConfigError(f"a batch needs at least {2 * PER_CLASS} samples, {PER_CLASS} of each of two classes")

    def small(self) -> Self:
        return replace(self, batches=(32, 64), classes=(64, 128), batch=32, class_count=64, dimension=16, repeats=1)


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Measure all losses at all sizes, and fit their growth."""
    sizes = dict.fromkeys(
        [(b, options.class_count) for b in options.batches] + [(options.batch, c) for c in options.classes]
    )
    by_name = {case.name: case for case in CASES}
    settings = [{"loss": case.name, "batch": b, "classes": c} for case in CASES for b, c in sizes]

    def measure(setting: Mapping[str, Any]) -> dict[str, float]:
        return {"seconds": seconds(by_name[setting["loss"]].loss, setting["batch"], setting["classes"], options)}

    rows = cells(settings, measure, folder, progress)
    fitted = exponents(rows, options)
    drawn = {
        "cost": Drawing(_cost(rows, options), "CPU time of a step, by batch size and by classes.", wide=True),
        "exponents": Drawing(
            _exponents(fitted),
            "Growth of the cost of a step: fitted powers (filled) and the claims of papers (hollow).",
            wide=True,
        ),
    }
    return Findings({"cost": rows, "exponents": fitted}, drawn, _sentences(fitted))


def seconds(
    loss: LossConfig,
    batch: int,
    classes: int,
    options: Options,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """The median CPU time of forward and backward, on random unit vectors, four of each class."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        built = build_loss((loss,), classes, options.dimension)
        embeddings = torch.nn.functional.normalize(torch.randn(batch, options.dimension)).requires_grad_()
        labels = torch.arange(batch) // PER_CLASS % classes

        def steps(count: int) -> float:
            began = clock()
            for _ in range(count):
                built.zero_grad(set_to_none=True)
                embeddings.grad = None
                built(embeddings, labels).backward()
            return (clock() - began) / count

        count = max(1, math.ceil(SHORTEST / max(steps(1), steps(1), 1e-6)))
        return statistics.median(steps(count) for _ in range(options.repeats))


def power(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Fit b of t ~ size^b by least squares over the largest sizes.

    >>> round(power([1, 2, 4, 8], [1.0, 3.0, 12.0, 48.0]), 6)
    2.0
    """
    chosen = np.argsort(sizes)[-FITTED:]
    slope, _ = np.polyfit(np.log(np.asarray(sizes, float)[chosen]), np.log(np.asarray(times, float)[chosen]), 1)
    return float(slope)


def exponents(rows: Sequence[Mapping[str, Any]], options: Options) -> list[Row]:
    """The fitted powers of B and C for every loss, and the claims of papers."""
    result: list[Row] = []
    for case in CASES:
        loss_rows = [row for row in rows if row["loss"] == case.name]
        by_batch = [
            row for row in loss_rows if row["classes"] == options.class_count and row["batch"] in options.batches
        ]
        by_classes = [row for row in loss_rows if row["batch"] == options.batch and row["classes"] in options.classes]
        result.append(
            {
                "loss": case.name,
                "batch": round(power([r["batch"] for r in by_batch], [r["seconds"] for r in by_batch]), 3),
                "batch claimed": case.batch,
                "classes": round(power([r["classes"] for r in by_classes], [r["seconds"] for r in by_classes]), 3),
                "classes claimed": case.classes,
            }
        )
    return result


def _sentences(fitted: Sequence[Mapping[str, Any]]) -> list[str]:
    sentences = []
    for side, letter in (("batch", "B"), ("classes", "C")):
        claimed = [row for row in fitted if row[f"{side} claimed"] is not None]
        as_claimed = [row for row in claimed if abs(row[side] - row[f"{side} claimed"]) <= OFF]
        better = [row for row in claimed if row[side] < row[f"{side} claimed"] - OFF]
        worse = [row for row in claimed if row[side] > row[f"{side} claimed"] + OFF]
        parts = [f"As claimed, to within {OFF:g}: {_listed(as_claimed, side, letter)}."]
        if better:
            parts.append(f"Slower growth than claimed: {_listed(better, side, letter, claim=True)}.")
        if worse:
            parts.append(f"Faster growth than claimed: {_listed(worse, side, letter, claim=True)}.")
        sentences.append(" ".join(parts))
    return sentences


def _listed(rows: Sequence[Mapping[str, Any]], side: str, letter: str, claim: bool = False) -> str:
    def entry(row: Mapping[str, Any]) -> str:
        claimed = f", claimed {letter}^{row[f'{side} claimed']:g}" if claim else ""
        return f"{row['loss']} ({letter}^{row[side]:.1f}{claimed})"

    return ", ".join(map(entry, rows)) or "none"


# Figures


def _cost(rows: Sequence[Mapping[str, Any]], options: Options) -> Figure:
    with style.figure(7.6, 4.2) as drawn:
        panels = drawn.subplots(1, 2, sharey=True)
        for number, case in enumerate(CASES):
            colour, line, marker = STYLES[number % len(STYLES)]
            fill = colour if number < len(STYLES) else "#ffffff"
            loss_rows = [row for row in rows if row["loss"] == case.name]
            lines = (
                (
                    "batch",
                    [r for r in loss_rows if r["classes"] == options.class_count and r["batch"] in options.batches],
                ),
                ("classes", [r for r in loss_rows if r["batch"] == options.batch and r["classes"] in options.classes]),
            )
            for axes, (side, chosen) in zip(panels, lines, strict=True):
                chosen.sort(key=lambda row: row[side])
                x, y = [row[side] for row in chosen], [1000 * row["seconds"] for row in chosen]
                axes.plot(
                    x, y, color=colour, linestyle=line, marker=marker, markersize=4.5, markerfacecolor=fill,
                    linewidth=1.3, label=case.name,
                )  # fmt: skip
        _sizes(panels[0], options.batches, f"batch B ({options.class_count:,} classes)")
        _sizes(panels[1], options.classes, f"classes C (batch of {options.batch:,})")
        panels[0].set_ylabel("CPU milliseconds")
        lines, labels = panels[0].get_legend_handles_labels()
        drawn.legend(lines, labels, loc="outside lower center", ncols=4, fontsize=8.5)
    return drawn


def _sizes(axes: Axes, sizes: Sequence[int], label: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=label)
    axes.xaxis.set_major_locator(FixedLocator(sorted(sizes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _exponents(fitted: Sequence[Mapping[str, Any]]) -> Figure:
    with style.figure(7.6, 0.27 * len(fitted) + 0.8) as drawn:
        panels = drawn.subplots(1, 2, sharey=True)
        for axes, side, letter in zip(panels, ("batch", "classes"), ("B", "C"), strict=True):
            for position, row in enumerate(fitted):
                if row[f"{side} claimed"] is not None:
                    axes.plot(
                        row[f"{side} claimed"], position, "o", color=style.TWO, markerfacecolor="none", markersize=9
                    )
                axes.plot(row[side], position, "o", color=style.ONE, markersize=5)
            axes.set(xlabel=f"power of {letter}", xlim=(-0.35, 3.35), ylim=(len(fitted) - 0.5, -0.5))
            axes.grid(axis="y", visible=False)
        panels[0].set_yticks(range(len(fitted)), [row["loss"] for row in fitted])
    return drawn
