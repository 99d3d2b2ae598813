"""Heads trained on cached features of a data set, by the very steps of `nearfar compare`, and measured on test classes.

    heads = Heads(options.config, options.classes)
    heads.train(LossConfig("CircleLoss", {"gamma": 80}), seed=0)        # {"recall@1": ..., "map@r": ..., ...}

The test classes are looked at once, after the last step, and nothing is chosen by them. All heads start at the
principal components of the training features, class vectors at the means of their classes: what a seed decides is which
images make which batches. What a head comes to depends on nothing that was trained before it.
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

# What is chosen where the configuration says nothing: small enough for hundreds of trainings.
STEPS = 100
DIMENSION = 64
RATE, PROXY_RATE = 1e-3, 10.0  # of the head; of the loss's own vectors, which start at means of classes, times that
ENDLESS = 10**6  # epochs, where steps are counted
METRICS = ("recall@1", "map@r")
"""What is kept of every training."""

Measured = dict[str, float | None]
Look = Callable[[], Measured]
Embeddings = NDArray[np.float32]


def study_config(config: TrainConfig) -> TrainConfig:
    """A configuration for heads on cached features, with what it leaves open chosen for studies."""
    if config.devices > 1:
        raise ConfigError("a study trains on one device: leave devices out")
    if config.evaluation.watch_test:
        raise ConfigError("a study looks at the test classes once, at the end: leave evaluation.watch_test out")
    if config.epochs is None:
        config = replace(config, epochs=ENDLESS, max_steps=config.max_steps or STEPS)
    own, model = config.optimiser, config.model
    proxies = PROXY_RATE if own.proxies is None else own.proxies
    return replace(
        config,
        model=replace(model, freeze=True, dimension=model.dimension or (None if model.head == "none" else DIMENSION)),
        optimiser=replace(own, lr=own.lr or RATE, proxies=proxies),
        evaluation=replace(config.evaluation, every=ENDLESS),
        out=None,
    )


def read_rows(
    config: TrainConfig, classes: int | None = None, say: Callable[[str], None] | None = None
) -> tuple[Table, Table]:
    """Training and test rows of the data; of `classes` classes each, if given: the first ones. What cannot be read is
    left out, and `say` told so.
    """
    whole = reopen(config.data.path, config.data.layout)
    found = survey(whole)
    found.check(whole, config.data.max_broken)
    if say is not None:
        for line in found.report(whole, config.data.path):
            say(line)
    table = found.readable_rows(whole)
    parts = split(table, replace(config.data, validation=0.0), config.seed)
    if parts.test is None:
        raise ConfigError(f"{table.name} has no test rows, on which a study measures")
    return first_classes(parts.train, classes), first_classes(parts.test, classes)


def first_classes(table: Table, count: int | None) -> Table:
    """The rows of its first classes, numbered as before; all of them without a count.

    Rows without a label stay: they are there to be confused with.
    """
    if count is None or count >= table.num_classes:
        return table
    return table.select(np.isin(table.labels, [-1, *table.classes[:count]]))


class Heads:
    """Heads of all kinds on the features of one data set. Nothing is opened or computed before the first training.

    Args:
        config: of everything that the trainings share; `study_config` chooses what it leaves open.
        classes: so many training and test classes alone.
        rows: to train on and to test, in place of the data's.
        say: is told what of the data is left out.
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
        """What all trainings on all rows share; its one fold is of all training rows and all test rows."""
        return self.workbench_for(self.config.model)

    def workbench_for(self, model: ModelConfig) -> Workbench:
        """The same for another model, such as one of another dimension. The trunk stays frozen."""
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
        """Train a head and measure it on the test rows; None for metrics of a training that diverged.

        Args:
            workbench: of another model, as `workbench_for` gives it.
            fold: other rows or other labels to train on, as `Workbench.fold` and `Workbench.relabelled` give them.
            sampler: other batches.
            steps: so many, whatever the configuration says.
            extra: what is added to the loss, such as a penalty.
            after: is told of every step, with the seconds that it took.
            look: what is measured in place of `METRICS`, with `workbench.embedder` as it is in the end; nothing of a
                training that diverged.
        """
        workbench = workbench or self.workbench
        fold = fold or workbench.folds[0]
        config = replace(workbench.config, seed=seed, sampler=sampler or workbench.config.sampler)
        if steps is not None:
            config = replace(config, epochs=ENDLESS, max_steps=steps)
        under = workbench.under(config)
        found: Measured = {}

        def last_look() -> tuple[float, float]:
            embeddings = under.embeddings(fold)
            if not np.isfinite(embeddings).all(1).any():
                return math.nan, math.nan
            found.update(look() if look is not None else measured(embeddings, fold.val, config.evaluation.ks))
            return 0.0, 0.0

        own = config.optimiser
        assert own.lr is not None and own.proxies is not None
        run_fold(
            under, fold, loss, {"lr": own.lr, "proxies": own.proxies}, evaluate=last_look, extra=extra, after=after
        )
        return found if found or look is not None else dict.fromkeys(METRICS)


def measured(embeddings: Embeddings, table: Table, ks: tuple[int, ...] = (1,)) -> Measured:
    """`METRICS` of embeddings of a table's rows."""
    found = measure(embeddings, table, ks)
    return {name: float(found[name]) for name in METRICS}
