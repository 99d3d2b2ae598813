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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn

import nearfar.data
from nearfar.data import Loader, Table
from nearfar.errors import NearfarError
from nearfar.models import Embedder
from nearfar.training.build import build_embedder, build_loss
from nearfar.training.checks import check_batches, check_metric, check_parameters
from nearfar.training.config import TrainConfig
from nearfar.training.data import FeatureLoader, Stream, make_loader, make_sampler
from nearfar.training.defaults import resolve, with_images_of
from nearfar.training.exhausted import advice, out_of_memory
from nearfar.training.finish import finish, measure_before
from nearfar.training.launch import check_accelerator, check_devices, launch
from nearfar.training.learner import Learner, check_chunks, make_optimisation
from nearfar.training.loggers import Loggers, check_installed
from nearfar.training.memory import freed_memory_kept
from nearfar.training.options import ConfigError, with_options
from nearfar.training.progress import Display
from nearfar.training.recorder import Recorder, stopped_by_signals
from nearfar.training.runs import Run, RunError, new_folder
from nearfar.training.splits import Parts, split
from nearfar.training.spread import spread
from nearfar.training.start import start
from nearfar.training.world import World, joined, restarted, started

WHERE = ("devices", "accelerator")  # options of a run that may be others when it goes on


class StoppedError(NearfarError, RuntimeError):
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
        resume: a run folder to go on with, instead of all else but `devices` and `accelerator`. It ends as it would
            have ended uninterrupted.
        quiet: show nothing.
        options: every option of `nearfar train --help`, by the same dotted or short names.
    """
    table = data if isinstance(data, Table) else None
    world = started()
    run: Run | None = None
    if resume is not None:
        if set(options) - set(WHERE) or config is not None or (data is not None and table is None):
            raise ConfigError(
                "a run goes on as it began: --resume RUN takes no other options than devices, accelerator"
            )
        run = _to_go_on_with(resume)
        config = run.config
    else:
        config = with_options(config or TrainConfig(), options)
        if data is not None and not isinstance(data, Table):
            config = replace(config, data=replace(config.data, path=os.fspath(data)))
        if world is not None and world.size > 1:
            config = _as_started(config, world)
            if restarted() and (Run(config.out or "").folder / "config.yaml").is_file():
                run = _to_go_on_with(config.out or "")
                config = run.config
    if run is not None and run.finished:  # and one process was killed after that
        return run
    here = with_options(config, {name: value for name, value in options.items() if name in WHERE})
    config = replace(config, accelerator=here.accelerator)
    check_accelerator(config.accelerator)
    if world is None and here.devices * (1 if resume else here.nodes) > 1:
        return _in_processes(here.devices, config, run, table, quiet)
    world = world or World()
    display = Display(quiet or not world.first)
    with torch.random.fork_rng(devices=[]), joined(world, config.accelerator):
        try:
            prepared = prepare(config, table, world, display)
            config = prepared.config
            if run is None:
                run = Run(config.out or new_folder(config))
                if world.first:
                    run.begin(config)
            for note in prepared.parts.notes:
                display.note(note)
            return _run(run, prepared, display, world)
        except Exception as error:
            if isinstance(error, RunError) or not out_of_memory(error):
                raise
            raise RunError(advice(config, None if run is None else run.folder, error)) from error


def _to_go_on_with(folder: str | os.PathLike[str]) -> Run:
    run = Run(folder)
    _ = run.config  # which says so if there is none
    if run.finished and not restarted():
        raise ConfigError(f"{run.folder} is finished already: nearfar evaluate {run.folder} measures it")
    return run


def _as_started(config: TrainConfig, world: World) -> TrainConfig:
    """The configuration of a run whose processes someone else has started."""
    if config.out is None:
        raise ConfigError("several processes need --out RUN, so that each of them, and a restart, finds the same run")
    if (config.devices, config.nodes) not in ((1, 1), (world.local_size, world.nodes)):
        raise ConfigError(
            f"devices={config.devices} and nodes={config.nodes}, but {world.local_size} processes were started on each "
            f"of {world.nodes} machines: leave both out, since torchrun and srun know them"
        )
    return replace(config, devices=world.local_size, nodes=world.nodes)


def _in_processes(devices: int, config: TrainConfig, run: Run | None, table: Table | None, quiet: bool) -> Run:
    """Begin the run here, where refusals are errors like any others, and go on with it in processes of their own."""
    if config.nodes > 1 and run is None:
        raise ConfigError(f"nodes={config.nodes}: start the processes on each machine with torchrun or srun")
    check_devices(config.accelerator, devices)
    if run is None:
        with torch.random.fork_rng(devices=[]):
            prepared = prepare(config, table, display=Display(quiet))
        run = Run(prepared.config.out or new_folder(prepared.config))
        run.begin(prepared.config)
        del prepared
    launch(_process, devices, os.fspath(run.folder), table, config.accelerator, quiet)
    if not run.finished:
        raise stopped(run)
    return run


def _process(folder: str, table: Table | None, accelerator: str, quiet: bool) -> None:
    """What each of them does; that it was stopped is for the one that started them to say."""
    with contextlib.suppress(StoppedError):
        train(table, resume=folder, quiet=quiet, accelerator=accelerator)


def resolved(config: TrainConfig) -> TrainConfig:
    """The configuration with what the data decides; the model decides the rest when it is built."""
    table = nearfar.data.open(config.data.path, config.data.layout)
    return resolve(config, split(table, config.data, config.seed).train)


def prepare(
    config: TrainConfig, table: Table | None = None, world: World | None = None, display: Display | None = None
) -> Prepared:
    """Open, split, build and check what a configuration describes; every refusal comes here, before any work."""
    world, display = world or World(), display or Display(quiet=True)
    check_installed(config.loggers)
    check_metric(config.evaluation.metric, config.evaluation.ks)
    if table is None:
        table = nearfar.data.open(config.data.path, config.data.layout)
    elif config.data.path == TrainConfig().data.path:
        config = replace(config, data=replace(config.data, path=table.name))
    if config.chunk is not None:
        check_chunks(config)
    if not 0 < config.sample_rate <= 1:
        raise ConfigError(f"sample_rate={config.sample_rate} is a share of the classes, above 0 and up to 1")
    if config.sample_rate < 1 and config.precision == "16-mixed":
        raise ConfigError("sample_rate goes with precision 32-true and bf16-mixed, whose gradients need no scaling")
    parts = split(table, config.data, config.seed)
    config = resolve(config, parts.train)
    torch.manual_seed(config.seed)
    embedder = build_embedder(config, tuple(parts.train.label_names))
    config = with_images_of(config, embedder)
    loss = build_loss(config.loss, parts.train.num_classes, embedder.dimension)
    sampler = make_sampler(config.sampler, parts.train, config.seed, world_size=config.nodes * config.devices)
    check_batches(sampler, parts.train.labels, loss)
    assert config.epochs is not None
    total = config.epochs * len(sampler)
    total = total if config.max_steps is None else min(total, config.max_steps)
    if total < 1:
        raise ConfigError(f"max_steps={config.max_steps} and epochs={config.epochs} leave nothing to train")
    check_parameters(loss, make_optimisation(config, embedder, loss, total)[0])
    wanted = len(parts.train) * config.model.views // world.size
    with display.looking("features of training images", wanted) as advance:
        loader = make_loader(config, parts.train, embedder, world, advance)
    return Prepared(config, parts, embedder, loss, loader, total)


def _run(run: Run, prepared: Prepared, display: Display, world: World) -> Run:
    config, parts, embedder = prepared.config, prepared.parts, prepared.embedder
    trainer = make_trainer(config, prepared.total_steps, world)
    device = trainer.strategy.root_device
    embedder.to(device)
    spread(prepared.loss, config, world, device)
    state = run.load_checkpoint("last") if run.has_checkpoint("last") else None
    if state is None:
        start(embedder, prepared.loss, parts.train, config, world, display)
        if world.told("before" not in run.metrics):
            display.note(f"{run.folder}: {prepared.total_steps:,} steps; measuring the model as it starts")
            before = measure_before(embedder, parts, config, world, display)
            if world.first:
                run.write_metrics({"before": before})
    else:
        prepared.loader.load_state_dict(state["loader"])
        display.note(f"{run.folder}: going on from step {state['step']:,}")
    left = prepared.total_steps - (0 if state is None else state["step"])
    loggers = Loggers(config if world.first else replace(config, loggers=()), run.folder)
    test = parts.test if config.evaluation.watch_test else None
    stream = Stream(prepared.loader, left)
    recorder = Recorder(run, config, stream, parts.val, test, display, loggers, state, world)
    try:
        learner = Learner(embedder, prepared.loss, config, prepared.total_steps, recorder, world)
        if state is not None:
            learner.resume(state, run.shards(state["step"]) if state.get("shards") else None)
        if left:
            display.start(prepared.total_steps, learner.done)
            with (
                resumable(run),
                stopped_by_signals(lambda: setattr(recorder, "stopping", True), alone=world.size == 1),
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
        raise stopped(run)
    embedder.to(device)
    with resumable(run):
        finish(run, learner, parts, recorder.best, recorder.seconds, display, world)
    return run


def stopped(run: Run) -> StoppedError:
    """What to say of a run that was told to stop, and has saved; or had nothing to save yet."""
    step = run.load_checkpoint("last")["step"] if run.has_checkpoint("last") else 0
    return StoppedError(f"stopped and saved at step {step:,}. To go on: nearfar train --resume {run.folder}")


@contextlib.contextmanager
def resumable(run: Run) -> Iterator[None]:
    """Say how to go on where a file has stopped the run, such as one that a full disk has no room for."""
    try:
        yield
    except OSError as error:
        if out_of_memory(error):
            raise
        raise RunError(f"{error}. To go on: nearfar train --resume {run.folder}") from error


def kept(run: Run) -> str:
    """What is left of a run that had to stop."""
    if not run.has_checkpoint("last"):
        return f"No checkpoint was written yet in {run.folder}."
    step = run.load_checkpoint("last")["step"]
    return f"The last good state, of step {step:,}, is kept in {run.folder / 'checkpoints' / 'last.pt'}."


def make_trainer(config: TrainConfig, steps: int, world: World | None = None) -> Any:
    """Lightning's trainer, for as many steps as there are batches in the stream; files and the bar are ours."""
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
