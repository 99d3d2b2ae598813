"""One loss against itself: how often a comparison would call equals different.

Several runs of one setting are dealt out as if they were of different contestants, again and again. Which contestant is
"better" is chance, so that of all pairs 5 % should be called different before Holm's correction, and of all comparisons
5 % should have a pair that is called so after it. There is no class for which one of them is really better, but classes
do count: what runs differ by is not the same in all of them.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nearfar.compare import files
from nearfar.compare.ground import Ground, set_apart
from nearfar.compare.journal import Journal
from nearfar.compare.live import HEADINGS, Live
from nearfar.compare.look import look
from nearfar.compare.retrain import RUNS, retrain
from nearfar.compare.search import defaults
from nearfar.compare.settings import FOLDS, Effort, make_comparison, new_folder
from nearfar.compare.statistics import LEVEL, Floats, holm
from nearfar.data import Table
from nearfar.evaluation.class_means import class_mean
from nearfar.foundation.files import write_file
from nearfar.training.config import TrainConfig
from nearfar.training.options import with_options
from nearfar.training.progress import Display
from nearfar.training.reading import open_readable, readable

GROUPS, SEEDS, DRAWS = 4, 3, 200
METRICS = ("map@r", "recall@1")
FILE = "null.json"


@dataclass(frozen=True)
class Alarms:
    """Of a metric: how many of the pairs were called different, and in how many of the draws one was after Holm."""

    pairs: int
    called: int
    draws: int
    after_holm: int

    @property
    def rate(self) -> float:
        """False alarms, of pairs."""
        return self.called / self.pairs

    @property
    def as_promised(self) -> bool:
        """Whether neither rate is above 5 % by more than three standard errors of so many draws."""
        most = LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / self.draws)
        return self.rate <= most and self.after_holm / self.draws <= most


def alarms(values: Floats, labels: NDArray[Any], seeds: int = SEEDS, draws: int = DRAWS, seed: int = 0) -> Alarms:
    """Deal out runs of one contestant as if they were of several, and count what is called different.

    Args:
        values: (runs, queries) without NaN.
        labels: the queries' classes.
        seeds: runs of each contestant in a draw; there are as many contestants as the runs suffice for, at most 4.
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
    return Alarms(pairs, called, draws, after_holm)


@dataclass(frozen=True)
class NullCheck:
    """What came of a loss against itself, by metric."""

    data: str
    loss: str
    runs: int
    seeds: int
    classes: int
    alarms: Mapping[str, Alarms]
    folder: Path

    def __str__(self) -> str:
        draws = next(iter(self.alarms.values())).draws
        lines = [
            f"{self.loss} against itself on {Path(self.data).name}, {self.classes:,} unseen classes: {self.runs} runs",
            f"of one setting, dealt out {draws} times as if they were of {self.runs // self.seeds} contestants with "
            f"{self.seeds} each.",
            "",
            f"{'':10}{'pairs called different':>26}{'comparisons with one after Holm':>36}",
        ]
        for name, found in self.alarms.items():
            lines.append(
                f"{HEADINGS[name]:10}{f'{found.rate:.1%} of {found.pairs:,}':>26}"
                f"{f'{found.after_holm / found.draws:.1%} of {found.draws}':>36}"
            )
        kept = all(found.as_promised for found in self.alarms.values())
        lines += ["", "At most 5 % should be, give or take chance: " + ("so it is." if kept else "IT IS NOT SO.")]
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
    """Compare a loss with itself, by the runs and the tests of `nearfar compare`.

    Args:
        data: what `nearfar.data.open` opens, or a table; the embedded glyphs by default.
        loss: its default setting is trained with 4 times as many seeds as a contestant has.
        seeds: runs of each contestant.
        draws: how often the runs are dealt out.
        finetune, config, quiet, options: as in `compare`; runs that are finished in the folder `out` are kept.
    """
    shared = with_options(config or TrainConfig(), options)
    if data is not None:
        path = data.name if isinstance(data, Table) else os.fspath(data)
        shared = replace(shared, data=replace(shared.data, path=path))
    comparison = make_comparison(shared, [loss], Effort(1, GROUPS * seeds), finetune)
    shared = comparison.shared
    folder = Path(shared.out or new_folder(shared))
    with torch.random.fork_rng(devices=[]), Live(quiet) as live:
        display = Display(quiet)
        if isinstance(data, Table):
            table, _ = readable(data, shared.data.max_broken, display)
        else:
            table, _ = open_readable(shared.data, display)
        rows = set_apart(table, shared, 2)
        live.note(f"{folder}: {GROUPS * seeds} runs of {loss}")
        folds = rows.seen.folds(min(FOLDS, rows.classes // 2), seed=shared.seed)
        ground = Ground(replace(shared, out=None), [(fold.split("train"), fold.split("val")) for fold in folds])
        live.begin([loss], GROUPS * seeds, 1)
        setting = {loss: defaults(ground, loss)[0]}
        journal = Journal(folder / "journal.jsonl")
        runs = retrain(comparison, ground, setting, rows.seen, folder, live.retrained, journal)
        seen = look(ground, runs, rows.seen, rows.test, lambda name: live.note(f"measured: {name}"))
        files.write_queries(seen, folder / "queries.npz")
        found = {name: alarms(seen.values[loss][name], seen.labels, seeds, draws, shared.seed) for name in METRICS}
        check = NullCheck(shared.data.path, loss, GROUPS * seeds, seeds, rows.test.num_classes, found, folder)
        write_file(folder / FILE, json.dumps(asdict(check) | {"folder": str(folder)}, indent=2))
    for model in (folder / RUNS).glob("*/model.safetensors"):
        model.unlink()
    return check
