"""Penalties of binary codes: terms to add to a loss, functions of the embeddings h / sqrt(bits) of a hashing head.

loss = ProxyAnchorLoss(classes, bits) + 0.1 * QuantizationLoss() + 0.1 * BitBalanceLoss()
"""

from typing import Any

import torch
from torch import Tensor

from nearfar.losses.engine.vectors import wide
from nearfar.losses.registry import register
from nearfar.losses.sums import Summand


def outputs(embeddings: Tensor) -> Tensor:
    """The head's outputs (N, bits), between -1 and 1, of embeddings h / sqrt(bits)."""
    return torch.as_tensor(wide(embeddings) * embeddings.shape[1] ** 0.5)


@register("penalty", "mean (|h| − 1)²")
class QuantizationLoss(Summand):
    """Quantisation error: it pulls every output of a hashing head to -1 or 1.

        L = mean over samples and bits of (|h| - 1)^2

    Example:
        >>> import torch
        >>> round(QuantizationLoss()(torch.eye(4)).item(), 3)
        1.0

    References: J. Wang et al., "A Survey on Learning to Hash", TPAMI 2018, arXiv:1606.00185.
    """

    def forward(self, embeddings: Tensor, labels: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        """
        Args:
            embeddings: (N, bits), h / sqrt(bits). The other arguments of losses are ignored.
        """
        return (outputs(embeddings).abs() - 1).square().mean()


@register("penalty", "mean over the bits of (mean over the batch of h)²")
class BitBalanceLoss(Summand):
    """Bit balance: it makes every bit of a code -1 and 1 equally often, in the batch of each process.

        L = mean over bits of (mean over samples of h)^2

    Example:
        >>> import torch
        >>> round(BitBalanceLoss()(torch.eye(4)).item(), 3)
        0.25

    References: J. Wang et al., "A Survey on Learning to Hash", TPAMI 2018, arXiv:1606.00185.
    """

    def forward(self, embeddings: Tensor, labels: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        """
        Args:
            embeddings: (N, bits), h / sqrt(bits). The other arguments of losses are ignored.
        """
        return outputs(embeddings).mean(0).square().mean()
