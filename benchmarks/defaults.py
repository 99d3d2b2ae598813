"""Every loss by its defaults: small networks from scratch on the glyphs, and heads on frozen features of a data set.

    python -m benchmarks defaults [CUB_200_2011] [--seeds 0 1 2] [--losses LOSS ...]

appends a row for each run that benchmarks/results/defaults.csv has not got yet, so that it goes on where it was
stopped, and writes the tables of docs/losses.md. Nothing but the loss and the seed is set; that the trained model is
measured whatever it is worth (`--keep trained`) is all that differs from `nearfar train --loss NAME`.
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
from nearfar.training.loss_defaults import OF_LOSS
from nearfar.training.train import train

CSV = ROOT / "benchmarks" / "results" / "defaults.csv"
PAGE = ROOT / "docs" / "losses.md"
GLYPHS = "glyphs"
CLASS_LEVEL = ", class-level"
# What papers train beside another loss, and what comes in two forms.
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
    """A run: figures of the test classes, with 95 % intervals over classes; of one that collapsed, none."""

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
    """What is trained, those that most papers compare with first; losses of two towers have no labels to train on."""
    names = []
    for info in list_losses():
        if info.level != "towers":
            names.append(BESIDE.get(info.name, info.name))
        if info.level == "pair or class":
            names.append(info.name + CLASS_LEVEL)
    return [*FIRST, *(name for name in names if name not in FIRST)]


def measure(data: Sequence[str], losses: Sequence[str] | None, seeds: Iterable[int], out: Path) -> int:
    """Train what is not there yet, seed by seed, and write the tables."""
    done = {row.key for row in read(out)}
    wanted = [(place, loss, seed) for seed in seeds for place in data for loss in losses or every_loss()]
    for place, loss, seed in wanted:
        name = Path(place).name
        if (name, loss, seed) in done:
            continue
        for row in _rows(place, loss, seed, features=(name, "features", seed) not in done):
            append(row, out)
            done.add(row.key)
            recall = row.status if row.recall is None else f"Recall@1 {100 * row.recall:.1f} %"
            print(f"{name}, seed {seed}, {row.loss}: {recall}", file=sys.stderr, flush=True)
    if out == CSV:
        return int(not write_between(PAGE, table(read(out)), "defaults"))
    return 0


def _rows(place: str, loss: str, seed: int, *, features: bool) -> list[Row]:
    name = Path(place).name
    given: dict[str, Any] = {"loss": loss.removesuffix(CLASS_LEVEL)}
    if loss.endswith(CLASS_LEVEL):
        given["loss.class_level"] = True
    if place != GLYPHS:
        given["freeze"] = True
    # A report would take longer than the training of a head.
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(finish, "write_report"):
        try:
            run = train(place, seed=seed, keep="trained", out=f"{folder}/run", quiet=True, **given)
        except CollapseError:
            return [Row(**stamp(), data=name, loss=loss, seed=seed, status="collapsed")]  # type: ignore[arg-type]
        metrics = run.metrics
    rows = [_row(name, loss, seed, metrics["candidates"]["trained"], metrics["train_seconds"] / 60)]
    base = metrics["candidates"].get("features", metrics["candidates"].get("start"))
    if features and base is not None:
        rows.insert(0, _row(name, "features", seed, base, 0.0))
    return rows


def _row(data: str, loss: str, seed: int, found: dict[str, Any], minutes: float) -> Row:
    numbers: dict[str, float] = {"minutes": round(minutes, 2)}
    for column, metric in (("recall", "recall@1"), ("map", "map@r")):
        low, high = found["intervals"][metric]
        own = {column: found["metrics"][metric], f"{column}_low": low, f"{column}_high": high}
        numbers |= {key: round(value, 5) for key, value in own.items()}
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
    """A table for each data set, best first, with the features, or the untrained network, as a row."""
    parts = []
    for data in dict.fromkeys(row.data for row in sorted(rows, key=lambda row: row.data != GLYPHS)):
        own = [row for row in rows if row.data == data]
        found = {loss: [row for row in own if row.loss == loss] for loss in dict.fromkeys(row.loss for row in own)}
        order = sorted(found, key=lambda loss: -_mean(found[loss], "recall"))
        seeds, days = sorted({row.seed for row in own}), sorted({row.date[:10] for row in own})
        commits = ", ".join(sorted({row.commit for row in own if row.commit}))
        how = "networks from scratch" if data == GLYPHS else "heads on frozen features"
        said = (
            f"**{data}**, {how}, seeds {', '.join(map(str, seeds))}; {own[0].cpu}, {own[0].cores} cores, "
            f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, commit {commits}. Minutes are of training alone."
        )
        head = ["loss", "Recall@1, %", "MAP@R, %", "minutes", "seeds", ""]
        parts += [said, markdown(head, [_line(loss, found[loss], data) for loss in order])]
    return "\n\n".join(parts)


def _line(loss: str, rows: list[Row], data: str) -> list[str]:
    name = {"features": "*before training*" if data == GLYPHS else "*the features*"}.get(loss, f"`{loss}`")
    if loss.endswith(CLASS_LEVEL):
        name = f"`{loss.removesuffix(CLASS_LEVEL)}`{CLASS_LEVEL}"
    collapsed = sum(row.status != "ok" for row in rows)
    why = OF_LOSS.get(loss, {}).get("", {}).get("why", "")
    notes = [f"{collapsed} of {len(rows)} collapsed"] * bool(collapsed) + [why] * bool(why)
    minutes = f"{_mean(rows, 'minutes'):.1f}" if collapsed < len(rows) else "-"
    seeds = ", ".join(str(row.seed) for row in sorted(rows, key=lambda row: row.seed))
    return [name, _figure(rows, "recall"), _figure(rows, "map"), minutes, seeds, "; ".join(notes)]


def _mean(rows: list[Row], name: str) -> float:
    values = [getattr(row, name) for row in rows if getattr(row, name) is not None]
    return float(np.mean(values)) if values else 0.0


def _figure(rows: list[Row], name: str) -> str:
    """The mean over seeds, with the mean of the intervals' ends."""
    if not any(row.status == "ok" for row in rows):
        return "-"
    low, high = (_mean(rows, f"{name}_{end}") for end in ("low", "high"))
    return f"{100 * _mean(rows, name):.1f} [{100 * low:.1f}, {100 * high:.1f}]"
