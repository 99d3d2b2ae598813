"""Whether there are classes enough, and pictures enough in them."""

import numpy as np
from numpy.typing import NDArray

from nearfar.checkup.finding import Finding, first
from nearfar.data import Table
from nearfar.evaluation.class_calibration import CLASSES
from nearfar.training.progress import counted
from nearfar.training.splits import FEW_CLASSES, Parts

ENOUGH_CLASSES = 16  # half of them are trained on, and some of these held out
UNEQUAL = 10  # times the median
MOST_NAMES = 8


def sizes_of(table: Table) -> NDArray[np.int64]:
    """How many rows each class has, by class id."""
    return np.bincount(table.labels[table.labels >= 0], minlength=len(table.label_names)).astype(np.int64)


def too_few(table: Table, parts: Parts | None) -> list[Finding]:
    """Fewer classes than it takes to divide them, or to find a threshold."""
    count = table.num_classes
    if 0 < count < FEW_CLASSES and (parts is None or not parts.open_set):
        what = (
            f"{counted(count, 'class', 'classes')} {'is' if count == 1 else 'are'} too few to leave some out: pictures "
            "are divided instead, and what is tested are classes that the model knows"
        )
        return [Finding(what, f"How well it finds new things cannot be said: from {FEW_CLASSES} classes on, it can")]
    if parts is None or not parts.open_set:
        return []
    held, trained = held_out(parts), parts.train.num_classes
    follows = []
    if held < CLASSES:
        follows.append(f"there will be no threshold, which takes {CLASSES} held-out classes of two pictures or more")
    if count < ENOUGH_CLASSES:
        follows.append("all numbers will be uncertain, as their intervals say")
    if not follows:
        return []
    tested = "" if parts.test is None else f", {parts.test.num_classes} are tested"
    what = f"{count} classes are few: {trained} are trained on, {held} of them held out by turns{tested}"
    if parts.val is not None:
        what = f"{count} classes are few: {trained} are trained on, {held} held out{tested}"
    advice = "; ".join(follows)
    return [
        Finding(what, f"{advice[0].upper()}{advice[1:]}. Add classes: {2 * CLASSES} are a beginning, 50 are better")
    ]


def held_out(parts: Parts) -> int:
    """How many classes of two images or more are kept from a model that is trained, at once or by turns."""
    table = parts.val if parts.val is not None else parts.train if parts.folds else None
    return 0 if table is None else int(np.count_nonzero(sizes_of(table) > 1))


def alone(table: Table) -> list[Finding]:
    """Classes of one image."""
    sizes = sizes_of(table)
    single = np.flatnonzero(sizes == 1)
    if not len(single):
        return []
    of = counted(table.num_classes, "class", "classes")
    have = "has" if len(single) == 1 else "have"
    what = f"{len(single):,} of {of} {have} one picture alone, which nothing matches: it is neither found nor tested"
    names = [table.label_names[label] for label in single.tolist()]
    return [Finding(what, "Add pictures, or leave these classes out", first(names, MOST_NAMES))]


def unequal(table: Table) -> list[Finding]:
    """Some classes that are far larger than most."""
    sizes = sizes_of(table)
    there = sizes[sizes > 0]
    if not len(there) or there.max() <= UNEQUAL * max(np.median(there), 2):
        return []
    large = np.flatnonzero(sizes > UNEQUAL * max(np.median(there), 2))
    what = (
        f"class sizes are very unequal: {there.min():,} to {there.max():,} pictures, median {np.median(there):g}. The "
        "large ones would decide what is learned"
    )
    names = [f"{table.label_names[label]}: {sizes[label]:,}" for label in large[np.argsort(-sizes[large])].tolist()]
    return [Finding(what, "Draw all classes equally often: --sampler.kind balanced, or pk", first(names, MOST_NAMES))]
