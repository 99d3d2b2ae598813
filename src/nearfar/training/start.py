"""Where a run starts: the head at principal components of the features, class vectors at the means of their classes.

Class vectors that start at random first push all samples away, and what the trunk and a fitted head know is lost on the
way; from the means, the first step already improves on the features.
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
from nearfar.training.config import TrainConfig
from nearfar.training.data import cached_features
from nearfar.training.progress import Display
from nearfar.training.spread import rows_here, shard_of
from nearfar.training.world import World

IMAGES = 10_000  # that are looked at, at most
APART = 0.1  # between the vectors of one class, where it has several


def start(
    embedder: Embedder,
    loss: nn.Module,
    train: Table,
    config: TrainConfig,
    world: World | None = None,
    display: Display | None = None,
) -> None:
    """Fit what the configuration wants fitted to the training images. Of several processes, each looks at its part of
    them.
    """
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
    with (display or Display(quiet=True)).looking("images to start from", len(part)) as advance:
        features = _features(embedder, part, config, advance)
    features = torch.from_numpy(world.gathered(features.cpu().numpy())).to(features.device)
    there = ~features.isnan().any(1)  # without broken images
    features, labels = features[there], torch.from_numpy(np.asarray(chosen.labels))[there]
    if fits_head:
        embedder.fit_head(features)
    if means:
        start_classes(loss, _projected(embedder, features), labels)


def _features(embedder: Embedder, table: Table, config: TrainConfig, advance: Callable[[int], None]) -> Tensor:
    device = embedder.device
    if config.model.freeze:
        cached = cached_features(embedder, table, config, advance=advance)
        found = np.full(cached.shape, np.nan, np.float32)
        there = np.setdiff1d(np.arange(len(cached)), cached.missing)
        found[there] = cached.take(there)
        return torch.from_numpy(found).to(device)
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
    """Those parts of a loss that own class vectors."""
    return [part for part in loss.modules() if isinstance(part, Loss) and part.weight is not None]


@torch.no_grad()
def draw_classes(loss: nn.Module, config: TrainConfig) -> None:
    """Give class vectors the distribution that the configuration wants; the loss has drawn them by He's rule."""
    for part in _class_losses(loss):
        assert part.weight is not None
        weight, std = rows_here(part.weight), part.initial_scale
        if config.class_start == "uniform":
            number = part.num_classes * part.vectors_per_class
            # The error function of a normal variable is uniform between -1 and 1, whichever process has drawn it.
            weight.copy_(torch.erf(weight / (std * math.sqrt(2))) / math.sqrt(number))
        elif config.class_std is not None:
            weight.mul_(config.class_std / std)


@torch.no_grad()
def start_classes(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> None:
    """Turn every class vector to the mean of its class's embeddings (N, D). Lengths stay, and so do vectors of classes
    without any.

    Where a class has several vectors, they lie about its mean, each by a tenth where it was.
    """
    for part in _class_losses(loss):
        k = part.vectors_per_class
        assert part.weight is not None
        weight = rows_here(part.weight)
        if weight.shape[1] != embeddings.shape[1]:
            continue
        unit, index = normalize(embeddings).to(weight), labels.to(weight.device)
        if is_sharded(part.weight):  # the classes that are here
            index = index - shard_of(weight, part.weight, part).offset // k
            here = (index >= 0) & (index < len(weight) // k)
            unit, index = unit[here], index[here]
        means = normalize(weight.new_zeros(len(weight) // k, weight.shape[1]).index_add_(0, index, unit))
        seen = torch.bincount(index, minlength=len(means)).repeat_interleave(k)[:, None] > 0
        direction = means.repeat_interleave(k, 0)
        if k > 1:
            direction = normalize(direction + APART * normalize(weight))
        weight.copy_(torch.where(seen, direction * weight.norm(dim=1, keepdim=True), weight))
