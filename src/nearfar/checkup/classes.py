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
    held = "" if parts is None or parts.val is None else f", {parts.val.num_classes} to choose the best epoch by"
    tested = "" if parts is None or parts.test is None else f" and {parts.test.num_classes} to test"
    trained = "" if parts is None else f": {parts.train.num_classes} are left to train on{held}{tested}"
    what = f"{count} classes are few{trained}"
    advice = (
        f"The threshold rests on few classes, and all numbers are uncertain (nearfar evaluate RUN --ci says by how "
        f"much); nearfar compare needs --folds 2. Add classes: {ENOUGH_CLASSES} are a beginning, 50 are better"
    )
    return [Finding(what, advice)]


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


def few_images(parts: Parts, dimension: int | None, starts_at_random: bool) -> list[Finding]:
    """Fewer images to train on than the embedding has dimensions."""
    count = len(parts.train)
    if dimension is None or count > dimension or not starts_at_random:
        return []
    below = max(8, 2 ** int(np.log2(max(count - 1, 8))))
    what = (
        f"{counted(count, 'picture')} to train on, and {dimension} dimensions: too few principal components for the "
        "head to start from, so it starts at random"
    )
    return [Finding(what, f"Choose fewer: --dimension {below}")]
