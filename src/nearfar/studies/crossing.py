"""Track pairs of training images: when they cross the boundary of their loss, and in the end.

A pair is an image's similarity to its own class vector, s_p, and to the nearest other one, s_n.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearfar.losses import Loss
from nearfar.report.boundaries import boundary
from nearfar.studies.margins import Member
from nearfar.studies.networks import Networks
from nearfar.studies.study import Row
from nearfar.training.config import LossConfig
from nearfar.training.learner import Learner, Step
from nearfar.training.measure import embed
from nearfar.training.options import loss_info

EVALUATIONS = 40  # of the pairs, during training
CONVERGED = 0.5  # share of pairs inside the boundary below which the training has not converged


def members(am_margin: float, circle_margins: Sequence[float], scale: float) -> dict[str, Member]:
    """AM-Softmax and class-level Circle with their margins."""
    am = LossConfig("AMSoftmaxLoss", {"margin": am_margin, "scale": scale})
    result = [Member(f"AM-Softmax, m = {am_margin:g}", am, scale)]
    for m in circle_margins:
        circle = LossConfig("CircleLoss", {"m": m, "gamma": scale}, class_level=True)
        result.append(Member(f"Circle, m = {m:g}", circle, scale, zero=m))
    return {member.name: member for member in result}


class Tracker:
    """Tracks training images: (s_n, s_p) when they first keep the margin, and at the last update."""

    def __init__(self, member: Member, labels: Tensor):
        self._member, self._labels = member, labels
        self.crossed = np.full((len(labels), 2), np.nan)
        self._outside = np.zeros(len(labels), bool)  # was outside before: pairs that start inside do not cross
        self.last = self.crossed.copy()
        self.inside = self._outside.copy()

    @torch.no_grad()
    def update(self, embeddings: Tensor, weight: Tensor) -> None:
        """Record the present similarities."""
        cosines = (normalize(embeddings) @ normalize(weight).T).cpu()
        rows = torch.arange(len(cosines))
        s_p = cosines[rows, self._labels].double().numpy().copy()
        cosines[rows, self._labels] = -2
        s_n = cosines.max(1).values.double().numpy()
        self.inside = self._member.accepted(*(np.arccos(np.clip(s, -1, 1)) for s in (s_p, s_n)))
        self.last = np.stack([s_n, s_p], 1)
        crossing = self.inside & self._outside & np.isnan(self.crossed[:, 0])
        self.crossed[crossing] = self.last[crossing]
        self._outside |= ~self.inside


def track(
    networks: Networks, member: Member, images: int, steps: int, seed: int, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Train with class vectors, tracking `images` of the training images."""
    train = networks.rows[0]
    rows = np.sort(np.random.default_rng(seed).permutation(len(train))[:images])
    tracked = train.select(rows)
    tracker = Tracker(member, torch.from_numpy(train.labels[rows]))
    every = max(1, steps // EVALUATIONS)

    def after(learner: Learner, step: Step) -> None:
        assert isinstance(learner.loss, Loss) and learner.loss.weight is not None
        if learner.done % every == 0 or learner.done == steps:
            embeddings = torch.from_numpy(embed(learner.embedder, tracked, learner.config))
            tracker.update(embeddings.to(learner.device), learner.loss.weight)

    trained = networks.train(member.loss, seed, steps, options=options, after=after)
    crossed = ~np.isnan(tracker.crossed[:, 0])
    return {
        "followed": len(rows),
        "inside": float(tracker.inside.mean()),
        "recall@1": trained.recall,
        "map@r": None if trained.diverged else trained.looks[-1][3],
        "crossed": np.round(tracker.crossed[crossed], 4).tolist(),
        "last": np.round(tracker.last, 4).tolist(),
    }


def rows(trainings: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for every point, of crossing and of the end."""
    return [
        {"pairs of": row["pairs of"], "when": when, "s_n": s_n, "s_p": s_p}
        for row in trainings
        for when in ("crossed", "last")
        for s_n, s_p in row[when]
    ]


def spread_of(points: Sequence[Sequence[float]]) -> float:
    """The root mean square distance of points from their mean.

    >>> spread_of([[0, 1], [0, -1], [0, 1], [0, -1]])
    1.0
    """
    values = np.asarray(points, float)
    return float(np.sqrt(((values - values.mean(0)) ** 2).sum(1).mean()))


def sentence(row: Mapping[str, Any]) -> str:
    """Describe the pairs of a training."""
    share = len(row["crossed"]) / row["followed"]
    where = f", with a spread of {spread_of(row['crossed']):.3f}" if row["crossed"] else ""
    middle = np.mean(row["last"], 0)
    return (
        f"{row['pairs of']}: {100 * share:.0f} % of {row['followed']} images crossed the boundary{where}; in the end "
        f"{100 * row['inside']:.0f} % are inside it, about ({middle[0]:.2f}, {middle[1]:.2f}), with a spread of "
        f"{spread_of(row['last']):.3f}."
    )


def verdict(trainings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether pairs cross and end with less spread under Circle, the second, than under AM-Softmax, the first."""
    first, second = trainings[:2]
    inside = min(row["inside"] for row in (first, second))
    if inside < CONVERGED:
        verdict = f"unclear, since only {100 * inside:.0f} % of the pairs are inside a boundary in the end"
    else:
        narrow = [spread_of(second[when]) < spread_of(first[when]) for when in ("crossed", "last")]
        verdict = "holds" if all(narrow) else "does not" if not any(narrow) else (
            f"holds {'where they cross' if narrow[0] else 'in the end'} only"
        )  # fmt: skip
    names = second["pairs of"], first["pairs of"]
    return [f"That the pairs of {names[0]} end closer together than those of {names[1]}: {verdict}."]


def line(member: Member) -> tuple[Any, Any]:
    """The boundary of a member as a line: s_n and s_p."""
    drawn_boundary = boundary(member.loss.name, {**loss_info(member.loss.name).arguments, **member.loss.arguments})
    assert drawn_boundary is not None
    return drawn_boundary.lines[0]
