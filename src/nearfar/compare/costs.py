"""The costs of the parts of a comparison on this machine, measured before the search on training rows only.

A training on a fold is timed; if it ends in time, it is the first of the search. Then a short run is made and deleted,
since a run with its curves, checkpoints and report takes several times as long as a training of the search.
All losses are assumed to cost the same; `pace.py` corrects that and all other estimates.
"""

import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from nearfar.compare.budget import BASELINES, Budget, BudgetError, Costs, rounded_up
from nearfar.compare.journal import Journal
from nearfar.compare.query_metrics import per_query
from nearfar.compare.retrain import run_config
from nearfar.compare.search import defaults, fold_key
from nearfar.compare.settings import Comparison
from nearfar.compare.spaces import read_contestant
from nearfar.compare.statistics import all_pairs
from nearfar.compare.trial import configured, run_fold
from nearfar.compare.workbench import EVALUATIONS, Rows, Workbench, shared_config
from nearfar.data import Table
from nearfar.foundation.durations import duration
from nearfar.models import Embedder
from nearfar.training.build import build_embedder
from nearfar.training.config import TrainConfig
from nearfar.training.data import make_sampler
from nearfar.training.learner import Learner, Step
from nearfar.training.measure import embed
from nearfar.training.splits import split
from nearfar.training.timing import lacking_features, seconds_of
from nearfar.training.train import train

SHARE = 0.08  # share of the budget after which the timed training is cut short
FEWEST_STEPS = 4
SAMPLE, MANY = 16, 1000  # images to time; number of images below which their time does not matter


class _EnoughError(Exception):
    """The training was long enough to estimate the rest."""


class _Steps:
    """Times the steps of a training and ends it at a time limit."""

    def __init__(self, clock: Callable[[], float], limit: float):
        self._clock, self._limit = clock, limit
        self._began = clock()
        self._times: list[float] = []
        self.total = 0

    def __call__(self, learner: Learner, step: Step, seconds: float) -> None:
        self._times.append(self._clock())
        self.total = learner.total_steps
        if len(self._times) >= FEWEST_STEPS and self._times[-1] - self._began > self._limit:
            raise _EnoughError

    @property
    def step(self) -> float:
        """Seconds from one step to the next."""
        return (self._times[-1] - self._times[0]) / max(1, len(self._times) - 1)

    @property
    def before(self) -> float:
        """Seconds until the first step."""
        return self._times[0] - self._began


def measure_costs(comparison: Comparison, workbench: Workbench, rows: Rows, journal: Journal, budget: Budget) -> Costs:
    """Measure the costs of everything from the search on."""
    fold, step = _fold(comparison, workbench, journal, budget)
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        return _ending(comparison, workbench, rows, budget, fold, step, Path(folder))


def _fold(comparison: Comparison, workbench: Workbench, journal: Journal, budget: Budget) -> tuple[float, float]:
    """Seconds of a training on a fold, and of one of its steps with its share of the evaluations."""
    name, fold = comparison.contestants[0], workbench.folds[0]
    key, setting = fold_key(name, 0, 0), defaults(workbench, name)[0]
    entry = journal.get(key)
    if entry is not None:  # the comparison was stopped before it had a plan
        return entry["seconds"], entry["seconds"] / max(1, entry["steps"])
    steps = _Steps(budget.clock, SHARE * budget.seconds)
    try:
        outcome = run_fold(workbench, fold, read_contestant(name), setting, after=steps, clock=budget.clock)
    except _EnoughError:
        evaluation = seconds_of(budget.clock, lambda: workbench.validate(fold))
        seconds = steps.before + steps.total * steps.step + EVALUATIONS * evaluation
        return seconds, seconds / max(1, steps.total)
    journal.add(key, setting=setting, **asdict(outcome))
    return outcome.seconds, outcome.seconds / max(1, outcome.steps)


def _ending(
    comparison: Comparison, workbench: Workbench, rows: Rows, budget: Budget, fold: float, step: float, folder: Path
) -> Costs:
    clock, name = budget.clock, comparison.contestants[0]
    config = run_config(configured(workbench.config, read_contestant(name), defaults(workbench, name)[0]))
    total = _steps_of(config, rows.seen)
    few = int(min(total / EVALUATIONS, SHARE * budget.seconds / max(step, 1e-6)))
    few = min(max(few, FEWEST_STEPS), total)
    began = clock()
    run = train(rows.seen, config=replace(config, max_steps=few, out=str(folder / "run")), quiet=True)
    whole = clock() - began
    around = max(0.0, whole - run.metrics["train_seconds"])
    cost = whole + (total - few) * step
    # The test rows are not opened: their time is that of validation rows, in proportion.
    table = workbench.folds[0].val
    more = len(rows.test) / max(1, len(table))
    model: list[Embedder] = []
    load = seconds_of(clock, lambda: model.append(run.model(str(workbench.device))))
    embeddings: list[Any] = []
    embedding = seconds_of(clock, lambda: embeddings.append(embed(model[0], table, config)))
    searching = seconds_of(clock, lambda: per_query(embeddings[0], table)[0])
    look = load + more * embedding + max(more, more**2) * searching
    noise = np.random.default_rng(0).random((2, comparison.effort.seeds, len(rows.test)))
    pair = seconds_of(clock, lambda: all_pairs({"a": noise[0], "b": noise[1]}, rows.test.labels))
    # The winner is prepared, evaluated and reported on again; the comparison's own page comes on top.
    end = (BASELINES + 2) * look + 2 * around
    if config.model.freeze and (count := lacking_features(workbench.embedder, rows.test)):
        end += count * _per_image(workbench.embedder, rows.seen, clock)
    return Costs(fold, cost, look, pair, end)


def _steps_of(config: TrainConfig, seen: Table) -> int:
    """The number of steps of a run."""
    assert config.epochs is not None
    steps = config.epochs * len(make_sampler(config.sampler, split(seen, config.data, config.seed).train, config.seed))
    return max(1, steps if config.max_steps is None else min(steps, config.max_steps))


def check_features(config: TrainConfig, rows: Rows, budget: Budget) -> None:
    """Raise `BudgetError`, before computing features, if they would take longer than the budget."""
    torch.manual_seed(config.seed)
    embedder = build_embedder(shared_config(config, [rows.seen]))
    count = sum(lacking_features(embedder, table) for table in (rows.seen, rows.test))
    if count < MANY:
        return
    seconds = count * _per_image(embedder, rows.seen, budget.clock)
    if seconds > budget.left:
        raise BudgetError(
            f"a budget of {duration(budget.seconds)} is too short for a comparison: the features of {count:,} images "
            f"take {duration(seconds)} here, once. Give more than --budget {rounded_up(budget.spent + seconds)}, or "
            "choose less data"
        )


def _per_image(embedder: Embedder, seen: Table, clock: Callable[[], float]) -> float:
    """The seconds that the trunk takes for an image, after warming up."""
    for count in (2, SAMPLE):
        images = cast(Any, seen.select(np.arange(min(count, len(seen)))).images)
        stream = embedder.stream(images, output="features")
        seconds = seconds_of(clock, partial(deque, stream, maxlen=0)) / len(images)
    return seconds
