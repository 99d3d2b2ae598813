"""How long a run would take: a few images are embedded, a few trained on, and the rest is arithmetic."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nearfar.data import FeatureCache, Table
from nearfar.data.embedded import cache_folder
from nearfar.models import Embedder
from nearfar.training.build import build_embedder, build_loss
from nearfar.training.config import TrainConfig
from nearfar.training.data import make_sampler, train_transform
from nearfar.training.defaults import is_pretrained, resolve, with_images_of
from nearfar.training.fit import make_trainer
from nearfar.training.memory import freed_memory_kept
from nearfar.training.splits import Parts
from nearfar.training.start import IMAGES

TRIED = 16  # images, of which a batch is a multiple
QUICK = 3.0  # seconds: what a whole batch may take to be tried whole, since small ones are slow for their size


@dataclass(frozen=True)
class Duration:
    """In seconds; None for what cannot be done.

    Attributes:
        image: to embed one.
        features: of all images that are not in the cache yet.
        full: training of the whole network.
        frozen: training of the head on cached features, with their computation.
    """

    image: float
    features: float
    full: float | None
    frozen: float | None


def duration(config: TrainConfig, parts: Parts) -> Duration:
    """Of runs with this configuration on these rows, on this machine, if nothing else uses it."""
    tables = [part for part in (parts.train, parts.val, parts.test) if part is not None]
    with torch.random.fork_rng(devices=[]):
        if parts.train.images is None:
            chosen, embedder, loss = _built(config, parts)
            return Duration(0.0, 0.0, None, _steps(chosen, parts) * _head_step(chosen, embedder, loss, parts.train))
        whole = replace(config, model=replace(config.model, freeze=False, views=1))
        chosen, embedder, loss = _built(whole, parts)
        image = _embed_one(embedder, parts.train)
        missing = sum(missing_features(embedder, table) for table in tables)
        step = _train_one(chosen, embedder, loss, parts.train)
        assert chosen.epochs is not None
        batch = len(_first_rows(chosen, parts.train))  # fewer than batch_size, where there are no more
        looks = chosen.epochs / chosen.evaluation.every
        measured = 2 * len(parts.test or ()) + looks * len(parts.val or ())
        started = min(IMAGES, len(parts.train)) if "random" not in (chosen.model.head_start, chosen.class_start) else 0
        full = _steps(chosen, parts) * batch * step + (measured + started) * image
        frozen = None
        if is_pretrained(chosen.model.backbone or "", chosen.model.weights):
            chosen, _, loss = _built(replace(config, model=replace(config.model, freeze=True)), parts, embedder)
            views = missing + (chosen.model.views - 1) * len(parts.train)
            frozen = _steps(chosen, parts) * _head_step(chosen, embedder, loss, parts.train) + views * image
    return Duration(image, missing * image, full, frozen)


def missing_features(embedder: Embedder, table: Table) -> int:
    """How many images the cache has no features of."""
    assert table.images is not None
    cache = FeatureCache(cache_folder() / "features", embedder.feature_key())
    return int(np.count_nonzero(~cache.known(table.images)))


def in_words(seconds: float) -> str:
    """A time, as exactly as it is known.

    >>> [in_words(seconds) for seconds in (20, 100, 1000, 10_000)]
    ['less than a minute', 'about 2 minutes', 'about 17 minutes', 'about 2.8 hours']
    """
    if seconds < 50:
        return "less than a minute"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"about {max(minutes, 1)} minute{'' if minutes <= 1 else 's'}"
    return f"about {seconds / 3600:.1f} hours" if seconds < 36_000 else f"about {seconds / 3600:,.0f} hours"


def _built(
    config: TrainConfig, parts: Parts, embedder: Embedder | None = None
) -> tuple[TrainConfig, Embedder, nn.Module]:
    chosen = resolve(config, parts.train)
    torch.manual_seed(chosen.seed)
    if embedder is None:
        at_random = replace(chosen, model=replace(chosen.model, head_start="random"))  # it takes as long
        embedder = build_embedder(at_random).to(make_trainer(chosen, 1).strategy.root_device)
    loss = build_loss(chosen.loss, parts.train.num_classes, embedder.dimension)
    return with_images_of(chosen, embedder), embedder, loss.to(next(embedder.parameters()).device)


def _steps(config: TrainConfig, parts: Parts) -> int:
    assert config.epochs is not None
    total = config.epochs * len(_sampler(config, parts.train))
    return total if config.max_steps is None else min(total, config.max_steps)


def _sampler(config: TrainConfig, train: Table) -> Any:
    return make_sampler(config.sampler, train, config.seed, world_size=config.nodes * config.devices)


def _embed_one(embedder: Embedder, train: Table) -> float:
    rows = np.resize(np.arange(len(train)), TRIED)
    images = [train.images[int(row)] for row in rows] if train.images is not None else []
    list(embedder.stream(images[:2], output="features", max_broken=1.0))
    return _seconds(lambda: list(embedder.stream(images, output="features", max_broken=1.0))) / TRIED


def _train_one(config: TrainConfig, embedder: Embedder, loss: nn.Module, train: Table) -> float:
    """Workers decode while the network computes, so that the slower of both counts; without them, it is the sum."""
    rows, images = _first_rows(config, train), train.images
    assert images is not None
    transform, labels = train_transform(config.data, embedder.preprocess), torch.from_numpy(train.labels[rows])

    def prepared(rows: NDArray[np.int64]) -> Tensor:
        return torch.stack([transform(images[int(row)], np.random.default_rng(0)) for row in rows])

    few = prepared(rows[:TRIED])
    loading = _seconds(lambda: prepared(rows[:TRIED])) / len(few)
    computing = _step(embedder, loss, few, labels[:TRIED], embedder) / len(few)
    if len(rows) > TRIED and (loading + computing) * len(rows) < QUICK:
        computing = _step(embedder, loss, prepared(rows), labels, embedder) / len(rows)
    workers = config.data.workers or 0
    return max(loading / workers, computing) if workers else loading + computing


def _head_step(config: TrainConfig, embedder: Embedder, loss: nn.Module, train: Table) -> float:
    rows = _first_rows(config, train)
    features = torch.randn(len(rows), embedder.feature_size)
    return _step(embedder, loss, features, torch.from_numpy(train.labels[rows]), embedder.project)


def _first_rows(config: TrainConfig, train: Table) -> NDArray[np.int64]:
    return np.asarray(next(iter(_sampler(config, train))), np.int64)


def _step(
    embedder: Embedder, loss: nn.Module, inputs: Tensor, labels: Tensor, network: Callable[[Tensor], Tensor]
) -> float:
    """The gradients alone: what the optimiser does with them takes little of the time."""
    device = next(embedder.parameters()).device
    inputs, labels = inputs.to(device), labels.to(device)
    embedder.train()

    def step() -> None:
        loss(network(inputs), labels).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with freed_memory_kept(device.type):
        step()  # the first one makes room, and more
        return min(_seconds(step) for _ in range(2))


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
