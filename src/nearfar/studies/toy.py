"""Two- and three-dimensional embeddings of a few characters, by a small network."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from nearfar.data import Pixels, Table, glyphs
from nearfar.errors import InputError
from nearfar.losses import Loss
from nearfar.training.build import build_loss
from nearfar.training.config import LossConfig

Floats = npt.NDArray[np.float64]
PER_CLASS, SIDE, DIFFICULTY = 80, 16, 0.4
HELD_OUT = 4  # every fourth image is not trained on
WIDTH = 64
RATE = 3e-3


@dataclass(frozen=True)
class Toy:
    """Images (N, pixels), their labels, and which of them are held out."""

    images: Tensor
    labels: Tensor
    held_out: Tensor
    classes: int


def characters(classes: int, seed: int) -> Toy:
    """Characters of the glyphs, 80 flattened images each."""
    table: Table = glyphs(classes=2 * classes, per_class=PER_CLASS, size=SIDE, difficulty=DIFFICULTY, seed=seed).split(
        "train"
    )
    assert isinstance(table.images, Pixels)
    pixels = np.stack([np.asarray(table.images[row]) for row in range(len(table))])
    images = torch.from_numpy(pixels).float().flatten(1) / 255
    rows = torch.arange(len(images))
    return Toy(images - images.mean(0), torch.from_numpy(table.labels), rows % HELD_OUT == 0, classes)


def train(
    toy: Toy,
    make_loss: Callable[[], nn.Module],
    dimension: int,
    steps: int,
    seed: int,
    after: Callable[[int, Tensor], None] | None = None,
) -> tuple[Tensor, nn.Module]:
    """Train a network with one hidden layer. Returns its embeddings of all images, not normalised, and the loss.

    Args:
        make_loss: called after torch's generator is seeded.
        steps: number of steps, each on all images that are not held out.
        after: called after every step, with the embeddings of these images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(toy.images.shape[1], WIDTH), nn.PReLU(WIDTH), nn.Linear(WIDTH, dimension, bias=False)
        network, loss = nn.Sequential(*layers), make_loss()
        optimiser = torch.optim.Adam([*network.parameters(), *loss.parameters()], RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        images, labels = toy.images[~toy.held_out], toy.labels[~toy.held_out]
        for step in range(steps):
            optimiser.zero_grad()
            embeddings = network(images)
            loss(embeddings, labels).backward()
            optimiser.step()
            schedule.step()
            if after is not None:
                after(step, embeddings.detach())
    with torch.no_grad():
        return network(toy.images), loss


def class_loss(config: LossConfig, classes: int, dimension: int) -> Loss:
    """Build a loss with class vectors that start far apart: in two dimensions, classes cannot pass each other, so a bad
    order would persist.
    """
    loss = build_loss((config,), classes, dimension)
    assert isinstance(loss, Loss) and loss.weight is not None
    with torch.no_grad():
        loss.weight.copy_(spread(classes, dimension))
    return loss


def spread(classes: int, dimension: int) -> Tensor:
    """Unit vectors far from each other: the corners of a polygon, or points on a spiral around the sphere."""
    number = torch.arange(classes, dtype=torch.float64)
    if dimension == 2:
        turn = 2 * math.pi * number / classes
        return torch.stack([turn.cos(), turn.sin()], 1)
    if dimension != 3:
        raise InputError(f"toys have 2 or 3 dimensions, not {dimension}")
    height = 1 - (2 * number + 1) / classes
    turn = number * math.pi * (3 - math.sqrt(5))
    radius = (1 - height**2).sqrt()
    return torch.stack([radius * turn.cos(), radius * turn.sin(), height], 1)


def degrees(embeddings: Tensor, weight: Tensor) -> Floats:
    """The angles (N, classes) between embeddings and class vectors, in degrees."""
    cosines = normalize(embeddings.double()) @ normalize(weight.detach().double()).T
    angles: Floats = np.rad2deg(np.arccos(cosines.clamp(-1, 1).numpy()))
    return angles
