"""First runs on small folders of photographs: is what `nearfar train` keeps ever worse than the pretrained features?

    python -m benchmarks first_runs CUB_200_2011 --freeze
    python -m benchmarks first_runs CUB_200_2011

draws folders of 8 to 40 classes of 8 to 40 images each, trains on each with default options, and appends a row to
benchmarks/results/first_runs.csv; docs/training.md has the means by size, of the newest row of every folder. Draws
that are there already are passed over, unless --again.
"""

import csv
import os
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

import nearfar.data
from benchmarks.results import ROOT, Stamped, append, stamp
from benchmarks.tables import markdown
from benchmarks.tables import replace as write_between
from nearfar.foundation.durations import duration
from nearfar.training.train import train

CSV = ROOT / "benchmarks" / "results" / "first_runs.csv"
COUNT = 20
CLASSES, IMAGES = (8, 40), (8, 40)  # from, to
SIZES = ((8, 12), (13, 20), (21, 30), (31, 40))  # classes, in the table
RULED = 40  # the first draw of heads that was made after the rule which chooses had its present form


@dataclass(frozen=True)
class Row(Stamped):
    """A run on a folder. Metrics are MAP@R on the test classes; `gain` is of what was kept over the features."""

    data: str
    mode: str
    draw: int
    classes: int
    images: int
    kept: str
    features: float
    start: float
    trained: float
    gain: float
    gain_low: float
    gain_high: float
    seconds: float


def draw_folder(data: Path, number: int, place: Path) -> Path:
    """A folder of links: some classes of the data, and as many images of each."""
    rng = np.random.default_rng([27, number])
    table = nearfar.data.open(data)
    count, each = (int(rng.integers(low, high + 1)) for low, high in (CLASSES, IMAGES))
    folder = place / f"draw-{number}"
    for label in rng.permutation(table.classes)[:count].tolist():
        own = folder / table.label_names[label]
        own.mkdir(parents=True)
        for row in rng.permutation(np.flatnonzero(table.labels == label))[:each].tolist():
            path = Path(table.paths[row]).resolve()
            os.symlink(path, own / path.name)
    return folder


def measure(data: Path, freeze: bool, draws: range, out: Path, *, again: bool = False) -> int:
    """Train on every draw, and write the table."""
    if not data.is_dir():
        print(f"there is no {data}: this needs a data set of photographs", file=sys.stderr)
        return 1
    mode = "frozen" if freeze else "whole network"
    done = set() if again else {row.draw for row in read(out) if (row.data, row.mode) == (data.name, mode)}
    for number in draws:
        if number in done:
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = draw_folder(data, number, Path(place))
            began = time.monotonic()
            run = train(folder, freeze=freeze, out=str(Path(place) / "run"), quiet=True)
            row = _row(run.metrics, data.name, mode, number, folder, time.monotonic() - began)
        append(row, out)
        print(f"{mode}, draw {number}: {row.classes} classes, {row.images} images, {row.kept} kept, "
              f"{100 * row.gain:+.1f} [{100 * row.gain_low:+.1f}, {100 * row.gain_high:+.1f}], {row.seconds:.0f} s",
              file=sys.stderr, flush=True)  # fmt: skip
    if out == CSV:
        write_between(ROOT / "docs" / "training.md", table(read(out)), "first-runs")
    return 0


def _row(metrics: dict, data: str, mode: str, number: int, folder: Path, seconds: float) -> Row:  # type: ignore[type-arg]
    found = {name: own["metrics"]["map@r"] for name, own in metrics["candidates"].items()}
    low, high = metrics["gain"]["interval"]
    classes = sum(1 for _ in folder.iterdir())
    return Row(
        **stamp(),  # type: ignore[arg-type]
        data=data,
        mode=mode,
        draw=number,
        classes=classes,
        images=sum(1 for _ in folder.glob("*/*")),
        kept=metrics["kept"],
        **{name: round(found[name], 5) for name in ("features", "start", "trained")},
        gain=round(metrics["gain"]["value"], 5),
        gain_low=round(low, 5),
        gain_high=round(high, 5),
        seconds=round(seconds, 1),
    )


def read(path: Path = CSV) -> list[Row]:
    """All rows, oldest first."""
    if not path.is_file():
        return []
    kinds = {field.name: field.type for field in fields(Row)}
    with path.open(newline="") as file:
        return [Row(**{name: kinds[name](text) for name, text in line.items()}) for line in csv.DictReader(file)]  # type: ignore[operator]


def table(rows: list[Row]) -> str:
    """The newest row of each draw, gathered by size, and every folder whose trained model was kept."""
    parts = []
    for mode in ("frozen", "whole network"):
        own = {row.draw: row for row in rows if row.mode == mode}
        shown = [own[number] for number in sorted(own)]
        if not shown:
            continue
        days = sorted({row.date[:10] for row in shown})
        when = " to ".join(dict.fromkeys((days[0], days[-1])))
        said = (
            f"{mode.capitalize()}, {len(shown)} folders of {shown[0].data}: mean MAP@R in per cent on the test "
            f"classes. {shown[0].cpu}, {shown[0].cores} cores, {when}; "
            f"{duration(float(np.median([row.seconds for row in shown])))} a run."
        )
        groups = {f"{low} to {high}": [row for row in shown if low <= row.classes <= high] for low, high in SIZES}
        groups["**all**"] = shown
        if mode == "frozen":
            groups["draws made after the rule"] = [row for row in shown if row.draw >= RULED]
        head = ["classes", "folders", "trained kept", "features", "start", "trained", "kept - features"]
        parts += [said, markdown(head, [_means(name, group) for name, group in groups.items() if group])]
        parts += ["\n".join(_told(row) for row in shown if row.kept == "trained")]
    return "\n\n".join(part for part in parts if part)


def _means(name: str, rows: list[Row]) -> list[str]:
    features, start, trained, gain = (
        100 * float(np.mean([getattr(row, field) for row in rows]))
        for field in ("features", "start", "trained", "gain")
    )
    kept = sum(row.kept == "trained" for row in rows)
    return [name, str(len(rows)), str(kept), f"{features:.1f}", f"{start:.1f}", f"{trained:.1f}", f"{gain:+.2f}"]


def _told(row: Row) -> str:
    below = ", below them by more than the interval" if row.gain_high < 0 else ""
    return (
        f"- trained model kept: {row.classes} classes, {row.images} images, {100 * row.gain:+.1f} points against the "
        f"features (95 % interval {100 * row.gain_low:+.1f} to {100 * row.gain_high:+.1f}){below}"
    )
