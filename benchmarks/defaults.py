"""Every loss by its defaults: small networks from scratch on the glyphs, and heads on frozen features of a data set.

    python -m benchmarks defaults [CUB_200_2011] [--seeds 0 1 2] [--losses LOSS ...]

appends a row for each run that benchmarks/results/defaults.csv lacks, so that it resumes where it was stopped, and
writes the tables of docs/losses.md. Only the loss and the seed are set, and `--keep trained`, so that the trained model
is measured even where the features are better.
"""

import csv
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.results import ROOT, Stamped, append, stamp
from benchmarks.tables import markdown
from benchmarks.tables import replace as write_between
from nearfar.losses import list_losses
from nearfar.training import finish
from nearfar.training.collapse import CollapseError
from nearfar.training.loss_defaults import CLASS_LEVEL, Start, defaults_of
from nearfar.training.options import read_losses
from nearfar.training.train import train

CSV = ROOT / "benchmarks" / "results" / "defaults.csv"
PAGE = ROOT / "docs" / "losses.md"
GLYPHS = "glyphs"
FEATURES = "features"  # in place of a loss: the figures before training
# Losses that papers train beside another one.
BESIDE = {
    "CenterLoss": "SoftmaxLoss + CenterLoss",
    "IntraPairVarianceLoss": "TupletMarginLoss + 0.5 * IntraPairVarianceLoss",
}
FIRST = (
    "CircleLoss",
    f"CircleLoss{CLASS_LEVEL}",
    "UnifiedLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "SoftmaxLoss",
    "NormFaceLoss",
    "CosFaceLoss",
    "ArcFaceLoss",
    "SphereFaceLoss",
    "TripletMarginLoss",
    "ContrastiveLoss",
    "NPairsLoss",
    "LiftedStructureLoss",
    "MultiSimilarityLoss",
    "SupConLoss",
    "SoftTripleLoss",
    BESIDE["CenterLoss"],
)


@dataclass(frozen=True)
class Row(Stamped):
    """A run: figures of the test classes, with 95 % intervals over classes; None where it collapsed."""

    data: str
    loss: str
    seed: int
    status: str
    recall: float | None = None
    recall_low: float | None = None
    recall_high: float | None = None
    map: float | None = None
    map_low: float | None = None
    map_high: float | None = None
    minutes: float | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.data, self.loss, self.seed


def every_loss() -> list[str]:
    """Every loss that trains on labels (those of two towers do not), the most usual ones first."""
    names = []
    for info in list_losses():
        if info.level != "towers":
            names.append(BESIDE.get(info.name, info.name))
        if info.level == "pair or class":
            names.append(info.name + CLASS_LEVEL)
    return [*FIRST, *(name for name in names if name not in FIRST)]


def measure(data: Sequence[str], losses: Sequence[str] | None, seeds: Iterable[int], out: Path) -> int:
    """Train the losses that have no row yet, seed by seed, and write the tables."""
    done = {row.key for row in read(out)}
    wanted = [(path, loss, seed) for seed in seeds for path in data for loss in losses or every_loss()]
    for path, loss, seed in wanted:
        name = Path(path).name
        if (name, loss, seed) in done:
            continue
        for row in _rows(path, loss, seed, features=(name, FEATURES, seed) not in done):
            append(row, out)
            done.add(row.key)
            recall = row.status if row.recall is None else f"Recall@1 {100 * row.recall:.1f} %"
            print(f"{name}, seed {seed}, {row.loss}: {recall}", file=sys.stderr, flush=True)
    if out == CSV:
        return int(not write_between(PAGE, table(read(out)), "defaults"))
    return 0


def _rows(path: str, loss: str, seed: int, *, features: bool) -> list[Row]:
    name = Path(path).name
    options: dict[str, Any] = {"loss": loss.removesuffix(CLASS_LEVEL)}
    if loss.endswith(CLASS_LEVEL):
        options["loss.class_level"] = True
    if path != GLYPHS:
        options["freeze"] = True
    # A report would take longer than the training of a head.
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(finish, "write_report"):
        try:
            run = train(path, seed=seed, keep="trained", out=f"{folder}/run", quiet=True, **options)
        except CollapseError:
            return [Row(**stamp(), data=name, loss=loss, seed=seed, status="collapsed")]  # type: ignore[arg-type]
        metrics = run.metrics
    rows = [_row(name, loss, seed, metrics["candidates"]["trained"], metrics["train_seconds"] / 60)]
    base = metrics["candidates"].get("features", metrics["candidates"].get("start"))
    if features and base is not None:
        rows.insert(0, _row(name, FEATURES, seed, base, 0.0))
    return rows


def _row(data: str, loss: str, seed: int, candidate: dict[str, Any], minutes: float) -> Row:
    numbers: dict[str, float] = {"minutes": round(minutes, 2)}
    for column, metric in (("recall", "recall@1"), ("map", "map@r")):
        low, high = candidate["intervals"][metric]
        figures = {column: candidate["metrics"][metric], f"{column}_low": low, f"{column}_high": high}
        numbers |= {key: round(value, 5) for key, value in figures.items()}
    return Row(**stamp(), data=data, loss=loss, seed=seed, status="ok", **numbers)  # type: ignore[arg-type]


def read(path: Path = CSV) -> list[Row]:
    """The newest row of every run."""
    if not path.is_file():
        return []
    kinds: dict[str, Any] = {field.name: field.type for field in fields(Row)}

    def value(name: str, text: str) -> Any:
        kind = kinds[name]
        if kind in (str, int):
            return kind(text)
        return float(text) if text else None

    with path.open(newline="") as file:
        rows = [Row(**{name: value(name, text) for name, text in line.items()}) for line in csv.DictReader(file)]
    return list({row.key: row for row in rows}.values())


def table(rows: list[Row]) -> str:
    """A table for each data set, best loss first, with the features, or the untrained network, as a row."""
    parts = []
    for data in dict.fromkeys(row.data for row in sorted(rows, key=lambda row: row.data != GLYPHS)):
        here = [row for row in rows if row.data == data]
        runs = {loss: [row for row in here if row.loss == loss] for loss in dict.fromkeys(row.loss for row in here)}
        order = sorted(runs, key=lambda loss: -_mean(runs[loss], "recall"))
        seeds, days = sorted({row.seed for row in here}), sorted({row.date[:10] for row in here})
        commits = ", ".join(sorted({row.commit for row in here if row.commit}))
        task = "networks from scratch" if data == GLYPHS else "heads on frozen features"
        caption = (
            f"**{data}**, {task}, seeds {', '.join(map(str, seeds))}; {here[0].cpu}, {here[0].cores} cores, "
            f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, commit {commits}. Minutes are those of training only."
        )
        head = ["loss", "Recall@1, %", "MAP@R, %", "minutes", "seeds", "notes"]
        parts += [caption, markdown(head, [_line(loss, runs[loss], data) for loss in order])]
    return "\n\n".join(parts)


def _line(loss: str, rows: list[Row], data: str) -> list[str]:
    name = {FEATURES: "*before training*" if data == GLYPHS else "*the features*"}.get(loss, f"`{loss}`")
    if loss.endswith(CLASS_LEVEL):
        name = f"`{loss.removesuffix(CLASS_LEVEL)}`{CLASS_LEVEL}"
    collapsed = sum(row.status != "ok" for row in rows)
    notes = [f"{collapsed} of {len(rows)} collapsed"] * bool(collapsed) + _reasons(loss, data)
    minutes = f"{_mean(rows, 'minutes'):.1f}" if collapsed < len(rows) else "-"
    seeds = ", ".join(str(row.seed) for row in sorted(rows, key=lambda row: row.seed))
    return [name, _figure(rows, "recall"), _figure(rows, "map"), minutes, seeds, "; ".join(notes)]


def _reasons(loss: str, data: str) -> list[str]:
    """Why a loss is trained otherwise than others, if it is."""
    if loss == FEATURES:
        return []
    start: Start = "scratch" if data == GLYPHS else "frozen"
    parts = read_losses(loss.removesuffix(CLASS_LEVEL), "loss")
    reasons = (defaults_of(part.name, start, loss.endswith(CLASS_LEVEL)).why for part in parts)
    return [reason for reason in reasons if reason]


def _mean(rows: list[Row], name: str) -> float:
    values = [getattr(row, name) for row in rows if getattr(row, name) is not None]
    return float(np.mean(values)) if values else 0.0


def _figure(rows: list[Row], name: str) -> str:
    """The mean over seeds, with the mean of the intervals' ends."""
    if not any(row.status == "ok" for row in rows):
        return "-"
    low, high = (_mean(rows, f"{name}_{end}") for end in ("low", "high"))
    return f"{100 * _mean(rows, name):.1f} [{100 * low:.1f}, {100 * high:.1f}]"
