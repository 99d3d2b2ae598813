"""The leaderboard: contestants in order, what is known of each, and which of them differ."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compare.look import FEATURES, METRICS, PRINCIPAL, Look
from nearfar.compare.search import Found
from nearfar.compare.statistics import Mean, Pair, all_pairs, summary
from nearfar.training.options import ConfigError

FILE = "leaderboard.json"
FORMAT = 2
BY_QUERY = 1  # whose tests took queries for independent
RANKED_BY = METRICS[0]


@dataclass(frozen=True)
class Row:
    """A contestant. Of baselines, what belongs to a search is None.

    `validation` is the mean over the folds of its best setting; `step_seconds` the median time of a step: forward,
    backward, optimiser; `peak_bytes` the most memory while it was trained.
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
    """The result of a comparison, best first. `facts` say what was compared: data, images, trials, folds, seeds.
    `outdated` says what is wrong with its statistics, if an earlier version made them.

    `run` is the folder of the winner's run, and `folder` that of the comparison.
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
        """Their difference, as second − first or the other way round."""
        for pair in self.pairs:
            if {pair.first, pair.second} == {first, second}:
                return pair
        raise KeyError(f"{first} and {second} were not compared")

    def equals(self, name: str) -> list[str]:
        """Those of which it cannot be told whether they are better or worse."""
        same = {n for pair in self._pairs_of(name) if not pair.significant for n in (pair.first, pair.second)}
        return [row.name for row in self.rows if row.name in same - {name}]

    def _pairs_of(self, name: str) -> list[Pair]:
        return [pair for pair in self.pairs if name in (pair.first, pair.second)]

    def verdict(self, name: str) -> str:
        """How a loss stands to the baselines, in words."""
        baselines = [row.name for row in self.rows if row.baseline]
        if name in baselines:
            return "baseline"
        told = {rival: self.pair(name, rival).verdict(name) for rival in baselines}  # the best first
        for rival in baselines:
            if told[rival] == "worse":
                return f"worse than {rival}"
        for rival in baselines:
            if told[rival] != "better":
                return f"cannot be told from {rival}"
        return "better than the baselines" if len(baselines) > 1 else f"better than {baselines[0]}"

    def against(self, name: str) -> str:
        """How a contestant stands to all others, in a sentence or two."""
        by: dict[str, list[str]] = {}  # the others, by what can be told of them or what would tell
        for row in self.rows:
            if row.name != name:
                pair = self.pair(name, row.name)
                by.setdefault(pair.needed or pair.verdict(name), []).append(row.name)
        told = [f"{how} than {', '.join(by.pop(how))}" for how in ("better", "worse") if how in by]
        parts = [f"{name} is {' and '.join(told)}."] if told else []
        if by:
            who = "it" if told else name
            still = "; ".join(f"{', '.join(names)} ({needed})" for needed, names in by.items())
            parts.append(f"Whether {who} is better or worse than these cannot be told: {still}.")
        return " ".join(parts)


def make_leaderboard(found: Found, seen_by: Look, facts: Mapping[str, Any], run: str, folder: Path) -> Leaderboard:
    """Order the contestants by their mean on the test classes."""
    rows = []
    for name, values in seen_by.values.items():
        metrics = {metric: summary(values[metric], seen_by.labels) for metric in METRICS}
        if name in (FEATURES, PRINCIPAL):
            rows.append(Row(name, True, metrics))
            continue
        best = found.best(name)
        peaks = [outcome.peak_bytes for outcome in best.outcomes if outcome.peak_bytes is not None]
        steps = [outcome.step_seconds for outcome in best.outcomes if not math.isnan(outcome.step_seconds)]
        rows.append(
            Row(
                name,
                False,
                metrics,
                best.value,
                best.setting,
                float(np.median(steps)) if steps else None,
                max(peaks, default=None),
            )
        )
    rows.sort(key=lambda row: -row.metrics[RANKED_BY].value)
    values = {row.name: seen_by.values[row.name][RANKED_BY] for row in rows}
    pairs = all_pairs(values, seen_by.labels, (FEATURES, PRINCIPAL))
    return Leaderboard(tuple(rows), tuple(pairs), facts, run, folder)


def read_leaderboard(folder: Path) -> Leaderboard:
    """The result of a comparison that is finished."""
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] not in (BY_QUERY, FORMAT):
            raise ConfigError(f"{path} has format {content['format']}, this version of nearfar reads {FORMAT}")
        outdated = (
            "An earlier version of nearfar made this comparison. Its intervals and tests take queries for independent: "
            "what it calls better need not be so for other classes or other seeds. Compare again to know."
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
    """What `read_leaderboard` reads."""
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
