"""Pointwise maps: what a similarity is worth to a loss, value and slope together.

A map turns similarities `s` into the terms u = f_p(s) or v = f_n(s) of the formula. `slopes(s)` gives `(value, slope)`,
both fresh, where the slope is what the *gradient* uses. It need not be the derivative: Circle's self-paced weights are
constants in the gradient, so its slope leaves them alone. A slope that is the same for every pair is a plain float.

A field of a map may be a number of the row or of the column instead of a constant: `Linear(scale=Row(0))` multiplies by
the first of the row parameters that the loss is evaluated with, `ArcMargin(64.0, margin=Column(0))` has a margin for
every class. `by(s, name)` is the derivative of the value by such a field; the fields that allow it are `parameters`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """The number of that index that every row has."""

    index: int


@dataclass(frozen=True)
class Column:
    """The number of that index that every column has; for maps of positive pairs."""

    index: int


Number = Any  # a float, a Row or a Column; where it is computed with, a float or a tensor
Slopes = tuple[Tensor, Tensor | float]


class Map(Protocol):
    """A pointwise map and its slopes."""

    parameters: ClassVar[tuple[str, ...]]

    def value(self, s: Tensor) -> Tensor: ...

    def slopes(self, s: Tensor) -> Slopes: ...

    def by(self, s: Tensor, name: str) -> Tensor: ...


_Map = TypeVar("_Map", bound=Map)


def placeholders(function: Map) -> dict[str, Row | Column]:
    """The fields that stand for numbers of rows and columns."""
    given = {name: getattr(function, name) for name in function.parameters}
    return {name: value for name, value in given.items() if isinstance(value, Row | Column)}


def bound(function: _Map, rows: Sequence[Tensor], columns: Sequence[Tensor]) -> _Map:
    """The map with tensors that broadcast against the similarities for its placeholders."""
    names = placeholders(function)
    if not names:
        return function
    values: dict[str, Any] = {
        name: (rows if isinstance(which, Row) else columns)[which.index] for name, which in names.items()
    }
    return replace(function, **values)  # type: ignore[type-var]


def through(function: Map, s: Tensor) -> Tensor:
    """The map under autograd, with the slopes that it states, which need not be its derivatives."""
    numbers = {name: value for name in function.parameters if isinstance(value := getattr(function, name), Tensor)}
    constant = replace(function, **{name: value.detach() for name, value in numbers.items()})  # type: ignore[type-var]
    value, slope = constant.slopes(s.detach())
    change = s - s.detach()
    value = torch.addcmul(value, slope, change) if isinstance(slope, Tensor) else value.add(change, alpha=slope)
    for name, number in numbers.items():
        if number.requires_grad:
            value = value + constant.by(s.detach(), name) * (number - number.detach())
    return value


class _NoParameters:
    """A map whose fields are all constants."""

    parameters: ClassVar[tuple[str, ...]] = ()

    def by(self, s: Tensor, name: str) -> Tensor:
        raise TypeError(f"{type(self).__name__} has no derivative by {name}")


@dataclass(frozen=True)
class Linear:
    """f(s) = scale * s + offset."""

    scale: Number = 1.0
    offset: Number = 0.0
    parameters: ClassVar[tuple[str, ...]] = ("scale", "offset")

    def value(self, s: Tensor) -> Tensor:
        return _linear(s, self.scale, self.offset)

    def slopes(self, s: Tensor) -> Slopes:
        slope = self.scale.expand_as(s) if isinstance(self.scale, Tensor) else self.scale
        return self.value(s), slope

    def by(self, s: Tensor, name: str) -> Tensor:
        return s if name == "scale" else torch.ones_like(s)


def _linear(s: Tensor, scale: Any, offset: Any) -> Tensor:
    """scale * s + offset, fresh."""
    if isinstance(scale, Tensor) or isinstance(offset, Tensor):
        return torch.mul(s, scale).add_(offset)
    if offset:
        return torch.add(_scalar(offset, s), s, alpha=scale)  # one pass, not two
    return s.clone() if scale == 1 else s * scale


def _scalar(value: float, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class SelfPaced:
    """Circle's terms, the bracket being a constant in the gradient.

    positive pairs:  f(s) = -gamma [optimum - s]_+ (s - margin)
    negative pairs:  f(s) =  gamma [s - optimum]_+ (s - margin)
    """

    gamma: float
    optimum: Number
    margin: Number
    positive: bool
    parameters: ClassVar[tuple[str, ...]] = ("optimum", "margin")

    def value(self, s: Tensor) -> Tensor:
        return self._square(self._bounded(s))

    def slopes(self, s: Tensor) -> Slopes:
        bounded = self._bounded(s)
        value = self._square(bounded)
        if isinstance(self.optimum, Tensor):
            return value, bounded.sub_(self.optimum).mul_(self.gamma)
        return value, torch.add(_scalar(-self.gamma * self.optimum, s), bounded, alpha=self.gamma, out=bounded)

    def by(self, s: Tensor, name: str) -> Tensor:
        if name == "optimum":  # part of the bracket
            return torch.zeros_like(s)
        return self._bounded(s).sub_(self.optimum).mul_(-self.gamma)

    def _bounded(self, s: Tensor) -> Tensor:
        """r, the similarity on this side of its optimum: both kinds are gamma (r - optimum) (r - margin)."""
        return s.clamp_max(self.optimum) if self.positive else s.clamp_min(self.optimum)

    def _square(self, r: Tensor) -> Tensor:
        if isinstance(self.optimum, Tensor) or isinstance(self.margin, Tensor):
            return torch.sub(r, self.optimum).mul_(r - self.margin).mul_(self.gamma)
        # gamma ((r - middle)^2 - half^2) takes a pass less; the middle is 0 where Circle's m says both.
        middle, half = (self.optimum + self.margin) / 2, (self.optimum - self.margin) / 2
        centred = r - middle if middle else r
        return torch.addcmul(_scalar(-self.gamma * half * half, r), centred, centred, value=self.gamma)


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


def _cosine_and_sine(angle: Any) -> tuple[Any, Any]:
    return (angle.cos(), angle.sin()) if isinstance(angle, Tensor) else (math.cos(angle), math.sin(angle))


@dataclass(frozen=True)
class ArcMargin:
    """ArcFace's target: f(s) = -scale * cos(theta + margin).

    Where theta + margin passes pi the cosine would rise again: there f(s) = -scale * (s - margin sin(margin)). With
    `easy` the margin applies only where s > 0.
    """

    scale: float
    margin: Number
    easy: bool = False
    parameters: ClassVar[tuple[str, ...]] = ("margin",)

    def value(self, s: Tensor) -> Tensor:
        return self.slopes(s)[0]

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
class AngularSlack(_NoParameters):
    """Tuplet margin's positives: f(s) = -scale * cos(theta - slack)."""

    scale: float
    slack: float

    def value(self, s: Tensor) -> Tensor:
        return self.slopes(s)[0]

    def slopes(self, s: Tensor) -> Slopes:
        target = s * math.cos(self.slack) + (1 - s * s).clamp_min(0).sqrt() * math.sin(self.slack)
        slope = math.cos(self.slack) - s / sine(s) * math.sin(self.slack)
        return target * -self.scale, slope * -self.scale


@dataclass(frozen=True)
class CombinedMargin(_NoParameters):
    """f(s) = -scale * (cos(m1 theta + m2) - m3), the cosine continued monotonically past pi."""

    scale: float
    m1: float
    m2: float
    m3: float

    def value(self, s: Tensor) -> Tensor:
        return self.slopes(s)[0]

    def slopes(self, s: Tensor) -> Slopes:
        target, by_angle = extended_cosine(torch.acos(s.clamp(-1, 1)) * self.m1 + self.m2)
        slope = by_angle * (-self.m1 / sine(s))
        return (target - self.m3) * -self.scale, slope * -self.scale


@dataclass(frozen=True)
class MultiplicativeMargin:
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

    def value(self, s: Tensor) -> Tensor:
        n, cosine = self._cosine(s)
        psi, _ = extended_cosine(torch.acos(cosine) * self.margin)
        return torch.mul(self.lam * cosine + psi, n * (-self.scale / (1 + self.lam)))

    def slopes(self, s: Tensor) -> Slopes:
        return self.value(s), self._mixed(self._cosine(s)[1])[1] * -self.scale

    def by(self, s: Tensor, name: str) -> Tensor:
        cosine = self._cosine(s)[1]
        mixed, slope = self._mixed(cosine)
        other: Any = self.class_norm if name == "norm" else self.norm
        return torch.mul(mixed - cosine * slope, -self.scale * other)

    def _cosine(self, s: Tensor) -> tuple[Any, Tensor]:
        n: Any = self.norm * self.class_norm
        return n, torch.where(n > 0, s / n, 0).clamp_(-1, 1)

    def _mixed(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        psi, by_angle = extended_cosine(torch.acos(cosine) * self.margin)
        slope = (self.lam - by_angle * (self.margin / sine(cosine))) / (1 + self.lam)
        return (self.lam * cosine + psi) / (1 + self.lam), slope


@dataclass(frozen=True)
class Distance(_NoParameters):
    """Distances of normalised vectors as functions of their cosine: "l2" sqrt(2 - 2s), "squared_l2" 2 - 2s, "cosine"
    1 - s.

    For "l2", 2 - 2s is floored at 4 machine epsilons, which caps the slope -1/d of identical vectors.
    f(s) = sign * d(s) + offset.
    """

    kind: str
    sign: int = 1
    offset: float = 0.0

    def value(self, s: Tensor) -> Tensor:
        if self.kind == "l2":
            return self._signed(_euclidean(s))
        scale = 2 if self.kind == "squared_l2" else 1
        return _linear(s, -scale * self.sign, scale * self.sign + self.offset)

    def slopes(self, s: Tensor) -> Slopes:
        if self.kind == "l2":
            distance = _euclidean(s)
            return self._signed(distance), self.slope_at(distance)
        return self.value(s), self.slope_at(s)

    def slope_at(self, distance: Tensor) -> Tensor | float:
        """The slope where d(s) is such a distance."""
        if self.kind != "l2":
            return (-2.0 if self.kind == "squared_l2" else -1.0) * self.sign
        slope = distance.reciprocal()
        return slope.neg_() if self.sign == 1 else slope

    def _signed(self, distance: Tensor) -> Tensor:
        return distance.clone() if self.sign == 1 and not self.offset else _linear(distance, self.sign, self.offset)


def _euclidean(s: Tensor) -> Tensor:
    return _linear(s, -2.0, 2.0).clamp_min_(4 * torch.finfo(s.dtype).eps).sqrt_()


@dataclass(frozen=True)
class Hinge(_NoParameters):
    """[inner(s)]_+ ** power, power 1 or 2."""

    inner: Map
    power: int

    def value(self, s: Tensor) -> Tensor:
        hinge = self.inner.value(s).clamp_min_(0)
        return hinge if self.power == 1 else hinge.square_()

    def slopes(self, s: Tensor) -> Slopes:
        inner, slope = self.inner.slopes(s)
        hinge = inner.clamp_min_(0)
        if self.power == 1:
            return hinge, hinge.sign().mul_(slope)
        return hinge * hinge, hinge * slope * 2


@dataclass(frozen=True)
class Interpolated(_NoParameters):
    """f(s) between the values (k + 1,) at k + 1 equidistant nodes of [-1, 1], linearly."""

    values: Tensor

    def value(self, s: Tensor) -> Tensor:
        return self.slopes(s)[0]

    def slopes(self, s: Tensor) -> Slopes:
        bins = len(self.values) - 1
        node, fraction = nodes(s, bins)
        values = self.values.to(s.dtype)
        rise = values.diff()[node]
        return fraction.mul_(rise).add_(values[node]), rise.mul_(bins / 2)


def nodes(s: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Of bins of equal width over [-1, 1]: the bin of each similarity, and how far into it that is, 0 to 1."""
    position = s.add(1).mul_(bins / 2)
    node = position.floor().clamp_(0, bins - 1)
    return node.to(torch.int32), position.sub_(node)


@dataclass(frozen=True)
class ShiftedHinge(_NoParameters):
    """f(s) = [sign * (s - border)]_+^2. The border moves with the similarities, which adds `drift` to the slope."""

    sign: int
    border: Tensor
    drift: Tensor

    def value(self, s: Tensor) -> Tensor:
        return beyond(s, self.border, self.sign).square_()

    def slopes(self, s: Tensor) -> Slopes:
        hinge = beyond(s, self.border, self.sign)
        return hinge.square(), torch.add(self.drift, hinge, alpha=2 * self.sign, out=hinge)


def beyond(s: Tensor, border: Tensor, sign: int) -> Tensor:
    """[sign * (s - border)]_+."""
    return (s - border if sign > 0 else border - s).clamp_min_(0)


@dataclass(frozen=True)
class Square(_NoParameters):
    """f(s) = s^2."""

    def value(self, s: Tensor) -> Tensor:
        return s * s

    def slopes(self, s: Tensor) -> Slopes:
        return s * s, s + s


@dataclass(frozen=True)
class Softplus(_NoParameters):
    """f(s) = log(1 + exp(sign * s))."""

    sign: int

    def value(self, s: Tensor) -> Tensor:
        return softplus(s * self.sign)

    def slopes(self, s: Tensor) -> Slopes:
        return self.value(s), torch.sigmoid(s * self.sign).mul_(self.sign)


@dataclass(frozen=True)
class Curriculum:
    """CurricularFace's negatives: f(s) = scale * s, or scale * s (t + s) where s > border, which is a constant in the
    gradient.
    """

    scale: float
    t: float
    border: Number
    parameters: ClassVar[tuple[str, ...]] = ("border",)

    def value(self, s: Tensor) -> Tensor:
        return self._factor(s)[0].mul_(s)

    def slopes(self, s: Tensor) -> Slopes:
        factor, hard = self._factor(s)
        return s * factor, factor.add_(hard, alpha=self.scale)

    def by(self, s: Tensor, name: str) -> Tensor:
        return torch.zeros_like(s)

    def _factor(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """f(s) / s = scale (1 + [s > border] (s + t - 1)); and s where it is above the border, else 0."""
        above = torch.gt(s, self.border, out=torch.empty_like(s))  # booleans are slow
        hard = above * s
        more = torch.add(hard, above, alpha=self.t - 1, out=above)
        return torch.add(_scalar(self.scale, s), more, alpha=self.scale, out=more), hard


@dataclass(frozen=True)
class QualityMargin:
    """AdaFace's target: f(s) = -scale * (cos(theta - m z) - m - m z).

    z, between -1 and 1, says how the feature's norm stands in the batch; it is a constant in the gradient.
    """

    scale: float
    margin: float
    z: Number
    parameters: ClassVar[tuple[str, ...]] = ("z",)

    def value(self, s: Tensor) -> Tensor:
        return self.slopes(s)[0]

    def slopes(self, s: Tensor) -> Slopes:
        z: Any = self.z
        angle = torch.acos(s.clamp(-1, 1)) - self.margin * z
        clipped = angle.clamp(1e-3, math.pi - 1e-3)
        slope = torch.where(angle == clipped, angle.sin() / sine(s), 0.0)
        target = clipped.cos() - self.margin - self.margin * z
        return target * -self.scale, slope * -self.scale

    def by(self, s: Tensor, name: str) -> Tensor:
        return torch.zeros_like(s)
