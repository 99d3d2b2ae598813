"""Penalties of binary codes: terms to be added to a loss, of the embeddings h / sqrt(bits) of a hashing head.

loss = ProxyAnchorLoss(classes, bits) + 0.1 * QuantizationLoss() + 0.1 * BitBalanceLoss()
"""

from typing import Any

import torch
from torch import Tensor

from nearfar.losses.loss import Summand
from nearfar.losses.registry import register

SURVEY = "Wang et al., A Survey on Learning to Hash, TPAMI 2018, arXiv:1606.00185"


class Penalty(Summand):
    """A term without parameters that is added to a loss."""

    def __init__(self) -> None:
        super().__init__()


def outputs(embeddings: Tensor) -> Tensor:
    """The head's outputs (N, bits), between -1 and 1, of embeddings h / sqrt(bits)."""
    h = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    return torch.as_tensor(h * h.shape[1] ** 0.5)


@register("penalty", SURVEY, "mean (|h| − 1)²")
class QuantizationLoss(Penalty):
    """Quantisation error: what pulls every output of a hashing head to -1 or 1.

        L = mean over samples and bits of (|h| - 1)^2

    References: J. Wang et al., "A Survey on Learning to Hash", TPAMI 2018, arXiv:1606.00185.
    """

    def forward(self, embeddings: Tensor, labels: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        """
        Args:
            embeddings: (N, bits), h / sqrt(bits). Whatever else a loss is given makes no difference.
        """
        return (outputs(embeddings).abs() - 1).square().mean()


@register("penalty", SURVEY, "mean over the bits of (mean over the batch of h)²")
class BitBalanceLoss(Penalty):
    """Bit balance: what makes every bit of a code -1 and 1 equally often, in the batch of each process.

        L = mean over bits of (mean over samples of h)^2

    References: J. Wang et al., "A Survey on Learning to Hash", TPAMI 2018, arXiv:1606.00185.
    """

    def forward(self, embeddings: Tensor, labels: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        """
        Args:
            embeddings: (N, bits), h / sqrt(bits). Whatever else a loss is given makes no difference.
        """
        return outputs(embeddings).mean(0).square().mean()
