"""`train`: from a data set to a measured model.

data ──► splits.py      rows to train on, to choose by, to test
     ──► defaults.py    what the configuration leaves open
     ──► build.py       the embedder and the loss;  checks.py: refusals;  start.py: where both start
     ──► learner.py     steps, under Lightning;  recorder.py: curves, validation, checkpoints
     ──► finish.py      the best model, measured on the test rows, with its threshold
"""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn

import nearfar.data
from nearfar.data import Loader, Table
from nearfar.models import Embedder
from nearfar.training.build import build_embedder, build_loss
from nearfar.training.checks import check_batches, check_parameters
from nearfar.training.config import TrainConfig
from nearfar.training.data import FeatureLoader, Stream, make_loader
from nearfar.training.defaults import resolve, with_images_of
from nearfar.training.finish import finish, measure_before
from nearfar.training.learner import Learner, make_optimisation
from nearfar.training.loggers import Loggers, check_installed
from nearfar.training.memory import freed_memory_kept
from nearfar.training.options import ConfigError, with_options
from nearfar.training.progress import Display
from nearfar.training.recorder import Recorder, stopped_by_signals
from nearfar.training.runs import Run, RunError, new_folder
from nearfar.training.splits import Parts, split
from nearfar.training.start import start


class StoppedError(RuntimeError):
    """Stopped by Ctrl-C or SIGTERM, after everything was saved; the message says how to go on."""

    exit_code = 130


@dataclass
class Prepared:
    """Everything training needs, built and checked."""

    config: TrainConfig
    parts: Parts
    embedder: Embedder
    loss: nn.Module
    loader: Loader | FeatureLoader
    total_steps: int


def train(
    data: str | os.PathLike[str] | Table | None = None,
    *,
    config: TrainConfig | None = None,
    resume: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    **options: Any,
) -> Run:
    """Train an embedding, measure it on classes it has not seen, and leave a run folder.

        run = nearfar.train("photos", loss="CircleLoss", freeze=True, **{"loss.gamma": 80})
        run.metrics["after"]["recall@1"], run.model().embed("other/photos")

    Args:
        data: what `nearfar.data.open` opens, or a table; the embedded glyphs by default.
        config: to begin with, such as a recipe's; see `nearfar.training.config`.
        resume: a run folder to go on with, instead of all else. It ends as it would have ended uninterrupted.
        quiet: show nothing.
        options: every option of `nearfar train --help`, by the same dotted or short names.
    """
    if resume is not None:
        if options or config is not None or (data is not None and not isinstance(data, Table)):
            raise ConfigError("a run goes on as it began: --resume RUN takes no other options")
        run = Run(resume)
        config = run.config
        if run.finished:
            raise ConfigError(f"{run.folder} is finished already: nearfar evaluate {run.folder} measures it")
    else:
        config = with_options(config or TrainConfig(), options)
        if data is not None and not isinstance(data, Table):
            config = replace(config, data=replace(config.data, path=os.fspath(data)))
    display = Display(quiet)
    # Lightning starts other processes for other devices, which come here too; only this one writes.
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    with torch.random.fork_rng(devices=[]):
        prepared = prepare(config, data if isinstance(data, Table) else None, rank=rank)
        if resume is None:
            run = Run(prepared.config.out or new_folder(prepared.config))
            if rank == 0:
                run.begin(prepared.config)
        for note in prepared.parts.notes:
            display.note(note)
        return _run(run, prepared, display, rank)


def resolved(config: TrainConfig) -> TrainConfig:
    """The configuration with what the data decides; the model decides the rest when it is built."""
    table = nearfar.data.open(config.data.path, config.data.layout)
    return resolve(config, split(table, config.data, config.seed).train)


def prepare(config: TrainConfig, table: Table | None = None, rank: int = 0) -> Prepared:
    """Open, split, build and check what a configuration describes; every refusal comes here, before any work."""
    check_installed(config.loggers)
    if table is None:
        table = nearfar.data.open(config.data.path, config.data.layout)
    elif config.data.path == TrainConfig().data.path:
        config = replace(config, data=replace(config.data, path=table.name))
    if table.images is None:
        raise ConfigError(f"{table.name} has no images, only features: train on them in a loop of your own")
    parts = split(table, config.data, config.seed)
    config = resolve(config, parts.train)
    torch.manual_seed(config.seed)
    embedder = build_embedder(config, tuple(parts.train.label_names))
    config = with_images_of(config, embedder)
    loss = build_loss(config.loss, parts.train.num_classes, embedder.dimension)
    loader = make_loader(config, parts.train, embedder, rank, config.devices)
    check_batches(loader.sampler, parts.train.labels, loss)
    assert config.epochs is not None
    total = config.epochs * len(loader)
    total = total if config.max_steps is None else min(total, config.max_steps)
    if total < 1:
        raise ConfigError(f"max_steps={config.max_steps} and epochs={config.epochs} leave nothing to train")
    check_parameters(loss, make_optimisation(config, embedder, loss, total)[0])
    return Prepared(config, parts, embedder, loss, loader, total)


def _run(run: Run, prepared: Prepared, display: Display, rank: int) -> Run:
    config, parts, embedder = prepared.config, prepared.parts, prepared.embedder
    trainer = make_trainer(config, prepared.total_steps)
    device = trainer.strategy.root_device
    embedder.to(device)
    state = run.load_checkpoint("last") if run.has_checkpoint("last") else None
    if state is None:
        start(embedder, prepared.loss, parts.train, config)
        if rank == 0 and "before" not in run.metrics:
            display.note(f"{run.folder}: {prepared.total_steps:,} steps; measuring the model as it starts")
            run.write_metrics({"before": measure_before(embedder, parts, config)})
    else:
        prepared.loader.load_state_dict(state["loader"])
        display.note(f"{run.folder}: going on from step {state['step']:,}")
    left = prepared.total_steps - (0 if state is None else state["step"])
    recorder = _recorder(run, prepared, Stream(prepared.loader, left), display, state, rank)
    try:
        learner = Learner(embedder, prepared.loss, config, prepared.total_steps, recorder)
        if state is not None:
            learner.resume(state)
        if left:
            display.start(prepared.total_steps, learner.done)
            with (
                stopped_by_signals(lambda: setattr(recorder, "stopping", True)),
                freed_memory_kept(device.type),
                without_chatter(),
            ):
                trainer.fit(learner, recorder.stream)
    except SIGTERMException:
        pass  # Lightning leaves so, after the recorder has saved
    except RunError as error:
        raise RunError(f"{error}\n{kept(run)}") from error
    finally:
        recorder.close()
    if learner.done < prepared.total_steps:
        raise StoppedError(f"stopped and saved at step {learner.done:,}. To go on: nearfar train --resume {run.folder}")
    if rank == 0:
        embedder.to(device)
        finish(run, learner, parts, recorder.best, recorder.seconds, display)
    return run


def _recorder(
    run: Run, prepared: Prepared, stream: Stream, display: Display, state: Mapping[str, Any] | None, rank: int
) -> Any:
    if rank == 0:
        loggers = Loggers(prepared.config, run.folder)
        parts, watched = prepared.parts, prepared.config.evaluation.watch_test
        test = parts.test if watched else None
        return Recorder(run, prepared.config, stream, parts.val, test, display, loggers, state)
    return _Silent(stream)


class _Silent:
    """What stands for the recorder on other ranks."""

    best = None
    seconds = 0.0
    stopping = False

    def __init__(self, stream: Stream):
        self.stream = stream
        self._epoch: int | None = None

    def before_step(self, learner: Learner) -> None:
        if self.stream.epoch != self._epoch:
            self._epoch = self.stream.epoch
            learner.embedder.start_epoch(self._epoch)

    def after_step(self, learner: Learner, step: Any) -> None:
        if self.stopping:
            learner.trainer.should_stop = True

    def close(self) -> None: ...


def kept(run: Run) -> str:
    """What is left of a run that had to stop."""
    if not run.has_checkpoint("last"):
        return f"No checkpoint was written yet; {run.folder} can be deleted."
    step = run.load_checkpoint("last")["step"]
    return f"The last good state, of step {step:,}, is kept in {run.folder / 'checkpoints' / 'last.pt'}."


def make_trainer(config: TrainConfig, steps: int) -> Any:
    """Lightning's trainer, for as many steps as there are batches in the stream; files and the bar are ours."""
    from lightning.pytorch import Trainer

    strategy = "auto"
    if config.devices > 1:
        strategy = "ddp_find_unused_parameters_true" if config.model.warmup_epochs else "ddp"
    with without_chatter():
        return Trainer(
            accelerator=config.accelerator,
            devices=config.devices,
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
    """Lightning's advice is for those who call it themselves: batch normalisation is frozen on purpose here."""
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
