"""One setting of a loss, trained on one fold and judged on its validation classes."""

import contextlib
import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn

from nearfar.compare.ground import Fold, Ground
from nearfar.losses import SumLoss
from nearfar.training.build import build_loss
from nearfar.training.checks import check_batches, check_parameters
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.data import Stream
from nearfar.training.fit import StoppedError, make_trainer, without_chatter
from nearfar.training.learner import Learner, Step, make_optimisation
from nearfar.training.recorder import stopped_by_signals
from nearfar.training.runs import RunError
from nearfar.training.start import draw_classes, start_classes

Setting = Mapping[str, Any]  # "lr", "classes", "proxies", "level", "loss.NAME": values
Halves = tuple[float, float]  # the metric of either half of the validation classes
After = Callable[[Learner, Step, float], None]


@dataclass(frozen=True)
class Outcome:
    """What a setting came to on a fold.

    `looks` are the metric of either half of the validation classes, after every epoch or so; `value` is what each half
    has at the look that the other one would choose, on the mean of both; of a training that diverged, 0.
    """

    value: float
    looks: tuple[Halves, ...]
    steps: int
    seconds: float
    step_seconds: float  # median: forward, backward, optimiser
    peak_bytes: int | None
    diverged: bool


def judged(looks: Sequence[Halves]) -> float:
    """What each half of the classes has where the other half is best, on the mean: no half judges what it has chosen.

    >>> judged([(0.5, 0.1), (0.4, 0.3)])
    0.25
    """
    first, second = zip(*looks, strict=True)
    return float(first[int(np.argmax(second))] + second[int(np.argmax(first))]) / 2


def configured(shared: TrainConfig, loss: LossConfig, setting: Setting) -> TrainConfig:
    """The shared configuration with a loss, its form, its arguments and its rates."""
    own = {name.removeprefix("loss."): value for name, value in setting.items() if name.startswith("loss.")}
    rates = {name: setting[name] for name in ("lr", "classes", "proxies") if name in setting}
    level = loss.class_level if "level" not in setting else setting["level"] == "class"
    loss = replace(loss, arguments={**loss.arguments, **own}, class_level=level)
    return replace(shared, loss=(loss,), optimiser=replace(shared.optimiser, **rates))


class _Watch:
    """Looks at the validation classes as `nearfar train` does, and at the clock (`Observer`)."""

    def __init__(self, look: Callable[[], Halves], stream: Stream, after: After | None):
        self._look, self._stream, self._after = look, stream, after
        self._epoch: int | None = None
        self._began = 0.0
        self.step_seconds: list[float] = []
        self.looks: list[Halves] = []
        self.stopping = False

    def before_step(self, learner: Learner) -> None:
        if self._stream.epoch != self._epoch:
            self._epoch = self._stream.epoch
            learner.start_epoch(self._epoch)
        self._began = time.perf_counter()

    def after_step(self, learner: Learner, step: Step) -> None:
        float(step.loss)  # waits for devices that compute on their own
        self.step_seconds.append(time.perf_counter() - self._began)
        if self._after is not None:
            self._after(learner, step, self.step_seconds[-1])
        if self.stopping:
            learner.trainer.should_stop = True
            return
        state = self._stream.loader.state_dict()
        last = learner.done == learner.total_steps
        if last or (state["position"] == 0 and state["epoch"] % learner.config.evaluation.every == 0):
            with learner.ema.swapped() if learner.ema is not None else contextlib.nullcontext():
                halves = self._look()
            if math.isnan(sum(halves)):
                raise learner.not_finite("the embeddings are not numbers", learner.done)
            self.looks.append(halves)


def run_fold(
    ground: Ground,
    fold: Fold,
    loss: LossConfig,
    setting: Setting,
    *,
    look: Callable[[], Halves] | None = None,
    extra: nn.Module | None = None,
    after: After | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Train a setting on a fold, by the very steps of `nearfar train`, and keep nothing but what it came to.

    Args:
        look: at the model while it is trained and in the end; by default, `Ground.halves`.
        extra: what is added to the loss, such as a penalty.
        after: is told of every step once the weights have moved, with the seconds that it took.
        clock: by which the whole is timed.
    """
    began = clock()
    config = configured(ground.config, loss, setting)
    embedder = ground.begin(fold)
    torch.manual_seed(config.seed)
    built = build_loss(config.loss, fold.train.num_classes, embedder.dimension).to(ground.device)
    draw_classes(built, config)
    if fold.class_start is not None:
        start_classes(built, *fold.class_start)
    if extra is not None:
        built = SumLoss([built, extra])
    loader = ground.loader(fold)
    check_batches(loader.sampler, fold.train.labels, built)
    assert config.epochs is not None
    steps = config.epochs * len(loader)
    steps = steps if config.max_steps is None else min(steps, config.max_steps)
    check_parameters(built, make_optimisation(config, embedder, built, steps)[0])
    stream = Stream(loader, steps)
    watch = _Watch(look or functools.partial(ground.halves, fold), stream, after)
    diverged = False
    memory = _PeakMemory(ground.device)
    trainer = make_trainer(config, steps)
    learner = Learner(embedder, built, config, steps, watch)
    try:
        with stopped_by_signals(lambda: setattr(watch, "stopping", True)), without_chatter():
            trainer.fit(learner, stream)
    except SIGTERMException:
        watch.stopping = True
    except RunError:
        diverged = True
    finally:
        embedder.to(ground.device)  # Lightning leaves it in main memory
    if watch.stopping:
        raise StoppedError("stopped")
    # Lightning's objects refer to each other and are freed late: this spares the memory of dozens of trainings.
    learner.optimiser.state.clear()
    return Outcome(
        value=0.0 if diverged else judged(watch.looks),
        looks=tuple(watch.looks),
        steps=learner.done,
        seconds=clock() - began,
        step_seconds=statistics.median(watch.step_seconds) if watch.step_seconds else math.nan,
        peak_bytes=memory.peak(),
        diverged=diverged,
    )


class _PeakMemory:
    """The most memory since it was made: of the device, or of this process where the system tells (Linux)."""

    def __init__(self, device: torch.device):
        self._device = device
        self._known = True
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self._known = False

    def peak(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if not self._known:
            return None
        lines = Path("/proc/self/status").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
