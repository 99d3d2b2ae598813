"""Everything that all losses share: rows, folds, features, batches and the initial head.

The test rows are split off first and used nowhere in this module.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nearfar.data import Features, Loader, Table
from nearfar.models import Embedder
from nearfar.training.build import build_embedder
from nearfar.training.config import TrainConfig
from nearfar.training.data import FeatureLoader, cached_features, make_loader, make_sampler, train_transform
from nearfar.training.defaults import resolve, with_images_of
from nearfar.training.fit import make_trainer
from nearfar.training.measure import embed, measure
from nearfar.training.options import ConfigError
from nearfar.training.progress import Display
from nearfar.training.reading import open_readable, readable
from nearfar.training.splits import split
from nearfar.training.start import IMAGES, start

FROZEN_BATCH = 128
FROZEN_STEPS = 300  # approximately, of a training on cached features
MOST_EPOCHS, FEWEST_EPOCHS = 200, 8
EVALUATIONS = 10  # evaluations on the validation classes in a training
GLYPHS_BACKBONE, GLYPHS_SIZE = "efficientnet-lite0", 64  # pretrained; the glyphs' own network starts at random


@dataclass(frozen=True)
class Rows:
    """The rows to train and validate on (`seen`), and the test rows; each table numbers its own classes.

    `classes` is the number of classes to train on.
    """

    seen: Table
    test: Table
    classes: int
    notes: tuple[str, ...]


def open_rows(data: Any, config: TrainConfig, folds: int, quiet: bool) -> Rows:
    """Read a table or the configuration's data, and split off the test rows."""
    display = Display(quiet)
    if isinstance(data, Table):
        table, _ = readable(data, config.data.max_broken, display)
    else:
        table, _ = open_readable(config.data, display)
    return hold_out_test(table, config, folds)


def hold_out_test(table: Table, config: TrainConfig, folds: int) -> Rows:
    """Split off the test rows."""
    if config.data.test is not None or config.data.split == "all":
        raise ConfigError(
            "a comparison tests on classes of the same data: leave --test and --split all out, and evaluate the winner "
            "on other data with nearfar evaluate"
        )
    parts = split(table, replace(config.data, validation=0.0), config.seed)
    if not parts.open_set:
        raise ConfigError(
            f"a comparison evaluates losses on unseen classes, but the split of {table.name} tests the training "
            "classes: --split classes tests others, if there are enough"
        )
    if parts.test is None:
        raise ConfigError(f"{table.name} has no test rows, which a comparison needs")
    classes = parts.train.num_classes
    if classes < 2 * folds:
        raise ConfigError(
            f"{table.name} has {classes} training classes, but {folds} folds need {2 * folds}, two in each for "
            "validation: choose fewer --folds, or more data"
        )
    seen = parts.train if parts.val is None else table.split("train", "val")
    return Rows(seen, parts.test, classes, tuple(note for note in parts.notes if not note.startswith("no validation")))


def shared_config(config: TrainConfig, trains: Sequence[Table]) -> TrainConfig:
    """Resolve the configuration except for the loss.

    It uses the smallest training table, so that all folds and the final runs have the same batches.
    """
    train = min(trains, key=lambda rows: (rows.num_classes, len(rows)))
    frozen, sampler = config.model.freeze, config.sampler
    if frozen and train.embedded and config.model.backbone is None:
        config = replace(
            config,
            model=replace(config.model, backbone=GLYPHS_BACKBONE),
            data=replace(config.data, size=config.data.size or GLYPHS_SIZE),
        )
    if sampler.kind == "auto":
        sampler = replace(sampler, kind="pk")  # suits all losses; a sampler per loss would favour some
    if frozen and sampler.batch_size is None and sampler.p is None:
        sampler = replace(sampler, batch_size=FROZEN_BATCH)
    resolved = resolve(replace(config, sampler=sampler), train)
    assert resolved.epochs is not None and resolved.sampler.batch_size is not None
    epochs = resolved.epochs
    if frozen and config.epochs is None:
        wanted = math.ceil(FROZEN_STEPS / max(1, len(train) // resolved.sampler.batch_size))
        epochs = min(max(wanted, FEWEST_EPOCHS), MOST_EPOCHS)
    evaluation = resolved.evaluation
    if evaluation.every == 1:
        evaluation = replace(evaluation, every=max(1, round(epochs / EVALUATIONS)))
    return replace(resolved, loss=(), epochs=epochs, evaluation=evaluation)


@dataclass(frozen=True)
class Fold:
    """Rows to train on, rows of other classes to validate on, and the initial model."""

    train: Table
    val: Table
    start: dict[str, Tensor]
    features: Features | None  # features of the training rows
    val_features: Tensor | None
    class_start: tuple[Tensor, Tensor] | None  # embeddings and labels; class vectors start at their means
    start_value: float  # the metric before any step


class Workbench:
    """Everything that the trials of all losses share, created once.

    Args:
        config: the shared configuration; see `shared_config`.
        tables: the training and the validation rows of each fold.
    """

    def __init__(self, config: TrainConfig, tables: Sequence[tuple[Table, Table]]):
        config = shared_config(config, [train for train, _ in tables])
        torch.manual_seed(config.seed)
        self.embedder = build_embedder(config)
        self.config = with_images_of(config, self.embedder)
        self.device = make_trainer(self.config, 1).strategy.root_device
        self.embedder.to(self.device)
        self._initial = {name: value.clone() for name, value in self.embedder.state_dict().items()}
        self.folds = [self.fold(train, val) for train, val in tables]

    @property
    def start_value(self) -> float:
        """The metric of the initial model, averaged over the folds."""
        return sum(fold.start_value for fold in self.folds) / len(self.folds)

    @property
    def metric(self) -> str:
        """The name of the metric that ranks settings."""
        return self.config.evaluation.metric

    def fold(self, train: Table, val: Table) -> Fold:
        """Create a fold, with everything that its trials share."""
        initial = self._initial
        self.embedder.load_state_dict(initial)
        start(self.embedder, nn.Identity(), train, self.config)  # the head; class vectors belong to losses
        state = self.embedder.state_dict()
        # All folds share the initial trunk.
        state = {name: initial[name] if name.startswith("trunk.") else x.clone() for name, x in state.items()}
        features = val_features = None
        if self.config.model.freeze:
            views = train_transform(self.config.data, self.embedder.preprocess) if self.config.model.views > 1 else None
            features = cached_features(self.embedder, train, self.config, views)
            if not self.config.evaluation.flip:
                cached = cached_features(self.embedder, val, self.config)
                readable = np.setdiff1d(np.arange(len(cached)), cached.missing)
                val = val.select(readable)
                val_features = torch.from_numpy(cached.take(readable)).to(self.device)
        fold = Fold(train, val, state, features, val_features, self._class_start(train), 0.0)
        return replace(fold, start_value=self.validate(fold))

    def _class_start(self, train: Table) -> tuple[Tensor, Tensor] | None:
        """Embeddings of training rows by the initial model, as many as `nearfar train` takes, and their labels."""
        if self.config.class_start != "means":
            return None
        rows = np.random.default_rng(self.config.seed).permutation(len(train))[:IMAGES]
        embeddings = torch.from_numpy(embed(self.embedder, train.select(rows), self.config))
        readable = ~embeddings.isnan().any(1)
        return embeddings[readable].to(self.device), torch.from_numpy(train.labels[rows])[readable]

    def relabelled(self, fold: Fold, labels: NDArray[np.int64]) -> Fold:
        """The fold with other training labels: the same initial head, class vectors from the new classes."""
        train = replace(fold.train, labels=labels)
        self.begin(fold)
        return replace(fold, train=train, class_start=self._class_start(train))

    def under(self, config: TrainConfig) -> "Workbench":
        """The same workbench and model under another configuration of batches, steps and seed."""
        other = copy.copy(self)
        other.config = config
        return other

    def with_folds(self, count: int) -> "Workbench":
        """The same workbench with the first `count` of its folds."""
        other = copy.copy(self)
        other.folds = self.folds[:count]
        return other

    def begin(self, fold: Fold) -> Embedder:
        """The model, reset to the fold's initial state."""
        self.embedder.load_state_dict(fold.start)
        return self.embedder

    def loader(self, fold: Fold) -> Loader | FeatureLoader:
        """Training batches, the same for every loss."""
        if fold.features is None:
            return make_loader(self.config, fold.train, self.embedder)
        sampler = make_sampler(self.config.sampler, fold.train, self.config.seed)
        return FeatureLoader(fold.features, fold.train.labels, sampler, self.config.seed)

    def embeddings(self, fold: Fold) -> NDArray[np.float32]:
        """Embeddings of the validation rows by the model in its present state."""
        if fold.val_features is None:
            return embed(self.embedder, fold.val, self.config)
        was_training = self.embedder.training
        self.embedder.eval()
        with torch.inference_mode():
            embeddings: NDArray[np.float32] = self.embedder.project(fold.val_features).float().cpu().numpy()
        self.embedder.train(was_training)
        return embeddings

    def halves(self, fold: Fold) -> tuple[float, float]:
        """The metric of the model in its present state, over the queries of each half of the validation classes; NaN
        if the embeddings are not numbers.
        """
        embeddings = self.embeddings(fold)
        if fold.val_features is not None and not np.isfinite(embeddings).all():
            return math.nan, math.nan
        binary = self.embedder.binary
        metrics = measure(embeddings, fold.val, self.config.evaluation.ks, binary=binary, per_query=True)
        if "per_query" not in metrics:
            return math.nan, math.nan
        values, labels = metrics["per_query"][self.metric], metrics["query_labels"]
        used = ~np.isnan(values)
        values, labels = values[used], labels[used]
        first = np.isin(labels, np.unique(labels)[::2])
        if first.all():  # a single class
            return float(values.mean()), float(values.mean())
        return float(values[first].mean()), float(values[~first].mean())

    def validate(self, fold: Fold) -> float:
        """The mean of both halves."""
        return sum(self.halves(fold)) / 2


def make_workbench(shared: TrainConfig, rows: Rows, folds: int) -> Workbench:
    """Create the workbench on folds of the seen rows."""
    tables = [(fold.split("train"), fold.split("val")) for fold in rows.seen.folds(folds, seed=shared.seed)]
    return Workbench(replace(shared, out=None), tables)
