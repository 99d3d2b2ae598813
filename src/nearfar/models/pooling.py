"""Pooling of a trunk's output to one vector per image, or one per stripe."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearfar.errors import InputError

Pool = Literal["avg", "max", "avg+max", "gem", "cls"]


class Pooling(nn.Module):
    """A trunk's output, a map (N, C, H, W), tokens (N, T, C) or a vector (N, C), to features (N, parts * C).

        avg      mean over positions
        max      maximum over positions
        avg+max  their sum (Proxy-Anchor's code)
        gem      (mean x^p)^(1/p), p learned from 3 (Radenović et al., TPAMI 2019, arXiv:1711.02512)
        cls      the first token

    A vector is returned unchanged.

    Args:
        pool: the kind of pooling.
        parts: numbers of horizontal stripes: (1,) pools the whole map; (1, 2, 3) pools the whole, two halves and three
            thirds, six vectors in all (PCB, MGN). Stripes overlap by a row if the height is not divisible, as in
            adaptive pooling.
        prefix: number of leading tokens without a position (class and register tokens).
    """

    def __init__(self, pool: Pool, *, parts: Sequence[int] = (1,), prefix: int = 0):
        super().__init__()
        if pool not in get_args(Pool):
            raise InputError(f"pool must be one of {', '.join(get_args(Pool))}, not {pool!r}")
        if not parts or min(parts) < 1:
            raise InputError(f"parts must be numbers of stripes such as (1, 2, 3), not {tuple(parts)}")
        if pool == "cls" and tuple(parts) != (1,):
            raise InputError('pool="cls" takes one token and has no parts: choose another pool')
        self.pool: Pool = pool
        self.parts = tuple(parts)
        self.prefix = prefix
        self.p = nn.Parameter(torch.tensor(3.0)) if pool == "gem" else None

    @property
    def count(self) -> int:
        """The number of vectors per image."""
        return sum(self.parts)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            if self.count > 1:
                raise InputError("this trunk returns one vector per image, not a map: leave out parts")
            return x
        if self.pool == "cls":
            if x.ndim != 3:
                raise InputError(f'pool="cls" needs tokens (N, T, C), but the trunk returns {tuple(x.shape)}')
            return x[:, 0]
        if x.ndim == 3:
            if self.count > 1:
                raise InputError("parts need a map (N, C, H, W), but the trunk returns tokens (N, T, C)")
            x = x[:, self.prefix :].transpose(1, 2).unsqueeze(3)
        if x.ndim != 4:
            raise InputError(f"a trunk must return (N, C, H, W), (N, T, C) or (N, C), not {tuple(x.shape)}")
        if max(self.parts) > x.shape[2]:
            raise InputError(f"a map of {x.shape[2]} rows cannot be divided into {max(self.parts)} stripes")
        return torch.cat([self._stripes(x, count) for count in self.parts], 1)

    def _stripes(self, x: Tensor, count: int) -> Tensor:
        """The pooled stripes, (N, count * C)."""
        if self.pool == "avg":
            pooled = _mean(x, count)
        elif self.pool == "max":
            pooled = _max(x, count)
        elif self.pool == "avg+max":
            pooled = _mean(x, count) + _max(x, count)
        else:
            assert self.p is not None
            pooled = _mean(x.clamp(min=1e-6) ** self.p, count) ** (1 / self.p)
        return pooled.transpose(1, 2).flatten(1)


def _mean(x: Tensor, count: int) -> Tensor:
    if count == 1:
        return x.mean((2, 3)).unsqueeze(2)
    return functional.adaptive_avg_pool2d(x, (count, 1)).squeeze(3)


def _max(x: Tensor, count: int) -> Tensor:
    if count == 1:
        return x.amax((2, 3)).unsqueeze(2)
    return functional.adaptive_max_pool2d(x, (count, 1)).squeeze(3)
