"""Binary codes: a head whose outputs approach -1 and 1 in the course of training, and a penalty that supports this.

    h = tanh(b z),  z = W x + c,  b growing from 1 to 10 (continuation)
    penalty = q * mean (|h| - 1)^2 + m * mean_bits (mean_batch h)^2

    model = Embedder(head="hash", dimension=64)
    loss = losses.CircleLoss() + HashingPenalty()       # with any loss
    model.set_progress(step / steps)                    # at every step or epoch
    codes = model.codes(paths)                          # (N, 8) bytes, for Hamming distances

References: Z. Cao et al., "HashNet", ICCV 2017, arXiv:1702.00758 (continuation); J. Wang et al., "A Survey on Learning
to Hash", TPAMI 2018, arXiv:1606.00185 (quantisation and bit balance).
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nearfar.errors import InputError
from nearfar.models.heads import LinearHead

# Standard deviation of the weights, times the square root of the channels: small, so that tanh starts in its linear
# range. With He's initialisation (fan-out), short codes are saturated from the first step and do not learn.
START = 0.1


class HashingHead(nn.Module):
    """tanh(b (W x + c)) / sqrt(bits): of norm 1 once every output is -1 or 1.

    Args:
        channels: number of features.
        bits: length of the code.
        sharpness: b at the start and at the end of training.
    """

    sharpness: Tensor

    def __init__(self, channels: int, bits: int, sharpness: tuple[float, float] = (1.0, 10.0)):
        super().__init__()
        if not 0 < sharpness[0] <= sharpness[1]:
            raise InputError(f"sharpness must be two positive numbers, the smaller first, not {sharpness}")
        self.linear = LinearHead(channels, bits)
        nn.init.normal_(self.linear.linear.weight, 0, START / math.sqrt(channels))
        self.range = sharpness
        self.register_buffer("sharpness", torch.tensor(float(sharpness[0])))

    def set_progress(self, fraction: float) -> None:
        """Set the fraction of training that is done, from 0 to 1. b grows geometrically with it."""
        if not 0 <= fraction <= 1:
            raise InputError(f"the progress must be a fraction between 0 and 1, not {fraction}")
        first, last = self.range
        self.sharpness.fill_(first * (last / first) ** fraction)

    def forward(self, x: Tensor) -> Tensor:
        z = self.linear(x)
        return torch.tanh(self.sharpness * z) / math.sqrt(z.shape[1])

    def start_at(self, weight: Tensor, bias: Tensor) -> None:
        """Set the linear map before tanh."""
        self.linear.start_at(weight, bias)


class HashingPenalty(nn.Module):
    """A penalty that pulls the outputs of a `HashingHead` to -1 and 1, and balances both values of every bit:

        quantisation * mean (|h| - 1)^2  +  balance * mean_bits (mean_batch h)^2

    It has the arguments of a loss, so that `loss + HashingPenalty()` is a loss.
    """

    def __init__(self, quantisation: float = 0.1, balance: float = 0.1):
        super().__init__()
        if quantisation < 0 or balance < 0:
            raise InputError(f"the weights of the terms must not be negative: {quantisation}, {balance}")
        self.quantisation, self.balance = quantisation, balance

    def forward(self, embeddings: Tensor, labels: Tensor | None = None) -> Tensor:
        h = embeddings * math.sqrt(embeddings.shape[1])
        return self.quantisation * (h.abs() - 1).square().mean() + self.balance * h.mean(0).square().mean()


def pack_codes(embeddings: Tensor | NDArray[np.float32]) -> NDArray[np.uint8]:
    """Pack the signs of embeddings (N, bits) into codes (N, ceil(bits / 8)): 1 for positive numbers, the first bit
    highest in its byte, the last byte padded with zeros.

        >>> pack_codes(torch.tensor([[1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0]]))
        array([[176, 128]], dtype=uint8)
    """
    values = embeddings.detach().cpu().numpy() if isinstance(embeddings, Tensor) else embeddings
    if np.isnan(values).any():
        raise InputError("embeddings of broken images (NaN) have no code: leave them out")
    return np.packbits(values > 0, axis=1)
