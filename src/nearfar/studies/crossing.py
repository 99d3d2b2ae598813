"""Where pairs of training images cross the boundary of their loss, and where they end.

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

LOOKS = 40  # at the pairs of a training
CONVERGED = 0.5  # of the pairs inside the boundary: with fewer, their places are those of a training under way


def members(am_margin: float, circle_margins: Sequence[float], scale: float) -> dict[str, Member]:
    """AM-Softmax and Circle, class-level, with their margins."""
    am = LossConfig("AMSoftmaxLoss", {"margin": am_margin, "scale": scale})
    found = [Member(f"AM-Softmax, m = {am_margin:g}", am, scale)]
    for m in circle_margins:
        circle = LossConfig("CircleLoss", {"m": m, "gamma": scale}, class_level=True)
        found.append(Member(f"Circle, m = {m:g}", circle, scale, zero=m))
    return {member.name: member for member in found}


class Tracker:
    """Follows training images: (s_n, s_p) when they first keep the margin, and as they were seen last."""

    def __init__(self, member: Member, labels: Tensor):
        self._member, self._labels = member, labels
        self.crossed = np.full((len(labels), 2), np.nan)
        self._outside = np.zeros(len(labels), bool)  # seen outside before: what starts inside does not cross
        self.last = self.crossed.copy()
        self.inside = self._outside.copy()

    @torch.no_grad()
    def see(self, embeddings: Tensor, weight: Tensor) -> None:
        """Where they are now."""
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
    """One training with class vectors, so many of its images followed."""
    train = networks.rows[0]
    rows = np.sort(np.random.default_rng(seed).permutation(len(train))[:images])
    followed = train.select(rows)
    tracker = Tracker(member, torch.from_numpy(train.labels[rows]))
    every = max(1, steps // LOOKS)

    def after(learner: Learner, step: Step) -> None:
        assert isinstance(learner.loss, Loss) and learner.loss.weight is not None
        if learner.done % every == 0 or learner.done == steps:
            found = torch.from_numpy(embed(learner.embedder, followed, learner.config))
            tracker.see(found.to(learner.device), learner.loss.weight)

    found = networks.train(member.loss, seed, steps, options=options, after=after)
    there = ~np.isnan(tracker.crossed[:, 0])
    return {
        "followed": len(rows),
        "inside": float(tracker.inside.mean()),
        "recall@1": found.recall,
        "map@r": None if found.diverged else found.looks[-1][3],
        "crossed": np.round(tracker.crossed[there], 4).tolist(),
        "last": np.round(tracker.last, 4).tolist(),
    }


def rows(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Every place, of crossing or of the end."""
    return [
        {"pairs of": row["pairs of"], "when": when, "s_n": s_n, "s_p": s_p}
        for row in found
        for when in ("crossed", "last")
        for s_n, s_p in row[when]
    ]


def spread_of(places: Sequence[Sequence[float]]) -> float:
    """How far places lie from their middle, in the plane: the root of the mean square.

    >>> spread_of([[0, 1], [0, -1], [0, 1], [0, -1]])
    1.0
    """
    values = np.asarray(places, float)
    return float(np.sqrt(((values - values.mean(0)) ** 2).sum(1).mean()))


def sentence(row: Mapping[str, Any]) -> str:
    """What became of the pairs."""
    share = len(row["crossed"]) / row["followed"]
    where = f", in places that spread by {spread_of(row['crossed']):.3f}" if row["crossed"] else ""
    middle = np.mean(row["last"], 0)
    return (
        f"{row['pairs of']}: {100 * share:.0f} % of {row['followed']} images crossed the boundary{where}; in the end "
        f"{100 * row['inside']:.0f} % are inside it, about ({middle[0]:.2f}, {middle[1]:.2f}), and spread by "
        f"{spread_of(row['last']):.3f}."
    )


def verdict(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether pairs cross and end in a narrower place under Circle, the second, than under AM-Softmax, the first."""
    first, second = found[:2]
    inside = min(row["inside"] for row in (first, second))
    if inside < CONVERGED:
        verdict = f"cannot be told, since only {100 * inside:.0f} % of the pairs are inside a boundary in the end"
    else:
        narrow = [spread_of(second[when]) < spread_of(first[when]) for when in ("crossed", "last")]
        verdict = "holds" if all(narrow) else "does not" if not any(narrow) else (
            f"holds {'where they cross' if narrow[0] else 'in the end'} only"
        )  # fmt: skip
    names = second["pairs of"], first["pairs of"]
    return [f"That the pairs of {names[0]} come to lie closer together than those of {names[1]}: {verdict}."]


def line(member: Member) -> tuple[Any, Any]:
    """The boundary of a member, to be drawn: s_n and s_p."""
    found = boundary(member.loss.name, {**loss_info(member.loss.name).arguments, **member.loss.arguments})
    assert found is not None
    return found.lines[0]
