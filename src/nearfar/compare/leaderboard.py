"""The leaderboard: contestants in order, their results, and significant differences."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compare.query_metrics import BASELINES, METRICS, QueryMetrics
from nearfar.compare.search import SearchResult
from nearfar.compare.statistics import Mean, Pair, all_pairs, summary
from nearfar.training.options import ConfigError

FILE = "leaderboard.json"
FORMAT = 2
BY_QUERY = 1  # the format whose tests treated queries as independent
RANKED_BY = METRICS[0]


@dataclass(frozen=True)
class Row:
    """A contestant. Results of the search are None for baselines.

    Attributes:
        validation: the mean of its best setting over the folds.
        step_seconds: the median time of a step: forward, backward, optimiser.
        peak_bytes: the peak memory of its trainings.
    """

    name: str
    baseline: bool
    metrics: Mapping[str, Mean]
    validation: float | None = None
    setting: Mapping[str, Any] | None = None
    step_seconds: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Leaderboard:
    """The result of a comparison, the best contestant first.

    Attributes:
        facts: the facts of the comparison: data, images, trials, folds, seeds.
        run: the folder of the winner's run.
        folder: the folder of the comparison.
        outdated: the flaw of its statistics, if an earlier version made them.
    """

    rows: tuple[Row, ...]
    pairs: tuple[Pair, ...]
    facts: Mapping[str, Any]
    run: str
    folder: Path
    outdated: str = ""

    @property
    def winner(self) -> str:
        """The best loss."""
        return next(row.name for row in self.rows if not row.baseline)

    def pair(self, first: str, second: str) -> Pair:
        """The pair of two contestants, in either order."""
        for pair in self.pairs:
            if {pair.first, pair.second} == {first, second}:
                return pair
        raise KeyError(f"{first} and {second} were not compared")

    def equals(self, name: str) -> list[str]:
        """The contestants without a significant difference to this one."""
        return [row.name for row in self.rows if row.name != name and not self.pair(name, row.name).significant]

    def verdict(self, name: str) -> str:
        """Describe how a contestant compares with the baselines."""
        baselines = [row.name for row in self.rows if row.baseline]
        if name in baselines:
            return "baseline"
        verdicts = {rival: self.pair(name, rival).verdict(name) for rival in baselines}  # the best first
        for verdict, words in (("worse", "worse than"), ("cannot be told", "cannot be told from")):
            for rival in baselines:
                if verdicts[rival] == verdict:
                    return f"{words} {rival}"
        return "better than the baselines" if len(baselines) > 1 else f"better than {baselines[0]}"

    def against(self, name: str) -> str:
        """Describe how a contestant compares with all others, in a sentence or two."""
        rivals: dict[str, list[str]] = {}  # by verdict, or by the data needed for one
        for row in self.rows:
            if row.name != name:
                pair = self.pair(name, row.name)
                rivals.setdefault(pair.needed or pair.verdict(name), []).append(row.name)
        known = [f"{how} than {', '.join(rivals.pop(how))}" for how in ("better", "worse") if how in rivals]
        parts = [f"{name} is {' and '.join(known)}."] if known else []
        if rivals:
            unknown = "; ".join(f"{', '.join(names)} ({needed})" for needed, names in rivals.items())
            parts.append(f"Whether {'it' if known else name} is better or worse than these cannot be told: {unknown}.")
        return " ".join(parts)


def make_leaderboard(
    result: SearchResult, queries: QueryMetrics, facts: Mapping[str, Any], run: str, folder: Path
) -> Leaderboard:
    """Order the contestants by their mean on the test classes."""
    rows = []
    for name, values in queries.values.items():
        metrics = {metric: summary(values[metric], queries.labels) for metric in METRICS}
        if name in BASELINES:
            rows.append(Row(name, True, metrics))
            continue
        best = result.best(name)
        peaks = [outcome.peak_bytes for outcome in best.outcomes if outcome.peak_bytes is not None]
        steps = [outcome.step_seconds for outcome in best.outcomes if not math.isnan(outcome.step_seconds)]
        step = float(np.median(steps)) if steps else None
        rows.append(Row(name, False, metrics, best.value, best.setting, step, max(peaks, default=None)))
    rows.sort(key=lambda row: -row.metrics[RANKED_BY].value)
    values = {row.name: queries.values[row.name][RANKED_BY] for row in rows}
    pairs = all_pairs(values, queries.labels, BASELINES)
    return Leaderboard(tuple(rows), tuple(pairs), facts, run, folder)


def read_leaderboard(folder: Path) -> Leaderboard:
    """Read the result of a finished comparison."""
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] not in (BY_QUERY, FORMAT):
            raise ConfigError(f"{path} has format {content['format']}, this version of nearfar reads {FORMAT}")
        outdated = (
            "An earlier version of nearfar made this comparison. Its intervals and tests treat queries as independent: "
            "its verdicts may not hold for other classes or other seeds. Repeat the comparison."
        )
        rows = tuple(
            Row(**row | {"metrics": {name: _mean(mean) for name, mean in row["metrics"].items()}})
            for row in content["rows"]
        )
        pairs = tuple(Pair(**{k: v for k, v in pair.items() if k != "significant"}) for pair in content["pairs"])
        early = outdated if content["format"] == BY_QUERY else ""
        return Leaderboard(rows, pairs, content["facts"], content["run"], folder, early)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}") from error


def to_json(board: Leaderboard) -> str:
    """The file that `read_leaderboard` reads."""
    rows = []
    for row in board.rows:
        plain = asdict(row)
        for mean in plain["metrics"].values():
            mean["seeds"] = None if math.isnan(mean["seeds"]) else mean["seeds"]
        rows.append(plain)
    pairs = [{**asdict(pair), "significant": pair.significant} for pair in board.pairs]
    content = {"format": FORMAT, "winner": board.winner, "run": board.run, "facts": board.facts}
    return json.dumps({**content, "rows": rows, "pairs": pairs}, indent=2, ensure_ascii=False, allow_nan=False)


def _mean(values: Mapping[str, float | None]) -> Mean:
    return Mean(**{name: math.nan if value is None else value for name, value in values.items()})
