"""Center loss with spread and with near-zero initial centres, with and without a softmax, against SphereFace.

Center loss pulls every sample to the running mean of its class, and pushes nothing apart: by itself, it has the trivial
solution of a single point (Wen et al., A Discriminative Feature Learning Approach, 2016, add it to a softmax). Do
centres that start far apart prevent that? The study trains on a few characters in two dimensions. SphereFace (Liu et
al., 2017) has an angular margin instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from torch import Tensor, nn

from nearfar.evaluation import retrieval_metrics
from nearfar.losses import CenterLoss
from nearfar.report import style
from nearfar.studies.boundary_figures import STYLES
from nearfar.studies.study import Drawing, Findings, Progress, Row, StudyOptions, cells
from nearfar.studies.toy import Toy, characters, spread, train
from nearfar.training.build import build_loss
from nearfar.training.config import LossConfig, option
from nearfar.training.options import ConfigError

Floats = npt.NDArray[np.float64]
NEAR_ZERO = 1e-3  # standard deviation of near-zero centres; the features start at about 1
POINTS = 60  # points of a curve


@dataclass(frozen=True)
class Variant:
    """A sum of losses, and its initial centres, if any."""

    name: str
    losses: tuple[str, ...]
    centres: str | None = None


VARIANTS = (
    Variant("Softmax", ("softmax",)),
    Variant("Center, spread", ("center",), "spread"),
    Variant("Center, near zero", ("center",), "near zero"),
    Variant("Softmax + Center, spread", ("softmax", "center"), "spread"),
    Variant("Softmax + Center, near zero", ("softmax", "center"), "near zero"),
    Variant("Modified softmax", ("modified",)),
    Variant("SphereFace", ("sphereface",)),
)


@dataclass(frozen=True)
class Options(StudyOptions):
    """The options of the toy and of the losses."""

    seeds: int = option(3, "trainings of every variant, with consecutive seeds from `seed`")
    weight: float = option(0.1, "λ, the weight of Center loss beside the softmax; by itself it is 1")
    alpha: float = option(0.5, "rate at which centres follow the means of their classes")
    radius: float = option(2.0, "radius of spread centres")
    margin: float = option(4.0, "SphereFace's m")
    lambda_min: float = option(5.0, "final weight of the softmax beside SphereFace's margin; 0.1: hardly any")
    classes: int = option(5, "characters")
    steps: int = option(600, "training steps")

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.classes < 3 or self.steps < 1 or self.lambda_min <= 0:
            raise ConfigError("centres needs at least 1 seed, 3 classes and 1 step, and a positive lambda_min")

    def small(self) -> Self:
        return replace(self, seeds=1, classes=3, steps=40)


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Train every variant with every seed; draw the first seed."""
    by_name = {variant.name: variant for variant in VARIANTS}
    seeds = range(options.seed, options.seed + options.seeds)
    toys = {seed: characters(options.classes, seed) for seed in seeds}

    def measure(setting: Mapping[str, Any]) -> dict[str, Any]:
        return trained(by_name[setting["variant"]], toys[setting["seed"]], setting["seed"], options)

    settings = [{"variant": name, "seed": seed} for name in by_name for seed in seeds]
    results = cells(settings, measure, folder, progress)
    ends: list[Row] = [{key: row[key] for key in ("variant", "seed", *ENDS)} for row in results]
    curves: list[Row] = [
        {"variant": row["variant"], "seed": row["seed"], "step": step, "within": within, "between": between}
        for row in results
        for step, within, between in row["curve"]
    ]
    first = [row for row in results if row["seed"] == options.seed]
    toy = toys[options.seed]
    drawn = {
        "features": Drawing(
            _features(first, toy),
            "Features of the first seed, held-out images. Each panel has its own scale.",
            wide=True,
        ),
        "separation": Drawing(
            _separation(curves, options.seed), "Distance between the means of classes by step, relative to the start."
        ),
    }
    return Findings({"ends": ends, "curves": curves}, drawn, _sentences(ends))


ENDS = ("start between", "between", "within", "accuracy", "recall@1")


def trained(variant: Variant, toy: Toy, seed: int, options: Options) -> dict[str, Any]:
    """Train a variant, and measure distances between classes, widths of classes, accuracy and features."""
    labels = toy.labels[~toy.held_out]
    curve: list[tuple[int, float, float]] = []
    every = max(1, options.steps // POINTS)

    def after(step: int, embeddings: Tensor) -> None:
        if step % every == 0:
            within, between = widths(embeddings, labels)
            curve.append((step, round(within, 6), round(between, 6)))

    features, _ = train(toy, lambda: make_loss(variant, options), 2, options.steps, seed, after)
    within, between = widths(features[toy.held_out], toy.labels[toy.held_out])
    means = class_means(features[~toy.held_out], labels)
    nearest = torch.cdist(features[toy.held_out].double(), means).argmin(1)
    held = toy.labels[toy.held_out]
    metrics = retrieval_metrics(features[toy.held_out].numpy(), held.numpy(), (1,), progress=False)
    return {
        "start between": curve[0][2],
        "between": between,
        "within": within,
        "accuracy": float((nearest == held).double().mean()),
        "recall@1": float(metrics["recall@1"]),
        "curve": curve,
        "features": np.round(features[toy.held_out].double().numpy(), 5).tolist() if seed == options.seed else None,
    }


def make_loss(variant: Variant, options: Options) -> nn.Module:
    """Build the loss of a variant with its initial centres."""
    only_center = variant.losses == ("center",)
    low, fall = options.lambda_min, 1500 / (options.lambda_min * options.steps)  # reached after 2/3 of the steps
    configs = {
        "softmax": LossConfig("SoftmaxLoss"),
        "modified": LossConfig("ModifiedSoftmaxLoss"),
        "center": LossConfig("CenterLoss", {"alpha": options.alpha}, weight=1.0 if only_center else options.weight),
        "sphereface": LossConfig("SphereFaceLoss", {"margin": options.margin, "lambda_min": low, "decay": fall}),
    }
    loss = build_loss(tuple(configs[name] for name in variant.losses), options.classes, 2)
    for part in loss.modules():
        if isinstance(part, CenterLoss):
            if variant.centres == "spread":
                part.centers.copy_(options.radius * spread(options.classes, 2))
            else:
                part.centers.normal_(0, NEAR_ZERO)
    return loss


def class_means(features: Tensor, labels: Tensor) -> Tensor:
    """The mean (classes, D) of every class."""
    return torch.stack([features[labels == label].double().mean(0) for label in range(int(labels.max()) + 1)])


def widths(features: Tensor, labels: Tensor) -> tuple[float, float]:
    """The mean distance of samples to the mean of their class, and the mean distance between class means."""
    means = class_means(features, labels)
    within = float((features.double() - means[labels]).norm(dim=1).mean())
    return within, float(torch.pdist(means).mean())


def _sentences(ends: Sequence[Mapping[str, Any]]) -> list[str]:
    def mean(variant: str, key: str) -> float:
        return float(np.mean([row[key] for row in ends if row["variant"] == variant]))

    narrow = {v.name: mean(v.name, "within") / mean(v.name, "between") for v in VARIANTS}
    collapsed = [name for name, ratio in narrow.items() if ratio > 1]
    sentences = [
        "Width of a class over the distance between classes, held-out images: "
        + ", ".join(f"{name} {ratio:.2f}" for name, ratio in narrow.items())
        + f". Collapsed (wider than the distance): {'; '.join(collapsed) or 'none'}.",
        "Distance between classes: " + ", ".join(f"{v.name} {mean(v.name, 'between'):.3g}" for v in VARIANTS) + ".",
    ]
    sentences.append(
        "Accuracy of the nearest class mean: "
        + ", ".join(f"{v.name} {100 * mean(v.name, 'accuracy'):.0f} %" for v in VARIANTS)
        + "."
    )
    spread_, zero = (narrow[f"Softmax + Center, {start}"] for start in ("spread", "near zero"))
    sentences.append(
        f"Beside a softmax, the initial centres matter "
        f"{'little' if abs(spread_ - zero) < 0.25 * max(spread_, zero) else 'much'} ({spread_:.2f} spread, {zero:.2f} "
        f"near zero); without Center loss the ratio is {narrow['Softmax']:.2f}, with SphereFace "
        f"{narrow['SphereFace']:.2f}."
    )
    return sentences


def _features(rows: Sequence[Mapping[str, Any]], toy: Toy) -> Figure:
    labels = toy.labels[toy.held_out].numpy()
    with style.figure(9.6, 5.2) as drawn:
        panels = drawn.subplots(2, 4).ravel()
        for axes in panels[len(rows) :]:
            axes.set_axis_off()
        for axes, row in zip(panels, rows, strict=False):
            points = np.array(row["features"])
            for label in range(toy.classes):
                colour, _, marker = STYLES[label] if toy.classes <= len(STYLES) else (f"C{label}", "", "o")
                x, y = points[labels == label].T
                axes.plot(x, y, marker, color=colour, markersize=3.5, alpha=0.8, markeredgewidth=0)
            reach = 1.12 * float(np.abs(points).max())
            axes.plot(0, 0, "+", color="0.4", markersize=7)
            axes.set(title=row["variant"], xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
            axes.locator_params(nbins=3)
    return drawn


def _separation(curves: Sequence[Mapping[str, Any]], seed: int) -> Figure:
    with style.figure(style.WIDTH + 0.6, style.HEIGHT + 1.1) as drawn:
        axes = drawn.subplots()
        for variant, (colour, line, _) in zip(VARIANTS, (*STYLES, ("0.6", ":", "")), strict=True):
            variant_rows = [row for row in curves if row["variant"] == variant.name and row["seed"] == seed]
            x, y = (
                [row["step"] for row in variant_rows],
                [row["between"] / variant_rows[0]["between"] for row in variant_rows],
            )
            axes.plot(x, y, color=colour, linestyle=line, label=variant.name)
        axes.set(xlabel="step", ylabel="distance between classes / start", yscale="log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        drawn.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return drawn
