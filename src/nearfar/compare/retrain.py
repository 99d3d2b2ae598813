"""The best setting of every loss, trained on all training classes over several seeds, as normal runs.

They are given no test row: a share of the training classes (`data.validation`) chooses the best epoch.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nearfar.compare.ground import Ground
from nearfar.compare.search import Found
from nearfar.compare.settings import Comparison
from nearfar.compare.trial import configured
from nearfar.data import Table
from nearfar.training.config import TrainConfig
from nearfar.training.runs import Run
from nearfar.training.splits import VALIDATION
from nearfar.training.train import train

RUNS = "runs"


def slug(name: str) -> str:
    """A contestant's name as a part of file names.

    >>> slug("CircleLoss/class")
    'CircleLoss-class'
    """
    return name.replace("/", "-")


def _once(config: TrainConfig) -> TrainConfig:
    """Validation classes are held out once, and what is trained is kept: the comparison is of trained models."""
    share = VALIDATION if config.data.validation is None else config.data.validation
    data = replace(config.data, validation=share, folds=1)
    return replace(config, data=data, evaluation=replace(config.evaluation, keep="trained"))


def retrain(
    comparison: Comparison,
    ground: Ground,
    found: Found,
    seen: Table,
    folder: Path,
    done: Callable[[str, int, Run], None],
) -> dict[str, list[Run]]:
    """Runs by loss, one for each seed; those that are there already are not trained again, nor those begun, anew.

    Args:
        seen: no test row is in it.
        done: called after each run.
    """
    runs: dict[str, list[Run]] = {}
    for name in comparison.contestants:
        best = _once(configured(ground.config, comparison.loss(name), found.best(name).setting))
        runs[name] = []
        for seed in range(best.seed, best.seed + comparison.effort.seeds):
            run = Run(folder / RUNS / f"{slug(name)}-{seed}")
            if not (run.folder / "config.yaml").is_file():
                run = train(seen, config=replace(best, seed=seed, out=str(run.folder)), quiet=True)
            elif not run.finished:
                run = train(seen, resume=run.folder, quiet=True)
            shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)  # of a finished run nobody needs them
            runs[name].append(run)
            done(name, seed, run)
    return runs
