"""The steps of training, run by Lightning, from the start or from a checkpoint."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning.pytorch.utilities.exceptions import SIGTERMException

from nearfar.errors import NearfarError
from nearfar.foundation.run_folder import RunError
from nearfar.training.class_shards import distribute_loss
from nearfar.training.config import TrainConfig
from nearfar.training.data import Stream
from nearfar.training.learner import Learner
from nearfar.training.loggers import Loggers
from nearfar.training.memory import freed_memory_kept
from nearfar.training.memory_errors import out_of_memory
from nearfar.training.prepare import Prepared
from nearfar.training.progress import Display
from nearfar.training.recorder import Recorder, stopped_by_signals
from nearfar.training.runs import Run
from nearfar.training.start import start
from nearfar.training.world import World


class StoppedError(NearfarError, RuntimeError):
    """Stopped by Ctrl-C or SIGTERM after saving; the message says how to resume."""

    exit_code = 130


@dataclass
class Fitted:
    """The result of training: the network, the best step by validation, and the duration."""

    learner: Learner
    best: dict[str, Any] | None
    seconds: float


def fit(
    run: Run,
    prepared: Prepared,
    display: Display,
    world: World,
    *,
    until: int | None = None,
    snapshots: Mapping[int, Sequence[str]] | None = None,
    deadline: float | None = None,
    whole: Run | None = None,
    trainings: int = 1,
) -> Fitted:
    """Take the remaining steps.

    Args:
        run: stores checkpoints and curves. The initial state becomes the checkpoint "start".
        until: the step to stop after; by default the last of the schedule.
        snapshots: steps after which the embeddings of the validation rows are saved, each under its names; the best
            step is then not chosen by validation.
        deadline: when to end at the latest, by `time.monotonic`.
        whole: the run that this run is a fold of; messages name it.
        trainings: how many trainings like this one the whole run consists of.
    """
    config, embedder, whole = prepared.config, prepared.embedder, whole or run
    until = prepared.total_steps if until is None else until
    trainer = make_trainer(config, until, world)
    device = trainer.strategy.root_device
    embedder.to(device)
    distribute_loss(prepared.loss, config, world, device)
    state = run.load_checkpoint("last") if run.has_checkpoint("last") else None
    if state is None:
        start(embedder, prepared.loss, prepared.parts.train, config, world, display)
    else:
        prepared.loader.load_state_dict(state["loader"])
        display.note(f"{run.folder}: resuming from step {state['step']:,}")
    remaining = until - (0 if state is None else state["step"])
    loggers = Loggers(config if world.first and run is whole else replace(config, loggers=()), run.folder)
    test = prepared.parts.test if config.evaluation.watch_test else None
    stream = Stream(prepared.loader, remaining)
    recorder = Recorder(run, config, stream, prepared.parts.val, test, display, loggers, state, world, until, snapshots)
    recorder.deadline, recorder.trainings = deadline, trainings
    try:
        learner = Learner(embedder, prepared.loss, config, prepared.total_steps, recorder, world)
        if state is not None:
            learner.resume(state, run.shards(state["step"]) if state.get("shards") else None)
        else:
            recorder.begin(learner)
        if remaining:
            display.start(until, learner.done)
            with (
                resumable(whole),
                stopped_by_signals(lambda: setattr(recorder, "stopping", True), single=world.size == 1),
                freed_memory_kept(device.type),
                without_chatter(),
            ):
                trainer.fit(learner, recorder.stream)
    except SIGTERMException:
        pass  # how Lightning exits, after the recorder has saved
    except RunError as error:
        raise type(error)(f"{error}\n{saved_state(run)}") from error
    finally:
        recorder.close()
    if recorder.out_of_time:
        display.note(f"the time ended after {learner.done:,} of {until:,} steps")
    elif learner.done < until:
        raise stopped(whole, learner.done if run is not whole else None)
    embedder.to(device)
    return Fitted(learner, recorder.best, recorder.seconds)


def stopped(run: Run, step: int | None = None) -> StoppedError:
    """The error of a run that was stopped, and saved if it had anything to save."""
    if step is None:
        step = run.load_checkpoint("last")["step"] if run.has_checkpoint("last") else 0
    return StoppedError(f"stopped and saved at step {step:,}. To resume: nearfar train --resume {run.folder}")


@contextlib.contextmanager
def resumable(run: Run) -> Iterator[None]:
    """Add how to resume to errors of files, such as those of a full disk."""
    try:
        yield
    except OSError as error:
        if out_of_memory(error):
            raise
        raise RunError(f"{error}. To resume: nearfar train --resume {run.folder}") from error


def saved_state(run: Run) -> str:
    """Which state of a stopped run is saved."""
    if not run.has_checkpoint("last"):
        return f"No checkpoint was written yet in {run.folder}."
    step = run.load_checkpoint("last")["step"]
    return f"The last good state, of step {step:,}, is saved in {run.folder / 'checkpoints' / 'last.pt'}."


def make_trainer(config: TrainConfig, steps: int, world: World | None = None) -> Any:
    """Lightning's trainer for one pass over the stream; nearfar writes the files and draws the bar itself."""
    from lightning.pytorch import Trainer

    world, strategy = world or World(), "auto"
    if world.size > 1:
        strategy = "ddp_find_unused_parameters_true" if config.model.warmup_epochs else "ddp"
    with without_chatter():
        return Trainer(
            accelerator=config.accelerator,
            devices=world.local_size,
            num_nodes=world.nodes,
            strategy=strategy,
            precision=config.precision,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            inference_mode=False,
        )


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Silence Lightning's advice, such as that on modules in evaluation mode, which are frozen on purpose."""
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            warnings.filterwarnings("ignore", message=r".*(eval mode|does not have many workers|GPU available).*")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
