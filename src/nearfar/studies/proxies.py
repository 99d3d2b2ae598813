"""Several proxies for every class: do they help, and when?

A class of one kind of image needs one proxy. So the classes are also joined at random into larger ones, in training
alone: each then has several kinds of image, and several proxies have something to do. What is measured is always how
well unseen, unjoined classes are told apart.

ProxyAnchorLoss has SoftTriple's relaxed similarity here, where a class has several proxies.

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
"""What the losses that can have several vectors for a class call their number."""


@dataclass(frozen=True)
class Options(HeadOptions):
    """Of the study."""

    losses: tuple[str, ...] = option(("ProxyAnchorLoss", "SoftTripleLoss"), f"losses, of {', '.join(ARGUMENTS)}")
    proxies: tuple[int, ...] = option((1, 2, 3, 5, 10), "of every class")
    joined: tuple[int, ...] = option((1, 4), "training classes that are made one; 1: as they are")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values in (("proxies", self.proxies), ("joined", self.joined)):
            if not values or min(values) < 1:
                raise ConfigError(f"{name} are whole numbers from 1 on, not {values}")
        for loss in self.losses:
            if loss not in ARGUMENTS:
                raise ConfigError(f"{loss} has one vector for every class: {suggestion(loss, ARGUMENTS)}")

    def small(self) -> Self:
        config = replace(self.config, max_steps=8)
        return replace(self, proxies=(1, 3), joined=(1, 2), seeds=2, classes=20, config=config)


def joined_labels(labels: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Labels of larger classes, each of `count` of the classes, drawn at random; the last one may be smaller.

    >>> np.bincount(joined_labels(np.arange(10).repeat(3), 4, seed=0))
    array([12, 12,  6])
    """
    classes = np.unique(labels)
    order = np.argsort(np.random.default_rng([seed, count]).permutation(len(classes))) if count > 1 else classes
    place: NDArray[np.int64] = np.asarray(order)[np.searchsorted(classes, labels)] // count
    return place


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Train with every number of proxies, on classes as they are and joined."""
    heads = Heads(options.config, options.classes, say=progress)

    @functools.lru_cache(maxsize=1)
    def fold(count: int, seed: int) -> Fold:
        plain = heads.workbench.folds[0]
        return heads.workbench.relabelled(plain, joined_labels(plain.train.labels, count, seed))

    def measure(setting: Mapping[str, Any]) -> Measured:
        own = fold(setting["joined"], setting["seed"])
        sampler = fewer_classes(heads.workbench.config.sampler, own.train.num_classes)
        loss = LossConfig(setting["loss"], {ARGUMENTS[setting["loss"]]: setting["proxies"]})
        return heads.train(loss, setting["seed"], fold=own, sampler=sampler)

    settings = [
        {"joined": count, "seed": seed, "loss": loss, "proxies": number}
        for count in options.joined
        for seed in options.all_seeds
        for loss in options.losses
        for number in options.proxies
    ]
    before = cells([{"before": "training"}], lambda _: heads.start, folder, progress)[0]
    found = cells(settings, measure, folder, progress)
    rows = over_seeds(found, ["joined", "loss", "proxies"])
    drawing = Drawing(
        draw(rows, before[METRIC], options), "Recall@1 on unseen classes by the number of proxies", wide=True
    )
    return Findings({"proxies": rows, "trainings": found}, {"proxies": drawing}, sentences(rows, options))


def fewer_classes(sampler: SamplerConfig, classes: int) -> SamplerConfig:
    """About the same size of batches, with more images of a class where there are too few classes."""
    assert sampler.p is not None and sampler.batch_size is not None
    p = min(sampler.p, classes)
    k = max(sampler.batch_size // p, sampler.k)
    return replace(sampler, p=p, k=k, batch_size=p * k)


def draw(rows: list[Row], before: float, options: Options) -> Figure:
    """Recall@1 by the number of proxies, a panel for each number of classes joined."""
    with style.figure(4.0 * len(options.joined), 3.6) as drawn:
        panels = drawn.subplots(1, len(options.joined), sharey=True, squeeze=False)[0]
        for axes, count in zip(panels, options.joined, strict=True):
            own = [row for row in rows if row["joined"] == count]
            draw_lines(axes, own, "proxies", "loss", METRIC, before=before, spread=np.log2)
            axes.set(xlabel="proxies of every class", ylabel="", title=_panel(count))
        panels[0].set(ylabel="Recall@1 in %")
        name_lines(drawn, panels[0])
    return drawn


def _panel(count: int) -> str:
    return "classes as they are" if count == 1 else f"classes joined by {count}"


def sentences(rows: list[Row], options: Options) -> list[str]:
    """What several proxies gave over one."""
    result = []
    for count in options.joined:
        for loss in options.losses:
            own = [row for row in rows if row["joined"] == count and row["loss"] == loss]
            top = best(own, METRIC)
            text = f"{loss}, {_panel(count)}: best with {top['proxies']} a class, Recall@1 {per_cent(top, METRIC)} %"
            if top["proxies"] != 1 and 1 in options.proxies:
                single = one(own, proxies=1)
                text += f"; {per_cent(single, METRIC)} % with one"
            result.append(text + ".")
    return result
