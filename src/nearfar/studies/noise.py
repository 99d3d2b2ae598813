"""Label noise: a share of the training images gets the label of another class. Proxies against pairs.

The images and their wrong labels are drawn for every seed, the same for all losses. Test labels do not change. Proxies
are often said to be more robust to noise: a proxy averages over its class, while a pair loss compares single pairs, and
the hardest are likely to be wrong.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nearfar.compare.spaces import has_proxies, read_contestant
from nearfar.compare.workbench import Fold
from nearfar.report import style
from nearfar.studies.heads import Heads, Measured
from nearfar.studies.study import Drawing, Findings, HeadOptions, Progress, cells
from nearfar.studies.sweep import Row, draw_lines, name_lines, one, over_seeds, per_cent
from nearfar.training.config import option
from nearfar.training.options import ConfigError

METRIC = "recall@1"
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Options(HeadOptions):
    """The options of the study."""

    losses: tuple[str, ...] = option(
        ("ProxyAnchorLoss", "NormFaceLoss", "MultiSimilarityLoss", "CircleLoss"), "losses to compare"
    )
    shares: tuple[float, ...] = option((0.0, 0.1, 0.2, 0.3, 0.4, 0.5), "shares of training images with a wrong label")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shares or min(self.shares) < 0 or max(self.shares) > 1:
            raise ConfigError(f"shares must be from 0 to 1, at least one, not {self.shares}")
        for name in self.losses:
            read_contestant(name)

    def small(self) -> Self:
        config = replace(self.config, max_steps=10)
        losses = ("ProxyAnchorLoss", "CircleLoss")
        return replace(self, losses=losses, shares=(0.0, 0.5), seeds=2, classes=20, config=config)


def mislabelled(labels: Labels, share: float, seed: int) -> Labels:
    """Replace exactly this share of the labels, rounded, by other classes, drawn uniformly.

    >>> (mislabelled(np.arange(10) % 5, 0.4, seed=0) != np.arange(10) % 5).sum()
    np.int64(4)
    """
    rng = np.random.default_rng([seed, round(1e6 * share)])
    classes = np.unique(labels)
    rows = rng.permutation(len(labels))[: round(share * len(labels))]
    number = np.searchsorted(classes, labels[rows])
    result = labels.copy()
    result[rows] = classes[(number + rng.integers(1, len(classes), size=len(rows))) % len(classes)]
    return result


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Train every loss on every share."""
    heads = Heads(options.config, options.classes, say=progress)

    @functools.lru_cache(maxsize=1)
    def noisy(share: float, seed: int) -> Fold:
        fold = heads.workbench.folds[0]
        return heads.workbench.relabelled(fold, mislabelled(fold.train.labels, share, seed))

    def measure(setting: Mapping[str, Any]) -> Measured:
        fold = noisy(setting["share"], setting["seed"])
        wrong = int(np.count_nonzero(fold.train.labels != heads.workbench.folds[0].train.labels))
        return {**heads.train(read_contestant(setting["loss"]), setting["seed"], fold=fold), "wrong labels": wrong}

    settings = [
        {"share": share, "seed": seed, "loss": loss}
        for share in options.shares
        for seed in options.all_seeds
        for loss in options.losses
    ]
    before = cells([{"before": "training"}], lambda _: heads.start, folder, progress)[0]
    trainings = cells(settings, measure, folder, progress)
    rows = over_seeds(trainings, ["loss", "share"])
    return Findings(
        {"noise": rows, "trainings": trainings},
        {"noise": Drawing(draw(rows, before[METRIC]), "Recall@1 on unseen classes by the share of wrong labels")},
        sentences(rows, options),
    )


def draw(rows: list[Row], before: float) -> Figure:
    """Draw Recall@1 by the share."""
    with style.figure(5.0, 3.8) as drawn:
        axes = drawn.subplots()
        draw_lines(axes, rows, "share", "loss", METRIC, before=before, shown=lambda share: f"{100 * share:g} %")
        axes.set(xlabel="training images with a wrong label")
        name_lines(drawn, axes, columns=2)
    return drawn


def sentences(rows: list[Row], options: Options) -> list[str]:
    """Describe the loss of accuracy of each loss, and which kind loses less."""
    low, high = min(options.shares), max(options.shares)
    if low == high:
        return []
    lost: dict[str, float] = {}
    result = []
    for loss in options.losses:
        first, last = (one(rows, loss=loss, share=share) for share in (low, high))
        if first[METRIC] is None or last[METRIC] is None:
            result.append(f"{loss} diverged.")
            continue
        lost[loss] = 100 * (first[METRIC] - last[METRIC])
        result.append(
            f"{loss}: Recall@1 {per_cent(first, METRIC)} % with {100 * low:g} % wrong labels, "
            f"{per_cent(last, METRIC)} % with {100 * high:g} %: {lost[loss]:.1f} points lost."
        )
    kinds = {
        kind: [lost[loss] for loss in lost if has_proxies(read_contestant(loss)) == own]
        for kind, own in (("proxies", True), ("pairs", False))
    }
    if all(kinds.values()):
        means = {kind: float(np.mean(values)) for kind, values in kinds.items()}
        less, more = sorted(means, key=lambda kind: means[kind])
        apart = means[more] - means[less]
        verdict = f"{less} were more robust here" if apart > 1 else "no relevant difference"
        result.append(
            f"On average over these losses, {less} lost {means[less]:.1f} points and {more} {means[more]:.1f}: "
            f"{verdict}."
        )
    return result
