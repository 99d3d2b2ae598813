"""Pointwise maps: what a similarity is worth to a loss, value and slope together.

A map turns similarities `s` into the terms u = f_p(s) or v = f_n(s) of the formula. `slopes(s)` gives `(value, slope)`,
both fresh, where the slope is what the *gradient* uses. It need not be the derivative: Circle's self-paced weights are
constants in the gradient, so its slope leaves them alone. A slope that is the same for every pair is a plain float.

A field of a map may be a number of the row or of the column instead of a constant: `Linear(scale=Row(0))` multiplies by
the first of the row parameters that the loss is evaluated with, `ArcMargin(64.0, margin=Column(0))` has a margin for
every class. `by(s, name)` is the derivative of the value by such a field; the fields that allow it are `parameters`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """A number that every row has, by its index among these numbers."""

    index: int


@dataclass(frozen=True)
class Column:
    """A number that every column has, by its index among these numbers; for maps of positive pairs."""

    index: int


Number = Any  # a float, a Row or a Column; in a map that `bound` has completed, a float or a tensor
Slopes = tuple[Tensor, Tensor | float]


@dataclass(frozen=True)
class Map(ABC):
    """A pointwise map and its slopes.

    Class attributes:
        parameters: the fields that may be numbers of the row or of the column.
        of_cosines: the map has a meaning only for cosines: both sides must be normalised, without a bias.
    """

    parameters: ClassVar[tuple[str, ...]] = ()
    of_cosines: ClassVar[bool] = False

    @abstractmethod
    def slopes(self, s: Tensor) -> Slopes:
        """The value and the slope."""

    def value(self, s: Tensor) -> Tensor:
        """The value only."""
        return self.slopes(s)[0]

    def by(self, s: Tensor, name: str) -> Tensor:
        """The derivative of the value by one of the `parameters`."""
        raise TypeError(f"{type(self).__name__} has no derivative by {name}")


def placeholders(function: Map) -> dict[str, Row | Column]:
    """The fields that stand for numbers of rows and columns."""
    given = {name: getattr(function, name) for name in function.parameters}
    return {name: value for name, value in given.items() if isinstance(value, Row | Column)}


def bound(function: Map, rows: Sequence[Tensor], columns: Sequence[Tensor]) -> Map:
    """The map with tensors that broadcast against the similarities for its placeholders."""
    names = placeholders(function)
    if not names:
        return function
    values: dict[str, Any] = {
        name: (rows if isinstance(which, Row) else columns)[which.index] for name, which in names.items()
    }
    return replace(function, **values)


def through(function: Map, s: Tensor) -> Tensor:
    """The map under autograd, with the slopes that it states, which need not be its derivatives."""
    numbers = {name: value for name in function.parameters if isinstance(value := getattr(function, name), Tensor)}
    constant = replace(function, **{name: value.detach() for name, value in numbers.items()})
    value, slope = constant.slopes(s.detach())
    change = s - s.detach()
    value = torch.addcmul(value, slope, change) if isinstance(slope, Tensor) else value.add(change, alpha=slope)
    for name, number in numbers.items():
        if number.requires_grad:
            value = value + constant.by(s.detach(), name) * (number - number.detach())
    return value


@dataclass(frozen=True)
class Linear(Map):
    """f(s) = scale * s + offset."""

    scale: Number = 1.0
    offset: Number = 0.0
    parameters: ClassVar[tuple[str, ...]] = ("scale", "offset")

    def slopes(self, s: Tensor) -> Slopes:
        slope = self.scale.expand_as(s) if isinstance(self.scale, Tensor) else self.scale
        return _linear(s, self.scale, self.offset), slope

    def by(self, s: Tensor, name: str) -> Tensor:
        return s if name == "scale" else torch.ones_like(s)


def _linear(s: Tensor, scale: Any, offset: Any) -> Tensor:
    """scale * s + offset, fresh."""
    scaled: Tensor = s * scale
    return scaled if isinstance(offset, float | int) and offset == 0 else scaled.add_(offset)


@dataclass(frozen=True)
class SelfPaced(Map):
    """Circle's terms, the bracket being a constant in the gradient.

    positive pairs:  f(s) = -gamma [optimum - s]_+ (s - margin)
    negative pairs:  f(s) =  gamma [s - optimum]_+ (s - margin)
    """

    gamma: float
    optimum: Number
    margin: Number
    positive: bool
    parameters: ClassVar[tuple[str, ...]] = ("optimum", "margin")

    def slopes(self, s: Tensor) -> Slopes:
        # With r, the similarity on this side of its optimum, both kinds are gamma (r - optimum) (r - margin).
        r = self._bounded(s)
        slope = torch.sub(r, self.optimum).mul_(self.gamma)
        return r.sub_(self.margin).mul_(slope), slope

    def by(self, s: Tensor, name: str) -> Tensor:
        if name == "optimum":  # part of the bracket
            return torch.zeros_like(s)
        return self._bounded(s).sub_(self.optimum).mul_(-self.gamma)

    def _bounded(self, s: Tensor) -> Tensor:
        return s.clamp_max(self.optimum) if self.positive else s.clamp_min(self.optimum)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exactly: above 40 it is x, even in float64."""
    return torch.nn.functional.softplus(x, threshold=40)


@dataclass(frozen=True)
class Distance(Map):
    """Distances of normalised vectors as functions of their cosine: "l2" sqrt(2 - 2s), "squared_l2" 2 - 2s, "cosine"
    1 - s.

    For "l2", 2 - 2s is floored at 4 machine epsilons, which caps the slope -1/d of identical vectors.
    f(s) = sign * d(s) + offset.
    """

    kind: str
    sign: int = 1
    offset: float = 0.0
    of_cosines: ClassVar[bool] = True
    nearest: ClassVar[float] = 1.0  # the similarity of vectors without a distance

    def slopes(self, s: Tensor) -> Slopes:
        if self.kind == "l2":
            distance = _linear(s, -2.0, 2 * self.nearest).clamp_min_(4 * torch.finfo(s.dtype).eps).sqrt_()
            return _linear(distance, self.sign, self.offset), self.slope_at(distance)
        scale = 2 if self.kind == "squared_l2" else 1
        return _linear(s, -scale * self.sign, scale * self.nearest * self.sign + self.offset), self.slope_at(s)

    def slope_at(self, distance: Tensor) -> Tensor | float:
        """The slope where d(s) is such a distance."""
        if self.kind != "l2":
            return (-2.0 if self.kind == "squared_l2" else -1.0) * self.sign
        slope = distance.reciprocal()
        return slope.neg_() if self.sign == 1 else slope


@dataclass(frozen=True)
class EuclideanDistance(Distance):
    """Distances of vectors of any norm as functions of s = -|x - y|^2 / 2, which `vectors.differences` forms: "l2"
    sqrt(-2s), "squared_l2" -2s.
    """

    of_cosines: ClassVar[bool] = False
    nearest: ClassVar[float] = 0.0


@dataclass(frozen=True)
class Hinge(Map):
    """[inner(s)]_+ ** power, power 1 or 2."""

    inner: Map
    power: int

    def slopes(self, s: Tensor) -> Slopes:
        inner, slope = self.inner.slopes(s)
        hinge = inner.clamp_min_(0)
        if self.power == 1:
            return hinge, hinge.sign().mul_(slope)
        return hinge * hinge, hinge * slope * 2


@dataclass(frozen=True)
class Interpolated(Map):
    """f(s) between the values (k + 1,) at k + 1 equidistant nodes of [-1, 1], linearly."""

    values: Tensor
    of_cosines: ClassVar[bool] = True

    def slopes(self, s: Tensor) -> Slopes:
        bins = len(self.values) - 1
        node, fraction = nodes(s, bins)
        values = self.values.to(s.dtype)
        rise = values.diff()[node]
        return fraction.mul_(rise).add_(values[node]), rise.mul_(bins / 2)


def nodes(s: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """The bin of each similarity, of `bins` of equal width over [-1, 1], and its position in the bin, 0 to 1."""
    position = s.add(1).mul_(bins / 2)
    node = position.floor().clamp_(0, bins - 1)
    return node.to(torch.int32), position.sub_(node)


@dataclass(frozen=True)
class ShiftedHinge(Map):
    """f(s) = [sign * (s - border)]_+^2. The border moves with the similarities, which adds `drift` to the slope."""

    sign: int
    border: Tensor
    drift: Tensor

    def slopes(self, s: Tensor) -> Slopes:
        hinge = beyond(s, self.border, self.sign)
        return hinge.square(), torch.add(self.drift, hinge, alpha=2 * self.sign, out=hinge)


def beyond(s: Tensor, border: Tensor, sign: int) -> Tensor:
    """[sign * (s - border)]_+."""
    return (s - border if sign > 0 else border - s).clamp_min_(0)


@dataclass(frozen=True)
class Square(Map):
    """f(s) = s^2."""

    def slopes(self, s: Tensor) -> Slopes:
        return s * s, s + s


@dataclass(frozen=True)
class Softplus(Map):
    """f(s) = log(1 + exp(sign * s))."""

    sign: int

    def slopes(self, s: Tensor) -> Slopes:
        signed = s * self.sign
        return softplus(signed), torch.sigmoid(signed).mul_(self.sign)


@dataclass(frozen=True)
class Curriculum(Map):
    """CurricularFace's negatives: f(s) = scale * s, or scale * s (t + s) where s > border, which is a constant in the
    gradient.
    """

    scale: float
    t: float
    border: Number
    parameters: ClassVar[tuple[str, ...]] = ("border",)

    def slopes(self, s: Tensor) -> Slopes:
        # f(s) / s = scale (1 + [s > border] (s + t - 1)), to which the slope adds scale s above the border.
        above = torch.gt(s, self.border, out=torch.empty_like(s))  # as numbers: passes over booleans are slow
        hard = above * s
        factor = torch.add(hard, above, alpha=self.t - 1, out=above).add_(1).mul_(self.scale)
        return s * factor, factor.add_(hard, alpha=self.scale)

    def by(self, s: Tensor, name: str) -> Tensor:
        return torch.zeros_like(s)
