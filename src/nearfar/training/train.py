"""`train`: from a data set to a measured model.

data ──► prepare.py     splits.py: rows to train on, to choose by, to test;  kept_split.py: kept with the run
                        defaults.py: what the configuration leaves open;  build.py: the embedder and the loss
                        checks.py: refusals
     ──► crossfit.py    where there are few classes: trained for every fold of them, to choose what is kept
     ──► fit.py         start.py: where head and loss start;  learner.py: steps, under Lightning;
                        recorder.py: curves, validation, checkpoints
     ──► finish.py      the best of features, start and trained model, with its threshold, measured on the test rows
"""

import contextlib
import os
import time
from dataclasses import replace
from typing import Any

import torch

from nearfar.data import Table
from nearfar.data.opening import path_of, reopen
from nearfar.foundation.run_folder import RunError
from nearfar.training.budget import Budget
from nearfar.training.config import TrainConfig
from nearfar.training.crossfit import cross_fit
from nearfar.training.defaults import resolve
from nearfar.training.exhausted import advice, out_of_memory
from nearfar.training.finish import finish
from nearfar.training.fit import StoppedError, fit, resumable, stopped
from nearfar.training.launch import check_accelerator, check_devices, launch
from nearfar.training.options import ConfigError, with_options
from nearfar.training.prepare import Prepared, prepare
from nearfar.training.progress import Display, counted
from nearfar.training.runs import Run, new_folder
from nearfar.training.splits import split
from nearfar.training.world import World, joined, restarted, started

WHERE = ("devices", "accelerator")  # options of a run that may be others when it goes on


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
            config = replace(config, data=replace(config.data, path=path_of(data)))
        if world is not None and world.size > 1:
            config = _as_started(config, world)
            if restarted() and (Run(config.out or "").folder / "config.yaml").is_file():
                run = _to_go_on_with(config.out or "")
                config = run.config
    if run is not None and run.finished and run.has_model:  # and one process was killed after that
        return run
    budget = Budget(config.budget) if config.budget is not None and run is None else None
    here = with_options(config, {name: value for name, value in options.items() if name in WHERE})
    config = replace(config, accelerator=here.accelerator)
    check_accelerator(config.accelerator)
    if world is None and here.devices * (1 if resume else here.nodes) > 1:
        return _in_processes(here.devices, config, run, table, budget, quiet)
    world = world or World()
    display = Display(quiet or not world.first)
    with torch.random.fork_rng(devices=[]), joined(world, config.accelerator):
        try:
            prepared = prepare(config, table, world, display, run, None if budget is None else budget.fitted)
            config = prepared.config
            if run is None:
                run = Run(config.out or new_folder(config))
                if world.first:
                    _begin(run, prepared, budget)
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
    if run.finished and run.has_model and not restarted():
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


def _in_processes(
    devices: int, config: TrainConfig, run: Run | None, table: Table | None, budget: Budget | None, quiet: bool
) -> Run:
    """Begin the run here, where refusals are errors like any others, and go on with it in processes of their own."""
    if config.nodes > 1 and run is None:
        raise ConfigError(f"nodes={config.nodes}: start the processes on each machine with torchrun or srun")
    check_devices(config.accelerator, devices)
    if run is None:
        choose = None if budget is None else budget.fitted
        with torch.random.fork_rng(devices=[]):
            prepared = prepare(config, table, display=Display(quiet), choose=choose)
        run = Run(prepared.config.out or new_folder(prepared.config))
        _begin(run, prepared, budget)
        del prepared
    launch(_process, devices, os.fspath(run.folder), table, config.accelerator, quiet)
    if not run.finished:
        raise stopped(run)
    return run


def _process(folder: str, table: Table | None, accelerator: str, quiet: bool) -> None:
    """What each of them does; that it was stopped is for the one that started them to say."""
    with contextlib.suppress(StoppedError):
        train(table, resume=folder, quiet=quiet, accelerator=accelerator)


def _begin(run: Run, prepared: Prepared, budget: Budget | None) -> None:
    """Write what makes a folder a run."""
    run.check_free()
    assert prepared.split is not None
    prepared.split.save(run)
    left = {} if budget is None else {"budget_left": round(budget.deadline - time.monotonic(), 1)}
    run.write_metrics({"split_rows": len(prepared.split.rows), **left})
    run.begin(prepared.config)


def resolved(config: TrainConfig) -> TrainConfig:
    """The configuration with what the data decides; the model decides the rest when it is built."""
    table = reopen(config.data.path, config.data.layout)
    return resolve(config, split(table, config.data, config.seed).train)


def _run(run: Run, prepared: Prepared, display: Display, world: World) -> Run:
    display.note(f"{run.folder}: {counted(prepared.total_steps, 'step')}")
    left = world.told(run.metrics.get("budget_left"))
    deadline = None if left is None else time.monotonic() + left
    choice = cross_fit(run, prepared, display, world, deadline) if prepared.parts.folds else None
    until = None if choice is None else choice.steps(prepared.total_steps)
    fitted = fit(run, prepared, display, world, until=until, deadline=deadline)
    with resumable(run):
        finish(run, fitted, prepared, choice, display, world)
    return run
