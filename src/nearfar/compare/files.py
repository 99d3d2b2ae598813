"""The files of a comparison.

compare.yaml         the contestants, the effort and the shared configuration
journal.jsonl        every training of the search, in order; a comparison resumes from it
trials.csv           every tried setting
leaderboard.csv      one line for each contestant
leaderboard.json     the same with all pairs of contestants; written last
queries.npz          the metrics of every query, contestant and seed, with the queries' classes and images
settings/LOSS.yaml   the best setting of each loss, for `nearfar train --config`
runs/LOSS-SEED/      runs of the best settings; the winner's holds its model
report.html          the results, for a browser
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compare.leaderboard import Leaderboard
from nearfar.compare.query_metrics import METRICS, QueryMetrics
from nearfar.compare.retrain import slug
from nearfar.compare.search import SearchResult, Trial
from nearfar.foundation.files import replaced_file, write_file, write_rows
from nearfar.training.config import TrainConfig
from nearfar.training.options import to_yaml


def write_trials(result: SearchResult, path: Path) -> None:
    """Write a line for each tried setting, with its values on the folds; empty after it was pruned."""
    trials = [trial for group in result.trials.values() for trial in group]
    folds = max(len(trial.outcomes) for trial in trials)
    names = list(dict.fromkeys(name for trial in trials for name in trial.setting))
    header = ["loss", "trial", "state", "mean", *(f"fold {i + 1}" for i in range(folds)), *names, "seconds", "diverged"]
    write_rows(path, header, [_trial_line(trial, folds, names) for trial in trials])


def _trial_line(trial: Trial, folds: int, names: list[str]) -> list[Any]:
    values = [outcome.value for outcome in trial.outcomes]
    return [
        trial.loss,
        trial.number,
        "pruned" if trial.pruned else "complete",
        trial.value,
        *values,
        *[""] * (folds - len(values)),
        *(trial.setting.get(name, "") for name in names),
        round(trial.seconds, 3),
        any(outcome.diverged for outcome in trial.outcomes),
    ]


def write_leaderboard(board: Leaderboard, path: Path) -> None:
    """Write a line for each contestant, the best first."""
    header = ["rank", "name", "verdict"]
    for metric in METRICS:
        header += [metric, f"{metric} seeds ±", f"{metric} low", f"{metric} high"]
    header += ["validation", "seconds per step", "peak MB", "setting", "cannot be told from"]
    lines = []
    for rank, row in enumerate(board.rows, 1):
        line: list[Any] = [rank, row.name, board.verdict(row.name)]
        for mean in (row.metrics[metric] for metric in METRICS):
            line += [mean.value, "" if math.isnan(mean.seeds) else mean.seeds, mean.low, mean.high]
        line += ["" if value is None else value for value in (row.validation, row.step_seconds)]
        line += ["" if row.peak_bytes is None else round(row.peak_bytes / 1e6)]
        line += ["" if row.setting is None else json.dumps(row.setting), "; ".join(board.equals(row.name))]
        lines.append(line)
    write_rows(path, header, lines)


def write_queries(seen: QueryMetrics, path: Path) -> None:
    """Write arrays "NAME METRIC" (seeds, queries), and labels and ids (queries,)."""
    arrays: dict[str, Any] = {"labels": seen.labels, "ids": seen.ids}
    arrays |= {
        f"{name} {metric}": values[metric].astype(np.float32)
        for name, values in seen.values.items()
        for metric in METRICS
    }
    with replaced_file(path) as file:
        np.savez_compressed(file, **arrays)


def write_settings(configs: Mapping[str, TrainConfig], folder: Path) -> None:
    """Write the best setting of each loss, for `nearfar train --config`."""
    for name, config in configs.items():
        config = replace(config, out=None, evaluation=replace(config.evaluation, report=True))
        write_file(folder / f"{slug(name)}.yaml", to_yaml(config))
