"""Names of splits, and the default split: half of the classes for training, half for testing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.data.tables import SPLITS, UNLABELLED, Table, number_classes

_OTHER_NAMES = {
    "training": "train",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "testing": "test",
    "eval": "test",
    "probe": "query",
}


def split_name(name: str) -> str | None:
    """The split that the name of a folder or a value of a column stands for, if any.

    >>> split_name("Validation"), split_name("birds")
    ('val', None)
    """
    name = name.lower()
    name = _OTHER_NAMES.get(name, name)
    return name if name in SPLITS else None


def zero_shot(values: Sequence[Any] | npt.NDArray[Any], known: Sequence[Any] = ()) -> npt.NDArray[np.int8]:
    """Split ids for labels without a split: the first half of the sorted classes (rounded up) is train, the second
    test, as in CUB and Cars. Rows whose label is in `known` have no class and are test.
    """
    train = np.full(len(values), SPLITS.index("train"), np.int8)
    labels, names = number_classes(values, train, unlabelled=known)
    second_half = (labels >= (len(names) + 1) // 2) | (labels == UNLABELLED)
    return np.where(second_half, SPLITS.index("test"), SPLITS.index("train")).astype(np.int8)


def halves_note(classes: int) -> str:
    """A note that describes the split of `zero_shot`."""
    return (
        f"no split is given: the first {(classes + 1) // 2:,} classes in sorted order are train, "
        f"the other {classes // 2:,} test"
    )


def shared_classes(table: Table) -> list[str]:
    """A note if test classes are also training classes, so that the split does not measure unseen classes."""
    if "train" not in table.split_names:
        return []
    train = table.split("train").classes
    return [
        f"{len(both):,} classes of train are in {name} too: this is not a zero-shot split"
        for name in table.split_names
        if name != "train" and len(both := np.intersect1d(train, table.split(name).classes))
    ]
