"""Who is it, or nobody: what is stated of new classes against what is measured on them.

Each draw takes some classes as held out, calibrates on them, and takes others as new ones: half of these are enrolled
with some pictures each, the others are unknown. FAR is the share of pictures of unknown classes that are taken for an
enrolled one, DIR the share of the other pictures of enrolled classes that are named rightly. `inside` is how often
what was measured lies in the 90 % interval that was stated.

    cub       features of CUB-200-2011 by a network that was not trained on it, from a file: skipped where it is absent
    glyphs    the embedded characters, as blurred pixels: poor features, but always there
"""

import csv
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks import results
from nearfar.evaluation import NotCalibratedError, OpenSet, calibrate_open_set
from nearfar.evaluation.enrolment import best, class_scores

CSV = results.CSV.with_name("identify.csv")
PAGE = results.ROOT / "docs" / "identify.md"
RATES = (0.01, 0.1)
SURE = 0.8  # pictures told to be right with this probability or more: how many are?
Ints = npt.NDArray[np.int64]


class Case(NamedTuple):
    """How classes are dealt: so many held out and so many new, in the order of the data or at random; how often."""

    name: str
    held: int
    new: int
    in_order: bool
    draws: int
    images: tuple[int, ...]


CUB = (
    Case("at random", 100, 100, False, 20, (1, 3, 10)),
    Case("few classes", 10, 12, False, 100, (1, 3, 10)),
    Case("more than held out", 20, 80, False, 30, (1, 3, 10)),
    Case("in order", 100, 100, True, 20, (1, 3, 10)),
)
GLYPHS = (
    Case("at random", 100, 100, False, 20, (1, 8)),
    Case("few classes", 10, 12, False, 100, (1, 8)),
)


@dataclass(frozen=True)
class Row(results.Stamped):
    """Means over the draws; `inside` are shares of them."""

    data: str
    case: str
    held: int
    enrolled: int
    images: int
    wished: float
    draws: int
    calibrated: int  # of the draws
    template: float  # the share of draws whose rule is the template
    far_stated: float
    far_low: float
    far_high: float
    far_measured: float
    far_inside: float
    dir_stated: float
    dir_low: float
    dir_high: float
    dir_measured: float
    dir_inside: float
    sure_stated: (
        float  # the mean probability of those told with SURE or more, half of the pictures being of new classes
    )
    sure_right: float


def measure(features: Path | None, out: Path | None) -> None:
    """All cases, row by row; a file of features that is absent is told, and passed over."""
    if features is not None and features.is_file():
        with np.load(features, allow_pickle=False) as kept:
            arrays = [kept[name] for name in (("embeddings", "labels") if "labels" in kept else ("e", "y"))]
        _measure("cub", CUB, arrays[0].astype(np.float32), np.unique(arrays[1], return_inverse=True)[1], out)
    else:
        print(f"cub: skipped, since there is no {features or 'file of features (--features)'}", file=sys.stderr)
    _measure("glyphs", GLYPHS, *_glyphs(), out)


def _glyphs(classes: int = 400) -> tuple[npt.NDArray[np.float32], Ints]:
    """Blurred pixels of some characters, their mean taken away."""
    import nearfar.data

    table = nearfar.data.open("glyphs")
    assert table.images is not None
    rows = np.flatnonzero(table.labels < classes)
    kernel = np.array([1, 4, 6, 4, 1], np.float32) / 16

    def blurred(line: Any) -> Any:
        return np.convolve(line, kernel, "same")

    features = []
    for row in rows.tolist():
        grey = np.asarray(table.images[row], np.float32)
        grey = grey.mean(2) if grey.ndim == 3 else grey
        soft = np.apply_along_axis(blurred, 0, np.apply_along_axis(blurred, 1, grey))[::2, ::2].ravel()
        features.append(soft - soft.mean())
    return np.stack(features), table.labels[rows]


def _measure(data: str, cases: tuple[Case, ...], x: npt.NDArray[np.float32], labels: Ints, out: Path | None) -> None:
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    for case in cases:
        for images in case.images:
            for wished in RATES:
                row = _row(data, case, images, wished, x, labels)
                if out is not None:
                    results.append(row, out)
                print(_line(row), file=sys.stderr, flush=True)


def _row(data: str, case: Case, images: int, wished: float, x: npt.NDArray[np.float32], labels: Ints) -> Row:
    told: list[OpenSet] = []
    seen: list[tuple[float, float]] = []
    sure: list[Any] = []
    names = np.unique(labels)
    for draw in range(case.draws):
        rng = np.random.default_rng([draw, case.held, images])
        order = names if case.in_order else rng.permutation(names)
        held = np.isin(labels, order[: case.held])
        new = rng.permutation(order[case.held : case.held + case.new])
        counts = np.full(case.new // 2, images)
        try:
            found = calibrate_open_set(x[held], labels[held], counts, far=wished, seed=draw)
        except NotCalibratedError:
            continue
        told.append(found)
        far, dir_, probability, right, weight = _met(x, labels, new, images, found, rng)
        seen.append((far, dir_))
        some = probability >= SURE
        sure.append([weight[some].sum(), weight[some] @ probability[some], weight[some] @ right[some]])
    far_in = [
        one.far_interval[0] - 5e-4 <= far <= one.far_interval[1] for one, (far, _) in zip(told, seen, strict=True)
    ]
    dir_in = [one.dir_interval[0] <= dir_ <= one.dir_interval[1] for one, (_, dir_) in zip(told, seen, strict=True)]
    total = np.sum(sure, 0)
    return Row(
        **results.stamp(),  # type: ignore[arg-type]
        data=data,
        case=case.name,
        held=case.held,
        enrolled=case.new // 2,
        images=images,
        wished=wished,
        draws=case.draws,
        calibrated=len(told),
        template=_mean([one.rule == "template" for one in told]),
        far_stated=_mean([one.far for one in told]),
        far_low=_mean([one.far_interval[0] for one in told]),
        far_high=_mean([one.far_interval[1] for one in told]),
        far_measured=_mean([far for far, _ in seen]),
        far_inside=_mean(far_in),
        dir_stated=_mean([one.dir for one in told]),
        dir_low=_mean([one.dir_interval[0] for one in told]),
        dir_high=_mean([one.dir_interval[1] for one in told]),
        dir_measured=_mean([dir_ for _, dir_ in seen]),
        dir_inside=_mean(dir_in),
        sure_stated=round(float(total[1] / total[0]), 4),
        sure_right=round(float(total[2] / total[0]), 4),
    )


def _met(
    x: npt.NDArray[np.float32], labels: Ints, new: Ints, images: int, found: OpenSet, rng: np.random.Generator
) -> tuple[float, float, Any, Any, Any]:
    """FAR, DIR; of every probe its probability, whether its best class is right, and its weight: half for strangers."""
    enrolled, probes, own = [], [], []
    half = len(new) // 2
    for place, name in enumerate(new[:half]):
        rows = rng.permutation(np.flatnonzero(labels == name))
        enrolled.append(rows[:images])
        probes.append(rows[images:])
        own.append(np.full(len(rows) - images, place))
    gallery, places = x[np.concatenate(enrolled)], np.repeat(np.arange(half), images)
    strangers = np.flatnonzero(np.isin(labels, new[half:]))
    known = np.concatenate(probes)
    told = best(class_scores(x[np.concatenate([known, strangers])], gallery, places, half, found.rule))
    right = np.append(told.place[: len(known)] == np.concatenate(own), np.zeros(len(strangers), np.bool_))
    accepted = found.accepts(told.evidence)
    weight = np.append(np.full(len(known), 0.5 / len(known)), np.full(len(strangers), 0.5 / len(strangers)))
    far, dir_ = float(accepted[len(known) :].mean()), float((accepted & right)[: len(known)].mean())
    return far, dir_, found.probability(told.evidence), right, weight


def _mean(values: Any) -> float:
    return round(float(np.mean(values)), 4)


def _line(row: Row) -> str:
    return (
        f"{row.data}, {row.case}, {row.images} images, FAR {row.wished:g}: FAR {row.far_stated} measured "
        f"{row.far_measured}, inside {row.far_inside:.0%}; DIR {row.dir_stated} measured {row.dir_measured}, inside "
        f"{row.dir_inside:.0%}; sure {row.sure_stated} right {row.sure_right} ({row.calibrated} of {row.draws})"
    )


def read(path: Path) -> list[Row]:
    """The newest row of every case, in the order of the cases."""
    kinds = {field.name: field.type for field in fields(Row)}
    newest: dict[tuple[Any, ...], Row] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            row = Row(**{name: kinds[name](value) for name, value in line.items()})  # type: ignore[operator]
            newest[row.data, row.case, row.images, row.wished] = row
    return list(newest.values())


def table(rows: list[Row]) -> str:
    """Stated against measured, as Markdown."""
    head = "| data | classes held out / enrolled | pictures each | FAR wished | FAR stated | measured | inside | "
    head += "DIR stated | measured | inside |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        far = f"{row.far_stated:.1%} ({100 * row.far_low:.1f} to {row.far_high:.1%})"
        dir_ = f"{row.dir_stated:.1%} ({100 * row.dir_low:.1f} to {row.dir_high:.1%})"
        lines.append(
            f"| {row.data}, {row.case} | {row.held} / {row.enrolled} | {row.images} | {row.wished:.0%} | {far} | "
            f"{row.far_measured:.1%} | {row.far_inside:.0%} | {dir_} | {row.dir_measured:.1%} | {row.dir_inside:.0%} |"
        )
    return "\n".join(lines).replace("%", " %")


def write_table(path: Path = CSV, document: Path = PAGE) -> None:
    """Put the newest rows where the page has its marks."""
    begin, end = "<!-- identify:begin -->", "<!-- identify:end -->"
    before, _, rest = document.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    document.write_text(f"{before}{begin}\n{table(read(path))}\n{end}{after}", encoding="utf-8")
