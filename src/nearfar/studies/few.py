"""The number of samples per class: how much do heads gain by more of them?

A number of images of each training class is drawn for every seed, the same images for all losses; the head's start
uses only these, too. All trainings have the same number of steps.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nearfar.compare.spaces import read_contestant
from nearfar.compare.workbench import Fold
from nearfar.data import Table
from nearfar.report import style
from nearfar.studies.heads import Heads, Measured, measured
from nearfar.studies.study import Drawing, Findings, HeadOptions, Progress, cells
from nearfar.studies.sweep import Row, as_good, draw_lines, name_lines, one, over_seeds, per_cent
from nearfar.training.config import SamplerConfig, option
from nearfar.training.options import ConfigError

METRIC = "recall@1"
BEFORE = "before training"


@dataclass(frozen=True)
class Options(HeadOptions):
    """The options of the study."""

    losses: tuple[str, ...] = option(("ProxyAnchorLoss", "MultiSimilarityLoss", "CircleLoss"), "losses to compare")
    samples: tuple[int, ...] = option((2, 3, 4, 6, 8, 12, 16), "images of every training class")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.samples or min(self.samples) < 2:
            raise ConfigError(f"samples must be at least 2 images of a class, to form pairs, not {self.samples}")
        for name in self.losses:
            read_contestant(name)

    def small(self) -> Self:
        config = replace(self.config, max_steps=10)
        return replace(self, losses=("ProxyAnchorLoss",), samples=(4, 8), seeds=2, classes=20, config=config)


def large_enough(train: Table, samples: int, say: Progress) -> Table:
    """The rows of classes with enough images. Up to half of the classes may be left out, with a note; if more are too
    small, all are kept, and `chosen_rows` raises an error.
    """
    sizes = np.bincount(train.labels, minlength=len(train.label_names))
    enough = np.flatnonzero(sizes >= samples)
    if len(enough) == train.num_classes or 2 * len(enough) < train.num_classes:
        return train
    few = train.num_classes - len(enough)
    say(f"left out: {few:,} of {train.num_classes:,} training classes have fewer than {samples} images")
    return train.select(np.isin(train.labels, enough)).compact()


def chosen_rows(labels: NDArray[np.int64], samples: int, seed: int) -> NDArray[np.int64]:
    """Draw a number of rows of every class, in order. With the same seed, a larger sample contains a smaller one.

    >>> chosen_rows(np.array([0, 0, 0, 1, 1, 1]), 2, seed=0)
    array([0, 2, 3, 5])
    """
    sizes = np.bincount(labels)
    smallest = int(sizes[sizes > 0].min())
    if samples > smallest:
        raise ConfigError(
            f"some training classes have only {smallest} images: --samples must be at most {smallest}, not {samples}"
        )
    order = np.random.default_rng(seed).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    firsts = np.cumsum(sizes) - sizes
    place = np.arange(len(labels)) - np.repeat(firsts, sizes)
    return np.sort(by_class[place < samples])


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Train every loss on every number of samples."""
    heads = Heads(options.config, options.classes, say=progress)

    @functools.lru_cache(maxsize=1)
    def all_rows() -> tuple[Table, Table]:
        train, test = heads.rows
        return large_enough(train, max(options.samples), progress), test

    @functools.lru_cache(maxsize=1)
    def drawn(samples: int, seed: int) -> Fold:
        train, test = all_rows()
        return heads.workbench.fold(train.select(chosen_rows(train.labels, samples, seed)), test)

    def measure(setting: Mapping[str, Any]) -> Measured:
        samples, seed = setting["samples"], setting["seed"]
        fold = drawn(samples, seed)
        if setting["loss"] == BEFORE:
            heads.workbench.begin(fold)
            result = measured(heads.workbench.embeddings(fold), fold.val)
        else:
            sampler = smaller_groups(heads.workbench.config.sampler, samples, fold.train.num_classes)
            result = heads.train(read_contestant(setting["loss"]), seed, fold=fold, sampler=sampler)
        return {**result, "images": len(fold.train)}

    settings = [
        {"samples": samples, "seed": seed, "loss": loss}
        for samples in options.samples
        for seed in options.all_seeds
        for loss in (*options.losses, BEFORE)
    ]
    trainings = cells(settings, measure, folder, progress)
    rows = over_seeds(trainings, ["loss", "samples"])
    return Findings(
        {"few": rows, "trainings": trainings},
        {"few": Drawing(draw(rows), "Recall@1 on unseen classes by the number of images of each training class")},
        sentences(rows, options),
    )


def smaller_groups(sampler: SamplerConfig, samples: int, classes: int) -> SamplerConfig:
    """Batches of the same size, with at most `samples` images of a class."""
    assert sampler.batch_size is not None
    k = min(sampler.k, samples)
    p = min(sampler.batch_size // k, classes)
    return replace(sampler, k=k, p=p, batch_size=p * k)


def draw(rows: list[Row]) -> Figure:
    """Draw Recall@1 by the number of samples."""
    with style.figure(5.0, 3.8) as drawn:
        axes = drawn.subplots()
        draw_lines(axes, rows, "samples", "loss", METRIC, spread=np.log2, shown=lambda n: f"{n:g}")
        axes.set(xlabel="images of each training class")
        name_lines(drawn, axes, columns=2)
    return drawn


def sentences(rows: list[Row], options: Options) -> list[str]:
    """Describe the gain by more samples, and when it ends."""
    fewest, most = min(options.samples), max(options.samples)
    result = []
    for loss in (*options.losses, BEFORE):
        first, last = (one(rows, loss=loss, samples=samples) for samples in (fewest, most))
        enough = min(row["samples"] for row in as_good([row for row in rows if row["loss"] == loss], METRIC))
        result.append(
            f"{loss}: Recall@1 {per_cent(first, METRIC)} % with {fewest} images of a class, {per_cent(last, METRIC)} % "
            f"with {most}; {enough} are enough to come within a point of the best."
        )
    return result
