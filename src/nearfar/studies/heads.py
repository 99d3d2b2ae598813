"""Heads trained on cached features with the steps of `nearfar compare`, and evaluated on test classes.

    heads = Heads(options.config, options.classes)
    heads.train(LossConfig("CircleLoss", {"gamma": 80}), seed=0)        # {"recall@1": ..., "map@r": ..., ...}

The test classes are evaluated once, after the last step, and nothing is chosen by them. All heads start from the
principal components of the training features, class vectors from the means of their classes; the seed only decides the
batches. Trainings do not depend on earlier trainings.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from nearfar.compare.trial import After, run_fold
from nearfar.compare.workbench import Fold, Workbench
from nearfar.data import Table
from nearfar.data.opening import reopen
from nearfar.data.survey import survey
from nearfar.training.config import LossConfig, ModelConfig, SamplerConfig, TrainConfig
from nearfar.training.measure import measure
from nearfar.training.options import ConfigError
from nearfar.training.splits import split

# Defaults of studies, small enough for hundreds of trainings.
STEPS = 100
DIMENSION = 64
RATE, PROXY_RATE = 1e-3, 10.0  # rate of the head, and its multiple for the loss's vectors, which start at class means
ENDLESS = 10**6  # epochs, when steps are counted
METRICS = ("recall@1", "map@r")
"""The recorded metrics of every training."""

Measured = dict[str, float | None]
Look = Callable[[], Measured]
Embeddings = NDArray[np.float32]


def study_config(config: TrainConfig) -> TrainConfig:
    """Fill in a configuration for heads on cached features with the defaults of studies."""
    if config.devices > 1:
        raise ConfigError("a study trains on one device: leave devices out")
    if config.evaluation.watch_test:
        raise ConfigError("a study evaluates the test classes once, at the end: leave evaluation.watch_test out")
    if config.epochs is None:
        config = replace(config, epochs=ENDLESS, max_steps=config.max_steps or STEPS)
    optimiser, model = config.optimiser, config.model
    proxies = PROXY_RATE if optimiser.proxies is None else optimiser.proxies
    return replace(
        config,
        model=replace(model, freeze=True, dimension=model.dimension or (None if model.head == "none" else DIMENSION)),
        optimiser=replace(optimiser, lr=optimiser.lr or RATE, proxies=proxies),
        evaluation=replace(config.evaluation, every=ENDLESS),
        out=None,
    )


def read_rows(
    config: TrainConfig, classes: int | None = None, say: Callable[[str], None] | None = None
) -> tuple[Table, Table]:
    """The training and test rows of the data, of the first `classes` classes each, if set. Unreadable images are left
    out and reported to `say`.
    """
    whole = reopen(config.data.path, config.data.layout)
    result = survey(whole)
    result.check(whole, config.data.max_broken)
    if say is not None:
        for line in result.report(whole, config.data.path):
            say(line)
    table = result.readable_rows(whole)
    parts = split(table, replace(config.data, validation=0.0), config.seed)
    if parts.test is None:
        raise ConfigError(f"{table.name} has no test rows, which a study needs")
    return first_classes(parts.train, classes), first_classes(parts.test, classes)


def first_classes(table: Table, count: int | None) -> Table:
    """The rows of the first classes, with their original numbers; all rows without a count.

    Rows without a label stay as distractors.
    """
    if count is None or count >= table.num_classes:
        return table
    return table.select(np.isin(table.labels, [-1, *table.classes[:count]]))


class Heads:
    """Trains heads on the features of one data set. Nothing is opened or computed before the first training.

    Args:
        config: the configuration shared by all trainings; `study_config` fills it in.
        classes: use only this number of training classes and of test classes.
        rows: training and test rows in place of those of the data.
        say: called with notes about data that are left out.
    """

    def __init__(
        self,
        config: TrainConfig,
        classes: int | None = None,
        rows: tuple[Table, Table] | None = None,
        say: Callable[[str], None] | None = None,
    ):
        self.config = study_config(config)
        self._classes, self._rows, self._say = classes, rows, say

    @functools.cached_property
    def rows(self) -> tuple[Table, Table]:
        """Training and test rows."""
        return self._rows or read_rows(self.config, self._classes, self._say)

    @functools.cached_property
    def workbench(self) -> Workbench:
        """The workbench shared by all trainings; its only fold has all training rows and all test rows."""
        return self.workbench_for(self.config.model)

    def workbench_for(self, model: ModelConfig) -> Workbench:
        """The workbench for another model with a frozen trunk, such as one of another dimension."""
        return Workbench(replace(self.config, model=replace(model, freeze=True)), [self.rows])

    @property
    def start(self) -> Measured:
        """The metrics before any step."""
        workbench, fold = self.workbench, self.workbench.folds[0]
        workbench.begin(fold)
        return measured(workbench.embeddings(fold), fold.val, workbench.config.evaluation.ks)

    def train(
        self,
        loss: LossConfig,
        seed: int,
        *,
        workbench: Workbench | None = None,
        fold: Fold | None = None,
        sampler: SamplerConfig | None = None,
        steps: int | None = None,
        extra: nn.Module | None = None,
        look: Look | None = None,
        after: After | None = None,
    ) -> Measured:
        """Train a head and evaluate it on the test rows; metrics are None if the training diverged.

        Args:
            workbench: a workbench for another model, from `workbench_for`.
            fold: other training rows or labels, from `Workbench.fold` or `Workbench.relabelled`.
            sampler: another sampler.
            steps: number of steps, overriding the configuration.
            extra: a module added to the loss, such as a penalty.
            after: called after every step, with its seconds.
            look: evaluates the trained `workbench.embedder` in place of `METRICS`; not called if the training diverged.
        """
        workbench = workbench or self.workbench
        fold = fold or workbench.folds[0]
        config = replace(workbench.config, seed=seed, sampler=sampler or workbench.config.sampler)
        if steps is not None:
            config = replace(config, epochs=ENDLESS, max_steps=steps)
        under = workbench.under(config)
        result: Measured = {}

        def evaluate() -> tuple[float, float]:
            embeddings = under.embeddings(fold)
            if not np.isfinite(embeddings).all(1).any():
                return math.nan, math.nan
            result.update(look() if look is not None else measured(embeddings, fold.val, config.evaluation.ks))
            return 0.0, 0.0

        optimiser = config.optimiser
        assert optimiser.lr is not None and optimiser.proxies is not None
        run_fold(
            under,
            fold,
            loss,
            {"lr": optimiser.lr, "proxies": optimiser.proxies},
            evaluate=evaluate,
            extra=extra,
            after=after,
        )
        return result if result or look is not None else dict.fromkeys(METRICS)


def measured(embeddings: Embeddings, table: Table, ks: tuple[int, ...] = (1,)) -> Measured:
    """Compute `METRICS` of embeddings of a table's rows."""
    metrics = measure(embeddings, table, ks)
    return {name: float(metrics[name]) for name in METRICS}
