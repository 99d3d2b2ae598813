"""Several proxies per class: do they help, and when?

A class with one kind of image needs only one proxy. So the training classes are also merged at random into larger ones,
which have several kinds of image. Evaluation always uses unseen classes, which are not merged.

With several proxies, ProxyAnchorLoss uses SoftTriple's relaxed similarity.

Reference: Q. Qian et al., SoftTriple Loss, ICCV 2019, arXiv:1909.05235 (10 centres a class).
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nearfar.compare.workbench import Fold
from nearfar.foundation.suggestions import suggestion
from nearfar.report import style
from nearfar.studies.heads import Heads, Measured
from nearfar.studies.study import Drawing, Findings, HeadOptions, Progress, cells
from nearfar.studies.sweep import Row, best, draw_lines, name_lines, one, over_seeds, per_cent
from nearfar.training.config import LossConfig, SamplerConfig, option
from nearfar.training.options import ConfigError

METRIC = "recall@1"
ARGUMENTS = {
    "ProxyAnchorLoss": "proxies_per_class",
    "SoftTripleLoss": "centers_per_class",
    "SubCenterArcFaceLoss": "sub_centers",
}
"""The argument for the number of vectors per class, by loss."""


@dataclass(frozen=True)
class Options(HeadOptions):
    """The options of the study."""

    losses: tuple[str, ...] = option(("ProxyAnchorLoss", "SoftTripleLoss"), f"losses, among {', '.join(ARGUMENTS)}")
    proxies: tuple[int, ...] = option((1, 2, 3, 5, 10), "proxies of every class")
    joined: tuple[int, ...] = option((1, 4), "training classes to merge into one; 1: none")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values in (("proxies", self.proxies), ("joined", self.joined)):
            if not values or min(values) < 1:
                raise ConfigError(f"{name} must be whole numbers from 1, not {values}")
        for loss in self.losses:
            if loss not in ARGUMENTS:
                raise ConfigError(f"{loss} has only one vector per class: {suggestion(loss, ARGUMENTS)}")

    def small(self) -> Self:
        config = replace(self.config, max_steps=8)
        return replace(self, proxies=(1, 3), joined=(1, 2), seeds=2, classes=20, config=config)


def joined_labels(labels: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Labels of larger classes, each merged from `count` random classes; the last one may be smaller.

    >>> np.bincount(joined_labels(np.arange(10).repeat(3), 4, seed=0))
    array([12, 12,  6])
    """
    classes = np.unique(labels)
    order = np.argsort(np.random.default_rng([seed, count]).permutation(len(classes))) if count > 1 else classes
    place: NDArray[np.int64] = np.asarray(order)[np.searchsorted(classes, labels)] // count
    return place


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Train with every number of proxies, on original and on merged classes."""
    heads = Heads(options.config, options.classes, say=progress)

    @functools.lru_cache(maxsize=1)
    def fold(count: int, seed: int) -> Fold:
        plain = heads.workbench.folds[0]
        return heads.workbench.relabelled(plain, joined_labels(plain.train.labels, count, seed))

    def measure(setting: Mapping[str, Any]) -> Measured:
        merged = fold(setting["joined"], setting["seed"])
        sampler = fewer_classes(heads.workbench.config.sampler, merged.train.num_classes)
        loss = LossConfig(setting["loss"], {ARGUMENTS[setting["loss"]]: setting["proxies"]})
        return heads.train(loss, setting["seed"], fold=merged, sampler=sampler)

    settings = [
        {"joined": count, "seed": seed, "loss": loss, "proxies": number}
        for count in options.joined
        for seed in options.all_seeds
        for loss in options.losses
        for number in options.proxies
    ]
    before = cells([{"before": "training"}], lambda _: heads.start, folder, progress)[0]
    trainings = cells(settings, measure, folder, progress)
    rows = over_seeds(trainings, ["joined", "loss", "proxies"])
    drawing = Drawing(
        draw(rows, before[METRIC], options), "Recall@1 on unseen classes by the number of proxies", wide=True
    )
    return Findings({"proxies": rows, "trainings": trainings}, {"proxies": drawing}, sentences(rows, options))


def fewer_classes(sampler: SamplerConfig, classes: int) -> SamplerConfig:
    """Batches of about the same size, with more images of a class if there are too few classes."""
    assert sampler.p is not None and sampler.batch_size is not None
    p = min(sampler.p, classes)
    k = max(sampler.batch_size // p, sampler.k)
    return replace(sampler, p=p, k=k, batch_size=p * k)


def draw(rows: list[Row], before: float, options: Options) -> Figure:
    """Draw Recall@1 by the number of proxies, a panel for each number of merged classes."""
    with style.figure(4.0 * len(options.joined), 3.6) as drawn:
        panels = drawn.subplots(1, len(options.joined), sharey=True, squeeze=False)[0]
        for axes, count in zip(panels, options.joined, strict=True):
            panel_rows = [row for row in rows if row["joined"] == count]
            draw_lines(axes, panel_rows, "proxies", "loss", METRIC, before=before, spread=np.log2)
            axes.set(xlabel="proxies of every class", ylabel="", title=_panel(count))
        panels[0].set(ylabel="Recall@1 in %")
        name_lines(drawn, panels[0])
    return drawn


def _panel(count: int) -> str:
    return "original classes" if count == 1 else f"{count} classes merged"


def sentences(rows: list[Row], options: Options) -> list[str]:
    """Describe the gain of several proxies over one."""
    result = []
    for count in options.joined:
        for loss in options.losses:
            loss_rows = [row for row in rows if row["joined"] == count and row["loss"] == loss]
            top = best(loss_rows, METRIC)
            text = f"{loss}, {_panel(count)}: best with {top['proxies']} a class, Recall@1 {per_cent(top, METRIC)} %"
            if top["proxies"] != 1 and 1 in options.proxies:
                single = one(loss_rows, proxies=1)
                text += f"; {per_cent(single, METRIC)} % with one"
            result.append(text + ".")
    return result
