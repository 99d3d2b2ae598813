"""Whole small networks, trained from random weights to their end as `nearfar train` trains them.

    networks = Networks(options.config, options.classes)
    networks.train(LossConfig("CircleLoss"), seed=0).recall         # on unseen classes, after the last step

What nothing is said of is chosen as `nearfar train --loss NAME` chooses it: the rates, the sampler, the class vectors.
The network is narrow, so that a training takes less than a minute. Seconds are of the processor, without the looks at
the test classes, so that other work on the machine is not counted.
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
HELD_OUT = 1 / 3  # of the training classes, where settings are chosen

After = Callable[[Learner, Step], None]
Rows = tuple[Table, Table]
Look = tuple[int, float, float, float]
"""Step, seconds of the processor, Recall@1, MAP@R."""


@dataclass(frozen=True)
class NetworkOptions(HeadOptions):
    """Of studies that train whole networks."""

    seeds: int = option(3, "trainings of every setting, from `seed` on")
    classes: int | None = option(200, "use so many training and so many test classes alone, the first ones")
    steps: int = option(400, "of a training; --options '{width: 16}' makes the network wider")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise ConfigError(f"steps must be at least 1, not {self.steps}")


@dataclass
class Trained:
    """What a training came to.

    Attributes:
        looks: at the test classes.
        diverged: whether it ended before its time.
    """

    looks: list[Look]
    diverged: bool = False

    @property
    def recall(self) -> float | None:
        """Recall@1 in the end; None of a training that diverged."""
        return None if self.diverged else self.looks[-1][2]

    @property
    def measured(self) -> Measured:
        """`METRICS` in the end; None of a training that diverged."""
        return dict.fromkeys(METRICS) if self.diverged else dict(zip(METRICS, self.looks[-1][2:], strict=True))


def network_config(config: TrainConfig) -> TrainConfig:
    """A configuration for whole networks, with what it leaves open chosen for studies."""
    if config.devices > 1:
        raise ConfigError("a study trains on one device: leave devices out")
    model = config.model
    if model.backbone is None and not model.freeze:
        model = replace(model, backbone="convnet", options=model.options or {"width": WIDTH})
    return replace(config, model=replace(model, dimension=model.dimension or DIMENSION), out=None)


class Networks:
    """Networks of all kinds on one data set; nothing is opened before the first training.

    Args:
        config: of everything that the trainings share; `network_config` chooses what it leaves open.
        classes: so many training and test classes alone.
    """

    def __init__(self, config: TrainConfig, classes: int | None = None):
        self.config, self._classes = network_config(config), classes

    @functools.cached_property
    def rows(self) -> Rows:
        """Training and test rows."""
        return read_rows(self.config, self._classes)

    @functools.cached_property
    def to_choose(self) -> Rows:
        """Training classes to train on, and the others in place of the test classes."""
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
        """Everything that a training needs, as `nearfar train` makes it."""
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
            options: others of `nearfar train`, by their names.
            look_at: steps after which the test classes are looked at, besides the first and the last.
            rows: others to train on and to test, such as `to_choose`.
            after: is told of every step.
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
    """How far this is from the papers."""
    train, test = networks.rows
    model = networks.config.model
    width = f" of width {model.options['width']}" if "width" in model.options else ""
    return (
        f"The setting: {model.backbone or 'a frozen network'}{width}, {steps} steps on {len(train):,} images of "
        f"{train.num_classes} classes ({train.name}), tested on {test.num_classes} others. The papers train "
        "BN-Inception from ImageNet for 40 epochs, and ResNets on millions of faces: what holds here may not hold "
        "there, and the other way round."
    )


class _Watch:
    """Looks at the test classes after some steps, and at the clock (`Observer`)."""

    def __init__(self, test: Table, config: TrainConfig, look_at: set[int], after: After | None):
        self._test, self._config, self._look_at, self._after = test, config, look_at, after
        self._seconds = self._began = 0.0
        self._epoch: int | None = None
        self._stream: Stream | None = None
        self.looks: list[Look] = []
        self.stopping = False

    def stop(self) -> None:
        """End with this step: a signal has come."""
        self.stopping = True

    def follow(self, stream: Stream) -> Stream:
        """The batches whose epochs are counted."""
        self._stream = stream
        return stream

    def look(self, embedder: Embedder, step: int) -> None:
        """Measure the test classes."""
        found = embed(embedder, self._test, self._config)
        if not np.isfinite(found).all():
            raise RunError("the embeddings are not numbers")
        values = measured(found, self._test)
        recall, precision = (float(values[name] or 0.0) for name in METRICS)
        self.looks.append((step, round(self._seconds, 4), recall, precision))

    def before_step(self, learner: Learner) -> None:
        assert self._stream is not None
        if self._stream.epoch != self._epoch:
            self._epoch = self._stream.epoch
            learner.embedder.start_epoch(self._epoch)
        self._began = _clock(learner)

    def after_step(self, learner: Learner, step: Step) -> None:
        float(step.loss)  # waits for devices that compute on their own
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
