"""Convergence of losses: Recall@1 and similarities by steps and seconds, and pairs crossing the boundary.

Whole small networks are trained to their end, each loss with its defaults and with the best of a few settings, equally
many for each loss, evaluated on held-out training classes. During training, the study records Recall@1 on the test
classes (Kim et al., Proxy Anchor Loss, 2020, Fig. 1), which decides nothing, and the mean similarity of positive and of
negative pairs (Sun et al., Circle Loss, 2020, Fig. 4). For AM-Softmax and Circle with class vectors, it records the
similarities of pairs when they first cross the boundary of their loss, and in the end (Circle Loss, Fig. 5).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from nearfar.compare.spaces import CLASS_FORM, Choice, Range, has_proxies, read_contestant, space_of
from nearfar.studies import convergence_figures as figures
from nearfar.studies import crossing
from nearfar.studies.networks import NetworkOptions, Networks, setting_of
from nearfar.studies.study import Drawing, Findings, Progress, Row, cells
from nearfar.studies.sweep import over_seeds, per_cent
from nearfar.training.config import LossConfig, OptimiserConfig, option
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
METRIC = "recall@1"
NEARLY = 0.9  # share of the way from the start to the best result
MOST_LOSSES = len(LOSSES)
DEFAULTS, BEST = "defaults", "best"
FACTOR, PART = 3.0, 0.25  # range of settings around a default: factor, or share of a range that is not a scale


@dataclass(frozen=True)
class Options(NetworkOptions):
    """The losses, and how often they are evaluated."""

    losses: tuple[str, ...] = option(LOSSES, "up to six losses; CircleLoss/class is the form with class vectors")
    trials: int = option(4, "settings to try for each loss, its defaults first; 1: only the defaults")
    looks: int = option(8, "evaluations on the test classes during training")
    tracked: int = option(200, "training images whose pairs are tracked to the boundary; 0: none")
    am_margin: float = option(0.35, "AM-Softmax's m, for the pairs at the boundary")
    circle_margins: tuple[float, ...] = option((0.325, 0.25), "Circle's m; the first touches AM-Softmax's boundary")
    gamma: float = option(64.0, "scale of both, for the pairs at the boundary")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.looks <= self.steps:
            raise ConfigError(f"looks must be from 1 to the number of steps, {self.steps}, not {self.looks}")
        if not 1 <= len(self.losses) <= MOST_LOSSES:
            raise ConfigError(f"convergence shows 1 to {MOST_LOSSES} losses, not {len(self.losses)}")
        if self.trials < 1:
            raise ConfigError("trials must be at least 1, the defaults")
        for name in self.losses:
            read_contestant(name)

    def small(self) -> Self:
        losses = ("ProxyAnchorLoss", f"CircleLoss{CLASS_FORM}")
        few = replace(self, seeds=1, classes=12, losses=losses, steps=12, looks=3, trials=2)
        return replace(few, tracked=40, circle_margins=(0.325,))

    @property
    def look_at(self) -> list[int]:
        """The steps after which the test classes are evaluated, including the last one."""
        return sorted({round(self.steps * (number + 1) / self.looks) for number in range(self.looks)})


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Search settings, record curves of every loss and seed, and track the pairs of the first seed."""
    networks = Networks(replace(options.config, seed=options.seed), options.classes)
    tried = cells(
        [{"search": name, "trial": trial} for name in options.losses for trial in range(options.trials)]
        if options.trials > 1
        else [],
        lambda setting: try_out(networks, setting["search"], setting["trial"], options),
        folder,
        progress,
    )
    chosen = {name: best_of(tried, name) for name in options.losses}
    curves = cells(
        [
            {"loss": name, "settings": settings, "options": chosen[name] if settings == BEST else {}, "seed": seed}
            for name in options.losses
            for settings in ((DEFAULTS, BEST) if chosen[name] else (DEFAULTS,))
            for seed in options.all_seeds
        ],
        lambda setting: train_curve(networks, setting["loss"], setting["options"], setting["seed"], options),
        folder,
        progress,
    )
    # If the defaults are the best of the search, their curves serve for both.
    same = [{**curve, "settings": BEST} for curve in curves if not chosen[curve["loss"]]] if options.trials > 1 else []
    shown = [*curves, *same]
    tables: dict[str, Sequence[Row]] = {
        "curves": curve_rows(shown),
        "seconds": second_rows(shown),
        "ends": end_rows(shown),
    }
    if tried:
        tables["search"] = [{key: str(v) if key == "options" else v for key, v in row.items()} for row in tried]
    drawn = {
        "recall": Drawing(
            figures.recall(shown, options.losses),
            "Recall@1 on test classes, by steps and by CPU seconds; means over seeds.",
            wide=True,
        ),
        "similarities": Drawing(
            figures.similarities([c for c in shown if c["settings"] == DEFAULTS], options.losses),
            "Mean similarity in training batches, of positive pairs (left) and of negative pairs (right), by defaults.",
            wide=True,
        ),
    }
    sentences = [setting_of(networks, options.steps), *about_curves(shown, options)]
    if options.tracked:
        members = crossing.members(options.am_margin, options.circle_margins, options.gamma)
        trainings = cells(
            [{"pairs of": name, "seed": options.seed} for name in members],
            lambda setting: crossing.track(
                networks, members[setting["pairs of"]], options.tracked, options.steps, setting["seed"]
            ),
            folder,
            progress,
        )
        tables["pairs"] = crossing.rows(trainings)
        drawn["pairs"] = Drawing(
            figures.pairs(trainings, {name: crossing.line(member) for name, member in members.items()}),
            "Training images by their similarity to their own class vector (sₚ) and to the nearest other (sₙ): when "
            "they first cross the boundary (dashed), and after the last step.",
            wide=True,
        )
        sentences += [crossing.sentence(row) for row in trainings] + crossing.verdict(trainings)
    return Findings(tables, drawn, sentences)


# The search


def trial_options(name: str, trial: int, default: OptimiserConfig, seed: int) -> dict[str, Any]:
    """Options of `nearfar train` for a trial: none for the first, then drawn at random near the defaults.

    Args:
        default: the optimiser with the loss's default rates.
    """
    if not trial:
        return {}
    loss, drawn = read_contestant(name), {}
    random = np.random.default_rng([seed, trial])
    classes = (
        ("optimiser.classes", default.classes) if default.proxies is None else ("optimiser.proxies", default.proxies)
    )
    starts = {"lr": ("lr", default.lr), "classes": classes}
    for key, space in space_of(loss, "scratch").items():
        option_name, start = starts.get(key, (key, None))
        if isinstance(space, Choice):
            drawn[option_name] = space.values[random.integers(len(space.values))]
            continue
        way = float(random.uniform(-1, 1))
        value = near(space, way) if start is None else start * FACTOR**way
        drawn[option_name] = float(f"{value:.3g}")
    return drawn


def near(space: Range, way: float) -> float:
    """A value of the range near its start; for a scale, between a third of the start and three times the start.

    >>> near(Range(1, 100, log=True), 1.0), near(Range(0.0, 0.4), -1.0)
    (30.0, 0.1)
    """
    value = space.first * FACTOR**way if space.log else space.first + way * PART * (space.high - space.low)
    return min(max(value, space.low), space.high)


def try_out(networks: Networks, name: str, trial: int, options: Options) -> dict[str, Any]:
    """Evaluate one setting of a loss on the held-out classes."""
    loss = read_contestant(name)
    default = networks.prepare(loss, options.seed, options.steps).config.optimiser
    chosen = trial_options(name, trial, default, options.seed)
    trained = networks.train(
        with_arguments(loss, chosen), options.seed, options.steps, options=rates(chosen),
        rows=networks.to_choose,
    )  # fmt: skip
    return {"options": chosen, METRIC: trained.recall}


def with_arguments(loss: LossConfig, options: Mapping[str, Any]) -> LossConfig:
    """Apply those options that are arguments of the loss."""
    arguments = {key.removeprefix("loss."): value for key, value in options.items() if key.startswith("loss.")}
    return replace(loss, arguments={**loss.arguments, **arguments})


def rates(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not arguments of the loss."""
    return {key: value for key, value in options.items() if not key.startswith("loss.")}


def best_of(tried: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """The options of the best trial of a loss; empty if its defaults are as good."""
    trials = [row for row in tried if row["search"] == name]
    return (
        dict(max(trials, key=lambda row: -math.inf if row[METRIC] is None else row[METRIC])["options"])
        if trials
        else {}
    )


# Curves


def train_curve(
    networks: Networks, name: str, chosen: Mapping[str, Any], seed: int, options: Options
) -> dict[str, Any]:
    """Train with one setting, and record the curves."""
    similarities: list[tuple[float, float]] = []

    def after(learner: Learner, step: Step) -> None:
        similarities.append(mean_similarities(step.embeddings, step.labels))

    loss = with_arguments(read_contestant(name), chosen)
    trained = networks.train(loss, seed, options.steps, options=rates(chosen), look_at=options.look_at, after=after)
    steps, seconds, recall, precision = zip(*trained.looks, strict=True)
    s_p, s_n = zip(*similarities, strict=True) if similarities else ((), ())
    return {
        "looked at": steps,
        "seconds": seconds,
        METRIC: recall,
        "map@r": precision,
        "diverged": trained.diverged,
        "s_p": [_plain(value) for value in s_p],
        "s_n": [_plain(value) for value in s_n],
    }


def _plain(value: float) -> float | None:
    """Convert to a JSON value; a batch may have no positive pairs."""
    return None if math.isnan(value) else round(value, 6)


def curve_rows(curves: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for each step; Recall@1 only where it was evaluated."""
    rows: list[Row] = []
    for curve in curves:
        recall = dict(zip(curve["looked at"], curve[METRIC], strict=True))
        rows += [
            {**_who(curve), "step": step, "s_p": s_p, "s_n": s_n, METRIC: recall.get(step)}
            for step, (s_p, s_n) in enumerate(zip(curve["s_p"], curve["s_n"], strict=True), 1)
        ]
    return rows


def second_rows(curves: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The seconds of the evaluations, in a separate table since they differ from run to run."""
    return [
        {**_who(curve), "step": step, "seconds": seconds}
        for curve in curves
        for step, seconds in zip(curve["looked at"], curve["seconds"], strict=True)
    ]


def end_rows(curves: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The final values of every training."""
    return [
        {**_who(curve), "start recall@1": curve[METRIC][0], METRIC: curve[METRIC][-1], "map@r": curve["map@r"][-1],
         "s_p": _last(curve["s_p"]), "s_n": _last(curve["s_n"])}
        for curve in curves
    ]  # fmt: skip


def _who(curve: Mapping[str, Any]) -> dict[str, Any]:
    return {key: curve[key] for key in ("loss", "settings", "seed")}


def _last(values: Sequence[float | None], steps: int = 10) -> float | None:
    known = [value for value in values[-steps:] if value is not None]
    return float(np.mean(known)) if known else None


# Sentences


def about_curves(curves: Sequence[Mapping[str, Any]], options: Options) -> list[str]:
    """Describe the final results and the speed of each loss, and whether proxies are faster and better."""
    sentences = []
    for settings in dict.fromkeys(curve["settings"] for curve in curves):
        selected = [curve for curve in curves if curve["settings"] == settings]
        sentences += _about(
            selected, "With their defaults" if settings == DEFAULTS else "With the best of the search", options
        )
    return sentences


def _about(curves: Sequence[Mapping[str, Any]], by: str, options: Options) -> list[str]:
    ends = {
        row["loss"]: row
        for row in over_seeds(
            [{"loss": c["loss"], METRIC: None if c.get("diverged") else c[METRIC][-1]} for c in curves],
            ["loss"],
            [METRIC],
        )
    }
    start = float(np.mean([curve[METRIC][0] for curve in curves]))
    values = {name: row[METRIC] or 0.0 for name, row in ends.items()}
    top = max(values, key=values.__getitem__)
    aim = start + NEARLY * (values[top] - start)
    when = {name: _reached([c for c in curves if c["loss"] == name], aim) for name in options.losses}
    words = [f"{name} {'never' if at is None else f'{at[0]:.0f} steps, {at[1]:.1f} s'}" for name, at in when.items()]
    sentences = [
        f"{by}, Recall@1 starts at {100 * start:.1f} % and ends, in per cent, at: "
        + ", ".join(f"{name} {per_cent(ends[name], METRIC)}" for name in options.losses)
        + ".",
        f"{100 * NEARLY:.0f} % of the way to the best result ({top}) is reached after: {', '.join(words)}.",
    ]
    proxies = [name for name in options.losses if has_proxies(read_contestant(name))]
    pairs = [name for name in options.losses if name not in proxies]
    if proxies and pairs:
        first, second = (max(group, key=values.__getitem__) for group in (proxies, pairs))
        gap = values[first] - values[second]
        higher = "unclear" if abs(gap) < _joint(ends[first], ends[second]) else "holds" if gap > 0 else "does not"
        at, other = when[first], when[second]
        faster = "unclear" if at is None and other is None else (
            "holds" if other is None or (at is not None and at[1] < other[1]) else "does not"
        )  # fmt: skip
        sentences.append(
            f"{by}, that losses with class vectors end higher than pair losses: {higher} ({first} {100 * gap:+.1f} "
            f"points to {second}); that they are there sooner: {faster}, by the best of each."
        )
    return sentences


def _reached(curves: Sequence[Mapping[str, Any]], aim: float) -> tuple[float, float] | None:
    """The step and the seconds at which the mean over seeds first reaches the aim."""
    if any(curve.get("diverged") for curve in curves):
        return None
    reached = np.flatnonzero(np.mean([curve[METRIC] for curve in curves], 0) >= aim)
    if not len(reached):
        return None
    return float(curves[0]["looked at"][reached[0]]), float(np.mean([c["seconds"][reached[0]] for c in curves]))


def _joint(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """Half the width of the interval of a difference; for a single seed, two points."""
    widths = [row[f"{METRIC} ±"] for row in (first, second)]
    return 0.02 if None in widths else float(np.hypot(*widths))
