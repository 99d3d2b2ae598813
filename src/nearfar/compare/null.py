"""One loss against itself: how often a comparison calls equal contestants different.

Runs of one setting are repeatedly assigned to different contestants at random. Differences are then due to chance: 5 %
of all pairs should be called different before Holm's correction, and 5 % of all comparisons should have such a pair
after it. No contestant is better on any class, but classes matter: runs differ by different amounts on different
classes.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nearfar.compare import files
from nearfar.compare.journal import Journal
from nearfar.compare.query_metrics import measure_on_test
from nearfar.compare.retrain import RUNS, retrain
from nearfar.compare.search import defaults
from nearfar.compare.settings import FOLDS, Effort, make_comparison, new_folder, with_data
from nearfar.compare.statistics import LEVEL, Floats, holm
from nearfar.compare.terminal import HEADINGS, ProgressView
from nearfar.compare.workbench import make_workbench, open_rows
from nearfar.data import Table
from nearfar.evaluation.class_means import class_mean
from nearfar.foundation.files import write_file
from nearfar.training.config import TrainConfig
from nearfar.training.options import with_options

GROUPS, SEEDS, DRAWS = 4, 3, 200
METRICS = ("map@r", "recall@1")
FILE = "null.json"


@dataclass(frozen=True)
class FalseAlarms:
    """The pairs that were called different by a metric, and the draws with such a pair after Holm's correction."""

    pairs: int
    called: int
    draws: int
    after_holm: int

    @property
    def rate(self) -> float:
        """The share of pairs that were called different."""
        return self.called / self.pairs

    @property
    def as_promised(self) -> bool:
        """Whether both rates are at most 5 % and three standard errors of this number of draws."""
        most = LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / self.draws)
        return self.rate <= most and self.after_holm / self.draws <= most


def count_false_alarms(
    values: Floats, labels: NDArray[Any], seeds: int = SEEDS, draws: int = DRAWS, seed: int = 0
) -> FalseAlarms:
    """Assign the runs of one contestant to several at random, and count the pairs that are called different.

    Args:
        values: (runs, queries) without NaN.
        labels: the queries' classes.
        seeds: runs of each contestant in a draw; up to 4 contestants, as the number of runs allows.
    """
    groups = min(GROUPS, len(values) // seeds)
    _, classes = np.unique(labels, return_inverse=True)
    generator = np.random.default_rng(seed)
    pairs = called = after_holm = 0
    for _ in range(draws):
        dealt = generator.permutation(len(values))[: groups * seeds].reshape(groups, seeds)
        p_values = [class_mean(values[a] - values[b], classes).p_value for a, b in combinations(dealt, 2)]
        pairs += len(p_values)
        called += sum(p < LEVEL for p in p_values)
        after_holm += min(holm(p_values)) < LEVEL
    return FalseAlarms(pairs, called, draws, after_holm)


@dataclass(frozen=True)
class NullCheck:
    """The result of a loss against itself, by metric."""

    data: str
    loss: str
    runs: int
    seeds: int
    classes: int
    alarms: Mapping[str, FalseAlarms]
    folder: Path

    def __str__(self) -> str:
        draws = next(iter(self.alarms.values())).draws
        lines = [
            f"{self.loss} against itself on {Path(self.data).name}, {self.classes:,} unseen classes: {self.runs} runs",
            f"of one setting, assigned at random to {self.runs // self.seeds} contestants with {self.seeds} each, "
            f"{draws} times.",
            "",
            f"{'':10}{'pairs called different':>26}{'comparisons with one after Holm':>36}",
        ]
        for name, counts in self.alarms.items():
            lines.append(
                f"{HEADINGS[name]:10}{f'{counts.rate:.1%} of {counts.pairs:,}':>26}"
                f"{f'{counts.after_holm / counts.draws:.1%} of {counts.draws}':>36}"
            )
        passed = all(counts.as_promised for counts in self.alarms.values())
        lines += ["", "At most 5 % are expected, within chance: " + ("passed." if passed else "NOT PASSED.")]
        return "\n".join(lines)


def null_check(
    data: str | os.PathLike[str] | Table | None = None,
    *,
    loss: str,
    seeds: int = SEEDS,
    draws: int = DRAWS,
    finetune: bool = False,
    config: TrainConfig | None = None,
    quiet: bool = False,
    **options: Any,
) -> NullCheck:
    """Compare a loss with itself, with the runs and the tests of `nearfar compare`.

    Args:
        data: a table, or anything that `nearfar.data.open` opens; by default the built-in glyphs.
        loss: the loss, trained with its default setting and 4 times the seeds of a contestant.
        seeds: runs of each contestant.
        draws: number of random assignments.
        finetune, config, quiet, options: as in `compare`; finished runs in the folder `out` are kept.
    """
    shared = with_data(with_options(config or TrainConfig(), options), data)
    comparison = make_comparison(shared, [loss], Effort(1, GROUPS * seeds), finetune)
    shared = comparison.shared
    folder = Path(shared.out or new_folder(shared))
    with torch.random.fork_rng(devices=[]), ProgressView(quiet) as view:
        rows = open_rows(data, shared, 2, quiet)
        view.note(f"{folder}: {GROUPS * seeds} runs of {loss}")
        workbench = make_workbench(shared, rows, min(FOLDS, rows.classes // 2))
        view.begin([loss], GROUPS * seeds, 1)
        setting = {loss: defaults(workbench, loss)[0]}
        journal = Journal(folder / "journal.jsonl")
        runs = retrain(comparison, workbench, setting, rows.seen, folder, view.retrained, journal)
        queries = measure_on_test(workbench, runs, rows.seen, rows.test, lambda name: view.note(f"measured: {name}"))
        files.write_queries(queries, folder / "queries.npz")
        alarms = {
            name: count_false_alarms(queries.values[loss][name], queries.labels, seeds, draws, shared.seed)
            for name in METRICS
        }
        check = NullCheck(shared.data.path, loss, GROUPS * seeds, seeds, rows.test.num_classes, alarms, folder)
        write_file(folder / FILE, json.dumps(asdict(check) | {"folder": str(folder)}, indent=2))
    for model in (folder / RUNS).glob("*/model.safetensors"):
        model.unlink()
    return check
