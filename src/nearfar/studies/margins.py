"""The logits of the softmax family as functions of the angle, for the target class and for other classes.

They are computed from the losses themselves. With one other class, l = log(1 + exp(other - target)), so that

    other(θ_n) - target(θ_p) = log(exp(l) - 1)

At an angle θ_n where the other's logit is zero, this gives the target's logit.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from nearfar.losses import Loss
from nearfar.training.build import build_loss
from nearfar.training.config import LossConfig

Floats = npt.NDArray[np.float64]
ANGLES = np.linspace(0.0, math.pi, 181)
"""The angles at which logits are computed; between them they are interpolated."""


@dataclass(frozen=True)
class Member:
    """A loss of the softmax family.

    Args:
        name: its name in papers.
        loss: the loss with its arguments.
        scale: divisor of its logits, to compare different losses.
        zero: a similarity at which the logit of another class is zero.
    """

    name: str
    loss: LossConfig
    scale: float = 1.0
    zero: float = 0.0

    @cached_property
    def target(self) -> Floats:
        """The logit of the target class at `ANGLES`, divided by the scale; SphereFace's is ψ."""
        return -self._excess(np.full_like(ANGLES, self.zero), np.cos(ANGLES))

    @cached_property
    def other(self) -> Floats:
        """The logit of another class at `ANGLES`, divided by the scale."""
        upright = np.zeros_like(ANGLES)
        return self._excess(np.cos(ANGLES), upright) - self._excess(np.full_like(ANGLES, self.zero), upright)

    def _excess(self, s_n: Floats, s_p: Floats) -> Floats:
        """other(s_n) - target(s_p), divided by the scale, for separate samples with two classes each."""
        count = len(s_n)
        built = build_loss((self.loss,), 2 * count, 2).double().eval()
        assert isinstance(built, Loss) and built.weight is not None
        built.reduction = "none"
        cosines = torch.from_numpy(np.concatenate([s_p, s_n]))
        x = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(count, 1)
        positives = torch.eye(count, dtype=torch.bool)
        none = torch.zeros_like(positives)
        with torch.no_grad():
            built.weight.copy_(torch.stack([cosines, (1 - cosines**2).clamp_min(0).sqrt()], 1))
            values = built(
                x, positives=torch.cat([positives, none], 1), negatives=torch.cat([none, positives], 1)
            ).numpy()
        # For large values exp(l) - 1 would overflow: log(exp(l) - 1) = l + log(1 - exp(-l)).
        excess: Floats = (values + np.log(-np.expm1(-values))) / self.scale
        return excess

    def accepted(self, own: Floats, others: Floats) -> npt.NDArray[np.bool_]:
        """Whether a sample keeps the margin between two classes, at these angles (in radians) to both."""
        target = np.interp(own, ANGLES, self.target)
        accepted: npt.NDArray[np.bool_] = target >= np.interp(others, ANGLES, self.other)
        return accepted

    def own_limit(self, other: float) -> float:
        """The boundary: the largest angle of a sample to its class at this angle to another; NaN if there is none."""
        to_class = np.linspace(0.0, math.pi, 3601)
        inside = self.accepted(to_class, np.full_like(to_class, other))
        return float(to_class[inside].max()) if inside.any() else math.nan


def family(scale: float, spherical: float, cosine: float, angular: float, m: float) -> list[Member]:
    """Softmax, SphereFace, CosFace, ArcFace and Circle with their margins."""
    plain = {"base": 0.0, "lambda_min": 0.0}
    return [
        Member("Softmax", LossConfig("ModifiedSoftmaxLoss")),
        Member("SphereFace", LossConfig("SphereFaceLoss", {"margin": spherical, **plain})),
        Member("CosFace", LossConfig("CosFaceLoss", {"margin": cosine, "scale": scale}), scale),
        Member("ArcFace", LossConfig("ArcFaceLoss", {"margin": angular, "scale": scale}), scale),
        Member("Circle", LossConfig("CircleLoss", {"m": m, "gamma": scale}, class_level=True), scale, zero=m),
    ]


def zones(member: Member, weight: Floats, points: Floats) -> npt.NDArray[np.int64]:
    """For unit points (N, D), the class (N,) that keeps its margin against all other class vectors; -1 for none."""
    angles = np.arccos(np.clip(points @ weight.T, -1, 1))
    nearest = angles.argmin(1)
    to_class = angles[np.arange(len(points)), nearest]
    kept = np.ones(len(points), bool)
    for other in range(len(weight)):
        kept &= (nearest == other) | member.accepted(to_class, angles[:, other])
    return np.where(kept, nearest, -1)


def arcs(member: Member, weight: Floats, count: int = 3600) -> list[tuple[int, float, float]]:
    """The arcs of `zones` on the circle: class, begin and end, in radians."""
    turns = np.linspace(0, 2 * math.pi, count, endpoint=False)
    classes = zones(member, weight, np.stack([np.cos(turns), np.sin(turns)], 1))
    changes = np.flatnonzero(classes != np.roll(classes, 1))
    if not len(changes):
        return [(int(classes[0]), 0.0, 2 * math.pi)] if classes[0] >= 0 else []
    ends = [*changes[1:], changes[0] + count]
    runs = [(int(classes[a]), a, b - 1) for a, b in zip(changes, ends, strict=True)]
    step = 2 * math.pi / count
    return [(label, float(a * step), float(b * step)) for label, a, b in runs if label >= 0]
