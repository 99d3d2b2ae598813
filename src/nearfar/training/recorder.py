"""Everything between training steps: curves, validation, checkpoints, progress, signals."""

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearfar.data import Table
from nearfar.foundation.durations import duration
from nearfar.training.collapse import CollapseError, CollapseWatch, advice
from nearfar.training.config import TrainConfig
from nearfar.training.data import Stream
from nearfar.training.doctor import diagnose_batch
from nearfar.training.learner import Learner, Step
from nearfar.training.loggers import Loggers
from nearfar.training.measure import embed, measure
from nearfar.training.progress import Display
from nearfar.training.runs import Curves, Run
from nearfar.training.world import World

ESTIMATED_AFTER = 5  # steps
LONG = 30 * 60  # seconds
EPOCHS_APART = 10.0  # least seconds between checkpoints at epoch ends: a head may train many epochs in a second


class Recorder:
    """The `Observer` of a learner that writes its run folder.

    Every process has one. They evaluate and save together, and the first one writes.

    The order of writing is: a row of the curves; at the end of an epoch, the validation metrics and the best model; a
    checkpoint. So everything that a checkpoint refers to exists, and later files are written again after a resume.

    Args:
        stream: the batches.
        val: rows that choose the best epoch, if any.
        test: rows to draw a curve of, if any.
        state: the checkpoint to resume from, if any.
        until: the last step.
        snapshots: steps after which the embeddings of the validation rows are saved, each under its names; the best
            epoch is then not chosen by validation.
    """

    def __init__(
        self,
        run: Run,
        config: TrainConfig,
        stream: Stream,
        val: Table | None,
        test: Table | None,
        display: Display,
        loggers: Loggers,
        state: Mapping[str, Any] | None = None,
        world: World | None = None,
        until: int | None = None,
        snapshots: Mapping[int, Sequence[str]] | None = None,
    ):
        self.until, self.snapshots = until, snapshots
        self.run, self.config, self.stream, self.val, self.test = run, config, stream, val, test
        self.display, self.loggers, self.world = display, loggers, world or World()
        self.best: dict[str, Any] | None = None if state is None else state["best"]
        self.evaluated = -1 if state is None else state["evaluated"]  # step of the last validation
        self.stopping = self.out_of_time = False
        self.deadline: float | None = None  # by time.monotonic
        self.trainings = 1  # number of such trainings in the run
        self._steps = 0  # in this process
        self._seconds = 0.0 if state is None else state["seconds"]  # of training before the resume
        self._began = self._saved = time.monotonic()
        self._epoch: int | None = None
        self._curves = Curves(run, 0 if state is None else state["step"]) if self.world.first else None
        self._warned: set[str] = set()
        self._collapse = CollapseWatch(len(stream.loader))

    @property
    def seconds(self) -> float:
        """The seconds of training without evaluation, including those before a resume."""
        return self._seconds + time.monotonic() - self._began

    # Steps

    def begin(self, learner: Learner) -> None:
        """Save the initial model."""
        if self.world.first:
            self.run.save_checkpoint("start", {"step": 0, "embedder": learner.embedder.state_dict()})
        self.take_snapshot(learner)

    def before_step(self, learner: Learner) -> None:
        if self.stream.epoch != self._epoch:
            self._epoch = self.stream.epoch
            learner.start_epoch(self._epoch)

    def after_step(self, learner: Learner, step: Step) -> None:
        last = learner.done == (self.until or learner.total_steps)
        self._steps += 1
        if self._steps == ESTIMATED_AFTER and self.deadline is None:
            self._estimate(learner)
        if (learner.done % self.config.log_every == 0 or last) and self.world.first:
            self._log(learner, step)
        elif self.display.due():
            self.display.step(learner.done, learner.total_steps, {"loss": float(step.loss)})
        self._check_collapse(learner, step)
        # A signal may reach only one process, and clocks differ, so all processes agree on what to do.
        state = self.stream.loader.state_dict()
        ends = state["position"] == 0  # the epoch
        late = self.deadline is not None and time.monotonic() > self.deadline
        due, self.stopping, self.out_of_time = self.world.any(
            self.world.first and self._due(learner.done, ends), self.stopping, late and not last
        )
        last = last or self.out_of_time
        self.take_snapshot(learner)
        if last or (ends and state["epoch"] % self.config.evaluation.every == 0):
            self.evaluate(learner)
            self._consult(learner, step)
        if last or due or self.stopping:
            self.save(learner)
        if self.stopping or self.out_of_time:
            learner.trainer.should_stop = True

    def _check_collapse(self, learner: Learner, step: Step) -> None:
        if not self._collapse.due(learner.done):
            return
        collapsed = self._collapse.sees(*mean_similarities(step.embeddings, step.labels))
        if not self.world.any(collapsed)[0]:
            return
        message = advice(self.config, learner.done)
        if self.config.on_collapse == "stop":
            raise CollapseError(message)
        self._note_once("collapse", message)

    def _note_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self.display.note(message)

    def _estimate(self, learner: Learner) -> None:
        """Note the estimated duration, if it is long."""
        each = (time.monotonic() - self._began) / self._steps
        seconds = each * ((self.until or learner.total_steps) * self.trainings - learner.done)
        if seconds > LONG:
            self.display.note(f"this will take about {duration(seconds)}. To end sooner: nearfar train --budget 30min")

    def _log(self, learner: Learner, step: Step) -> None:
        loss = float(step.loss)
        if loss != loss or loss in (float("inf"), float("-inf")):
            raise learner.not_finite("the loss is not a number", learner.done)
        s_p, s_n = mean_similarities(step.embeddings, step.labels)
        numbers = {"loss": loss, "s_p": s_p, "s_n": s_n}
        rate = learner.optimiser.param_groups[0]["lr"]
        self._write(learner.done, {**numbers, "lr": rate})
        if self.display.due():
            self.display.step(learner.done, learner.total_steps, numbers)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        if self._curves is None:
            return
        known = {name: value for name, value in values.items() if value == value}
        self._curves.add({"step": step, "epoch": self.stream.epoch, "seconds": round(self.seconds, 3), **known})
        self.loggers.log(known, step)

    # Validation and checkpoints

    def evaluate(self, learner: Learner) -> None:
        """Evaluate the validation rows, and save the best model so far; evaluate test rows only for their curve."""
        self.evaluated = learner.done
        self.world.share_buffers(learner.embedder)
        began, row = time.monotonic(), {}
        if self.val is not None and self.snapshots is None:
            row = self._validate(learner, self.val)
        if self.test is not None:
            with learner.ema.swapped() if learner.ema is not None else contextlib.nullcontext():
                metrics = self._measured(learner, self.test)
            row |= {f"test {name}": value for name, value in metrics.items()}
            self.display.note(f"epoch {self.stream.epoch + 1}: test recall@1 {metrics['recall@1']:.1%}")
        self._began += time.monotonic() - began
        if row:
            self._write(learner.done, {name: v for name, v in row.items() if isinstance(v, float)})

    def take_snapshot(self, learner: Learner) -> None:
        """Save the embeddings of the validation rows, if this step is among `snapshots`."""
        snapshots = self.snapshots or {}
        names = snapshots.get(learner.done, ())
        if self.out_of_time:  # take the later snapshots now
            names = [name for step, names in snapshots.items() if step >= learner.done for name in names]
        if not names or self.val is None:
            return
        began = time.monotonic()
        self.world.share_buffers(learner.embedder)
        with learner.ema.swapped() if learner.ema is not None else contextlib.nullcontext():
            embeddings = embed(learner.embedder, self.val, self.config, self.world)
        for name in names if self.world.first else ():
            self.run.save_look(name, embeddings)
        self._began += time.monotonic() - began

    def _validate(self, learner: Learner, val: Table) -> dict[str, Any]:
        with learner.ema.swapped() if learner.ema is not None else contextlib.nullcontext():
            metrics = self._measured(learner, val)
            value = metrics[self.config.evaluation.metric]
            better = self.best is None or value > self.best["value"]
            if better:
                self.best = {"step": learner.done, "epoch": self.stream.epoch, "value": value}
                if self.world.first:
                    self.run.save_checkpoint("best", {"step": learner.done, "embedder": learner.embedder.state_dict()})
        self.display.measured(self.stream.epoch + 1, learner.done, metrics, better)
        return metrics

    def _measured(self, learner: Learner, table: Table) -> dict[str, Any]:
        embeddings = embed(learner.embedder, table, self.config, self.world)
        if np.isnan(embeddings).all():
            raise learner.not_finite("the embeddings are not numbers", learner.done)
        binary = learner.embedder.binary
        return measure(embeddings, table, self.config.evaluation.ks, binary=binary, world=self.world)

    def _consult(self, learner: Learner, step: Step) -> None:
        """Note the batch doctor's warnings about the last batch, each once."""
        if self.world.size > 1:  # calling the distributed loss would need all processes
            return
        for warning in diagnose_batch(step.embeddings.float(), step.labels, learner.loss).warnings():
            kind = re.sub(r"[\d.,]+", "", warning)  # ignore differences in numbers
            self._note_once(kind, f"batch doctor: {warning}")

    def _due(self, done: int, ends: bool) -> bool:
        """Whether to save a checkpoint; `ends`: the epoch ends with this step."""
        every = self.config.checkpoints
        if every.steps is not None:
            return ends or done % every.steps == 0
        return time.monotonic() - self._saved > (min(EPOCHS_APART, every.seconds) if ends else every.seconds)

    def save(self, learner: Learner) -> None:
        """Save a checkpoint: everything that later steps depend on."""
        progress = {
            "loader": self.stream.loader.state_dict(),
            "best": self.best,
            "evaluated": self.evaluated,
            "seconds": self.seconds,
        }
        self.world.share_buffers(learner.embedder)
        state, shards = learner.state() | progress, learner.shards()
        if shards:
            self.run.save_shards(state["step"], shards)
        if self.world.first:
            self.run.save_checkpoint("last", state)
            self.run.forget_shards(but=state["step"])
        self._saved = time.monotonic()

    def close(self) -> None:
        """Close curves, loggers and display."""
        if self._curves is not None:
            self._curves.close()
        self.loggers.close()
        self.display.close()


def mean_similarities(embeddings: Tensor, labels: Tensor) -> tuple[float, float]:
    """The mean cosines of the positive and of the negative pairs of a batch; NaN without pairs."""
    x = torch.nn.functional.normalize(embeddings.float())
    similarities = x @ x.T
    same = labels[:, None] == labels
    different = ~same
    same.fill_diagonal_(False)
    return float(similarities[same].mean()), float(similarities[different].mean())


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None], *, single: bool = True) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM call `stop`, so that the step is finished and saved; a second Ctrl-C interrupts at once.

    One of several processes ignores the second one: it gets the signal from the terminal and from its parent.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and single:
            signal.signal(signal.SIGINT, before[signal.SIGINT])
        stop()

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    for each in before:
        signal.signal(each, handle)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
