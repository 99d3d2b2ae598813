"""Weighted sums of losses: `0.5 * CircleLoss() + CosFaceLoss(C, D)` is a loss."""

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

from torch import Tensor, nn

from nearfar.errors import InputError, InputTypeError
from nearfar.losses import migration
from nearfar.losses.settings import Configured

Name = TypeVar("Name")


class Summand(Configured):
    """A loss, or a penalty, that can be weighted and added: `0.5 * a + b` is a `SumLoss`."""

    def __mul__(self, weight: float) -> "SumLoss":
        return SumLoss([self], [weight])

    __rmul__ = __mul__

    def __add__(self, other: nn.Module) -> "SumLoss":
        return SumLoss([self, other])

    def __radd__(self, other: Any) -> "Summand":
        if isinstance(other, int) and other == 0:  # sum() begins with it
            return self
        return SumLoss([other, self])


class SumLoss(Summand):
    """A weighted sum of losses, which `0.5 * a + b` makes.

        L = sum_k weight_k L_k

    Sums within sums are one flat sum. Every part is a submodule, so that `parameters()` and `state_dict()` hold all
    of theirs. Parts are named by their class, and numbered when that repeats: CircleLoss, CircleLoss_2.

    Args:
        losses: the parts L_k; all are called with the same arguments.
        weights: one number each, not negative; all 1 by default.

    Example:
        >>> import torch
        >>> from nearfar.losses import CircleLoss, CosFaceLoss
        >>> loss = 0.5 * CircleLoss() + CosFaceLoss(num_classes=2, embedding_size=4)
        >>> loss.weights
        {'CircleLoss': 0.5, 'CosFaceLoss': 1.0}
        >>> x, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> parts = loss.parts(x, labels)
        >>> bool(loss(x, labels) == 0.5 * parts["CircleLoss"] + parts["CosFaceLoss"])
        True
    """

    def __init__(self, losses: Iterable[nn.Module], weights: Iterable[float] | None = None):
        super().__init__()
        losses = list(losses)
        if not losses:
            raise InputError("a sum needs at least one loss")
        self.losses = nn.ModuleDict()
        self._weights: dict[str, float] = {}
        for loss, weight in zip(losses, checked_weights(weights, range(len(losses)), "losses").values(), strict=True):
            if isinstance(loss, SumLoss):
                for name, part in loss.losses.items():
                    self._add_part(part, weight * loss.weights[name])
            else:
                self._add_part(loss, weight)

    @property
    def weights(self) -> dict[str, float]:
        """The weights by the names of the parts; may be assigned, a list too."""
        return self._weights

    @weights.setter
    def weights(self, weights: Iterable[float] | Mapping[str, float]) -> None:
        self._weights = checked_weights(weights, list(self.losses), "losses")

    def _add_part(self, loss: nn.Module, weight: float) -> None:
        kind = type(loss).__name__
        if not isinstance(loss, nn.Module):
            raise InputTypeError(f"only losses can be added to losses, not {kind}")
        alike = sum(type(part).__name__ == kind for part in self.losses.values())
        name = f"{kind}_{alike + 1}" if alike else kind
        self.losses[name] = loss
        self._weights[name] = weight

    def parts(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The value of every part, without its weight; differentiable, so it can replace the call of the loss."""
        return {name: loss(*args, **kwargs) for name, loss in self.losses.items()}

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Takes what the parts take."""
        parts = self.parts(*args, **kwargs)
        shapes = {name: tuple(value.shape) for name, value in parts.items()}
        if len(set(shapes.values())) > 1:
            raise InputError(f"the parts of the sum have different shapes, {shapes}: give them one reduction")
        return weighted_sum(parts.values(), self.weights.values())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        migration.adopt_sum(list(self.losses), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"weights={self.weights}"


def checked_weights(
    weights: Iterable[float] | Mapping[Any, float] | None, names: Sequence[Name], of: str
) -> dict[Name, float]:
    """The weights by the names of what they multiply, if they are finite and not negative; all 1 for None."""
    if weights is None:
        return dict.fromkeys(names, 1.0)
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise InputError(
                f"weights are of {', '.join(map(str, weights))}, but must be of {', '.join(map(str, names))}"
            )
        weights = [weights[name] for name in names]
    weights = list(weights)
    if len(weights) != len(names):
        raise InputError(f"{len(weights)} weights for {len(names)} {of}: there must be one each")
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, Real):
            raise InputTypeError(f"a loss is multiplied by a number, not by {type(weight).__name__}")
        if not 0 <= weight < math.inf:
            raise InputError(f"a loss is multiplied by a finite number that is not negative, not by {weight}")
    return dict(zip(names, map(float, weights), strict=True))


def weighted_sum(values: Iterable[Tensor], weights: Iterable[float]) -> Tensor:
    """sum_k weight_k value_k."""
    first, *others = (weight * value for value, weight in zip(values, weights, strict=True))
    return sum(others, first)
