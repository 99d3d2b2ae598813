"""Gradient fields: the slopes of a loss by a negative's similarity s_n and a positive's s_p, by autograd.

One sample x is compared with two vectors at these similarities, its positive and a negative: samples, class weights or
proxies, depending on the loss. Turning a vector towards x changes only its similarity, so that

    dL/ds = dL/dv · (x - s v) / (1 - s²)        |x| = |v| = 1

holds whether or not the loss normalises.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearfar.errors import InputError
from nearfar.losses import Loss
from nearfar.training.build import build_loss
from nearfar.training.config import LossConfig
from nearfar.training.options import ConfigError

Floats = npt.NDArray[np.float64]
DIMENSION = 4


@dataclass(frozen=True)
class Field:
    """The value and the slopes of a loss over a grid of s_n (columns) and s_p (rows), each of shape (s_p, s_n)."""

    s_n: Floats
    s_p: Floats
    value: Floats
    by_n: Floats
    by_p: Floats


def build(config: LossConfig) -> Loss:
    """Build a loss for a sample and two classes, or two other samples, in double precision."""
    loss = build_loss((config,), 2, DIMENSION)
    if not isinstance(loss, Loss) or (loss.class_level and loss.weight is None):
        raise ConfigError(
            f"{config.name} is not a function of a positive's and a negative's similarity: choose another"
        )
    return loss.double().eval()  # losses that change during training stay in their initial state


def slopes(loss: Loss, s_n: float, s_p: float) -> tuple[float, float, float]:
    """The loss at similarities between -1 and 1, its slope by s_n and its slope by s_p."""
    x = torch.zeros(1, DIMENSION, dtype=torch.float64)
    x[0, 0] = 1
    vectors = torch.zeros(2, DIMENSION, dtype=torch.float64)  # the positive and the negative
    vectors[:, 0] = torch.tensor([s_p, s_n], dtype=torch.float64)
    vectors[0, 1], vectors[1, 2] = math.sqrt(1 - s_p**2), math.sqrt(1 - s_n**2)
    label = torch.zeros(1, dtype=torch.long)
    columns: Tensor
    if loss.weight is None:
        columns = vectors.clone().requires_grad_()
        try:
            value = loss(x, label, ref_emb=columns, ref_labels=torch.tensor([0, 1]))
        except InputError as error:
            name = type(loss).__name__
            raise ConfigError(f"{name} has no field over one positive and one negative: {error}") from error
    else:
        columns = loss.weight
        with torch.no_grad():  # several vectors of a class all get the same value
            columns.copy_(vectors.repeat_interleave(loss.vectors_per_class, 0))
        value = loss(x, label)
    (gradient,) = torch.autograd.grad(value, columns)
    gradient = gradient.reshape(2, -1, DIMENSION).sum(1)
    by_p, by_n = ((gradient * (x - s * vectors)).sum(1) / (1 - s**2) for s in (s_p, s_n))
    return float(value.detach()), float(by_n[1]), float(by_p[0])


def field(loss: Loss, places: Floats) -> Field:
    """Compute a loss over the plane, at the same similarities on both axes."""
    values = np.array([[slopes(loss, s_n, s_p) for s_n in places.tolist()] for s_p in places.tolist()])
    return Field(places, places, values[..., 0], values[..., 1], values[..., 2])


def proxy_slopes(loss: Loss, own: Sequence[float], others: Sequence[float]) -> tuple[Floats, Floats]:
    """The slopes of a proxy loss of three classes by the similarities of samples to one proxy.

    Args:
        own: similarities of the proxy's samples to it.
        others: similarities of samples of another class to it. All samples have similarity 0 to other proxies.
    """
    assert loss.weight is not None
    s = torch.tensor([*own, *others], dtype=torch.float64)
    proxies = torch.eye(3, loss.weight.shape[1], dtype=torch.float64)
    samples = torch.zeros(len(s), loss.weight.shape[1], dtype=torch.float64)
    samples[:, 0] = s
    samples[range(len(s)), range(3, 3 + len(s))] = (1 - s**2).sqrt()
    samples.requires_grad_()
    with torch.no_grad():
        loss.weight.copy_(proxies)
    labels = torch.tensor([0] * len(own) + [1] * len(others))
    (gradient,) = torch.autograd.grad(loss(samples, labels), samples)
    with torch.no_grad():
        result: Tensor = (gradient * (proxies[0] - s[:, None] * samples)).sum(1) / (1 - s**2)
    return result[: len(own)].numpy(), result[len(own) :].numpy()
