"""Backpropagating subsets of a batch: all samples are compared, and only those that matter are backpropagated.

Whole small networks are trained on

    whole       whole batches
    hard        the samples of the batch with the largest gradients
    weighted    samples of the batch, drawn in proportion to their gradients
    random      samples of the batch, drawn uniformly
    small       batches of the subset's size, nothing else compared

with the same amount of arithmetic: a subset step takes one forward pass of the batch and three of the subset, a step of
a whole batch three of the batch, which determines the numbers of steps. Other work in a step takes time too, as the
seconds show, above all with small networks. Memory is that of a step, counted tensor by tensor, without the weights and
the optimiser's state.

References: Katharopoulos and Fleuret, ICML 2018, arXiv:1803.00942; Jiang et al., 2019, arXiv:1910.00762.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.figure import Figure

from nearfar.compare.spaces import read_contestant
from nearfar.compare.statistics import half_width
from nearfar.report import style
from nearfar.studies.boundary_figures import STYLES
from nearfar.studies.footprint import Footprint
from nearfar.studies.networks import NetworkOptions, Networks
from nearfar.studies.study import Drawing, Findings, Progress, cells
from nearfar.studies.sweep import Row, name_lines, one, over_seeds, per_cent
from nearfar.training.config import option
from nearfar.training.options import ConfigError
from nearfar.training.subset import SubsetStep, check_keep

METRIC = "recall@1"
METHODS = ("whole", "hard", "weighted", "random", "small")
MEGABYTE = 1e6


@dataclass(frozen=True)
class Options(NetworkOptions):
    """The options of the study."""

    losses: tuple[str, ...] = option(("ProxyAnchorLoss", "MultiSimilarityLoss"), "losses to compare")
    batch: int = option(128, "images in a whole batch")
    keep: float = option(0.25, "share of the batch that is backpropagated")
    lengths: tuple[float, ...] = option((0.25, 0.5, 1.0), "lengths of separate trainings, as shares of `steps`")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_keep(self.keep)
        if not self.lengths or min(self.lengths) <= 0:
            raise ConfigError("lengths must be shares of steps, above 0, at least one")
        for name in self.losses:
            read_contestant(name)

    def small(self) -> Self:
        losses = ("MultiSimilarityLoss",)
        return replace(self, losses=losses, seeds=1, classes=12, steps=6, batch=32, lengths=(1.0,))

    @property
    def part(self) -> int:
        """The number of images that are backpropagated."""
        return max(1, round(self.keep * self.batch))


def steps_for(method: str, steps: int, keep: float) -> int:
    """The number of steps with the arithmetic of `steps` whole ones, counted in forward passes; forward and backward
    count as three.

    >>> [steps_for(method, 70, 0.25) for method in ("whole", "hard", "small")]
    [70, 120, 280]
    """
    passes = {"whole": 3.0, "small": 3 * keep}.get(method, 1 + 3 * keep)
    return max(1, round(steps * 3 / passes))


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Train with every method and length."""
    networks = Networks(options.config, options.classes)

    def measure(setting: Mapping[str, Any]) -> dict[str, Any]:
        method, loss = setting["method"], read_contestant(setting["loss"])
        steps = steps_for(method, round(setting["length"] * options.steps), options.keep)
        train_options: dict[str, Any] = {"batch_size": options.part if method == "small" else options.batch}
        if method not in ("whole", "small"):
            train_options |= {"select": method, "keep": options.keep}
        trained = networks.train(loss, setting["seed"], steps, options=train_options)
        return {"steps": steps, "seconds": trained.looks[-1][1], METRIC: trained.recall}

    settings = [
        {"loss": loss, "method": method, "length": length, "seed": seed}
        for seed in options.all_seeds
        for loss in options.losses
        for method in METHODS
        for length in options.lengths
    ]
    trainings = cells(settings, measure, folder, progress)
    memory = cells(
        [{"memory of": method, "loss": loss} for loss in options.losses for method in METHODS],
        lambda setting: {"megabytes": step_memory(networks, setting["memory of"], setting["loss"], options)},
        folder,
        progress,
    )
    rows = over_seeds(trainings, ["loss", "method", "length", "steps"], [METRIC, "seconds"])
    sizes = {(row["loss"], row["memory of"]): row["megabytes"] for row in memory}
    for row in rows:
        row["megabytes"] = sizes[row["loss"], row["method"]]
    drawing = Drawing(
        draw(rows, options), "Recall@1 on unseen classes by time and by memory, means over seeds", wide=True
    )
    return Findings(
        {"subsets": rows, "trainings": trainings}, {"subsets": drawing}, sentences(rows, trainings, options)
    )


def step_memory(networks: Networks, method: str, loss: str, options: Options) -> float:
    """The peak megabytes of tensors that a step creates, including the gradients of the weights."""
    train_options: dict[str, Any] = {"batch_size": options.part if method == "small" else options.batch}
    prepared = networks.prepare(read_contestant(loss), options.seed, 1, train_options)
    embedder, loss_module = prepared.embedder.train(), prepared.loss
    batch = next(iter(prepared.loader))

    def step() -> None:
        if method in ("whole", "small"):
            loss_module(embedder(batch.images), batch.labels).backward()
        else:
            SubsetStep(embedder, loss_module, method, options.keep).step(batch.images, batch.labels)  # type: ignore[arg-type]

    step()  # the first step also allocates buffers
    embedder.zero_grad()
    loss_module.zero_grad()
    with Footprint() as footprint:
        step()
    return float(round(footprint.most / MEGABYTE, 2))


def draw(rows: Sequence[Row], options: Options) -> Figure:
    """Draw Recall@1 by seconds, a line for each method, and the final one by megabytes; a row of panels per loss."""
    with style.figure(7.8, 3.1 * len(options.losses) + 0.5) as drawn:
        panels = drawn.subplots(len(options.losses), 2, squeeze=False, sharey="row", width_ratios=(1.5, 1))
        for loss, (by_time, by_memory) in zip(options.losses, panels, strict=True):
            for method, (colour, line, marker) in zip(METHODS, STYLES, strict=False):
                method_rows = [
                    row for row in rows if (row["loss"], row["method"]) == (loss, method) and row[METRIC] is not None
                ]
                bars = {
                    "yerr": [100 * (row[f"{METRIC} ±"] or 0) for row in method_rows], "color": colour, "marker": marker,
                    "markersize": 4.5, "elinewidth": 1, "capsize": 2,
                }  # fmt: skip
                values = [100 * row[METRIC] for row in method_rows]
                by_time.errorbar([row["seconds"] for row in method_rows], values, linestyle=line, label=method, **bars)
                last = {key: value[-1:] if isinstance(value, list) else value for key, value in bars.items()}
                by_memory.errorbar([row["megabytes"] for row in method_rows[-1:]], values[-1:], linestyle="", **last)
            by_time.set(ylabel="Recall@1 in %", xlabel="CPU seconds", title=loss, xlim=(0, None))
            most = max(row["megabytes"] for row in rows if row["loss"] == loss)
            by_memory.set(xlabel="megabytes of a step", title="the longest trainings", xlim=(0, 1.25 * most))
        name_lines(drawn, panels[0, 0], columns=5)
    return drawn


def sentences(rows: Sequence[Row], trainings: Sequence[Mapping[str, Any]], options: Options) -> list[str]:
    """Describe the results of each method with their time and memory."""
    result = []
    longest = max(options.lengths)
    for loss in options.losses:
        by_method = {method: one(rows, loss=loss, method=method, length=longest) for method in METHODS}
        result.append(
            f"{loss}, batches of {options.batch}, {options.part} of them backpropagated, for the same arithmetic: "
            + "; ".join(
                f"{method} {per_cent(row, METRIC)} % after {row['steps']} steps and {row['seconds']:.1f} s, "
                f"{row['megabytes']:.1f} MB"
                for method, row in by_method.items()
            )
            + "."
        )
        for other, words in (("random", "a random subset"), ("small", "small batches"), ("whole", "whole batches")):
            result.append(f"{loss}: the hard subset {_compared(trainings, loss, other, longest, words)}")
    return result


def _compared(trainings: Sequence[Mapping[str, Any]], loss: str, other: str, length: float, words: str) -> str:
    """Compare seed by seed, since networks of the same seed have the same start."""
    selected = [t for t in trainings if (t["loss"], t["length"]) == (loss, length)]
    values = {method: {t["seed"]: t[METRIC] for t in selected if t["method"] == method} for method in ("hard", other)}
    if any(value is None for each in values.values() for value in each.values()):
        return f"cannot be compared with {words}, since a training diverged."
    gains = [values["hard"][seed] - values[other][seed] for seed in values["hard"]]
    gain, width = float(np.mean(gains)), half_width(gains)
    sure = abs(gain) > width  # never for a single seed, whose width is NaN
    verdict = "is not clearly different from" if not sure else "is better than" if gain > 0 else "is worse than"
    shown = "" if np.isnan(width) else f" ± {100 * width:.1f}"
    return f"{verdict} {words}, by {100 * gain:+.1f}{shown} points over {len(gains)} seeds."
