"""Whole small networks, trained from random weights as by `nearfar train`.

    networks = Networks(options.config, options.classes)
    networks.train(LossConfig("CircleLoss"), seed=0).recall         # on unseen classes, after the last step

Unset options have the defaults of `nearfar train --loss NAME`: rates, sampler, class vectors. The network is narrow, so
that a training takes less than a minute. Times are CPU seconds without evaluations, so that other work on the machine
is not counted.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from nearfar.data import Table
from nearfar.foundation.run_folder import RunError
from nearfar.models import Embedder
from nearfar.studies.heads import ENDLESS, METRICS, Measured, measured, read_rows
from nearfar.studies.study import HeadOptions
from nearfar.training.config import LossConfig, TrainConfig, option
from nearfar.training.data import Stream
from nearfar.training.fit import StoppedError, make_trainer, without_chatter
from nearfar.training.learner import Learner, Step
from nearfar.training.measure import embed
from nearfar.training.options import ConfigError, with_options
from nearfar.training.prepare import Prepared, build
from nearfar.training.recorder import stopped_by_signals
from nearfar.training.splits import Parts
from nearfar.training.start import start

WIDTH, DIMENSION = 8, 64
HELD_OUT = 1 / 3  # share of the training classes that choose settings

After = Callable[[Learner, Step], None]
Rows = tuple[Table, Table]
Look = tuple[int, float, float, float]
"""Step, CPU seconds, Recall@1, MAP@R."""


@dataclass(frozen=True)
class NetworkOptions(HeadOptions):
    """The options of studies that train whole networks."""

    seeds: int = option(3, "trainings of every setting, with consecutive seeds from `seed`")
    classes: int | None = option(200, "use only the first N training classes and N test classes")
    steps: int = option(400, "training steps; --options '{width: 16}' makes the network wider")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise ConfigError(f"steps must be at least 1, not {self.steps}")


@dataclass
class Trained:
    """The result of a training.

    Attributes:
        looks: the evaluations on the test classes.
        diverged: whether training diverged and ended early.
    """

    looks: list[Look]
    diverged: bool = False

    @property
    def recall(self) -> float | None:
        """The final Recall@1; None if the training diverged."""
        return None if self.diverged else self.looks[-1][2]

    @property
    def measured(self) -> Measured:
        """The final `METRICS`; None if the training diverged."""
        return dict.fromkeys(METRICS) if self.diverged else dict(zip(METRICS, self.looks[-1][2:], strict=True))


def network_config(config: TrainConfig) -> TrainConfig:
    """Fill in a configuration for whole networks with the defaults of studies."""
    if config.devices > 1:
        raise ConfigError("a study trains on one device: leave devices out")
    model = config.model
    if model.backbone is None and not model.freeze:
        model = replace(model, backbone="convnet", options=model.options or {"width": WIDTH})
    return replace(config, model=replace(model, dimension=model.dimension or DIMENSION), out=None)


class Networks:
    """Trains networks on one data set. Nothing is opened before the first training.

    Args:
        config: the configuration shared by all trainings; `network_config` fills it in.
        classes: use only this number of training classes and of test classes.
    """

    def __init__(self, config: TrainConfig, classes: int | None = None):
        self.config, self._classes = network_config(config), classes

    @functools.cached_property
    def rows(self) -> Rows:
        """Training and test rows."""
        return read_rows(self.config, self._classes)

    @functools.cached_property
    def to_choose(self) -> Rows:
        """Rows for choosing settings: some training classes to train on, the others in place of the test classes."""
        train = self.rows[0]
        held_out = train.labels >= round(train.num_classes * (1 - HELD_OUT))
        return train.select(~held_out), train.select(held_out)

    def prepare(
        self,
        loss: LossConfig,
        seed: int,
        steps: int,
        options: Mapping[str, Any] | None = None,
        train: Table | None = None,
    ) -> Prepared:
        """Prepare a training as `nearfar train` does."""
        config = replace(with_options(self.config, options or {}), loss=(loss,), seed=seed)
        config = replace(config, epochs=ENDLESS, max_steps=steps)
        return build(config, Parts(self.rows[0] if train is None else train, open_set=True))

    def train(
        self,
        loss: LossConfig,
        seed: int,
        steps: int,
        *,
        options: Mapping[str, Any] | None = None,
        look_at: Sequence[int] = (),
        rows: Rows | None = None,
        after: After | None = None,
    ) -> Trained:
        """Train a network.

        Args:
            options: further options of `nearfar train`, by name.
            look_at: steps after which the test classes are evaluated, besides the start and the last step.
            rows: other training and test rows, such as `to_choose`.
            after: called after every step.
        """
        train, test = rows or self.rows
        with torch.random.fork_rng(devices=[]):
            prepared = self.prepare(loss, seed, steps, options, train)
            watch = _Watch(test, prepared.config, {*look_at, steps}, after)
            trainer = make_trainer(prepared.config, steps)
            embedder, device = prepared.embedder, trainer.strategy.root_device
            embedder.to(device)
            prepared.loss.to(device)
            start(embedder, prepared.loss, train, prepared.config)
            watch.look(embedder, 0)
            learner = Learner(embedder, prepared.loss, prepared.config, steps, watch)
            try:
                with stopped_by_signals(watch.stop), without_chatter():
                    trainer.fit(learner, watch.follow(Stream(prepared.loader, steps)))
            except SIGTERMException:
                watch.stop()
            except RunError:
                return Trained(watch.looks, diverged=True)
        if watch.stopping:
            raise StoppedError("stopped")
        learner.optimiser.state.clear()  # Lightning's objects refer to each other and are freed late
        return Trained(watch.looks)


def setting_of(networks: Networks, steps: int) -> str:
    """Describe the setting, and its differences from the papers."""
    train, test = networks.rows
    model = networks.config.model
    width = f" of width {model.options['width']}" if "width" in model.options else ""
    return (
        f"The setting: {model.backbone or 'a frozen network'}{width}, {steps} steps on {len(train):,} images of "
        f"{train.num_classes} classes ({train.name}), tested on {test.num_classes} others. The papers train "
        "BN-Inception from ImageNet for 40 epochs, and ResNets on millions of faces: results here may not hold "
        "there, nor theirs here."
    )


class _Watch:
    """The `Observer` that evaluates the test classes after some steps, and measures the time."""

    def __init__(self, test: Table, config: TrainConfig, look_at: set[int], after: After | None):
        self._test, self._config, self._look_at, self._after = test, config, look_at, after
        self._seconds = self._began = 0.0
        self._epoch: int | None = None
        self._stream: Stream | None = None
        self.looks: list[Look] = []
        self.stopping = False

    def stop(self) -> None:
        """End training after this step, since a signal arrived."""
        self.stopping = True

    def follow(self, stream: Stream) -> Stream:
        """Set the batches, for the epoch, and return them."""
        self._stream = stream
        return stream

    def look(self, embedder: Embedder, step: int) -> None:
        """Evaluate the test classes."""
        embeddings = embed(embedder, self._test, self._config)
        if not np.isfinite(embeddings).all():
            raise RunError("the embeddings are not numbers")
        values = measured(embeddings, self._test)
        recall, precision = (float(values[name] or 0.0) for name in METRICS)
        self.looks.append((step, round(self._seconds, 4), recall, precision))

    def before_step(self, learner: Learner) -> None:
        assert self._stream is not None
        if self._stream.epoch != self._epoch:
            self._epoch = self._stream.epoch
            learner.embedder.start_epoch(self._epoch)
        self._began = _clock(learner)

    def after_step(self, learner: Learner, step: Step) -> None:
        float(step.loss)  # waits for asynchronous devices
        self._seconds += _clock(learner) - self._began
        if self.stopping:
            learner.trainer.should_stop = True
            return
        if self._after is not None:
            self._after(learner, step)
        if learner.done in self._look_at:
            self.look(learner.embedder, learner.done)


def _clock(learner: Learner) -> float:
    return time.process_time() if learner.device.type == "cpu" else time.perf_counter()
