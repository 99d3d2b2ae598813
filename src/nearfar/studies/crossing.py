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
from nearfar.studies.heads import Heads
from nearfar.studies.margins import Member
from nearfar.studies.study import Row
from nearfar.training.config import LossConfig
from nearfar.training.learner import Learner, Step
from nearfar.training.options import loss_info


def members(am_margin: float, circle_margins: Sequence[float], scale: float) -> dict[str, Member]:
    """AM-Softmax and Circle, class-level, with their margins."""
    am = LossConfig("AMSoftmaxLoss", {"margin": am_margin, "scale": scale})
    found = [Member(f"AM-Softmax, m = {am_margin:g}", am, scale)]
    for m in circle_margins:
        circle = LossConfig("CircleLoss", {"m": m, "gamma": scale}, class_level=True)
        found.append(Member(f"Circle, m = {m:g}", circle, scale, zero=m))
    return {member.name: member for member in found}


class Tracker:
    """Follows training images: (s_n, s_p) when they first keep the margin, and at the last step."""

    def __init__(self, member: Member, features: Tensor, labels: Tensor):
        self._member, self._features, self._labels = member, features, labels
        self.crossed = np.full((len(labels), 2), np.nan)
        self._outside = np.zeros(len(labels), bool)  # seen outside before: what starts inside does not cross
        self.last = self.crossed.copy()

    def __call__(self, learner: Learner, step: Step, seconds: float) -> None:
        assert isinstance(learner.loss, Loss) and learner.loss.weight is not None
        with torch.no_grad():
            self.see(learner.embedder.project(self._features), learner.loss.weight)

    @torch.no_grad()
    def see(self, embeddings: Tensor, weight: Tensor) -> None:
        """Where they are now."""
        cosines = (normalize(embeddings) @ normalize(weight).T).cpu()
        rows = torch.arange(len(cosines))
        s_p = cosines[rows, self._labels].double().numpy().copy()
        cosines[rows, self._labels] = -2
        s_n = cosines.max(1).values.double().numpy()
        inside = self._member.accepted(*(np.arccos(np.clip(s, -1, 1)) for s in (s_p, s_n)))
        self.last = np.stack([s_n, s_p], 1)
        crossing = inside & self._outside & np.isnan(self.crossed[:, 0])
        self.crossed[crossing] = self.last[crossing]
        self._outside |= ~inside


def track(heads: Heads, member: Member, images: int, steps: int, seed: int) -> dict[str, Any]:
    """One training with class vectors, so many of its images followed."""
    ground = heads.ground
    fold = ground.folds[0]
    assert fold.features is not None
    usable = np.setdiff1d(np.arange(len(fold.train)), fold.features.missing)
    rows = np.sort(np.random.default_rng(seed).permutation(usable)[:images])
    features = torch.from_numpy(fold.features.take(rows)).to(ground.device)
    tracker = Tracker(member, features, torch.from_numpy(fold.train.labels[rows]))
    heads.train(member.loss, seed, steps=steps, look=dict, after=tracker)
    there = ~np.isnan(tracker.crossed[:, 0])
    return {
        "followed": len(rows),
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
    return (
        f"{row['pairs of']}: {100 * share:.0f} % of {row['followed']} images crossed the boundary{where}; in the end "
        f"they spread by {spread_of(row['last']):.3f}."
    )


def line(member: Member) -> tuple[Any, Any]:
    """The boundary of a member, to be drawn: s_n and s_p."""
    found = boundary(member.loss.name, {**loss_info(member.loss.name).arguments, **member.loss.arguments})
    assert found is not None
    return found.lines[0]
