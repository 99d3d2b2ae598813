"""What a run costs: a few images are embedded, a few trained on, and the rest is arithmetic."""

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

TRIED = 16  # images, of which a batch is a multiple
QUICK = 3.0  # seconds: what a whole batch may take to be tried whole, since small ones are slow for their size
LOOKS = 4  # at the held-out rows of a fold
CLOCK = time.perf_counter


@dataclass(frozen=True)
class Costs:
    """Seconds an image takes: to be embedded, and in a step of each way to train (None: it is no way here)."""

    embed: float
    everything: float | None
    upper: float | None
    head: float | None


@dataclass(frozen=True)
class Counts:
    """Images to train on, to validate on in every epoch, and to test; folds of whole networks and of heads, or 1."""

    train: int
    val: int
    test: int
    folds: int
    head_folds: int


def training_time(way: str, epochs: int, folds: int, costs: Costs, counts: Counts) -> float:
    """Seconds of a training with its measurements, where the features of all images are in the cache.

    Args:
        way: "everything", "upper" or "head".
    """
    cost = getattr(costs, way)
    steps = epochs * folds * counts.train * cost  # every fold trains on all rows but its own, and in the end all are
    if way == "head":
        return float(steps)
    looks = LOOKS * counts.train if folds > 1 else (epochs + 1) * counts.val
    return float(steps + costs.embed * (counts.test + looks))


def counted(parts: Parts, heads: Parts) -> Counts:
    """Of a split for whole networks, and one for heads on cached features."""
    val, test = (0 if part is None else len(part) for part in (parts.val, parts.test))
    return Counts(len(parts.train), val, test, parts.folds or 1, heads.folds or 1)


def measured(config: TrainConfig, parts: Parts) -> Costs:
    """What images cost here, with this configuration, if nothing else uses the machine."""
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
    """The part of the trunk that stays as it is where its upper blocks are trained; None if none is known."""
    name = config.model.backbone or "efficientnet-lite0"
    return next((info.lower for info in list_trunks() if info.name == name), None)


def _built(config: TrainConfig, parts: Parts) -> tuple[TrainConfig, Embedder, nn.Module]:
    chosen = resolve(config, parts.train)
    torch.manual_seed(chosen.seed)
    at_random = replace(chosen, model=replace(chosen.model, head_start="random"))  # it takes as long
    embedder = build_embedder(at_random).to(make_trainer(chosen, 1).strategy.root_device)
    embedder.start_epoch(chosen.model.warmup_epochs)
    loss = build_loss(chosen.loss, parts.train.num_classes, embedder.dimension)
    return with_images_of(chosen, embedder), embedder, loss.to(embedder.device)


def seconds_of(clock: Callable[[], float], work: Callable[[], Any]) -> float:
    """That some work takes, by a clock."""
    began = clock()
    work()
    return clock() - began


def lacking_features(embedder: Embedder, table: Table) -> int:
    """How many images have no features in the cache yet. None of them is opened."""
    if table.images is None:
        return 0
    return FeatureCache(cache_folder() / "features", embedder.feature_key()).lacking(table.images)


def embedding_seconds(embedder: Embedder, table: Table) -> float:
    """To embed an image of a table."""
    assert table.images is not None
    images = [table.images[int(row)] for row in np.resize(np.arange(len(table)), 2 * TRIED)]

    def stream() -> None:
        list(embedder.stream(images, output="features", max_broken=1.0))

    stream()  # the first one makes room, and takes up to four times as long
    return min(seconds_of(CLOCK, stream) for _ in range(2)) / len(images)


def training_seconds(config: TrainConfig, embedder: Embedder, loss: nn.Module, train: Table) -> float:
    """Of an image in a step. Workers decode while the network computes, so that the slower of both counts; without
    them, it is the sum.
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
    """Of an image in a step of the head alone, on cached features."""
    rows = first_rows(config, train)
    features = torch.randn(len(rows), embedder.feature_size)
    return _step(embedder, loss, features, torch.from_numpy(train.labels[rows]), embedder.project) / len(rows)


def first_rows(config: TrainConfig, train: Table) -> NDArray[np.int64]:
    """Of the first batch."""
    sampler = make_sampler(config.sampler, train, config.seed, world_size=config.nodes * config.devices)
    return np.asarray(next(iter(sampler)), np.int64)


def _step(
    embedder: Embedder, loss: nn.Module, inputs: Tensor, labels: Tensor, network: Callable[[Tensor], Tensor]
) -> float:
    """The gradients alone: what the optimiser does with them takes little of the time."""
    device = embedder.device
    inputs, labels = inputs.to(device), labels.to(device)
    embedder.train()

    def step() -> None:
        loss(network(inputs), labels).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with freed_memory_kept(device.type):
        step()  # the first one makes room, and more
        return min(seconds_of(CLOCK, step) for _ in range(2))
