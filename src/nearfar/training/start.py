"""Initialisation: the head from principal components of the features, class vectors from the means of their classes.

Random class vectors first push all samples away, which destroys what the trunk and a fitted head know. From the means,
the first step already improves on the features.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from nearfar.data import Table
from nearfar.losses import Loss
from nearfar.losses.distributed import is_sharded
from nearfar.models import Embedder
from nearfar.models.extraction import gathered
from nearfar.training.class_shards import local_rows, shard_of
from nearfar.training.config import TrainConfig
from nearfar.training.data import cached_features
from nearfar.training.progress import Display
from nearfar.training.world import World

IMAGES = 10_000  # the most images to fit to
APART = 0.1  # share of the random direction in the vectors of a class that has several


def start(
    embedder: Embedder,
    loss: nn.Module,
    train: Table,
    config: TrainConfig,
    world: World | None = None,
    display: Display | None = None,
) -> None:
    """Fit the head and the class vectors to the training images, as configured. Every process embeds its share."""
    draw_classes(loss, config)
    fits_head, means = not bool(embedder.head_is_fitted), config.class_start == "means" and any(_class_losses(loss))
    if not (fits_head or means):
        return
    rows = np.arange(len(train))
    if len(rows) > IMAGES:
        rows = np.sort(np.random.default_rng(config.seed).permutation(rows)[:IMAGES])
    chosen = train.select(rows)
    world = world or World()
    part = chosen.select(world.part(len(chosen)))
    with (display or Display(quiet=True)).looking("images for initialisation", len(part)) as advance:
        features = _features(embedder, part, config, advance)
    features = torch.from_numpy(world.gathered(features.cpu().numpy())).to(features.device)
    readable = ~features.isnan().any(1)
    features, labels = features[readable], torch.from_numpy(np.asarray(chosen.labels))[readable]
    if fits_head:
        embedder.fit_head(features)
    if means:
        start_classes(loss, _projected(embedder, features), labels)


def _features(embedder: Embedder, table: Table, config: TrainConfig, advance: Callable[[int], None]) -> Tensor:
    device = embedder.device
    if config.model.freeze:
        cached = cached_features(embedder, table, config, advance=advance)
        features = np.full(cached.shape, np.nan, np.float32)
        readable = np.setdiff1d(np.arange(len(cached)), cached.missing)
        features[readable] = cached.take(readable)
        return torch.from_numpy(features).to(device)
    images: Any = table.images
    rows = embedder.stream(images, output="features", max_broken=config.data.max_broken, advance=advance)
    return torch.from_numpy(gathered(rows, len(images), embedder.feature_size)).to(device)


@torch.no_grad()
def _projected(embedder: Embedder, features: Tensor) -> Tensor:
    was_training = embedder.training
    embedder.eval()
    try:
        return embedder.project(features)
    finally:
        embedder.train(was_training)


def _class_losses(loss: nn.Module) -> list[Loss]:
    """The parts of a loss that have class vectors."""
    return [part for part in loss.modules() if isinstance(part, Loss) and part.weight is not None]


@torch.no_grad()
def draw_classes(loss: nn.Module, config: TrainConfig) -> None:
    """Change the distribution of class vectors as configured; the loss has drawn them by He's rule."""
    for part in _class_losses(loss):
        assert part.weight is not None
        weight, std = local_rows(part.weight), part.initial_scale
        if config.class_start == "uniform":
            number = part.num_classes * part.vectors_per_class
            # The error function of a normal variable is uniform between -1 and 1. This keeps the draws of each process.
            weight.copy_(torch.erf(weight / (std * math.sqrt(2))) / math.sqrt(number))
        elif config.class_std is not None:
            weight.mul_(config.class_std / std)


@torch.no_grad()
def start_classes(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> None:
    """Turn every class vector to the mean of its class's embeddings (N, D). Norms do not change, nor do the vectors of
    classes without embeddings.

    Several vectors of a class are placed around its mean, each with a tenth of its random direction.
    """
    for part in _class_losses(loss):
        k = part.vectors_per_class
        assert part.weight is not None
        weight = local_rows(part.weight)
        if weight.shape[1] != embeddings.shape[1]:
            continue
        unit, index = normalize(embeddings).to(weight), labels.to(weight.device)
        if is_sharded(part.weight):  # only this process's classes
            index = index - shard_of(weight, part.weight, part).offset // k
            local = (index >= 0) & (index < len(weight) // k)
            unit, index = unit[local], index[local]
        means = normalize(weight.new_zeros(len(weight) // k, weight.shape[1]).index_add_(0, index, unit))
        seen = torch.bincount(index, minlength=len(means)).repeat_interleave(k)[:, None] > 0
        direction = means.repeat_interleave(k, 0)
        if k > 1:
            direction = normalize(direction + APART * normalize(weight))
        weight.copy_(torch.where(seen, direction * weight.norm(dim=1, keepdim=True), weight))
