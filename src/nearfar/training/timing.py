"""Estimate the duration of a run from the time to embed and to train on a few images."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nearfar.data import FeatureCache, Table
from nearfar.foundation.folders import cache_folder
from nearfar.models import Embedder, list_trunks
from nearfar.training.build import build_embedder, build_loss
from nearfar.training.config import TrainConfig
from nearfar.training.data import make_sampler, train_transform
from nearfar.training.defaults import is_pretrained, resolve, with_images_of
from nearfar.training.fit import make_trainer
from nearfar.training.memory import freed_memory_kept
from nearfar.training.splits import Parts

TRIED = 16  # images to time; a batch is a multiple of it
QUICK = 3.0  # seconds: a whole batch that takes less is timed, since small batches are slow for their size
SNAPSHOTS = 4  # evaluations of the held-out rows of a fold
CLOCK = time.perf_counter


@dataclass(frozen=True)
class Costs:
    """Seconds per image: for embedding, and for a step of each way to train (None: not applicable)."""

    embed: float
    everything: float | None
    upper: float | None
    head: float | None


@dataclass(frozen=True)
class Counts:
    """Numbers of training, validation and test images, and of folds for whole networks and for heads (1 for none)."""

    train: int
    val: int
    test: int
    folds: int
    head_folds: int


def training_time(way: str, epochs: int, folds: int, costs: Costs, counts: Counts) -> float:
    """Seconds of a training with its evaluations, if the features of all images are cached.

    Args:
        way: "everything", "upper" or "head".
    """
    cost = getattr(costs, way)
    steps = epochs * folds * counts.train * cost  # folds train on all rows but their own, plus all rows in the end
    if way == "head":
        return float(steps)
    evaluated = SNAPSHOTS * counts.train if folds > 1 else (epochs + 1) * counts.val
    return float(steps + costs.embed * (counts.test + evaluated))


def counted(parts: Parts, heads: Parts) -> Counts:
    """Count the rows and folds of a split for whole networks, and of one for heads on cached features."""
    val, test = (0 if part is None else len(part) for part in (parts.val, parts.test))
    return Counts(len(parts.train), val, test, parts.folds or 1, heads.folds or 1)


def measured(config: TrainConfig, parts: Parts) -> Costs:
    """Measure the costs of images on this machine, assuming that it is otherwise idle."""
    with torch.random.fork_rng(devices=[]):
        if parts.train.images is None:
            return Costs(0.0, None, None, head_seconds(*_built(config, parts), parts.train))
        whole = replace(config, model=replace(config.model, freeze=False, views=1))
        chosen, embedder, loss = _built(whole, parts)
        embed = embedding_seconds(embedder, parts.train)
        head = head_seconds(chosen, embedder, loss, parts.train)
        if config.model.freeze:
            return Costs(embed, None, None, head)
        everything, upper = training_seconds(chosen, embedder, loss, parts.train), None
        if not is_pretrained(chosen.model.backbone or "", chosen.model.weights):
            return Costs(embed, everything, None, None)
        lower = lower_part(chosen)
        if lower is not None and config.model.freeze_to is None and config.model.lora is None:
            part = replace(whole, model=replace(whole.model, freeze_to=lower))
            upper = training_seconds(*_built(part, parts), parts.train)
    return Costs(embed, everything, upper, head)


def lower_part(config: TrainConfig) -> str | None:
    """The part of the trunk that is frozen when only its upper blocks are trained; None if unknown."""
    name = config.model.backbone or "efficientnet-lite0"
    return next((info.lower for info in list_trunks() if info.name == name), None)


def _built(config: TrainConfig, parts: Parts) -> tuple[TrainConfig, Embedder, nn.Module]:
    chosen = resolve(config, parts.train)
    torch.manual_seed(chosen.seed)
    unfitted = replace(chosen, model=replace(chosen.model, head_start="random"))  # steps take as long
    embedder = build_embedder(unfitted).to(make_trainer(chosen, 1).strategy.root_device)
    embedder.start_epoch(chosen.model.warmup_epochs)
    loss = build_loss(chosen.loss, parts.train.num_classes, embedder.dimension)
    return with_images_of(chosen, embedder), embedder, loss.to(embedder.device)


def seconds_of(clock: Callable[[], float], work: Callable[[], Any]) -> float:
    """The seconds that work takes, by a clock."""
    began = clock()
    work()
    return clock() - began


def lacking_features(embedder: Embedder, table: Table) -> int:
    """The number of images without features in the cache; opens none of them."""
    if table.images is None:
        return 0
    return FeatureCache(cache_folder() / "features", embedder.feature_key()).lacking(table.images)


def embedding_seconds(embedder: Embedder, table: Table) -> float:
    """The seconds to embed an image of a table."""
    assert table.images is not None
    images = [table.images[int(row)] for row in np.resize(np.arange(len(table)), 2 * TRIED)]

    def stream() -> None:
        list(embedder.stream(images, output="features", max_broken=1.0))

    stream()  # the first pass allocates memory, and takes up to four times as long
    return min(seconds_of(CLOCK, stream) for _ in range(2)) / len(images)


def training_seconds(config: TrainConfig, embedder: Embedder, loss: nn.Module, train: Table) -> float:
    """The seconds per image of a step: with workers, which decode while the network computes, the larger of both times;
    without, their sum.
    """
    rows, images = first_rows(config, train), train.images
    assert images is not None
    transform, labels = train_transform(config.data, embedder.preprocess), torch.from_numpy(train.labels[rows])

    def prepared(rows: NDArray[np.int64]) -> Tensor:
        return torch.stack([transform(images[int(row)], np.random.default_rng(0)) for row in rows])

    few = prepared(rows[:TRIED])
    loading = seconds_of(CLOCK, lambda: prepared(rows[:TRIED])) / len(few)
    computing = _step(embedder, loss, few, labels[:TRIED], embedder) / len(few)
    if len(rows) > TRIED and (loading + computing) * len(rows) < QUICK:
        computing = _step(embedder, loss, prepared(rows), labels, embedder) / len(rows)
    workers = config.data.workers or 0
    return max(loading / workers, computing) if workers else loading + computing


def head_seconds(config: TrainConfig, embedder: Embedder, loss: nn.Module, train: Table) -> float:
    """The seconds per image of a step of the head on cached features."""
    rows = first_rows(config, train)
    features = torch.randn(len(rows), embedder.feature_size)
    return _step(embedder, loss, features, torch.from_numpy(train.labels[rows]), embedder.project) / len(rows)


def first_rows(config: TrainConfig, train: Table) -> NDArray[np.int64]:
    """The rows of the first batch."""
    sampler = make_sampler(config.sampler, train, config.seed, world_size=config.nodes * config.devices)
    return np.asarray(next(iter(sampler)), np.int64)


def _step(
    embedder: Embedder, loss: nn.Module, inputs: Tensor, labels: Tensor, network: Callable[[Tensor], Tensor]
) -> float:
    """The seconds of a forward and backward pass; the optimiser's time is negligible."""
    device = embedder.device
    inputs, labels = inputs.to(device), labels.to(device)
    embedder.train()

    def step() -> None:
        loss(network(inputs), labels).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with freed_memory_kept(device.type):
        step()  # the first step allocates memory
        return min(seconds_of(CLOCK, step) for _ in range(2))
