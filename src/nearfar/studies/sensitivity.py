"""Sensitivity to scale, margin and dimension.

    gamma-m      Circle loss, by its scale γ and its relaxation m
    optima       Circle loss, by the optima O_p and O_n, which m sets to 1 + m and −m
    margins      Circle loss, by the margins Δ_p and Δ_n, which m sets to 1 − m and m
    alpha-delta  Proxy-Anchor, by its scale α and its margin δ
    scale        class-level Circle, AM-Softmax and ArcFace, by their scale γ
    dimension    Circle and Proxy-Anchor, by the dimension of the embedding
    alpha        Proxy-Anchor, by its scale α, on whole small networks; all other parts train heads on cached features

References: Y. Sun et al., Circle Loss, CVPR 2020, arXiv:2002.10857, Section 4.5; S. Kim et al., Proxy Anchor Loss, CVPR
2020, arXiv:2003.13911, Section 4.4.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from matplotlib.figure import Figure

from nearfar.compare.spaces import read_contestant
from nearfar.compare.workbench import Workbench
from nearfar.foundation.suggestions import suggestion
from nearfar.report import style
from nearfar.studies.heads import Heads, Measured
from nearfar.studies.networks import Networks, setting_of
from nearfar.studies.study import Drawing, Findings, HeadOptions, Progress, cells
from nearfar.studies.sweep import (
    PLUS_MINUS,
    Row,
    as_good,
    best,
    draw_lines,
    draw_map,
    listed,
    name_lines,
    over_seeds,
    per_cent,
)
from nearfar.training.config import LossConfig, option
from nearfar.training.options import ConfigError

METRIC = "recall@1"
ENOUGH = 16  # sufficient α according to the paper
WHOLE_CLASSES = 200  # classes for whole networks
UNSTARTED = ("dimension", "alpha")  # parts whose trainings have other starts than the rest
MAPS = {
    "gamma-m": ("gamma", "m"),
    "optima": ("O_p", "O_n"),
    "margins": ("delta_p", "delta_n"),
    "alpha-delta": ("alpha", "margin"),
}
"""The horizontal and the vertical argument of each heat map."""
LETTERS = {
    "gamma": "γ", "m": "m", "O_p": "O_p", "O_n": "O_n", "delta_p": "Δ_p", "delta_n": "Δ_n", "alpha": "α", "margin": "δ",
}  # fmt: skip
LINES = ("scale", "dimension", "alpha")
SCALED: Mapping[str, Mapping[str, float]] = {
    "CircleLoss/class": {"m": 0.25},
    "AMSoftmaxLoss": {"margin": 0.35},
    "ArcFaceLoss": {"margin": 0.5},
}
"""Class-level losses with their papers' margins for faces."""


@dataclass(frozen=True)
class Options(HeadOptions):
    """The options of the study."""

    parts: tuple[str, ...] = option((*MAPS, *LINES), "sweeps to run")
    gamma: tuple[float, ...] = option(
        (32.0, 64.0, 128.0, 256.0, 512.0, 1024.0), "scales of Circle and of class-level losses"
    )
    m: tuple[float, ...] = option((-0.2, -0.1, 0.0, 0.1, 0.2, 0.3), "relaxations of Circle loss")
    optimum: tuple[float, ...] = option((0.0, 0.25, 0.5), "O_p − 1 and −O_n of Circle loss")
    offset: tuple[float, ...] = option((0.1, 0.25, 0.4), "1 − Δ_p and Δ_n of Circle loss")
    alpha: tuple[float, ...] = option((4.0, 8.0, 16.0, 32.0, 64.0), "scales of Proxy-Anchor")
    delta: tuple[float, ...] = option((0.0, 0.1, 0.2, 0.3, 0.4), "margins of Proxy-Anchor")
    dimensions: tuple[int, ...] = option((32, 64, 128, 256, 512, 1024), "dimensions of the embedding")
    steps: int = option(400, "training steps of a whole network")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parts:
            raise ConfigError(f"parts needs at least one of {', '.join((*MAPS, *LINES))}")
        for part in self.parts:
            if part not in (*MAPS, *LINES):
                raise ConfigError(f"sensitivity has no part {part}: {suggestion(part, (*MAPS, *LINES))}")

    def small(self) -> Self:
        config = replace(self.config, max_steps=3)
        few = replace(self, gamma=(32.0, 256.0), m=(0.0, 0.25), optimum=(0.0, 0.25), offset=(0.25,), alpha=(8.0, 32.0))
        return replace(few, delta=(0.1,), dimensions=(16,), steps=3, seeds=1, classes=20, config=config)


def settings_of(part: str, options: Options) -> list[dict[str, Any]]:
    """All settings of a part: the loss, and its arguments or the dimension."""
    if part == "gamma-m":
        return [{"loss": "CircleLoss", "gamma": gamma, "m": m} for m in options.m for gamma in options.gamma]
    if part == "optima":
        shifts = sorted(options.optimum)
        return [{"loss": "CircleLoss", "O_p": 1 + p, "O_n": 0 - n} for n in reversed(shifts) for p in shifts]
    if part == "margins":
        shifts = sorted(options.offset)
        return [
            {"loss": "CircleLoss", "delta_p": round(1 - p, 6), "delta_n": n} for n in shifts for p in reversed(shifts)
        ]
    if part == "alpha-delta":
        return [{"loss": "ProxyAnchorLoss", "alpha": a, "margin": d} for d in options.delta for a in options.alpha]
    if part == "scale":
        return [{"loss": loss, "gamma": gamma} for loss in SCALED for gamma in options.gamma]
    if part == "alpha":
        return [{"loss": "ProxyAnchorLoss", "alpha": alpha} for alpha in options.alpha]
    return [{"loss": loss, "dimension": d} for d in options.dimensions for loss in ("CircleLoss", "ProxyAnchorLoss")]


def loss_of(part: str, setting: Mapping[str, Any]) -> LossConfig:
    """The loss of a setting, with its defaults for everything else."""
    name = setting["loss"]
    if part == "dimension":
        return LossConfig(name)
    if part == "scale":
        loss = read_contestant(name)
        scale = "gamma" if loss.name == "CircleLoss" else "scale"
        return replace(loss, arguments={**SCALED[name], scale: setting["gamma"]})
    arguments = (part,) if part == "alpha" else MAPS[part]
    return LossConfig(name, {argument: setting[argument] for argument in arguments})


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Run the chosen sweeps."""
    heads = Heads(options.config, options.classes, say=progress)

    @functools.lru_cache(maxsize=1)  # settings of the same dimension are consecutive
    def workbench(dimension: int | None) -> Workbench:
        if dimension is None:
            return heads.workbench
        return heads.workbench_for(replace(heads.config.model, dimension=dimension))

    networks = Networks(options.config, options.classes or WHOLE_CLASSES)

    def measure(setting: Mapping[str, Any]) -> Measured:
        if setting["part"] == "alpha":
            loss = loss_of("alpha", setting)
            return networks.train(loss, setting["seed"], options.steps).measured
        return heads.train(
            loss_of(setting["part"], setting), setting["seed"], workbench=workbench(setting.get("dimension"))
        )

    before: Mapping[str, Any] = {METRIC: math.nan}
    if options.parts != ("alpha",):
        before = cells([{"before": "training"}], lambda _: heads.start, folder, progress)[0]
    tables: dict[str, list[Row]] = {}
    figures: dict[str, Drawing] = {}
    texts: list[str] = []
    for part in options.parts:
        settings = settings_of(part, options)
        trainings = cells(
            [{"part": part, **setting, "seed": seed} for setting in settings for seed in options.all_seeds],
            measure,
            folder,
            progress,
        )
        rows = tables[part] = over_seeds(trainings, list(settings[0]))
        figures[part] = Drawing(draw(part, rows, before[METRIC]), f"Recall@1 on unseen classes: {part}")
        texts += sentences(part, rows, before[METRIC])
        if part == "alpha":
            texts += [about_alpha(rows), setting_of(networks, options.steps)]
    return Findings(tables, figures, texts)


def draw(part: str, rows: Sequence[Row], before: float) -> Figure:
    """Draw a heat map or lines."""
    if part in MAPS:
        x, y = MAPS[part]
        across, up = (len({row[name] for row in rows}) for name in (x, y))
        with style.figure(1.6 + 0.66 * across, 1.2 + 0.5 * up) as drawn:
            axes = drawn.subplots()
            draw_map(axes, rows, x, y, METRIC)
            axes.set(xlabel=LETTERS[x], ylabel=LETTERS[y], title=f"{rows[0]['loss']}: Recall@1 in %")
        return drawn
    x, words = {"scale": ("gamma", "scale γ"), "alpha": ("alpha", "scale α")}.get(
        part, ("dimension", "dimension of the embedding")
    )
    with style.figure(4.6, 3.7) as drawn:
        axes = drawn.subplots()
        # The metric before training depends on the dimension.
        draw_lines(axes, rows, x, "loss", METRIC, before=before if part == "scale" else None, spread=math.log2)
        axes.set(xlabel=words)
        name_lines(drawn, axes, columns=2)
    return drawn


def sentences(part: str, rows: Sequence[Row], before: float) -> list[str]:
    """Describe the best setting, the range of the others, and how many are as good."""
    result = []
    for loss in dict.fromkeys(row["loss"] for row in rows):
        loss_rows = [row for row in rows if row["loss"] == loss]
        if all(row[METRIC] is None for row in loss_rows):
            result.append(f"{part}: {loss} diverged everywhere.")
            continue
        top, low = (
            best(loss_rows, METRIC),
            min(loss_rows, key=lambda row: math.inf if row[METRIC] is None else row[METRIC]),
        )
        near = as_good(loss_rows, METRIC)
        names = [name for name in top if name in LETTERS or name == "dimension"]
        where = listed([f"{LETTERS.get(name, name)} = {top[name]:g}" for name in names])
        text = (
            f"{part}, {loss}: Recall@1 from {per_cent(low, METRIC)} % to {per_cent(top, METRIC)} %, best at {where}; "
            f"{len(near)} of {len(loss_rows)} settings lie within a point of it"
        )
        text += "".join(
            f"; {LETTERS.get(name, name)} from {min(values):g} to {max(values):g} among them"
            for name in names
            for values in [[row[name] for row in near]]
            if len(set(values)) > 1
        )
        result.append(f"{text}. Before training it was {100 * before:.1f} %." if part not in UNSTARTED else f"{text}.")
    return result


def about_alpha(rows: Sequence[Row]) -> str:
    """State whether α above 16 is better, as in the paper."""
    known = [row for row in rows if row[METRIC] is not None]
    small, large = ([row for row in known if (row["alpha"] > ENOUGH) == is_large] for is_large in (False, True))
    if not small or not large:
        return f"Whether α above {ENOUGH:g} is needed is unknown without values on both sides of it."
    top, other = best(large, METRIC), best(small, METRIC)
    gap = top[METRIC] - other[METRIC]
    widths = [row[METRIC + PLUS_MINUS] for row in (top, other)]
    sure = None not in widths and abs(gap) > math.hypot(*widths)
    verdict = "is unclear" if not sure else "holds" if gap > 0 else "does not hold"
    return (
        f"That α above {ENOUGH:g} is better than below (Kim et al., Section 4.4, on Cars) {verdict} here: α = "
        f"{top['alpha']:g} gives {100 * gap:+.1f} points to α = {other['alpha']:g}, the best of each side; on Cars "
        "they are 86.7 and 84.5 %."
    )
