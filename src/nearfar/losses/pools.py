"""Pools: the similarity to a class that has K vectors, made of the similarities to each.

Planes come first: `s` (K, b, t) are the similarities of b rows to the k-th vectors of t classes, so that every step is
one over whole planes. `value` gives the classes' similarities (b, t); `expand` turns the gradient by these into that by
`s`. `penalty` is a term of the class vectors alone, which some losses add, with its gradient.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Pool(Protocol):
    """How K similarities become one."""

    @property
    def size(self) -> int:
        """K."""
        ...

    def value(self, s: Tensor) -> Tensor: ...

    def expand(self, g: Tensor, s: Tensor, out: Tensor | None = None) -> Tensor: ...

    def penalty(self, units: Tensor) -> tuple[Tensor, Tensor] | None:
        """Of the normalised vectors (t, K, D) of some classes: the term's sum over them, and its gradient."""
        ...


def relaxed_similarity(s: Tensor, gamma: float, dim: int) -> Tensor:
    """The mean of similarities along a dimension, weighted by softmax(s / gamma)."""
    return (torch.softmax(s / gamma, dim) * s).sum(dim)


@dataclass(frozen=True)
class Nearest:
    """max_k s_k; vectors that are equally near share the gradient."""

    size: int

    def value(self, s: Tensor) -> Tensor:
        return s.amax(0)

    def expand(self, g: Tensor, s: Tensor, out: Tensor | None = None) -> Tensor:
        nearest = s == s.amax(0)
        return torch.mul(nearest, g / nearest.sum(0), out=out)

    def penalty(self, units: Tensor) -> tuple[Tensor, Tensor] | None:
        return None


@dataclass(frozen=True)
class Relaxed:
    """SoftTriple's sum_k softmax_k(s_k / gamma) s_k, and its penalty share * sum_c sum_{t < s} |w_t - w_s|.

    1e-5 is added under the root, as in the authors' code: the slope of a merged pair stays finite.
    """

    size: int
    gamma: float
    share: float = 0.0  # tau / (C K (K - 1))

    def value(self, s: Tensor) -> Tensor:
        return relaxed_similarity(s, self.gamma, 0)

    def expand(self, g: Tensor, s: Tensor, out: Tensor | None = None) -> Tensor:
        weight = torch.softmax(s / self.gamma, 0)
        pooled = (weight * s).sum(0)
        # d pooled / d s_k = weight_k (1 + (s_k - pooled) / gamma)
        slope = torch.sub(s, pooled - self.gamma, out=out).mul_(weight)
        return slope.mul_(g / self.gamma)

    def penalty(self, units: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.size == 1 or self.share == 0:
            return None
        cosines = units @ units.transpose(1, 2)
        apart = (2 - 2 * cosines).clamp_min_(0).add_(1e-5).sqrt_()
        others = 1 - torch.eye(self.size, dtype=units.dtype, device=units.device)
        # Every pair is there twice; d apart / d cosine = -1 / apart, of which each end has its part.
        return self.share / 2 * (apart * others).sum(), (others / apart).mul_(-self.share) @ units
