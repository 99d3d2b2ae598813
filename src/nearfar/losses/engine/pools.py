"""Pools: the similarity to a class that has K vectors, made of the similarities to each.

Planes come first: `s` (K, b, t) holds the similarities of b rows to the k-th vectors of t classes, so that every step
works on whole planes. `value` returns the classes' similarities (b, t) by plain autograd. The engine takes them from
`gather`, together with the *shares* of the vectors: all that `expand` needs to turn the gradient by the classes'
similarities into the gradient by `s`. `penalty` is a term of the class vectors only, with its gradient, which some
losses add.
"""

from collections.abc import Iterator
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

    def value(self, s: Tensor) -> Tensor:
        """(b, t), differentiable."""
        ...

    def room(self, pairs: int) -> int:
        """The number of similarities that take as much memory as the shares of this many pairs."""
        ...

    def gather(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The value and the shares. The memory of `s` may be used for them."""
        ...

    def expand(self, g: Tensor, shares: Tensor) -> Iterator[Tensor]:
        """The gradient by `s`, plane by plane. The memory of the shares may be used for it."""
        ...

    def penalty(self, units: Tensor) -> tuple[Tensor, Tensor] | None:
        """The sum of the term over classes with these normalised vectors (t, K, D), and its gradient; None: no term."""
        ...


def relaxed_similarity(s: Tensor, gamma: float, dim: int) -> Tensor:
    """The mean of similarities along a dimension, weighted by softmax(s / gamma)."""
    return (torch.softmax(s / gamma, dim) * s).sum(dim)


@dataclass(frozen=True)
class Nearest:
    """max_k s_k, the first of equal ones. The shares (b, t) are the k of each.

    Comparisons give numbers: passes that make or read booleans take several times as long.
    """

    size: int

    def value(self, s: Tensor) -> Tensor:
        return s.max(0).values

    def room(self, pairs: int) -> int:
        return -(-pairs * self._number.itemsize // torch.float32.itemsize)

    @property
    def _number(self) -> torch.dtype:
        return torch.int8 if self.size < 128 else torch.int16

    def gather(self, s: Tensor) -> tuple[Tensor, Tensor]:
        top = s[0].clone()
        nearest = torch.zeros_like(top, dtype=self._number)
        for k in range(1, self.size):
            nearer = torch.gt(s[k], top, out=torch.empty_like(nearest))
            torch.maximum(nearest, nearer.mul_(k), out=nearest)
            torch.maximum(top, s[k], out=top)
        return top, nearest

    def expand(self, g: Tensor, shares: Tensor) -> Iterator[Tensor]:
        nearest = shares.to(g.dtype)
        for k in range(self.size):
            yield torch.eq(nearest, k, out=torch.empty_like(g)).mul_(g)

    def penalty(self, units: Tensor) -> tuple[Tensor, Tensor] | None:
        return None


@dataclass(frozen=True)
class Relaxed:
    """SoftTriple's sum_k softmax_k(s_k / gamma) s_k, and its penalty share * sum_c sum_{t < s} |w_t - w_s|.

    The shares (K, b, t) are its derivatives times gamma. The penalty has 1e-5 added under the root, as in the authors'
    code: the slope of a merged pair stays finite.
    """

    size: int
    gamma: float
    share: float = 0.0  # tau / (C K (K - 1))

    def value(self, s: Tensor) -> Tensor:
        return relaxed_similarity(s, self.gamma, 0)

    def room(self, pairs: int) -> int:
        return pairs * self.size

    def gather(self, s: Tensor) -> tuple[Tensor, Tensor]:
        weight = s / self.gamma  # then its softmax, in place
        weight.sub_(weight.amax(0)).exp_()
        weight.div_(weight.sum(0))
        pooled = weight[0] * s[0]
        for k in range(1, self.size):
            pooled.addcmul_(weight[k], s[k])
        # d pooled / d s_k = weight_k (1 + (s_k - pooled) / gamma)
        return pooled, s.sub_(pooled - self.gamma).mul_(weight)

    def expand(self, g: Tensor, shares: Tensor) -> Iterator[Tensor]:
        return iter(shares.mul_(g / self.gamma))

    def penalty(self, units: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.size == 1 or self.share == 0:
            return None
        cosines = units @ units.transpose(1, 2)
        apart = (2 - 2 * cosines).clamp_min_(0).add_(1e-5).sqrt_()
        others = 1 - torch.eye(self.size, dtype=units.dtype, device=units.device)
        # The matrix has every pair twice; d apart / d cosine = -1 / apart, and each end has its part of it.
        return self.share / 2 * (apart * others).sum(), (others / apart).mul_(-self.share) @ units
