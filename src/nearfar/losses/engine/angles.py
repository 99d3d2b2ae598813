"""Maps of the angle between a sample and its class, for the losses with angular margins.

Their slopes by the cosine, d/ds = -d/dtheta / sin(theta), are capped where sin(theta) is zero.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nearfar.losses.engine.maps import Map, Number, Slopes


def sine(cosine: Tensor) -> Tensor:
    """sin(theta) of cos(theta), with 1 - s^2 floored at machine epsilon: the cap on every slope d/ds = -d/dtheta /
    sin(theta).
    """
    return (1 - cosine * cosine).clamp_min_(torch.finfo(cosine.dtype).eps).sqrt_()


def extended_cosine(angle: Tensor) -> tuple[Tensor, Tensor]:
    """cos continued monotonically past pi, (-1)^k cos(angle) - 2k with k = floor(angle / pi), and its derivative by
    the angle.
    """
    k = torch.floor(angle / math.pi)
    alternating = 1 - 2 * torch.remainder(k, 2)
    return alternating * torch.cos(angle) - 2 * k, -alternating * torch.sin(angle)


def _cosine_and_sine(angle: Any) -> tuple[Any, Any]:
    return (angle.cos(), angle.sin()) if isinstance(angle, Tensor) else (math.cos(angle), math.sin(angle))


@dataclass(frozen=True)
class ArcMargin(Map):
    """ArcFace's target: f(s) = -scale * cos(theta + margin).

    Where theta + margin passes pi the cosine would rise again: there f(s) = -scale * (s - margin sin(margin)). With
    `easy` the margin applies only where s > 0.
    """

    scale: float
    margin: Number
    easy: bool = False
    parameters: ClassVar[tuple[str, ...]] = ("margin",)
    of_cosines: ClassVar[bool] = True

    def slopes(self, s: Tensor) -> Slopes:
        cos_m, sin_m = _cosine_and_sine(self.margin)
        target = s * cos_m - (1 - s * s).clamp_min(0).sqrt() * sin_m
        slope = cos_m + s / sine(s) * sin_m
        applies = self._applies(s, cos_m)
        target = torch.where(applies, target, s if self.easy else s - self.margin * sin_m)
        slope = torch.where(applies, slope, torch.ones_like(slope))
        return target * -self.scale, slope * -self.scale

    def by(self, s: Tensor, name: str) -> Tensor:
        cos_m, sin_m = _cosine_and_sine(self.margin)
        within = -(s * sin_m + (1 - s * s).clamp_min(0).sqrt() * cos_m)
        beyond_pi = torch.zeros_like(s) if self.easy else -(sin_m + self.margin * cos_m) + torch.zeros_like(s)
        return torch.where(self._applies(s, cos_m), within, beyond_pi) * -self.scale

    def _applies(self, s: Tensor, cos_m: Any) -> Tensor:
        return s > 0 if self.easy else s > -cos_m  # theta + margin < pi


@dataclass(frozen=True)
class AngularSlack(Map):
    """Tuplet margin's positives: f(s) = -scale * cos(theta - slack)."""

    scale: float
    slack: float
    of_cosines: ClassVar[bool] = True

    def slopes(self, s: Tensor) -> Slopes:
        target = s * math.cos(self.slack) + (1 - s * s).clamp_min(0).sqrt() * math.sin(self.slack)
        slope = math.cos(self.slack) - s / sine(s) * math.sin(self.slack)
        return target * -self.scale, slope * -self.scale


@dataclass(frozen=True)
class CombinedMargin(Map):
    """f(s) = -scale * (cos(m1 theta + m2) - m3), the cosine continued monotonically past pi."""

    scale: float
    m1: float
    m2: float
    m3: float
    of_cosines: ClassVar[bool] = True

    def slopes(self, s: Tensor) -> Slopes:
        target, by_angle = extended_cosine(torch.acos(s.clamp(-1, 1)) * self.m1 + self.m2)
        slope = by_angle * (-self.m1 / sine(s))
        return (target - self.m3) * -self.scale, slope * -self.scale


@dataclass(frozen=True)
class MultiplicativeMargin(Map):
    """SphereFace's and L-Softmax's target: f(s) = -scale * n (lam cos(theta) + psi(theta)) / (1 + lam), with
    cos(theta) = s / n and n = norm * class_norm.

    psi(theta) = (-1)^k cos(m theta) - 2k on [k pi / m, (k+1) pi / m]. The similarity s = n cos(theta) keeps the norm
    n, so both vary.
    """

    scale: float
    margin: float
    lam: float
    norm: Number
    class_norm: Number = 1.0
    parameters: ClassVar[tuple[str, ...]] = ("norm", "class_norm")

    def slopes(self, s: Tensor) -> Slopes:
        n: Any = self.norm * self.class_norm
        target, slope, _ = self._target(s)
        return target * (n * -self.scale), slope * -self.scale

    def by(self, s: Tensor, name: str) -> Tensor:
        target, slope, cosine = self._target(s)
        other: Any = self.class_norm if name == "norm" else self.norm
        return torch.mul(target - cosine * slope, -self.scale * other)

    def _target(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(lam cos(theta) + psi(theta)) / (1 + lam), its slope by the cosine, and the cosine."""
        n: Any = self.norm * self.class_norm
        cosine = torch.where(n > 0, s / n, 0).clamp_(-1, 1)
        psi, by_angle = extended_cosine(torch.acos(cosine) * self.margin)
        slope = (self.lam - by_angle * (self.margin / sine(cosine))) / (1 + self.lam)
        return (self.lam * cosine + psi) / (1 + self.lam), slope, cosine


@dataclass(frozen=True)
class QualityMargin(Map):
    """AdaFace's target: f(s) = -scale * (cos(theta - m z) - m - m z).

    z, between -1 and 1, says how the feature's norm stands in the batch; it is a constant in the gradient.
    """

    scale: float
    margin: float
    z: Number
    parameters: ClassVar[tuple[str, ...]] = ("z",)
    of_cosines: ClassVar[bool] = True

    def slopes(self, s: Tensor) -> Slopes:
        z: Any = self.z
        angle = torch.acos(s.clamp(-1, 1)) - self.margin * z
        clipped = angle.clamp(1e-3, math.pi - 1e-3)
        slope = torch.where(angle == clipped, angle.sin() / sine(s), 0.0)
        target = clipped.cos() - self.margin - self.margin * z
        return target * -self.scale, slope * -self.scale

    def by(self, s: Tensor, name: str) -> Tensor:
        return torch.zeros_like(s)
