"""Gradients of losses over the plane of a negative's similarity s_n and a positive's s_p.

Triplet, AM-Softmax and Circle loss at several margins, their boundaries, the states A, B and C, the targets T and T′,
and the paper's three observations (Sun et al., Circle Loss, 2020, Fig. 1 to 3); the weights of samples in Proxy-Anchor
and Proxy-NCA (Kim et al., Proxy Anchor Loss, 2020, Fig. 3). With --loss, only another loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from nearfar.losses import ProxyAnchorLoss, ProxyNCALoss
from nearfar.report.page import Cell
from nearfar.studies import gradient_figures as figures
from nearfar.studies import observations
from nearfar.studies.fields import Field, Floats, build, field, proxy_slopes, slopes
from nearfar.studies.gradient_cases import (
    PAPER,
    STATES,
    TARGET_MARGIN,
    TARGETS,
    Case,
    Place,
    paper_case,
    read_states,
)
from nearfar.studies.study import Drawing, Findings, Progress, StudyOptions
from nearfar.training.config import LossConfig, option
from nearfar.training.options import ConfigError

HARD, EASY = 0.2, 0.8  # similarities of the other positives to their proxy; for negatives reversed
MATES = 4
CAPTION = (
    "Direction of a descent step for a pair of similarities (arrows), and size of the gradient (colour, divided by the "
    "loss's scale). Dashed: the boundary. Dots: the states."
)


@dataclass(frozen=True)
class Options(StudyOptions):
    """The options of the study."""

    loss: tuple[LossConfig, ...] = option((), "any loss, with its arguments: --loss CircleLoss --loss.m 0.4")
    margins: tuple[float, ...] = option((0.1, 0.25, 0.4), "margins of triplet, AM-Softmax and Circle")
    gamma: float = option(32.0, "scale of AM-Softmax and Circle")
    states: str = option(STATES, "the states s_n,s_p by name; the observations start from A")
    low: float = option(0.0, "lowest similarity on the axes, at least -1")
    points: int = option(41, "points on each axis")

    def __post_init__(self) -> None:
        if not -1 <= self.low < 1:
            raise ConfigError(f"low must be a similarity from -1 to below 1, not {self.low:g}")
        if self.points < 3 or not self.margins:
            raise ConfigError("gradients needs at least 3 points and one margin")
        read_states(self.states)

    def small(self) -> Self:
        return replace(self, margins=(0.25,), points=9)

    @property
    def places(self) -> Floats:
        """The midpoints of equal intervals, which avoid similarities of ±1, where angles have no slope."""
        return self.low + (1 - self.low) * (np.arange(self.points) + 0.5) / self.points


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Compute fields, states and targets; without --loss, also the weights of samples in proxy losses."""
    if options.loss:
        cases = [Case(loss.name, None, loss, 1.0) for loss in options.loss]
    else:
        cases = [paper_case(name, m, options.gamma) for name in PAPER for m in options.margins]
    fields, places = [], read_states(options.states)
    for number, case in enumerate(cases, 1):
        fields.append(field(build(case.loss), options.places))
        progress(f"{number} of {len(cases)}: {case.title}")
    tables: dict[str, Sequence[Mapping[str, Cell]]] = {
        "fields": [row for case, each in zip(cases, fields, strict=True) for row in _field_rows(case, each)],
        "states": state_rows(cases, places),
    }
    if options.loss:
        drawn = {
            "fields": Drawing(
                figures.beside(cases, fields, places),
                CAPTION + " Beside it, the size of each slope.",
                wide=True,
            )
        }
        return Findings(tables, drawn, _about_states(tables["states"], cases))
    middle = options.margins[len(options.margins) // 2]
    chosen = [i for i, case in enumerate(cases) if case.m == middle]
    tables |= {"targets": targets(options.gamma), "hardness": hardness()}
    progress("the three observations")
    touching = observations.touching(middle, options.gamma)
    results = (
        observations.balanced(touching, places["A"]),
        observations.attenuated(touching, places["A"]),
        observations.target(touching),
    )
    tables |= dict(zip(("balanced", "attenuated", "target"), results, strict=True))
    drawn = {
        "observations": Drawing(
            figures.observations(touching, places, *results),
            "Balanced optimisation, attenuated gradients, a definite target, for losses whose boundaries touch.",
            wide=True,
        ),
        "fields": Drawing(figures.grid(cases, fields, places, len(options.margins)), CAPTION, wide=True),
        "sides": Drawing(
            figures.sides([cases[i] for i in chosen], [fields[i] for i in chosen], places),
            f"The size of each slope, divided by the scale, at m = {middle:g}.",
            wide=True,
        ),
        "targets": Drawing(
            figures.targets(tables["targets"], options.gamma),
            "T and T′ are both on AM-Softmax's boundary; Circle's touches it in one point.",
        ),
        "hardness": Drawing(
            figures.hardness(tables["hardness"]),
            f"The share of one sample in its proxy's gradient, by its similarity, beside {MATES} others of its kind: "
            f"hard ones (similarity {HARD:g} for positives, {EASY:g} for negatives) or easy ones.",
            wide=True,
        ),
    }
    sentences = [
        *observations.sentences(touching, places, *results),
        *_about_states(tables["states"], [cases[i] for i in chosen]),
        *_about_width(middle, options.gamma),
        *_about_targets(tables["targets"]),
        *_about_hardness(tables["hardness"]),
    ]
    return Findings(tables, drawn, sentences)


def _field_rows(case: Case, values: Field) -> list[Mapping[str, Cell]]:
    return [
        {
            "loss": case.name,
            "m": case.m,
            "scale": case.scale,
            "s_n": round(float(s_n), 6),
            "s_p": round(float(s_p), 6),
            "value": float(values.value[r, c]),
            "by_n": float(values.by_n[r, c]),
            "by_p": float(values.by_p[r, c]),
        }
        for r, s_p in enumerate(values.s_p)
        for c, s_n in enumerate(values.s_n)
    ]


def state_rows(cases: Sequence[Case], states: Mapping[str, Place]) -> list[Mapping[str, Cell]]:
    """The slopes at the states."""
    rows: list[Mapping[str, Cell]] = []
    for case in cases:
        loss = build(case.loss)
        for state, (s_n, s_p) in states.items():
            value, by_n, by_p = slopes(loss, s_n, s_p)
            row = {"loss": case.name, "m": case.m, "state": state, "s_n": s_n, "s_p": s_p}
            rows.append({**row, "value": value, "by_n": by_n, "by_p": by_p})
    return rows


def targets(gamma: float) -> list[Mapping[str, Cell]]:
    """T and T′ under AM-Softmax, whose boundary contains both, and under the Circle loss whose boundary touches it."""
    rows: list[Mapping[str, Cell]] = []
    for case in (paper_case("AM-Softmax", TARGET_MARGIN, gamma), paper_case("Circle", (1 - TARGET_MARGIN) / 2, gamma)):
        loss, line = build(case.loss), case.boundary
        assert line is not None
        x, y = line.lines[0]
        best = int(np.argmin(y - x))
        touching = {} if case.name == "AM-Softmax" else {"touches at": (float(x[best]), float(y[best]))}
        for name, (s_n, s_p) in {**TARGETS, **touching}.items():
            row = {"loss": case.name, "m": case.m, "target": name, "s_n": s_n, "s_p": s_p}
            rows.append({**row, "value": slopes(loss, s_n, s_p)[0]})
    return rows


def hardness() -> list[Mapping[str, Cell]]:
    """The share of one sample in a proxy's gradient, by its similarity s, among others of the same kind."""
    dimension = 3 + 2 * (MATES + 1)
    losses: dict[str, Any] = {
        "Proxy-Anchor": ProxyAnchorLoss(3, dimension),
        "Proxy-NCA": ProxyNCALoss(3, dimension, exclude_positive=True),
    }
    rows: list[Mapping[str, Cell]] = []
    for name, loss in losses.items():
        loss.double()
        for mates in ("hard", "easy"):
            near, far = (HARD, EASY) if mates == "hard" else (EASY, HARD)
            for s in np.linspace(-0.2, 0.98, 40).tolist():
                positives, others = proxy_slopes(loss, [s] + [near] * MATES, [s] + [far] * MATES)
                for kind, slope in (("positive", positives), ("negative", others)):
                    rows.append({"loss": name, "kind": kind, "mates": mates, "s": round(s, 4),
                                 "slope": float(slope[0]), "share": float(slope[0] / slope.sum())})  # fmt: skip
    return rows


# Sentences


def _about_states(rows: Sequence[Mapping[str, Any]], cases: Sequence[Case]) -> list[str]:
    sentences = []
    for case in cases:
        case_rows = [row for row in rows if row["loss"] == case.name and row["m"] == case.m]
        parts = []
        for row in case_rows:
            by_p, by_n = abs(row["by_p"]), abs(row["by_n"])
            if max(by_p, by_n) < 1e-3 * case.scale:
                words = "next to nothing"
            elif min(by_p, by_n) < 1e-3 * max(by_p, by_n):
                words = "only s_p" if by_p > by_n else "only s_n"
            else:
                words = f"s_p {by_p / by_n:.2f} × as hard as s_n"
            parts.append(f"at {row['state']} ({row['s_n']:g}, {row['s_p']:g}) {words}")
        sentences.append(f"{case.title} pulls {', '.join(parts)}.")
    return sentences


def transition(case: Case, s_p: float = 0.8) -> float:
    """The width of the range of s_n, at this s_p, in which the slope by s_n rises from 10 % to 90 % of its maximum."""
    loss = build(case.loss)
    s_n = np.linspace(-0.995, 0.995, 200)
    by_n = np.abs([slopes(loss, s, s_p)[1] for s in s_n.tolist()])
    tenth, most = (s_n[np.argmax(by_n >= share * by_n.max())] for share in (0.1, 0.9))
    return float(most - tenth)


def _about_width(m: float, gamma: float) -> list[str]:
    widths = {name: transition(paper_case(name, m, gamma)) for name in PAPER}
    return [
        "As s_n falls (at s_p = 0.8), the slope by s_n falls from 90 % to 10 % of its maximum within "
        + ", ".join(f"{width:.2f} under {name}" for name, width in widths.items())
        + f" (m = {m:g}): the wider, the smoother."
    ]


def _about_targets(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def of(loss: str, target: str) -> Mapping[str, Any]:
        return next(row for row in rows if row["loss"] == loss and row["target"] == target)

    am, circle = (of(loss, "T") for loss in ("AM-Softmax", "Circle"))
    other, other_circle = (of(loss, "T′") for loss in ("AM-Softmax", "Circle"))
    touch = of("Circle", "touches at")
    return [
        f"T and T′ cost {am['value']:.3f} and {other['value']:.3f} under AM-Softmax with m = {am['m']:g}, which takes "
        f"them for equally good. Under Circle with m = {circle['m']:g} they cost {circle['value']:.3f} and "
        f"{other_circle['value']:.3f}; its boundary has the smallest gap s_p − s_n at ({touch['s_n']:.2f}, "
        f"{touch['s_p']:.2f}), and only there touches AM-Softmax's."
    ]


def _about_hardness(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def share(loss: str, mates: str) -> float:
        loss_rows = [row for row in rows if row["loss"] == loss and row["kind"] == "positive" and row["mates"] == mates]
        return float(min(loss_rows, key=lambda row: abs(row["s"] - 0.5))["share"])

    parts = [
        f"{100 * share(loss, 'easy'):.0f} % of its proxy's gradient among easy positives and "
        f"{100 * share(loss, 'hard'):.0f} % among hard ones under {loss}"
        for loss in ("Proxy-Anchor", "Proxy-NCA")
    ]
    return [f"A positive at a similarity of 0.5 has {', and '.join(parts)}."]
