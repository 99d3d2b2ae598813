"""`train`: from a data set to an evaluated model.

data ──► prepare.py     splits.py: training, validation and test rows;  kept_split.py: saves them with the run
                        defaults.py: fills in the configuration;  build.py: the embedder and the loss
                        checks.py: rejects settings that cannot work
     ──► crossfit.py    for few classes: trains for every fold of them, to choose the candidate to keep
     ──► fit.py         start.py: initialises head and loss;  learner.py: steps, under Lightning;
                        recorder.py: curves, validation, checkpoints
     ──► finish.py      the best of features, initial and trained model, its threshold, evaluation on the test rows
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
from nearfar.training.finish import finish
from nearfar.training.fit import StoppedError, fit, resumable, stopped
from nearfar.training.launch import check_accelerator, check_devices, launch
from nearfar.training.memory_errors import advice, out_of_memory
from nearfar.training.options import ConfigError, with_options
from nearfar.training.prepare import Prepared, prepare
from nearfar.training.progress import Display, counted
from nearfar.training.runs import Run, new_folder
from nearfar.training.splits import split
from nearfar.training.world import World, joined, restarted, started

WHERE = ("devices", "accelerator")  # options that may change when a run is resumed


def train(
    data: str | os.PathLike[str] | Table | None = None,
    *,
    config: TrainConfig | None = None,
    resume: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    **options: Any,
) -> Run:
    """Train an embedding, evaluate it on unseen classes, and write a run folder.

        run = nearfar.train("photos", loss="CircleLoss", freeze=True, **{"loss.gamma": 80})
        run.metrics["after"]["recall@1"], run.model().embed("other/photos")

    Args:
        data: a table, or anything that `nearfar.data.open` opens; by default the built-in glyphs.
        config: the configuration to start from, such as a recipe's; see `nearfar.training.config`.
        resume: a run folder to resume; only `devices` and `accelerator` may be set with it. The result is that of an
            uninterrupted run.
        quiet: show nothing.
        options: all options of `nearfar train --help`, by the same dotted or short names.
    """
    table = data if isinstance(data, Table) else None
    world = started()
    run: Run | None = None
    if resume is not None:
        if set(options) - set(WHERE) or config is not None or (data is not None and table is None):
            raise ConfigError(
                "a run is resumed with its own settings: --resume RUN takes no options but devices and accelerator"
            )
        run = _run_to_resume(resume)
        config = run.config
    else:
        config = with_options(config or TrainConfig(), options)
        if data is not None and not isinstance(data, Table):
            config = replace(config, data=replace(config.data, path=path_of(data)))
        if world is not None and world.size > 1:
            config = _as_started(config, world)
            if restarted() and (Run(config.out or "").folder / "config.yaml").is_file():
                run = _run_to_resume(config.out or "")
                config = run.config
    if run is not None and run.finished and run.has_model:  # a process was killed after the end of the run
        return run
    budget = Budget(config.budget) if config.budget is not None and run is None else None
    local = with_options(config, {name: value for name, value in options.items() if name in WHERE})
    config = replace(config, accelerator=local.accelerator)
    check_accelerator(config.accelerator)
    if world is None and local.devices * (1 if resume else local.nodes) > 1:
        return _in_processes(local.devices, config, run, table, budget, quiet)
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


def _run_to_resume(folder: str | os.PathLike[str]) -> Run:
    run = Run(folder)
    _ = run.config  # raises if there is no run
    if run.finished and run.has_model and not restarted():
        raise ConfigError(f"{run.folder} is already finished: nearfar evaluate {run.folder} evaluates it")
    return run


def _as_started(config: TrainConfig, world: World) -> TrainConfig:
    """The configuration of a run whose processes torchrun or srun has started."""
    if config.out is None:
        raise ConfigError("several processes need --out RUN, so that all of them, and a restart, use the same run")
    if (config.devices, config.nodes) not in ((1, 1), (world.local_size, world.nodes)):
        raise ConfigError(
            f"devices={config.devices} and nodes={config.nodes}, but {world.local_size} processes were started on each "
            f"of {world.nodes} machines: leave both out, since torchrun and srun set them"
        )
    return replace(config, devices=world.local_size, nodes=world.nodes)


def _in_processes(
    devices: int, config: TrainConfig, run: Run | None, table: Table | None, budget: Budget | None, quiet: bool
) -> Run:
    """Start the run in this process, where checks raise ordinary errors, and train in several new processes."""
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
    """Train in one of several processes; the parent process reports a stop."""
    with contextlib.suppress(StoppedError):
        train(table, resume=folder, quiet=quiet, accelerator=accelerator)


def _begin(run: Run, prepared: Prepared, budget: Budget | None) -> None:
    """Write the files that make a folder a run."""
    run.check_free()
    assert prepared.split is not None
    prepared.split.save(run)
    left = {} if budget is None else {"budget_left": round(budget.deadline - time.monotonic(), 1)}
    run.write_metrics({"split_rows": len(prepared.split.rows), **left})
    run.begin(prepared.config)


def resolved(config: TrainConfig) -> TrainConfig:
    """Fill in the configuration for its data; the built model decides the rest."""
    table = reopen(config.data.path, config.data.layout)
    return resolve(config, split(table, config.data, config.seed).train)


def _run(run: Run, prepared: Prepared, display: Display, world: World) -> Run:
    display.note(f"{run.folder}: {counted(prepared.total_steps, 'step')}")
    left = world.broadcast(run.metrics.get("budget_left"))
    deadline = None if left is None else time.monotonic() + left
    choice = cross_fit(run, prepared, display, world, deadline) if prepared.parts.folds else None
    until = None if choice is None else choice.steps(prepared.total_steps)
    fitted = fit(run, prepared, display, world, until=until, deadline=deadline)
    with resumable(run):
        finish(run, fitted, prepared, choice, display, world)
    return run
