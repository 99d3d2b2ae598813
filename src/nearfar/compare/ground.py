"""What all losses share: the rows, the folds, the features, the batches, and the head as it starts.

The test rows are set apart first, and are in nothing that is made here.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from nearfar.training.splits import split
from nearfar.training.start import IMAGES, start

FROZEN_BATCH = 128
FROZEN_STEPS = 300  # about, in a training on cached features
MOST_EPOCHS, FEWEST_EPOCHS = 200, 8
LOOKS = 10  # at the validation classes in a training
GLYPHS_BACKBONE, GLYPHS_SIZE = "efficientnet-lite0", 64  # pretrained; the glyphs' own network starts at random


@dataclass(frozen=True)
class Rows:
    """The rows that may be seen before the end, and those that may not. Both number their classes on their own.

    `classes` is how many there are to train on.
    """

    seen: Table
    test: Table
    classes: int
    notes: tuple[str, ...]


def set_apart(table: Table, config: TrainConfig, folds: int) -> Rows:
    """Put the test rows aside."""
    if config.data.test is not None or config.data.split == "all":
        raise ConfigError(
            "a comparison tests on classes of its own data: leave --test and --split all out, and measure the winner "
            "elsewhere with nearfar evaluate"
        )
    parts = split(table, replace(config.data, validation=0.0), config.seed)
    if not parts.open_set:
        raise ConfigError(
            f"a comparison judges losses on classes that they were not trained on, but the split of {table.name} tests "
            "known ones: --split classes tests others, if there are enough of them"
        )
    if parts.test is None:
        raise ConfigError(f"{table.name} has no test rows, and a comparison ends with a look at them")
    classes = parts.train.num_classes
    if classes < 2 * folds:
        raise ConfigError(
            f"{table.name} has {classes} classes to train on, and {folds} folds need {2 * folds}, two to validate on "
            "in each: choose fewer --folds, or more data"
        )
    seen = parts.train if parts.val is None else table.split("train", "val")
    return Rows(seen, parts.test, classes, tuple(note for note in parts.notes if not note.startswith("no validation")))


def shared_config(config: TrainConfig, trains: Sequence[Table]) -> TrainConfig:
    """The configuration with everything chosen that is the same for all losses; only the loss is left open.

    It is chosen for the smallest training table, so that the batches are the same on all of them and in the end.
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
        sampler = replace(sampler, kind="pk")  # which suits all losses; batches of their own would favour some
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
        evaluation = replace(evaluation, every=max(1, round(epochs / LOOKS)))
    return replace(resolved, loss=(), epochs=epochs, evaluation=evaluation)


@dataclass(frozen=True)
class Fold:
    """Rows to train on and rows of other classes to validate on, and the model as it starts there."""

    train: Table
    val: Table
    start: dict[str, Tensor]
    features: Features | None  # of the training rows
    val_features: Tensor | None
    class_start: tuple[Tensor, Tensor] | None  # embeddings and labels whose means class vectors start at
    start_value: float  # of the metric, before any step


class Ground:
    """Everything that the trials of all losses share, made once.

    Args:
        config: shared; what it leaves open is chosen.
        tables: of each fold, rows to train on and rows to validate on.
    """

    def __init__(self, config: TrainConfig, tables: Sequence[tuple[Table, Table]]):
        config = shared_config(config, [train for train, _ in tables])
        torch.manual_seed(config.seed)
        self.embedder = build_embedder(config)
        self.config = with_images_of(config, self.embedder)
        self.device = make_trainer(self.config, 1).strategy.root_device
        self.embedder.to(self.device)
        self._begin = {name: value.clone() for name, value in self.embedder.state_dict().items()}
        self.folds = [self.fold(train, val) for train, val in tables]

    @property
    def metric(self) -> str:
        """By which settings are judged."""
        return self.config.evaluation.metric

    def fold(self, train: Table, val: Table) -> Fold:
        """Rows to train on and to validate on, with all that trials on them share."""
        begin = self._begin
        self.embedder.load_state_dict(begin)
        start(self.embedder, nn.Identity(), train, self.config)  # the head; class vectors are the losses'
        state = self.embedder.state_dict()
        # The trunk starts the same on all folds: it is kept once.
        own = {name: begin[name] if name.startswith("trunk.") else value.clone() for name, value in state.items()}
        features = val_features = None
        if self.config.model.freeze:
            views = train_transform(self.config.data, self.embedder.preprocess) if self.config.model.views > 1 else None
            features = cached_features(self.embedder, train, self.config, views)
            if not self.config.evaluation.flip:
                found = cached_features(self.embedder, val, self.config)
                there = np.setdiff1d(np.arange(len(found)), found.missing)
                val = val.select(there)
                val_features = torch.from_numpy(found.take(there)).to(self.device)
        fold = Fold(train, val, own, features, val_features, self._class_start(train), 0.0)
        return replace(fold, start_value=self.validate(fold))

    def _class_start(self, train: Table) -> tuple[Tensor, Tensor] | None:
        """Embeddings of training rows by the model as it starts, as many as `nearfar train` looks at."""
        if self.config.class_start != "means":
            return None
        rows = np.random.default_rng(self.config.seed).permutation(len(train))[:IMAGES]
        embeddings = torch.from_numpy(embed(self.embedder, train.select(rows), self.config))
        there = ~embeddings.isnan().any(1)
        return embeddings[there].to(self.device), torch.from_numpy(train.labels[rows])[there]

    def relabelled(self, fold: Fold, labels: NDArray[np.int64]) -> Fold:
        """A fold whose training rows have other labels. The head starts as before, class vectors at the new classes."""
        train = replace(fold.train, labels=labels)
        self.begin(fold)
        return replace(fold, train=train, class_start=self._class_start(train))

    def under(self, config: TrainConfig) -> "Ground":
        """The same ground under another configuration of batches, steps and seed; the model stays what it is."""
        other = copy.copy(self)
        other.config = config
        return other

    def with_folds(self, count: int) -> "Ground":
        """The same ground with so many of its folds, the first ones."""
        other = copy.copy(self)
        other.folds = self.folds[:count]
        return other

    def begin(self, fold: Fold) -> Embedder:
        """The model as it starts on a fold. It is always the same one, set back."""
        self.embedder.load_state_dict(fold.start)
        return self.embedder

    def loader(self, fold: Fold) -> Loader | FeatureLoader:
        """Training batches, the same for every loss."""
        if fold.features is None:
            return make_loader(self.config, fold.train, self.embedder)
        sampler = make_sampler(self.config.sampler, fold.train, self.config.seed)
        return FeatureLoader(fold.features, fold.train.labels, sampler, self.config.seed)

    def embeddings(self, fold: Fold) -> NDArray[np.float32]:
        """Of the validation rows, by the model as it is now."""
        if fold.val_features is None:
            return embed(self.embedder, fold.val, self.config)
        was_training = self.embedder.training
        self.embedder.eval()
        with torch.inference_mode():
            found: NDArray[np.float32] = self.embedder.project(fold.val_features).float().cpu().numpy()
        self.embedder.train(was_training)
        return found

    def halves(self, fold: Fold) -> tuple[float, float]:
        """The metric of the model as it is now, over the queries of either half of the validation classes; NaN if the
        embeddings are not numbers.
        """
        embeddings = self.embeddings(fold)
        if fold.val_features is not None and not np.isfinite(embeddings).all():
            return math.nan, math.nan
        binary = self.embedder.binary
        found = measure(embeddings, fold.val, self.config.evaluation.ks, binary=binary, per_query=True)
        if "per_query" not in found:
            return math.nan, math.nan
        values, labels = found["per_query"][self.metric], found["query_labels"]
        used = ~np.isnan(values)
        values, labels = values[used], labels[used]
        first = np.isin(labels, np.unique(labels)[::2])
        if first.all():  # a single class
            return float(values.mean()), float(values.mean())
        return float(values[first].mean()), float(values[~first].mean())

    def validate(self, fold: Fold) -> float:
        """The mean of both halves."""
        return sum(self.halves(fold)) / 2
