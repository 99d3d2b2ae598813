"""The split that a data set has when it does not say: classes in halves."""

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
    """The split that a folder or a column's value means, if any.

    >>> split_name("Validation"), split_name("birds")
    ('val', None)
    """
    name = name.lower()
    name = _OTHER_NAMES.get(name, name)
    return name if name in SPLITS else None


def zero_shot(values: Sequence[Any] | npt.NDArray[Any], known: Sequence[Any] = ()) -> npt.NDArray[np.int8]:
    """Split ids for labels without a split: the first half of the classes, in sorted order and rounded up, is for
    training, the second for testing. This is what CUB and Cars do. Labels in `known` count as no class: they are for
    testing.
    """
    everything = np.full(len(values), SPLITS.index("train"), np.int8)
    labels, names = number_classes(values, everything, unlabelled=known)
    later = (labels >= (len(names) + 1) // 2) | (labels == UNLABELLED)
    return np.where(later, SPLITS.index("test"), SPLITS.index("train")).astype(np.int8)


def halves_note(classes: int) -> str:
    """What `zero_shot` did, in words."""
    return (
        f"no split is given: the first {(classes + 1) // 2:,} classes in sorted order are train, "
        f"the other {classes // 2:,} test"
    )


def shared_classes(table: Table) -> list[str]:
    """A note if training classes are tested too: retrieval of unseen classes is not what such a split measures."""
    if "train" not in table.split_names:
        return []
    train = table.split("train").classes
    return [
        f"{len(both):,} classes of train are in {name} too: this is not a zero-shot split"
        for name in table.split_names
        if name != "train" and len(both := np.intersect1d(train, table.split(name).classes))
    ]
