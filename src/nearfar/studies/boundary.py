"""Decision boundaries of the softmax family.

The target's logit by the angle to its class (SphereFace's ψ) and the boundaries between two classes, computed from the
losses themselves; embeddings of a few characters in two and three dimensions: the positions of classes on the circle
and the sphere, and the regions where the margin is kept; and boundaries of other shapes than Circle's, on whole small
networks. --parts chooses among angles, toys and shapes. (Liu et al., SphereFace, 2017; Wang et al., CosFace, 2018; Deng
et al., ArcFace, 2019; Sun et al., Circle Loss, 2020.)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor
from torch.nn.functional import normalize

from nearfar.foundation.suggestions import suggestion
from nearfar.report.page import Cell
from nearfar.studies import boundary_figures as figures
from nearfar.studies import convergence_figures, crossing, shapes
from nearfar.studies.margins import ANGLES, Floats, Member, family
from nearfar.studies.networks import NetworkOptions, Networks, setting_of
from nearfar.studies.study import Drawing, Findings, Progress, Row, cells
from nearfar.studies.toy import Toy, characters, class_loss, degrees, train
from nearfar.training.config import LossConfig, option
from nearfar.training.options import ConfigError

SHOWN_ANGLES = np.deg2rad(np.arange(5, 181, 5.0))  # angles to the other class at which boundaries are computed


PARTS = ("angles", "toys", "shapes")


@dataclass(frozen=True)
class Options(NetworkOptions):
    """The losses and the training of the toy."""

    parts: tuple[str, ...] = option(PARTS, "logits and boundaries by angle; toys to look at; shapes on whole networks")
    spherical: float = option(4.0, "SphereFace's m, which multiplies the angle")
    cosine: float = option(0.35, "CosFace's m, subtracted from the cosine")
    angular: float = option(0.5, "ArcFace's m, added to the angle, in radians")
    m: float = option(0.25, "Circle's m")
    scale: float = option(24.0, "scale of CosFace, ArcFace and Circle")
    toy_classes: int = option(5, "characters of the toy")
    toy_steps: int = option(600, "training steps of the toy")
    gamma: float = option(64.0, "scale of all shapes")
    tracked: int = option(200, "training images whose pairs are tracked to the boundary")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.toy_classes < 3 or self.toy_steps < 1:
            raise ConfigError("boundary needs toys of at least 3 classes and 1 step")
        if not 0 < self.m < 0.5:
            raise ConfigError(f"m = {self.m:g} must be between 0 and 0.5, so that T = (m, 1 - m) is a target")
        for part in self.parts:
            if part not in PARTS:
                raise ConfigError(f"boundary has no part {part}: {suggestion(part, PARTS)}")
        if not self.parts or self.tracked < 2:
            raise ConfigError(f"parts needs at least one of {', '.join(PARTS)}, and tracked at least 2 images")

    def small(self) -> Self:
        return replace(self, toy_classes=3, toy_steps=30, classes=8, steps=6, seeds=1, tracked=20)


@dataclass(frozen=True)
class Ended:
    """A trained toy: unit embeddings, unit class vectors, and the angles between them in degrees."""

    member: Member
    embeddings: Floats
    weight: Floats
    angles: Floats


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Run the chosen parts."""
    members = family(options.scale, options.spherical, options.cosine, options.angular, options.m)
    tables: dict[str, Sequence[Row]] = {}
    drawn: dict[str, Drawing] = {}
    sentences: list[str] = []
    if "angles" in options.parts:
        progress("logits and boundaries")
        tables |= {"logits": logits(members), "boundaries": boundaries(members)}
        drawn |= {
            "logits": Drawing(
                figures.logits(tables["logits"]), "The target's logit, over the scale, by the angle to its class."
            ),
            "boundaries": Drawing(
                figures.boundaries(tables["boundaries"]),
                "How far a sample may be from its own class, by its angle to another: below the line, the margin is "
                "kept.",
            ),
        }
        sentences.append(_about_angles(tables["boundaries"]))
    for part, make in (("toys", _toys), ("shapes", _shapes)):
        if part in options.parts:
            part_findings = make(members, options, folder, progress)
            tables, drawn = {**tables, **part_findings.tables}, {**drawn, **part_findings.figures}
            sentences = [*sentences, *part_findings.sentences]
    return Findings(tables, drawn, sentences)


def _toys(members: Sequence[Member], options: Options, folder: Path, progress: Progress) -> Findings:
    toy = characters(options.toy_classes, options.seed)
    ended = {}
    for dimension in (2, 3):
        for member in members:
            ended[dimension, member.name] = end(member, toy, dimension, options)
            progress(f"trained: {member.name} in {dimension} dimensions")
    measured = [_measured(each, toy, dimension) for (dimension, _), each in ended.items()]
    labels, held_out = toy.labels.numpy(), toy.held_out.numpy()
    drawn = {
        "circle": Drawing(
            figures.circle([ended[2, member.name] for member in members], labels, held_out),
            "Two dimensions. Dots: held-out images. Spokes: class vectors. Arcs: where the margin is kept.",
            wide=True,
        ),
        "sphere": Drawing(
            figures.sphere([ended[3, member.name] for member in members], labels, held_out),
            "Three dimensions, the whole sphere as a map. Coloured: where the margin is kept. Stars: class vectors.",
            wide=True,
        ),
    }
    return Findings({"toys": measured}, drawn, _about_toys(measured))


def _shapes(members: Sequence[Member], options: Options, folder: Path, progress: Progress) -> Findings:
    networks = Networks(options.config, options.classes)
    compared = shapes.shapes(options.m, options.gamma)
    trainings = cells(
        [{"pairs of": name, "seed": seed} for seed in options.all_seeds for name in compared],
        lambda setting: crossing.track(
            networks, compared[setting["pairs of"]], options.tracked, options.steps, setting["seed"]
        ),
        folder,
        progress,
    )
    shape_rows = shapes.rows(trainings)
    first = [each for each in trainings if each["seed"] == options.seed]
    drawn = {
        "shapes": Drawing(
            convergence_figures.pairs(
                first,
                {name: crossing.line(member) for name, member in compared.items()},
                target=(options.m, 1 - options.m),
            ),
            "Training images by their similarity to their own class vector (sₚ) and to the nearest other (sₙ), under "
            "boundaries of six shapes (dashed), all through T.",
            wide=True,
        ),
        "shapes-recall": Drawing(shapes.draw(shape_rows), "Unseen classes, by the shape of the boundary.", wide=True),
    }
    sentences = [setting_of(networks, options.steps), *shapes.sentences(shape_rows)]
    return Findings({"shapes": shape_rows}, drawn, sentences)


def logits(members: Sequence[Member]) -> list[Row]:
    """The logits of the target and of another class by the angle, divided by the scale."""
    return [
        {
            "loss": member.name,
            "degrees": round(math.degrees(angle), 4),
            "target": float(member.target[position]),
            "other": float(member.other[position]),
        }
        for member in members
        for position, angle in enumerate(ANGLES.tolist())
    ]


def boundaries(members: Sequence[Member]) -> list[Row]:
    """The largest angle to the sample's class by the angle to another class; empty if no angle is small enough."""
    rows: list[Row] = []
    for member in members:
        for other in SHOWN_ANGLES.tolist():
            limit = member.own_limit(other)
            shown = None if math.isnan(limit) else round(math.degrees(limit), 2)
            rows.append({"loss": member.name, "other": round(math.degrees(other), 2), "own": shown})
    return rows


def end(member: Member, toy: Toy, dimension: int, options: Options) -> Ended:
    """Train a toy with a loss of the family."""
    loss = member.loss
    if member.name == "Softmax":  # with norms and biases
        loss = LossConfig("SoftmaxLoss")
    elif member.name == "SphereFace":  # annealed like its authors' code, to λ = 5 after two thirds of the steps
        loss = LossConfig("SphereFaceLoss", {"margin": loss.arguments["margin"], "decay": 300 / options.toy_steps})
    embeddings, trained = train(
        toy, lambda: class_loss(loss, toy.classes, dimension), dimension, options.toy_steps, options.seed
    )
    weight: Tensor = trained.get_parameter("weight").detach().double()
    return Ended(
        member,
        normalize(embeddings.double()).numpy(),
        normalize(weight).numpy(),
        degrees(embeddings, weight),
    )


def _measured(each: Ended, toy: Toy, dimension: int) -> dict[str, Cell]:
    labels, held_out = toy.labels.numpy(), toy.held_out.numpy()
    to_class = each.angles[np.arange(len(labels)), labels]
    between = np.rad2deg(np.arccos(np.clip(each.weight @ each.weight.T, -1, 1)))
    np.fill_diagonal(between, np.inf)
    right = each.angles.argmin(1) == labels
    return {
        "loss": each.member.name,
        "dimension": dimension,
        "own trained": round(float(to_class[~held_out].mean()), 3),
        "own held out": round(float(to_class[held_out].mean()), 3),
        "nearest classes": round(float(between.min()), 3),
        "right held out": round(float(right[held_out].mean()), 4),
    }


def _about_angles(rows: Sequence[Mapping[str, Any]]) -> str:
    half = {row["loss"]: row["own"] for row in rows if row["other"] == 60}
    allowed = ", ".join(f"{name} {'nowhere' if own is None else f'{own:.1f}°'}" for name, own in half.items())
    return f"At 60° from another class a sample keeps the margin up to these angles from its own: {allowed}."


def _about_toys(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    sentences = []
    for dimension in (2, 3):
        rows = [row for row in measured if row["dimension"] == dimension]
        plain, *others = rows
        tighter = [row["loss"] for row in others if row["own held out"] < plain["own held out"]]
        angles = ", ".join(f"{row['loss']} {row['own held out']:.1f}°" for row in rows)
        right = [100 * row["right held out"] for row in rows]
        sentences.append(
            f"In {dimension} dimensions, held-out images are at these mean angles from their class vector: {angles}: "
            f"{len(tighter)} of {len(others)} margins make classes tighter than Softmax does. The nearest class vector "
            f"is the right one for {right[0]:.1f} % of them with Softmax, for {min(right[1:]):.1f} to "
            f"{max(right[1:]):.1f} % with a margin."
        )
    return sentences
