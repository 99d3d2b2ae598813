"""Whether there are classes enough, and pictures enough in them."""

import numpy as np
from numpy.typing import NDArray

from nearfar.checkup.finding import Finding, counted, first
from nearfar.data import Table
from nearfar.training.splits import FEW_CLASSES, Parts

ENOUGH_CLASSES = 16  # half of them are trained on, and some of these held out
UNEQUAL = 10  # times the median
MOST_NAMES = 8


def sizes_of(table: Table) -> NDArray[np.int64]:
    """How many rows each class has, by class id."""
    return np.bincount(table.labels[table.labels >= 0], minlength=len(table.label_names)).astype(np.int64)


def too_few(table: Table, parts: Parts | None) -> list[Finding]:
    """Fewer classes than it takes to divide them."""
    count = table.num_classes
    if not 0 < count < ENOUGH_CLASSES:
        return []
    if count < FEW_CLASSES and (parts is None or not parts.open_set):
        what = (
            f"{counted(count, 'class', 'classes')} {'is' if count == 1 else 'are'} too few to leave some out: pictures "
            "are divided instead, and what is tested are classes that the model knows"
        )
        return [Finding(what, f"How well it finds new things cannot be said: from {FEW_CLASSES} classes on, it can")]
    what, advice = f"{count} classes are few", f"Add classes: {ENOUGH_CLASSES} are a beginning, 50 are better"
    if parts is not None:
        tested = "" if parts.test is None else f", and {parts.test.num_classes} to be tested on"
        what += f": {parts.train.num_classes} are left to train on, {_chosen_by(parts)}{tested}"
    doubt = "All numbers are uncertain (nearfar evaluate RUN --ci says by how much), the threshold above all"
    return [Finding(what, f"{doubt}; nearfar compare needs --folds 2. {advice}")]


def _chosen_by(parts: Parts) -> str:
    """By what the model that is kept is chosen, and its threshold found."""
    if parts.val is not None:
        return f"{parts.val.num_classes} to choose and calibrate by"
    return f"in {parts.folds} folds to choose and calibrate by" if parts.folds else "none to choose and calibrate by"


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


def few_images(parts: Parts, dimension: int | None) -> list[Finding]:
    """Fewer images to train on than the dimensions that were asked for."""
    count = parts.fewest_to_train_on
    if dimension is None or dimension < count:
        return []
    what = (
        f"{counted(count, 'picture')} to train on, and --dimension {dimension}: they vary in {count - 1} directions, "
        "and the others say nothing"
    )
    return [Finding(what, "Leave --dimension out, or add pictures")]
