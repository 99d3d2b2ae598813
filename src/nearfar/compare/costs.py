"""What the parts of a comparison cost here: measured before the search, on training rows alone.

A training on a fold is begun for it, which counts as the first of the search if it ends in time; and a run is made that
is cut short and thrown away, since a run with its curves, checkpoints and report takes several times as long as a
training without. All losses are expected to cost the same; `pace.py` corrects that, as everything.
"""

import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from nearfar.compare.budget import BASELINES, Budget, BudgetError, Costs, rounded_up
from nearfar.compare.ground import LOOKS, Ground, Rows, shared_config
from nearfar.compare.journal import Journal
from nearfar.compare.look import per_query
from nearfar.compare.retrain import held_out_once
from nearfar.compare.search import defaults, fold_key
from nearfar.compare.settings import Comparison
from nearfar.compare.statistics import all_pairs
from nearfar.compare.trial import configured, run_fold
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

SHARE = 0.08  # of the budget, that a training may take before it is cut short
FEWEST_STEPS = 4
SAMPLE, MANY = 16, 1000  # images by which it is known how long one takes; so many that it matters


class _EnoughError(Exception):
    """The training was long enough to know the rest."""


class _Steps:
    """Watches the steps of a training, and ends it when it has taken too long."""

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
        """Seconds, with what happens between steps."""
        return (self._times[-1] - self._times[0]) / max(1, len(self._times) - 1)

    @property
    def before(self) -> float:
        """Seconds until the first step."""
        return self._times[0] - self._began


def measure_costs(comparison: Comparison, ground: Ground, rows: Rows, journal: Journal, budget: Budget) -> Costs:
    """Costs of everything that is ahead."""
    fold, step = _fold(comparison, ground, journal, budget)
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        return _ending(comparison, ground, rows, budget, fold, step, Path(folder))


def _fold(comparison: Comparison, ground: Ground, journal: Journal, budget: Budget) -> tuple[float, float]:
    """Seconds of a training on a fold, and of a step in it with its share of the looks at the validation classes."""
    name, fold = comparison.contestants[0], ground.folds[0]
    key, setting = fold_key(name, 0, 0), defaults(ground, name)[0]
    entry = journal.get(key)
    if entry is not None:  # of a comparison that was stopped before it had a plan
        return entry["seconds"], entry["seconds"] / max(1, entry["steps"])
    steps = _Steps(budget.clock, SHARE * budget.seconds)
    try:
        outcome = run_fold(ground, fold, comparison.loss(name), setting, after=steps, clock=budget.clock)
    except _EnoughError:
        look = seconds_of(budget.clock, lambda: ground.validate(fold))
        seconds = steps.before + steps.total * steps.step + LOOKS * look
        return seconds, seconds / max(1, steps.total)
    journal.add(key, setting=setting, **asdict(outcome))
    return outcome.seconds, outcome.seconds / max(1, outcome.steps)


def _ending(
    comparison: Comparison, ground: Ground, rows: Rows, budget: Budget, fold: float, step: float, folder: Path
) -> Costs:
    clock, name = budget.clock, comparison.contestants[0]
    config = held_out_once(configured(ground.config, comparison.loss(name), defaults(ground, name)[0]))
    total = _steps_of(config, rows.seen)
    few = int(min(total / LOOKS, SHARE * budget.seconds / max(step, 1e-6)))
    few = min(max(few, FEWEST_STEPS), total)
    began = clock()
    run = train(rows.seen, config=replace(config, max_steps=few, out=str(folder / "run")), quiet=True)
    whole = clock() - began
    around = max(0.0, whole - run.metrics["train_seconds"])
    cost = whole + (total - few) * step
    # How long a model takes on the test rows is known by rows that may be seen, and how many more there are.
    table = ground.folds[0].val
    more = len(rows.test) / max(1, len(table))
    model: list[Embedder] = []
    load = seconds_of(clock, lambda: model.append(run.model(str(ground.device))))
    found: list[Any] = []
    embedding = seconds_of(clock, lambda: found.append(embed(model[0], table, config)))
    searching = seconds_of(clock, lambda: per_query(found[0], table)[0])
    look = load + more * embedding + max(more, more**2) * searching
    noise = np.random.default_rng(0).random((2, comparison.effort.seeds, len(rows.test)))
    pair = seconds_of(clock, lambda: all_pairs({"a": noise[0], "b": noise[1]}, rows.test.labels))
    # The winner is prepared, measured and reported on once more, and there is the comparison's own page.
    end = (BASELINES + 2) * look + 2 * around
    if config.model.freeze and (count := lacking_features(ground.embedder, rows.test)):
        end += count * _per_image(ground.embedder, rows.seen, clock)
    return Costs(fold, cost, look, pair, end)


def _steps_of(config: TrainConfig, seen: Table) -> int:
    """Of a run."""
    assert config.epochs is not None
    steps = config.epochs * len(make_sampler(config.sampler, split(seen, config.data, config.seed).train, config.seed))
    return max(1, steps if config.max_steps is None else min(steps, config.max_steps))


def check_features(config: TrainConfig, rows: Rows, budget: Budget) -> None:
    """Refuse before the features are made, if they alone would take longer than there is time."""
    torch.manual_seed(config.seed)
    embedder = build_embedder(shared_config(config, [rows.seen]))
    count = sum(lacking_features(embedder, table) for table in (rows.seen, rows.test))
    if count < MANY:
        return
    seconds = count * _per_image(embedder, rows.seen, budget.clock)
    if seconds > budget.left:
        raise BudgetError(
            f"a budget of {duration(budget.seconds)} is too short for a comparison: features of {count:,} images alone "
            f"take {duration(seconds)} here, once. Give more than --budget {rounded_up(budget.spent + seconds)}, or "
            "choose less data"
        )


def _per_image(embedder: Embedder, seen: Table, clock: Callable[[], float]) -> float:
    """Seconds that the trunk takes for an image; the first ones, for which it warms up, are not counted."""
    for count in (2, SAMPLE):
        images = cast(Any, seen.select(np.arange(min(count, len(seen)))).images)
        seconds = seconds_of(clock, partial(_encode, embedder, images)) / len(images)
    return seconds


def _encode(embedder: Embedder, images: Any) -> None:
    for _ in embedder.stream(images, output="features"):
        pass
