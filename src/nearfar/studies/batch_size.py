"""The batch size: Proxy-Anchor's table, beside a pair loss.

Batch sizes are compared with equal numbers of steps and with equal numbers of images (larger batches have fewer steps).
The paper trains for equal numbers of epochs, which is the second. Batches of proxy losses are drawn at random, as in
the paper; those of pair losses have k images of each class.

Reference: S. Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020, arXiv:2003.13911, Section 4.4.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from matplotlib.figure import Figure

from nearfar.compare.spaces import read_contestant
from nearfar.report import style
from nearfar.studies.heads import STEPS, Heads, Measured
from nearfar.studies.study import Drawing, Findings, HeadOptions, Progress, cells
from nearfar.studies.sweep import Row, as_good, best, draw_lines, listed, name_lines, over_seeds, per_cent
from nearfar.training.config import SamplerConfig, TrainConfig, option
from nearfar.training.defaults import compares_samples
from nearfar.training.options import ConfigError

METRIC = "recall@1"
SAME_STEPS, SAME_IMAGES = "as many steps", "as many images"
PER_CLASS = 5  # divides the paper's sizes


@dataclass(frozen=True)
class Options(HeadOptions):
    """The options of the study."""

    losses: tuple[str, ...] = option(("ProxyAnchorLoss", "CircleLoss"), "losses to compare")
    sizes: tuple[int, ...] = option((30, 60, 90, 120, 150, 180), "images in a batch")
    config: TrainConfig = field(default_factory=lambda: TrainConfig(sampler=SamplerConfig(k=PER_CLASS)))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sizes or min(self.sizes) < 2:
            raise ConfigError(f"sizes must be batch sizes of at least 2 images, not {self.sizes}")
        k = self.config.sampler.k
        for name in self.losses:
            if compares_samples(read_contestant(name)) and (odd := [size for size in self.sizes if size % k]):
                raise ConfigError(
                    f"batches of {name} have {k} images of each class (--k): {odd[0]} is not a multiple of it"
                )

    def small(self) -> Self:
        config = replace(self.config, max_steps=8)
        return replace(self, sizes=(20, 40), seeds=2, classes=20, config=config)


def steps_for(size: int, sizes: tuple[int, ...], steps: int, budget: str) -> int:
    """The number of steps: the same for all sizes, or as many as process the images of the middle size.

    >>> [steps_for(size, (30, 90, 180), 200, SAME_IMAGES) for size in (30, 90, 180)]
    [600, 200, 100]
    """
    middle = sorted(sizes)[(len(sizes) - 1) // 2]
    return steps if budget == SAME_STEPS else max(1, round(steps * middle / size))


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Train with every size and both budgets."""
    heads = Heads(options.config, options.classes, say=progress)
    steps = options.config.max_steps or STEPS

    def measure(setting: Mapping[str, Any]) -> Measured:
        size, loss = setting["size"], read_contestant(setting["loss"])
        classes, images = heads.rows[0].num_classes, len(heads.rows[0])
        sampler = SamplerConfig(kind="plain", batch_size=size)
        if compares_samples(loss):
            sampler = SamplerConfig(kind="pk", k=options.config.sampler.k, p=size // options.config.sampler.k)
            sampler = replace(sampler, batch_size=size)
        if size > images or (sampler.p or 0) > classes:
            raise ConfigError(f"batches of {size} are too large for {images:,} training images of {classes:,} classes")
        count = steps_for(size, options.sizes, steps, setting["budget"])
        return {**heads.train(loss, setting["seed"], sampler=sampler, steps=count), "steps": count}

    settings = [
        {"budget": budget, "loss": loss, "size": size, "seed": seed}
        for budget in (SAME_STEPS, SAME_IMAGES)
        for loss in options.losses
        for size in options.sizes
        for seed in options.all_seeds
    ]
    before = cells([{"before": "training"}], lambda _: heads.start, folder, progress)[0]
    trainings = cells(settings, measure, folder, progress)
    rows = over_seeds(trainings, ["budget", "loss", "size"])
    drawing = Drawing(draw(rows, before[METRIC]), "Recall@1 on unseen classes by the size of the batch", wide=True)
    return Findings({"batch-size": rows, "trainings": trainings}, {"batch-size": drawing}, sentences(rows, options))


def draw(rows: list[Row], before: float) -> Figure:
    """Draw Recall@1 by size, a panel for each budget."""
    with style.figure(8.0, 3.6) as drawn:
        panels = drawn.subplots(1, 2, sharey=True)
        for axes, budget in zip(panels, (SAME_STEPS, SAME_IMAGES), strict=True):
            panel_rows = [row for row in rows if row["budget"] == budget]
            draw_lines(axes, panel_rows, "size", "loss", METRIC, before=before)
            axes.set(xlabel="images in a batch", title=budget)
        panels[1].set(ylabel="")
        name_lines(drawn, panels[0])
    return drawn


def sentences(rows: list[Row], options: Options) -> list[str]:
    """Describe the best size, and the sizes that are as good."""
    result = []
    for budget in (SAME_STEPS, SAME_IMAGES):
        for loss in options.losses:
            loss_rows = [row for row in rows if row["budget"] == budget and row["loss"] == loss]
            top, low = best(loss_rows, METRIC), min(loss_rows, key=lambda row: row[METRIC] or math.inf)
            result.append(
                f"With {budget}, {loss} is best with batches of {top['size']} (Recall@1 {per_cent(top, METRIC)} %) and "
                f"worst with {low['size']} ({per_cent(low, METRIC)} %); within a point of the best: "
                f"{listed([row['size'] for row in as_good(loss_rows, METRIC)])}."
            )
    return result
