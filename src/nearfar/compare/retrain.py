"""The best setting of every loss, trained on all training classes with several seeds, as normal runs.

They see no test row: a share of the training classes (`data.validation`) chooses the best epoch.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from nearfar.compare.journal import Journal
from nearfar.compare.pace import Pace
from nearfar.compare.settings import Comparison
from nearfar.compare.spaces import read_contestant
from nearfar.compare.trial import Setting, configured
from nearfar.compare.workbench import Workbench
from nearfar.data import Table
from nearfar.training.config import TrainConfig
from nearfar.training.runs import Run
from nearfar.training.splits import VALIDATION
from nearfar.training.train import train

RUNS = "runs"


def slug(name: str) -> str:
    """Convert a contestant's name for use in file names.

    >>> slug("CircleLoss/class")
    'CircleLoss-class'
    """
    return name.replace("/", "-")


def run_config(config: TrainConfig) -> TrainConfig:
    """The configuration of a run: one set of validation classes, and the trained model is always kept."""
    share = VALIDATION if config.data.validation is None else config.data.validation
    data = replace(config.data, validation=share, folds=1)
    return replace(config, data=data, evaluation=replace(config.evaluation, keep="trained", report=False))


def retrain(
    comparison: Comparison,
    workbench: Workbench,
    settings: Mapping[str, Setting],
    seen: Table,
    folder: Path,
    done: Callable[[str, int, Run], None],
    journal: Journal,
    pace: Pace | None = None,
) -> dict[str, list[Run]]:
    """Train one run of each loss per seed, and return them by loss; existing runs are kept or resumed.

    All losses have their first run before one has its second, so that the time can end between two rounds.

    Args:
        settings: the best setting of each loss.
        seen: all rows except the test rows.
        done: called after each run.
        pace: says when no time is left.
    """
    runs: dict[str, list[Run]] = {}
    for number in range(comparison.effort.seeds):
        if pace is not None and number and not pace.another_seed(number, len(runs)):
            break
        for name in list(runs) if number else settings:
            if pace is not None and number == 0 and not pace.another_run(name, len(runs) + 1):
                break
            best = run_config(configured(workbench.config, read_contestant(name), settings[name]))
            best = replace(best, seed=best.seed + number)
            run = Run(folder / RUNS / f"{slug(name)}-{best.seed}")
            _run(best, run, seen, journal, pace)
            runs.setdefault(name, []).append(run)
            done(name, best.seed, run)
    return runs


def _run(config: TrainConfig, run: Run, seen: Table, journal: Journal, pace: Pace | None) -> None:
    began = 0.0 if pace is None else pace.budget.clock()
    begun = (run.folder / "config.yaml").is_file()
    if not begun:
        train(seen, config=replace(config, out=str(run.folder)), quiet=True)
    elif not run.finished:
        train(seen, resume=run.folder, quiet=True)
    shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)
    if pace is None:
        return
    key = f"run {run.folder.name}"
    entry = journal.get(key)
    if entry is None and not begun:
        entry = journal.add(key, seconds=pace.budget.clock() - began)
    if entry is not None:
        pace.took(pace.costs.run, entry["seconds"])
