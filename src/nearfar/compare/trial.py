"""One setting of a loss, trained on one fold and evaluated on its validation classes."""

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

from nearfar.compare.workbench import Fold, Workbench
from nearfar.foundation.run_folder import RunError
from nearfar.losses import SumLoss
from nearfar.training.build import build_loss
from nearfar.training.checks import check_batches, check_parameters
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.data import Stream
from nearfar.training.fit import StoppedError, make_trainer, without_chatter
from nearfar.training.learner import Learner, Step, make_optimisation
from nearfar.training.recorder import stopped_by_signals
from nearfar.training.start import draw_classes, start_classes

Setting = Mapping[str, Any]  # "lr", "classes", "proxies", "level", "loss.NAME": values
Halves = tuple[float, float]  # the metric of either half of the validation classes
After = Callable[[Learner, Step, float], None]


@dataclass(frozen=True)
class Outcome:
    """The result of a setting on a fold.

    `evaluations` are the metrics of both halves of the validation classes, after every epoch or so; `value` is their
    `cross_judged` mean, or 0 for a training that diverged.
    """

    value: float
    evaluations: tuple[Halves, ...]
    steps: int
    seconds: float
    step_seconds: float  # median: forward, backward, optimiser
    peak_bytes: int | None
    diverged: bool


def cross_judged(evaluations: Sequence[Halves]) -> float:
    """The mean of each half's metric at the epoch that is best for the other half, so that no half evaluates its own
    choice.

    >>> cross_judged([(0.5, 0.1), (0.4, 0.3)])
    0.25
    """
    first, second = zip(*evaluations, strict=True)
    return float(first[int(np.argmax(second))] + second[int(np.argmax(first))]) / 2


def configured(shared: TrainConfig, loss: LossConfig, setting: Setting) -> TrainConfig:
    """Add a loss with its form, arguments and rates to the shared configuration."""
    arguments = {name.removeprefix("loss."): value for name, value in setting.items() if name.startswith("loss.")}
    rates = {name: setting[name] for name in ("lr", "classes", "proxies") if name in setting}
    level = loss.class_level if "level" not in setting else setting["level"] == "class"
    loss = replace(loss, arguments={**loss.arguments, **arguments}, class_level=level)
    return replace(shared, loss=(loss,), optimiser=replace(shared.optimiser, **rates))


class _Watch:
    """Evaluates on the validation classes as `nearfar train` does, and times the steps (an `Observer`)."""

    def __init__(self, evaluate: Callable[[], Halves], stream: Stream, after: After | None):
        self._evaluate, self._stream, self._after = evaluate, stream, after
        self._epoch: int | None = None
        self._began = 0.0
        self.step_seconds: list[float] = []
        self.evaluations: list[Halves] = []
        self.stopping = False

    def before_step(self, learner: Learner) -> None:
        if self._stream.epoch != self._epoch:
            self._epoch = self._stream.epoch
            learner.start_epoch(self._epoch)
        self._began = time.perf_counter()

    def after_step(self, learner: Learner, step: Step) -> None:
        float(step.loss)  # waits for asynchronous devices
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
                halves = self._evaluate()
            if math.isnan(sum(halves)):
                raise learner.not_finite("the embeddings are not numbers", learner.done)
            self.evaluations.append(halves)


def run_fold(
    workbench: Workbench,
    fold: Fold,
    loss: LossConfig,
    setting: Setting,
    *,
    evaluate: Callable[[], Halves] | None = None,
    extra: nn.Module | None = None,
    after: After | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Train a setting on a fold with the steps of `nearfar train`, and return its result; the model is not saved.

    Args:
        evaluate: called after every epoch or so and at the end; by default, `Workbench.halves`.
        extra: a module added to the loss, such as a penalty.
        after: called after every step, with the seconds that it took.
        clock: times the whole.
    """
    began = clock()
    config = configured(workbench.config, loss, setting)
    embedder = workbench.begin(fold)
    torch.manual_seed(config.seed)
    built = build_loss(config.loss, fold.train.num_classes, embedder.dimension).to(workbench.device)
    draw_classes(built, config)
    if fold.class_start is not None:
        start_classes(built, *fold.class_start)
    if extra is not None:
        built = SumLoss([built, extra])
    loader = workbench.loader(fold)
    check_batches(loader.sampler, fold.train.labels, built)
    assert config.epochs is not None
    steps = config.epochs * len(loader)
    steps = steps if config.max_steps is None else min(steps, config.max_steps)
    check_parameters(built, make_optimisation(config, embedder, built, steps)[0])
    stream = Stream(loader, steps)
    watch = _Watch(evaluate or functools.partial(workbench.halves, fold), stream, after)
    diverged = False
    memory = _PeakMemory(workbench.device)
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
        embedder.to(workbench.device)  # Lightning moves it to main memory
    if watch.stopping:
        raise StoppedError("stopped")
    # Lightning's objects refer to each other and are freed late: without this, dozens of trainings fill the memory.
    learner.optimiser.state.clear()
    return Outcome(
        value=0.0 if diverged else cross_judged(watch.evaluations),
        evaluations=tuple(watch.evaluations),
        steps=learner.done,
        seconds=clock() - began,
        step_seconds=statistics.median(watch.step_seconds) if watch.step_seconds else math.nan,
        peak_bytes=memory.peak(),
        diverged=diverged,
    )


class _PeakMemory:
    """The peak memory since its creation: of the device or, on Linux, of this process."""

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
