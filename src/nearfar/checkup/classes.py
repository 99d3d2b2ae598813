"""Checks of the number and the sizes of classes."""

import numpy as np
from numpy.typing import NDArray

from nearfar.checkup.finding import Finding, first
from nearfar.data import Table
from nearfar.evaluation.class_calibration import CLASSES
from nearfar.training.progress import counted
from nearfar.training.splits import FEW_CLASSES, Parts

ENOUGH_CLASSES = 16  # half are for training, and some of these are held out
UNEQUAL = 10  # times the median
MOST_NAMES = 8


def sizes_of(table: Table) -> NDArray[np.int64]:
    """The number of rows of each class, by class id."""
    return np.bincount(table.labels[table.labels >= 0], minlength=len(table.label_names)).astype(np.int64)


def too_few(table: Table, parts: Parts | None) -> list[Finding]:
    """Find data with too few classes to split or to calibrate a threshold."""
    count = table.num_classes
    if 0 < count < FEW_CLASSES and (parts is None or not parts.open_set):
        what = (
            f"{counted(count, 'class', 'classes')} {'is' if count == 1 else 'are'} too few to hold some out: pictures "
            "are split instead, and the tested classes are known to the model"
        )
        return [Finding(what, f"Retrieval of unseen classes cannot be evaluated: that needs {FEW_CLASSES} classes")]
    if parts is None or not parts.open_set:
        return []
    held, trained = held_out(parts), parts.train.num_classes
    follows = []
    if held < CLASSES:
        follows.append(f"there will be no threshold, which needs {CLASSES} held-out classes of two pictures or more")
    if count < ENOUGH_CLASSES:
        follows.append("all metrics will have wide intervals")
    if not follows:
        return []
    tested = "" if parts.test is None else f", {parts.test.num_classes} are tested"
    what = f"{count} classes are few: {trained} are trained on, {held} of them held out in turn{tested}"
    if parts.val is not None:
        what = f"{count} classes are few: {trained} are trained on, {held} held out{tested}"
    advice = "; ".join(follows)
    return [Finding(what, f"{advice[0].upper()}{advice[1:]}. Add classes: at least {2 * CLASSES}, better 50")]


def held_out(parts: Parts) -> int:
    """The number of classes with two images or more that are held out, at once or in turn."""
    table = parts.val if parts.val is not None else parts.train if parts.folds else None
    return 0 if table is None else int(np.count_nonzero(sizes_of(table) > 1))


def single(table: Table) -> list[Finding]:
    """Find classes with only one image."""
    sizes = sizes_of(table)
    labels = np.flatnonzero(sizes == 1)
    if not len(labels):
        return []
    of = counted(table.num_classes, "class", "classes")
    have = "has" if len(labels) == 1 else "have"
    what = f"{len(labels):,} of {of} {have} only one picture, which has no match: it cannot be a query"
    names = [table.label_names[label] for label in labels.tolist()]
    return [Finding(what, "Add pictures, or leave these classes out", first(names, MOST_NAMES))]


def unequal(table: Table) -> list[Finding]:
    """Find classes that are far larger than most."""
    sizes = sizes_of(table)
    used = sizes[sizes > 0]
    if not len(used) or used.max() <= UNEQUAL * max(np.median(used), 2):
        return []
    large = np.flatnonzero(sizes > UNEQUAL * max(np.median(used), 2))
    what = (
        f"class sizes are very unequal: {used.min():,} to {used.max():,} pictures, median {np.median(used):g}. The "
        "large ones would dominate training"
    )
    names = [f"{table.label_names[label]}: {sizes[label]:,}" for label in large[np.argsort(-sizes[large])].tolist()]
    return [Finding(what, "Sample all classes equally often: --sampler.kind balanced, or pk", first(names, MOST_NAMES))]
