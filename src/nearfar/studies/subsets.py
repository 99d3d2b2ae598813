"""Batches that fit memory by choice: all samples are compared, and only those that matter go back through the network.

Whole small networks are trained on

    whole       batches of so many images
    hard        of as many candidates, the part that weighs most in the loss
    weighted    of as many candidates, a part drawn by its weight in the loss
    random      of as many candidates, a part drawn alike
    small       batches of the size of the part, nothing else compared

for the same arithmetic: a step of a part takes a forward pass of all and three of the part, a step of a whole batch
three of all, and the number of steps is chosen by that. What else a step does takes time too, which the seconds show
and which counts the more, the smaller the network is. Memory is that of a step, counted tensor by tensor, without the
weights and what the optimiser keeps.

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
from nearfar.studies.boundary_figures import LOOKS
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
    """Of the study."""

    losses: tuple[str, ...] = option(("ProxyAnchorLoss", "MultiSimilarityLoss"), "losses to compare")
    batch: int = option(128, "images in a whole batch, and candidates")
    keep: float = option(0.25, "the part of them that is backpropagated")
    lengths: tuple[float, ...] = option((0.25, 0.5, 1.0), "of trainings, each to its end, in parts of `steps`")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_keep(self.keep)
        if not self.lengths or min(self.lengths) <= 0:
            raise ConfigError("lengths are parts of steps, above 0, at least one")
        for name in self.losses:
            read_contestant(name)

    def small(self) -> Self:
        losses = ("MultiSimilarityLoss",)
        return replace(self, losses=losses, seeds=1, classes=12, steps=6, batch=32, lengths=(1.0,))

    @property
    def part(self) -> int:
        """Images that are backpropagated."""
        return max(1, round(self.keep * self.batch))


def steps_for(method: str, steps: int, keep: float) -> int:
    """Steps with the arithmetic of so many whole ones: in forward passes of a whole batch, one of which counts three
    with its backward pass.

    >>> [steps_for(method, 70, 0.25) for method in ("whole", "hard", "small")]
    [70, 120, 280]
    """
    passes = {"whole": 3.0, "small": 3 * keep}.get(method, 1 + 3 * keep)
    return max(1, round(steps * 3 / passes))


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Every method, as long as it takes."""
    networks = Networks(options.config, options.classes)

    def measure(setting: Mapping[str, Any]) -> dict[str, Any]:
        method, loss = setting["method"], read_contestant(setting["loss"])
        steps = steps_for(method, round(setting["length"] * options.steps), options.keep)
        given: dict[str, Any] = {"batch_size": options.part if method == "small" else options.batch}
        if method not in ("whole", "small"):
            given |= {"select": method, "keep": options.keep}
        trained = networks.train(loss, setting["seed"], steps, options=given)
        return {"steps": steps, "seconds": trained.looks[-1][1], METRIC: trained.recall}

    settings = [
        {"loss": loss, "method": method, "length": length, "seed": seed}
        for seed in options.all_seeds
        for loss in options.losses
        for method in METHODS
        for length in options.lengths
    ]
    found = cells(settings, measure, folder, progress)
    memory = cells(
        [{"memory of": method, "loss": loss} for loss in options.losses for method in METHODS],
        lambda setting: {"megabytes": step_memory(networks, setting["memory of"], setting["loss"], options)},
        folder,
        progress,
    )
    rows = over_seeds(found, ["loss", "method", "length", "steps"], [METRIC, "seconds"])
    sizes = {(row["loss"], row["memory of"]): row["megabytes"] for row in memory}
    for row in rows:
        row["megabytes"] = sizes[row["loss"], row["method"]]
    drawing = Drawing(
        draw(rows, options), "Recall@1 on unseen classes by time and by memory, means over seeds", wide=True
    )
    return Findings({"subsets": rows, "trainings": found}, {"subsets": drawing}, sentences(rows, found, options))


def step_memory(networks: Networks, method: str, loss: str, options: Options) -> float:
    """Megabytes of tensors that a step makes and holds at once, the gradients of the weights among them."""
    given: dict[str, Any] = {"batch_size": options.part if method == "small" else options.batch}
    prepared = networks.prepare(read_contestant(loss), options.seed, 1, given)
    embedder, loss_module = prepared.embedder.train(), prepared.loss
    batch = next(iter(prepared.loader))

    def step() -> None:
        if method in ("whole", "small"):
            loss_module(embedder(batch.images), batch.labels).backward()
        else:
            SubsetStep(embedder, loss_module, method, options.keep).step(batch.images, batch.labels)  # type: ignore[arg-type]

    step()  # what is made once, such as room for the loss, is not of a step
    embedder.zero_grad()
    loss_module.zero_grad()
    with Footprint() as footprint:
        step()
    return float(round(footprint.most / MEGABYTE, 2))


def draw(rows: Sequence[Row], options: Options) -> Figure:
    """Recall@1 by seconds, a line for each method; and by megabytes, in the end. A row of panels for each loss."""
    with style.figure(7.8, 3.1 * len(options.losses) + 0.5) as drawn:
        panels = drawn.subplots(len(options.losses), 2, squeeze=False, sharey="row", width_ratios=(1.5, 1))
        for loss, (by_time, by_memory) in zip(options.losses, panels, strict=True):
            for method, (colour, line, marker) in zip(METHODS, LOOKS, strict=False):
                own = [
                    row for row in rows if (row["loss"], row["method"]) == (loss, method) and row[METRIC] is not None
                ]
                bars = {
                    "yerr": [100 * (row[f"{METRIC} ±"] or 0) for row in own], "color": colour, "marker": marker,
                    "markersize": 4.5, "elinewidth": 1, "capsize": 2,
                }  # fmt: skip
                values = [100 * row[METRIC] for row in own]
                by_time.errorbar([row["seconds"] for row in own], values, linestyle=line, label=method, **bars)
                last = {key: value[-1:] if isinstance(value, list) else value for key, value in bars.items()}
                by_memory.errorbar([row["megabytes"] for row in own[-1:]], values[-1:], linestyle="", **last)
            by_time.set(ylabel="Recall@1 in %", xlabel="seconds of the processor", title=loss, xlim=(0, None))
            most = max(row["megabytes"] for row in rows if row["loss"] == loss)
            by_memory.set(xlabel="megabytes of a step", title="the longest trainings", xlim=(0, 1.25 * most))
        name_lines(drawn, panels[0, 0], columns=5)
    return drawn


def sentences(rows: Sequence[Row], trainings: Sequence[Mapping[str, Any]], options: Options) -> list[str]:
    """What each method came to, for what time and memory."""
    result = []
    longest = max(options.lengths)
    for loss in options.losses:
        own = {method: one(rows, loss=loss, method=method, length=longest) for method in METHODS}
        result.append(
            f"{loss}, batches of {options.batch}, {options.part} of them backpropagated, for the same arithmetic: "
            + "; ".join(
                f"{method} {per_cent(row, METRIC)} % after {row['steps']} steps and {row['seconds']:.1f} s, "
                f"{row['megabytes']:.1f} MB"
                for method, row in own.items()
            )
            + "."
        )
        for other, words in (("random", "a part at random"), ("small", "small batches"), ("whole", "whole batches")):
            result.append(f"{loss}: the hard part {_compared(trainings, loss, other, longest, words)}")
    return result


def _compared(trainings: Sequence[Mapping[str, Any]], loss: str, other: str, length: float, words: str) -> str:
    """Seed by seed, since the network starts alike."""
    own = [t for t in trainings if (t["loss"], t["length"]) == (loss, length)]
    values = {method: {t["seed"]: t[METRIC] for t in own if t["method"] == method} for method in ("hard", other)}
    if any(value is None for each in values.values() for value in each.values()):
        return f"cannot be compared with {words}, since a training diverged."
    gains = [values["hard"][seed] - values[other][seed] for seed in values["hard"]]
    gain, width = float(np.mean(gains)), half_width(gains)
    sure = abs(gain) > width  # never of a single seed, whose width is not a number
    verdict = "cannot be told from" if not sure else "is better than" if gain > 0 else "is worse than"
    shown = "" if np.isnan(width) else f" ± {100 * width:.1f}"
    return f"{verdict} {words}, by {100 * gain:+.1f}{shown} points over {len(gains)} seeds."
