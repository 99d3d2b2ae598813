"""Pointwise maps: what a similarity is worth to a loss, value and slope together.

A map turns similarities `s` into the terms u = f_p(s) or v = f_n(s) of the formula. `value(s, n)` gives a fresh tensor;
`slopes(s, n)` gives `(value, slope, norm_slope)`, where the slope is what the *gradient* uses. It need not be the
derivative: Circle's self-paced weights are constants in the gradient, so its slope leaves them alone.

`n` is the pair's norm: |x|, times |w| where the similarity keeps that too. Only maps with `uses_norm` are given it,
and only they return a `norm_slope`. A slope that is the same for every pair is a plain float. `out`, which may be `s`
itself, is where the value may be put.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

Slopes = tuple[Tensor, Tensor | float, Tensor | None]


class Map(Protocol):
    """A pointwise map and its slopes."""

    uses_norm: ClassVar[bool]

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor: ...

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes: ...


def through(function: Map, s: Tensor, n: Tensor | None = None) -> Tensor:
    """The map under autograd, with the slopes that it states, which need not be its derivatives."""
    value, slope, norm_slope = function.slopes(s.detach(), None if n is None else n.detach())
    nothing = s - s.detach()
    value = torch.addcmul(value, slope, nothing) if isinstance(slope, Tensor) else value.add(nothing, alpha=slope)
    return value if n is None or norm_slope is None else value + norm_slope * (n - n.detach())


@dataclass(frozen=True)
class Linear:
    """f(s) = scale * s + offset."""

    scale: float = 1.0
    offset: float = 0.0
    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return _linear(s, self.scale, self.offset, out)

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        return _linear(s, self.scale, self.offset, out), self.scale, None


def _linear(s: Tensor, scale: float, offset: float, out: Tensor | None = None) -> Tensor:
    """scale * s + offset, a fresh tensor if it is not `out`."""
    if offset:
        return torch.add(_number(offset, s), s, alpha=scale, out=out)  # one pass, not two
    # A number costs a small tile more than the pass over it.
    if scale == -1:
        return torch.neg(s, out=out)
    if scale == 1 and (out is None or out is s):
        return s.clone() if out is None else s
    return torch.mul(s, scale, out=out)


@dataclass(frozen=True)
class SelfPaced:
    """Circle's terms, the bracket being a constant in the gradient.

    positive pairs:  f(s) = -gamma [optimum - s]_+ (s - margin)
    negative pairs:  f(s) =  gamma [s - optimum]_+ (s - margin)
    """

    gamma: float
    optimum: float
    margin: float
    positive: bool
    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return self._square(self._bounded(s), out)

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        bounded = self._bounded(s)
        value = self._square(bounded, out)
        return value, torch.add(_number(-self.gamma * self.optimum, s), bounded, alpha=self.gamma, out=bounded), None

    def _bounded(self, s: Tensor) -> Tensor:
        """r, the similarity on this side of its optimum: both kinds are gamma (r - optimum) (r - margin)."""
        return s.clamp_max(self.optimum) if self.positive else s.clamp_min(self.optimum)

    def _square(self, r: Tensor, out: Tensor | None) -> Tensor:
        """gamma ((r - middle)^2 - half^2), which takes a pass less; the middle is 0 for m alone among negatives."""
        middle, half = (self.optimum + self.margin) / 2, (self.optimum - self.margin) / 2
        centred = r - middle if middle else r
        return torch.addcmul(_number(-self.gamma * half * half, r), centred, centred, value=self.gamma, out=out)


def _number(value: float, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=like.dtype, device=like.device)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exactly: above 40 it is x, even in float64."""
    return torch.nn.functional.softplus(x, threshold=40)


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


@dataclass(frozen=True)
class ArcMargin:
    """ArcFace's target: f(s) = -scale * cos(theta + margin).

    Where theta + margin passes pi the cosine would rise again: there f(s) = -scale * (s - margin sin(margin)). With
    `easy` the margin applies only where s > 0.
    """

    scale: float
    margin: float
    easy: bool = False
    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return self.slopes(s)[0]

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        sin_theta = sine(s)
        target = s * math.cos(self.margin) - (1 - s * s).clamp_min(0).sqrt() * math.sin(self.margin)
        slope = math.cos(self.margin) + s / sin_theta * math.sin(self.margin)
        if self.easy:
            applies, otherwise = s > 0, s
        else:
            applies, otherwise = s > math.cos(math.pi - self.margin), s - self.margin * math.sin(self.margin)
        target = torch.where(applies, target, otherwise)
        slope = torch.where(applies, slope, torch.ones_like(slope))
        return target * -self.scale, slope * -self.scale, None


@dataclass(frozen=True)
class AngularSlack:
    """Tuplet margin's positives: f(s) = -scale * cos(theta - slack)."""

    scale: float
    slack: float
    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return self.slopes(s)[0]

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        target = s * math.cos(self.slack) + (1 - s * s).clamp_min(0).sqrt() * math.sin(self.slack)
        slope = math.cos(self.slack) - s / sine(s) * math.sin(self.slack)
        return target * -self.scale, slope * -self.scale, None


@dataclass(frozen=True)
class CombinedMargin:
    """f(s) = -scale * (cos(m1 theta + m2) - m3), the cosine continued monotonically past pi."""

    scale: float
    m1: float
    m2: float
    m3: float
    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return self.slopes(s)[0]

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        target, by_angle = extended_cosine(torch.acos(s.clamp(-1, 1)) * self.m1 + self.m2)
        slope = by_angle * (-self.m1 / sine(s))
        return (target - self.m3) * -self.scale, slope * -self.scale, None


@dataclass(frozen=True)
class MultiplicativeMargin:
    """SphereFace's and L-Softmax's target: f(s, n) = -scale * n (lam cos(theta) + psi(theta)) / (1 + lam), with
    cos(theta) = s / n.

    psi(theta) = (-1)^k cos(m theta) - 2k on [k pi / m, (k+1) pi / m]. The similarity s = n cos(theta) keeps the norm
    n, so both vary.
    """

    scale: float
    margin: float
    lam: float
    uses_norm: ClassVar[bool] = True

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return self.slopes(s, n)[0]

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        assert n is not None
        cosine = torch.where(n > 0, s / n, 0).clamp_(-1, 1)
        psi, by_angle = extended_cosine(torch.acos(cosine) * self.margin)
        mixed = (self.lam * cosine + psi) / (1 + self.lam)
        slope = (self.lam - by_angle * (self.margin / sine(cosine))) / (1 + self.lam)
        return n * mixed * -self.scale, slope * -self.scale, (mixed - cosine * slope) * -self.scale


@dataclass(frozen=True)
class Distance:
    """Distances of normalised vectors as functions of their cosine: "l2" sqrt(2 - 2s), "squared_l2" 2 - 2s, "cosine"
    1 - s.

    For "l2", 2 - 2s is floored at 4 machine epsilons, which caps the slope -1/d of identical vectors.
    f(s) = sign * d(s) + offset.
    """

    kind: str
    sign: int = 1
    offset: float = 0.0
    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        if self.kind == "l2":
            return self._signed(_euclidean(s))
        scale = 2 if self.kind == "squared_l2" else 1
        return _linear(s, -scale * self.sign, scale * self.sign + self.offset)

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        if self.kind == "l2":
            distance = _euclidean(s)
            return self._signed(distance), self.slope_at(distance), None
        return self.value(s), self.slope_at(s), None

    def slope_at(self, distance: Tensor) -> Tensor | float:
        """The slope where d(s) is such a distance."""
        if self.kind != "l2":
            return (-2.0 if self.kind == "squared_l2" else -1.0) * self.sign
        slope = distance.reciprocal()
        return slope.neg_() if self.sign == 1 else slope

    def _signed(self, distance: Tensor) -> Tensor:
        return distance if self.sign == 1 and not self.offset else _linear(distance, self.sign, self.offset)


def _euclidean(s: Tensor) -> Tensor:
    return _linear(s, -2.0, 2.0).clamp_min_(4 * torch.finfo(s.dtype).eps).sqrt_()


@dataclass(frozen=True)
class Hinge:
    """[inner(s)]_+ ** power, power 1 or 2."""

    inner: Map
    power: int
    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        hinge = self.inner.value(s).clamp_min_(0)
        return hinge if self.power == 1 else hinge.square_()

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        inner, slope, _ = self.inner.slopes(s)
        hinge = inner.clamp_min_(0)
        if self.power == 1:
            active = hinge.sign()
            if isinstance(slope, Tensor):
                return hinge, active.mul_(slope), None
            return hinge, _linear(active, slope, 0.0, out=active), None
        return hinge * hinge, hinge * slope * 2, None


@dataclass(frozen=True)
class Interpolated:
    """f(s) between the values (k + 1,) at k + 1 equidistant nodes of [-1, 1], linearly."""

    values: Tensor
    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return self.slopes(s)[0]

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        bins = len(self.values) - 1
        node, fraction = nodes(s, bins)
        values = self.values.to(s.dtype)
        rise = values.diff()[node]
        return fraction.mul_(rise).add_(values[node]), rise.mul_(bins / 2), None


def nodes(s: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Of bins of equal width over [-1, 1]: the bin of each similarity, and how far into it that is, 0 to 1."""
    position = s.add(1).mul_(bins / 2)
    node = position.floor().clamp_(0, bins - 1)
    return node.to(torch.int32), position.sub_(node)


@dataclass(frozen=True)
class ShiftedHinge:
    """f(s) = [sign * (s - border)]_+^2, the border moving with the similarities: the slope has `drift` besides."""

    sign: int
    border: Tensor
    drift: Tensor
    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return beyond(s, self.border, self.sign).square_()

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        hinge = beyond(s, self.border, self.sign)
        return hinge.square(), torch.add(self.drift, hinge, alpha=2 * self.sign, out=hinge), None


def beyond(s: Tensor, border: Tensor, sign: int) -> Tensor:
    """[sign * (s - border)]_+."""
    return (s - border if sign > 0 else border - s).clamp_min_(0)


@dataclass(frozen=True)
class Square:
    """f(s) = s^2."""

    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return torch.mul(s, s, out=out)

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        slope = s + s
        return self.value(s, out=out), slope, None


@dataclass(frozen=True)
class Softplus:
    """f(s) = log(1 + exp(sign * s))."""

    sign: int
    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return softplus(s * self.sign)

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        return self.value(s), torch.sigmoid(s * self.sign).mul_(self.sign), None


@dataclass(frozen=True)
class Curriculum:
    """CurricularFace's negatives: f(s) = scale * s, or scale * s (t + s) where s > border = cos(theta_y + margin).

    The border, (b, 1), stands in the place of the norm.
    """

    scale: float
    t: float
    uses_norm: ClassVar[bool] = False

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return torch.mul(s, self._factor(s, n)[0], out=out)

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        factor, hard = self._factor(s, n)
        return torch.mul(s, factor, out=out), factor.add_(hard, alpha=self.scale), None

    def _factor(self, s: Tensor, n: Tensor | None) -> tuple[Tensor, Tensor]:
        """f(s) / s = scale (1 + [s > border] (s + t - 1)); and s where it is above the border, else 0."""
        assert n is not None
        above = torch.gt(s, n, out=torch.empty_like(s))  # as numbers: booleans are slow
        hard = above * s
        more = torch.add(hard, above, alpha=self.t - 1, out=above)
        return torch.add(_number(self.scale, s), more, alpha=self.scale, out=more), hard


@dataclass(frozen=True)
class MagnitudeMargin:
    """MagFace's target: f(s, n) = -scale * cos(theta + m(a)), m linear in the norm a = n clipped to [low, high]."""

    scale: float
    low: float
    high: float
    low_margin: float
    high_margin: float
    uses_norm: ClassVar[bool] = True

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return self.slopes(s, n)[0]

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        assert n is not None
        growth = (self.high_margin - self.low_margin) / (self.high - self.low)
        m = self.low_margin + growth * (n.clamp(self.low, self.high) - self.low)
        by_m = growth * ((n > self.low) & (n < self.high)).to(n.dtype)
        root = (1 - s * s).clamp_min(0).sqrt()
        within = s > -m.cos()  # theta + m < pi
        target = torch.where(within, s * m.cos() - root * m.sin(), s - m * m.sin())
        slope = torch.where(within, m.cos() + s / sine(s) * m.sin(), 1.0)
        by_margin = torch.where(within, -(root * m.cos() + s * m.sin()), -(m.sin() + m * m.cos()))
        return target * -self.scale, slope * -self.scale, by_margin * by_m * -self.scale


@dataclass(frozen=True)
class QualityMargin:
    """AdaFace's target: f(s, n) = -scale * (cos(theta - m z) - m - m z), z = clip((n - mean) / (std + 0.001) h, -1, 1).

    The norm n, clipped to [0.001, 100], stands for the image's quality; z is a constant in the gradient.
    """

    scale: float
    margin: float
    h: float
    mean: float
    std: float
    uses_norm: ClassVar[bool] = True

    def value(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return self.slopes(s, n)[0]

    def slopes(self, s: Tensor, n: Tensor | None = None, out: Tensor | None = None) -> Slopes:
        assert n is not None
        z = ((n.clamp(1e-3, 100) - self.mean) / (self.std + 1e-3) * self.h).clamp_(-1, 1)
        angle = torch.acos(s.clamp(-1, 1)) - self.margin * z
        clipped = angle.clamp(1e-3, math.pi - 1e-3)
        slope = torch.where(angle == clipped, angle.sin() / sine(s), 0.0)
        target = clipped.cos() - self.margin - self.margin * z
        return target * -self.scale, slope * -self.scale, torch.zeros_like(s)
