"""How losses converge: similarities and Recall@1 by steps and by seconds, and where pairs cross the boundary.

Heads are trained on cached features with several losses, from the same start. On the way: the mean similarity of
positive and of negative pairs (Sun et al., Circle Loss, 2020, Fig. 4), and Recall@1 on the test classes (Kim et al.,
Proxy Anchor Loss, 2020, Fig. 1), which decides nothing. Then, for AM-Softmax and Circle with class vectors, where the
pairs of training images come to lie: when they first cross the boundary of their loss, and in the end (Circle Loss,
Fig. 5).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nearfar.compare.ground import Fold, Ground
from nearfar.compare.spaces import CLASS_FORM, read_contestant
from nearfar.compare.statistics import half_width
from nearfar.studies import convergence_figures as figures
from nearfar.studies import crossing
from nearfar.studies.heads import Heads, measured
from nearfar.studies.study import Drawing, Findings, HeadOptions, Progress, Row, cells
from nearfar.training.config import option
from nearfar.training.learner import Learner, Step
from nearfar.training.options import ConfigError
from nearfar.training.recorder import mean_similarities

LOSSES = (
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "MultiSimilarityLoss",
    "TripletMarginLoss",
    "AMSoftmaxLoss",
    f"CircleLoss{CLASS_FORM}",
)
NEARLY = 0.9  # of the way from the start to the best end
MOST_LOSSES = len(LOSSES)


@dataclass(frozen=True)
class Options(HeadOptions):
    """What is trained, and how often it is looked at."""

    classes: int | None = option(200, "use so many training and so many test classes alone, the first ones")
    losses: tuple[str, ...] = option(LOSSES, "to compare, up to six; CircleLoss/class is the form with class vectors")
    steps: int = option(240, "of a training")
    looks: int = option(12, "at the test classes, on the way")
    tracked: int = option(400, "training images whose pairs are followed to the boundary; 0: none")
    am_margin: float = option(0.35, "AM-Softmax's m, for the pairs at the boundary")
    circle_margins: tuple[float, ...] = option((0.325, 0.25), "Circle's m; the first touches AM-Softmax's boundary")
    gamma: float = option(64.0, "scale of both, for the pairs at the boundary")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.looks <= self.steps:
            raise ConfigError(f"there are {self.steps} steps to look at, from 1 to as many looks, not {self.looks}")
        if not 1 <= len(self.losses) <= MOST_LOSSES:
            raise ConfigError(f"convergence shows 1 to {MOST_LOSSES} losses, not {len(self.losses)}")
        for name in self.losses:
            read_contestant(name)

    def small(self) -> Self:
        losses = ("ProxyAnchorLoss", f"CircleLoss{CLASS_FORM}")
        return replace(self, seeds=1, classes=12, losses=losses, steps=12, looks=3, tracked=40, circle_margins=(0.325,))

    @property
    def look_at(self) -> list[int]:
        """The steps after which the test classes are looked at; the last one is among them."""
        return sorted({round(self.steps * (number + 1) / self.looks) for number in range(self.looks)})


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Curves of every loss and seed; pairs at the boundary of the first seed."""
    heads = Heads(replace(options.config, seed=options.seed), options.classes, say=progress)
    curves = cells(
        [{"loss": name, "seed": seed} for name in options.losses for seed in options.all_seeds],
        lambda setting: train_curve(heads, setting["loss"], setting["seed"], options),
        folder,
        progress,
    )
    steps = curve_rows(curves)
    tables: dict[str, Sequence[Row]] = {"curves": steps, "seconds": second_rows(curves), "ends": end_rows(curves)}
    drawn = {
        "recall": Drawing(
            figures.recall(curves, options.losses), "Recall@1 on test classes, by steps and by seconds.", wide=True
        ),
        "similarities": Drawing(
            figures.similarities(curves, options.losses),
            "Mean similarity in training batches, of positive pairs (left) and of negative pairs (right).",
            wide=True,
        ),
    }
    sentences = _about_curves(curves, options)
    if options.tracked:
        members = crossing.members(options.am_margin, options.circle_margins, options.gamma)
        found = cells(
            [{"pairs of": name, "seed": options.seed} for name in members],
            lambda setting: crossing.track(
                heads, members[setting["pairs of"]], options.tracked, options.steps, setting["seed"]
            ),
            folder,
            progress,
        )
        tables["pairs"] = crossing.rows(found)
        drawn["pairs"] = Drawing(
            figures.pairs(found, {name: crossing.line(member) for name, member in members.items()}),
            "Training images by their similarity to their own class vector (sₚ) and to the nearest other (sₙ): when "
            "they first cross the boundary (dashed), and after the last step.",
            wide=True,
        )
        sentences += [crossing.sentence(row) for row in found]
    return Findings(tables, drawn, sentences)


# Curves


class Recorder:
    """Follows a training: similarities of every batch, Recall@1 at some steps, and seconds without the looks."""

    def __init__(self, ground: Ground, fold: Fold, look_at: Sequence[int]):
        self._ground, self._fold, self._look_at = ground, fold, set(look_at)
        self.similarities: list[tuple[float, float]] = []
        self.looks: list[tuple[int, float, float | None]] = [(0, 0.0, self._recall())]
        self._seconds = 0.0

    def __call__(self, learner: Learner, step: Step, seconds: float) -> None:
        self._seconds += seconds
        self.similarities.append(mean_similarities(step.embeddings, step.labels))
        if learner.done in self._look_at:
            self.looks.append((learner.done, self._seconds, self._recall()))

    def _recall(self) -> float | None:
        return measured(self._ground.embeddings(self._fold), self._fold.val)["recall@1"]


def train_curve(heads: Heads, name: str, seed: int, options: Options) -> dict[str, Any]:
    """One training, followed."""
    ground = heads.ground
    fold = ground.folds[0]
    ground.begin(fold)
    recorder = Recorder(ground, fold, options.look_at)
    heads.train(read_contestant(name), seed, steps=options.steps, look=dict, after=recorder)
    steps, seconds, recall = zip(*recorder.looks, strict=True)
    s_p, s_n = zip(*recorder.similarities, strict=True)
    return {
        "looked at": steps,
        "seconds": [round(value, 4) for value in seconds],
        "recall@1": recall,
        "s_p": [round(value, 6) for value in s_p],
        "s_n": [round(value, 6) for value in s_n],
    }


def curve_rows(curves: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Step by step; Recall@1 where it was looked at."""
    rows: list[Row] = []
    for curve in curves:
        recall = dict(zip(curve["looked at"], curve["recall@1"], strict=True))
        rows += [
            {"loss": curve["loss"], "seed": curve["seed"], "step": step, "s_p": s_p, "s_n": s_n,
             "recall@1": recall.get(step)}
            for step, (s_p, s_n) in enumerate(zip(curve["s_p"], curve["s_n"], strict=True), 1)
        ]  # fmt: skip
    return rows


def second_rows(curves: Sequence[Mapping[str, Any]]) -> list[Row]:
    """When it was looked at. A table of its own, as seconds differ from run to run."""
    return [
        {"loss": curve["loss"], "seed": curve["seed"], "step": step, "seconds": seconds}
        for curve in curves
        for step, seconds in zip(curve["looked at"], curve["seconds"], strict=True)
    ]


def end_rows(curves: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Where every training ended."""
    return [
        {"loss": curve["loss"], "seed": curve["seed"], "start recall@1": curve["recall@1"][0],
         "recall@1": curve["recall@1"][-1], "s_p": curve["s_p"][-1], "s_n": curve["s_n"][-1]}
        for curve in curves
    ]  # fmt: skip


def _about_curves(curves: Sequence[Mapping[str, Any]], options: Options) -> list[str]:
    def of(name: str) -> NDArray[np.float64]:
        return np.array([curve["recall@1"] for curve in curves if curve["loss"] == name], float)

    start = float(np.mean([of(name)[:, 0].mean() for name in options.losses]))
    ends = {name: float(of(name)[:, -1].mean()) for name in options.losses}
    best = max(ends, key=ends.__getitem__)
    aim = start + NEARLY * (ends[best] - start)
    ended = []
    for name in options.losses:
        width = half_width(of(name)[:, -1])
        shown = "" if np.isnan(width) else f" ± {100 * width:.1f}"
        ended.append(f"{name} {100 * ends[name]:.1f}{shown}")
    reached = []
    for name in options.losses:
        there = np.flatnonzero(of(name).mean(0) >= aim)
        own = next(curve for curve in curves if curve["loss"] == name)
        words = "never" if not len(there) else f"{own['looked at'][there[0]]} steps"
        reached.append(f"{name} {words}")
    return [
        f"Recall@1 starts at {100 * start:.1f} % and ends, in per cent, at: {', '.join(ended)}.",
        f"{100 * NEARLY:.0f} % of the way from the start to the best end ({best}) is reached after: "
        f"{', '.join(reached)}.",
        "In the end, mean similarities of positive and of negative pairs are: "
        + ", ".join(f"{name} {s_p:.2f} and {s_n:.2f}" for name, (s_p, s_n) in _last(curves, options).items())
        + ".",
    ]


def _last(curves: Sequence[Mapping[str, Any]], options: Options, steps: int = 10) -> dict[str, tuple[float, float]]:
    """Mean similarities over the last steps and all seeds."""

    def mean(name: str, key: str) -> float:
        return float(np.mean([curve[key][-steps:] for curve in curves if curve["loss"] == name]))

    return {name: (mean(name, "s_p"), mean(name, "s_n")) for name in options.losses}
