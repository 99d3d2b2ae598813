"""Thresholds for classes never seen: what is stated for a small folder of images, against what other classes show.

    python -m benchmarks calibration CUB_200_2011 glyphs
    python -m benchmarks calibration --features FILE.npz

Each draw is a folder of C classes to calibrate on, and as many others to test. A cell is a number of classes and of
images, and 200 draws of it: how often the figure measured on the other classes lay within the stated 90 % interval, how
wide the interval was, and how often nothing could be stated. The rows go to benchmarks/results/calibration.csv, and the
newest of each cell into docs/evaluation.md. Data are the pooled features of a network that was trained on none of the
classes, or the glyphs' pixels, whitened by how images of a training class differ.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import ROOT, Stamped, append, stamp
from nearfar.evaluation import Calibration, Measured, NotCalibratedError, calibrate_on_classes, measured_at

CSV = ROOT / "benchmarks" / "results" / "calibration.csv"
TRUNK = "efficientnet-lite0"
DRAWS = 200
WISHES = ({"far": 0.01, "share": 0.5}, {"precision": 0.95, "share": 0.5}, {"precision": 0.95, "share": 0.05})
FIGURES = ("far", "tar", "precision")
Images = tuple[int, int]  # the fewest and the most of a class
# Classes, images of each, folds.
CELLS: list[tuple[int, Images, int]] = [
    (8, (20, 20), 1),
    *((classes, images, 1) for classes in (10, 12, 16, 20) for images in ((8, 8), (20, 20), (8, 40))),
    (50, (12, 12), 1),
    (100, (10, 10), 1),
    (20, (12, 12), 5),
    (24, (12, 12), 3),
    (40, (12, 12), 5),
]


@dataclass(frozen=True)
class Row(Stamped):
    """A cell: of `draws`, `calibrated` led to a threshold; of these, how many figures lay within their interval, and
    the medians of its ends.
    """

    data: str
    classes: int
    images: str
    folds: int
    target: str
    wished: float
    share: float
    draws: int
    calibrated: int
    far_within: int
    tar_within: int
    precision_within: int
    far_low: float
    far_high: float
    tar_low: float
    tar_high: float
    precision_low: float
    precision_high: float

    @property
    def cell(self) -> tuple[str, int, str, int, str, float, float]:
        return self.data, self.classes, self.images, self.folds, self.target, self.wished, self.share


@dataclass(frozen=True)
class Source:
    """Features (N, D) and labels (N,) of classes that whatever made the features has not seen."""

    name: str
    features: NDArray[np.float32]
    labels: NDArray[np.int64]

    def cells(self) -> list[tuple[int, Images, int]]:
        """Those that there are classes for, with no more images than the smallest class has."""
        sizes = np.unique(self.labels, return_counts=True)[1]
        most = int(sizes.min())
        there = [
            (c, (min(few, most), min(many, most)), folds) for c, (few, many), folds in CELLS if 2 * c <= len(sizes)
        ]
        return list(dict.fromkeys(there))

    def folder(self, rng: np.random.Generator, classes: int, images: Images) -> tuple[NDArray[Any], NDArray[Any]]:
        """The rows of so many classes drawn, and the number of each row's class, from 0."""
        rows, numbers = [], []
        for number, name in enumerate(rng.permutation(np.unique(self.labels))[:classes]):
            drawn = rng.permutation(np.flatnonzero(self.labels == name))[: rng.integers(images[0], images[1] + 1)]
            rows.append(drawn)
            numbers.append(np.full(len(drawn), number))
        return np.concatenate(rows), np.concatenate(numbers)


def from_file(path: Path) -> Source:
    """An .npz of `e` (N, D) and `y` (N,)."""
    with np.load(path) as stored:
        return Source(path.stem, stored["e"].astype(np.float32), stored["y"].astype(np.int64))


def from_data(name: str) -> Source:
    """A data set by its path, or the glyphs."""
    import nearfar.data

    table = nearfar.data.open(name)
    if name == "glyphs":
        train, test = table.split("train"), table.split("test")
        return Source(name, _whitened(train, test), np.asarray(test.labels))
    from nearfar.data.features import FeatureCache
    from nearfar.foundation.folders import cache_folder
    from nearfar.models import Embedder

    model = Embedder(TRUNK, head=None).eval()

    def encode(images: Any, view: int) -> Iterable[NDArray[np.float32]]:
        return model.stream(images, output="features")

    assert table.images is not None
    features = FeatureCache(cache_folder() / "features", model.feature_key()).compute(table.images, encode)
    return Source(Path(name).name, features[:], np.asarray(table.labels))


def _whitened(train: Any, test: Any) -> NDArray[np.float32]:
    """Means of 2 × 2 pixels, less their mean, times S^(-1/2), S the covariance within the training classes."""
    x, y = _blurred(train.images), np.unique(train.labels, return_inverse=True)[1]
    means = np.stack([np.bincount(y, column) for column in x.T], 1) / np.bincount(y)[:, None]
    values, vectors = np.linalg.eigh(np.cov((x - means[y]).T) + 1e-3 * np.eye(x.shape[1]))
    whitened: NDArray[np.float32] = ((_blurred(test.images) - x.mean(0)) @ (vectors / np.sqrt(values))).astype(
        np.float32
    )
    return whitened


def _blurred(images: Any) -> NDArray[np.float64]:
    x = np.stack([np.asarray(image, np.float64) / 255 for image in images])
    n, height, width = x.shape
    blurred: NDArray[np.float64] = x.reshape(n, height // 2, 2, width // 2, 2).mean((2, 4)).reshape(n, -1)
    return blurred


def draw(
    source: Source, seed: Sequence[int], classes: int, images: Images, folds: int, wish: dict[str, Any]
) -> tuple[Calibration, Measured] | None:
    """What was stated, and what was measured on the other classes; None if nothing could be stated."""
    rows, number = source.folder(np.random.default_rng(seed), 2 * classes, images)
    x, known = source.features[rows], number < classes
    try:
        stated = calibrate_on_classes(x[known], number[known], fold=number[known] % folds, **wish)
    except NotCalibratedError:
        return None
    return stated, measured_at(stated.threshold, x[~known], number[~known], share=stated.share)


def measured(source: Source, classes: int, images: Images, folds: int, wish: dict[str, Any], draws: int) -> Row:
    """A cell. The draws of a cell are the same for every wish."""
    within, ends = dict.fromkeys(FIGURES, 0), []
    for number in range(draws):
        drawn = draw(source, [number, classes, *images, folds], classes, images, folds, wish)
        if drawn is None:
            continue
        stated, found = drawn
        for name in FIGURES:
            low, high = getattr(stated, f"{name}_interval")
            value = getattr(found, name)
            within[name] += value is None or low <= value <= high
        ends.append([end for name in FIGURES for end in getattr(stated, f"{name}_interval")])
    medians = np.median(ends, axis=0).round(6).tolist() if ends else [0.0, 1.0] * 3
    target = next(name for name in ("far", "precision") if name in wish)
    sizes = str(images[0]) if images[0] == images[1] else f"{images[0]} to {images[1]}"
    return Row(
        **stamp(1),  # type: ignore[arg-type]
        data=source.name,
        classes=classes,
        images=sizes,
        folds=folds,
        target=target,
        wished=wish[target],
        share=wish["share"],
        draws=draws,
        calibrated=len(ends),
        **{f"{name}_within": count for name, count in within.items()},  # type: ignore[arg-type]
        **dict(zip((f"{name}_{end}" for name in FIGURES for end in ("low", "high")), medians, strict=True)),
    )


def read(path: Path) -> list[Row]:
    """The newest row of every cell, in the order in which the cells were first measured."""
    kinds = {field.name: field.type for field in fields(Row)}
    rows: dict[Any, Row] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            row = Row(**{name: kinds[name](value) for name, value in line.items()})  # type: ignore[operator]
            rows[row.cell] = row
    return list(rows.values())


def table(rows: list[Row]) -> str:
    """A line for each number of classes and images, a column for each wish."""
    from benchmarks.tables import markdown

    wishes = list(dict.fromkeys((row.target, row.wished, row.share) for row in rows))
    head = ["classes", "images of each", *map(_wish, wishes)]
    lines: dict[tuple[int, str, int], list[str]] = {}
    for row in rows:
        folds = f" in {row.folds} folds" if row.folds > 1 else ""
        line = lines.setdefault((row.classes, row.images, row.folds), [f"{row.classes}{folds}", row.images])
        line.append(_cell(row))
    return markdown(head, list(lines.values()))


def _wish(wish: tuple[str, float, float]) -> str:
    target, wished, share = wish
    if target == "far":
        return f"FAR {100 * wished:g} %"
    return f"precision {100 * wished:g} %, {100 * share:g} % of the pairs of one class"


def _cell(row: Row) -> str:
    refused = 1 - row.calibrated / row.draws
    if not row.calibrated:
        return "cannot be calibrated"
    within = getattr(row, f"{row.target}_within") / row.calibrated
    low, high = (float(f"{100 * getattr(row, f'{row.target}_{end}'):.2g}") for end in ("low", "high"))
    note = f"; {100 * refused:.0f} % refused" if refused > 0.004 else ""
    return f"{100 * within:.0f} % in {low:g} to {high:g} %{note}"


def summary(rows: list[Row]) -> str:
    """Coverage of all cells: pooled, the least and the most, and how many differ from 90 % by three standard errors."""
    stated = [row for row in rows if row.calibrated]
    parts = []
    for name in FIGURES:
        within = [getattr(row, f"{name}_within") for row in stated]
        shares = [count / row.calibrated for count, row in zip(within, stated, strict=True)]
        errors = [(share - 0.9) / (0.09 / row.calibrated) ** 0.5 for share, row in zip(shares, stated, strict=True)]
        pooled = 100 * sum(within) / sum(row.calibrated for row in stated)
        below, above = sum(error < -3 for error in errors), sum(error > 3 for error in errors)
        label = name if name == "precision" else name.upper()
        ends = f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"
        parts.append(f"{label} {pooled:.1f} % ({ends}; {below} too few, {above} too many)")
    return (
        f"Within the 90 % interval, over all {len(stated)} cells (least and most of a cell; cells more than three "
        f"standard errors from 90 %): {', '.join(parts)}."
    )


def measure(data: list[str], features: list[Path], draws: int, out: Path | None, root: Path = ROOT) -> int:
    """All cells of all data, printed, and stored if `out` is given; the page is written from the standard rows."""
    sources = [from_file(path) for path in features]
    for name in data:
        if name != "glyphs" and not Path(name).exists():
            print(f"{Path(name).name} is not there: left out", file=sys.stderr)
            continue
        sources.append(from_data(name))
    for source in sources:
        for classes, images, folds in source.cells():
            for wish in WISHES:
                row = measured(source, classes, images, folds, wish, draws)
                if out is not None:
                    append(row, out)
                print(f"{source.name} {classes} classes, {row.images} images, {folds} folds: {_cell(row)}", flush=True)
    return write(out, root) if out == CSV else 0


def write(path: Path, root: Path) -> int:
    """Put the tables into the page; 1 if it has no place for them."""
    from benchmarks.tables import replace

    rows = read(path)
    parts = []
    for name in dict.fromkeys(row.data for row in rows):
        own = [row for row in rows if row.data == name]
        parts += [f"**{name}.** {summary(own)}", table(own)]
    return int(not replace(root / "docs" / "evaluation.md", "\n\n".join(parts)))
