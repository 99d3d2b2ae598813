"""Training batches: images from worker processes, or features of a frozen trunk from the cache."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from nearfar.data import (
    BalancedSampler,
    Batch,
    BatchSampler,
    Dealt,
    EvalTransform,
    FeatureCache,
    Features,
    HierarchicalSampler,
    Loader,
    PKSampler,
    PlainSampler,
    SeededView,
    Table,
    TrainTransform,
)
from nearfar.data.features import by_steps
from nearfar.foundation.folders import cache_folder
from nearfar.models import Embedder
from nearfar.training.config import DataConfig, SamplerConfig, TrainConfig
from nearfar.training.options import ConfigError
from nearfar.training.world import World


def make_sampler(config: SamplerConfig, table: Table, seed: int, rank: int = 0, world_size: int = 1) -> BatchSampler:
    """Build the sampler of a resolved configuration."""
    options: dict[str, Any] = {"seed": seed, "rank": rank, "world_size": world_size}
    assert config.batch_size is not None
    if config.kind == "pk":
        assert config.p is not None
        return PKSampler(table.labels, config.p, config.k, **options)
    if config.kind == "hierarchical":
        if table.super_class is None:
            raise ConfigError(f"{table.name} has no super-classes, which the hierarchical sampler needs: use pk")
        assert config.p is not None
        return HierarchicalSampler(table.labels, table.super_class, config.s, config.p, config.k, **options)
    if config.kind == "balanced":
        return BalancedSampler(table.labels, config.batch_size, **options)
    # A small last batch would be a noisy step. The images that are dropped differ from epoch to epoch.
    full = len(table) >= config.batch_size * world_size
    return PlainSampler(len(table), config.batch_size, drop_last=full, **options)


def train_transform(data: DataConfig, preprocess: EvalTransform) -> TrainTransform:
    """The random transform for training, with the trunk's normalisation."""
    assert data.size is not None
    return TrainTransform.like(
        preprocess,
        size=data.size,
        scale=data.crop_area if preprocess.crop else None,
        ratio=data.crop_ratio,
        flip=data.flip or 0.0,
        color=data.color,
        erase=data.erase,
        pad=data.pad or 0,
    )


class FeatureLoader:
    """Batches of cached features, with the state of a `Loader`. An image's view depends only on the seed, the epoch and
    the batch.
    """

    def __init__(self, features: Features, labels: np.ndarray[Any, Any], sampler: BatchSampler, seed: int):
        self.features, self.sampler, self.seed = features, sampler, seed
        self._labels = torch.from_numpy(labels)
        self._next = self._progress = 0, 0  # epoch and batch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        epoch, start = self._progress = self._next
        self._next = epoch, 0
        self.sampler.seek(epoch, start)
        batches = self.features.batches(sampler=self.sampler, seed=self.seed)
        for number, (features, rows) in enumerate(batches, start + 1):
            self._progress = epoch, number
            if len(rows):
                yield Batch(features, self._labels[rows], rows)
        self._next = self._progress = epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """The position in the epoch, in batches yielded."""
        return self.sampler.state_at(*self._progress)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a saved position."""
        self.sampler.load_state_dict(state)
        self._next = self._progress = state["epoch"], state["position"]


def make_loader(
    config: TrainConfig,
    table: Table,
    embedder: Embedder,
    world: World | None = None,
    advance: Callable[[int], None] | None = None,
) -> Loader | FeatureLoader:
    """Build the loader of training batches: of images, or of cached features if the trunk is frozen.

    A batch over all processes has `nodes` × `devices` × batch_size images, as the configuration says; the processes of
    `world`, however many, share it. `advance` is called with the number of images whose features are available.
    """
    world, processes = world or World(), config.nodes * config.devices
    if world.size == processes:
        sampler = make_sampler(config.sampler, table, config.seed, world.rank, processes)
    else:
        sampler = Dealt(make_sampler(config.sampler, table, config.seed, 0, processes), world.rank, world.size)
    transform = train_transform(config.data, embedder.preprocess)
    if config.model.freeze:
        if config.model.views > 1 and world.size != processes:
            raise ConfigError(f"model.views are drawn for {processes} processes: resume with as many, not {world.size}")
        random = transform if config.model.views > 1 else None
        if world.size > 1:  # each process computes its share of the missing features
            cached_features(embedder, table.select(world.part(len(table))), config, random, advance)
            world.wait()
        features = cached_features(embedder, table, config, random, advance if world.size == 1 else None)
        return FeatureLoader(features, table.labels, sampler, config.seed)
    return Loader(
        table,
        transform,
        sampler,
        workers=config.data.workers or 0,
        max_broken=config.data.max_broken,
        seed=config.seed,
        pin_memory=torch.cuda.is_available(),
    )


class Stream:
    """The batches of all remaining epochs as one sequence of known length."""

    def __init__(self, loader: Loader | FeatureLoader, length: int):
        self.loader, self._length = loader, length
        self.epoch = loader.state_dict()["epoch"]  # of the last batch

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        yielded = 0
        while yielded < self._length:
            self.epoch = self.loader.state_dict()["epoch"]
            before = yielded
            for batch in self.loader:
                yielded += 1
                yield batch
                if yielded == self._length:
                    return
            if yielded == before:
                raise ConfigError("an epoch has no batches: no image of the training data could be read")


# The encoder cache


def cached_features(
    embedder: Embedder,
    table: Table,
    config: TrainConfig,
    transform: TrainTransform | None = None,
    advance: Callable[[int], None] | None = None,
) -> Features:
    """The trunk's features of a table, by its own transform or in random views.

    Missing features are computed and cached. A table without images has its own features. `advance` is called with the
    number of available features.
    """
    if table.images is None:
        return _table_features(embedder, table)
    views = 1 if transform is None else config.model.views
    random = [None if transform is None else SeededView(transform, view, config.seed) for view in range(views)]
    key = embedder.feature_key() if transform is None else f"{embedder.feature_key(transform)} {config.seed}"

    def encode(images_part: Any, view: int) -> Iterator[Any]:
        allowed = config.data.max_broken
        return embedder.stream(
            images_part, transform=random[view], output="features", max_broken=allowed, part_of=len(table)
        )

    images: Any = table.images
    return FeatureCache(cache_folder() / "features", key).compute(
        images, encode, views=views, progress=by_steps(advance)
    )


def _table_features(embedder: Embedder, table: Table) -> Features:
    features = table.features
    assert features is not None
    if features.shape[1] != embedder.feature_size:
        raise ConfigError(
            f"{table.name} has features of {features.shape[1]} dimensions, but the model takes {embedder.feature_size}"
            ": they come from another encoder"
        )
    missing = np.isnan(features).any(1)
    indices = np.where(missing, -1, np.arange(len(features), dtype=np.int64))[:, None]
    return Features([features], indices, features.shape[1])
