"""Which rows are trained on, which choose the best epoch, and which are tested."""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearfar.data import SPLITS, Table
from nearfar.data.splits import halves_note, zero_shot
from nearfar.training.checks import check_classes
from nearfar.training.config import DataConfig
from nearfar.training.options import ConfigError

FEW_CLASSES = 8  # below, halves of the classes would leave too little to train on
TEST_SHARE = 0.25  # of the images, where images are split
_UNLABELLED = -1


@dataclass(frozen=True)
class Parts:
    """The tables of a run. `train` has class ids from 0 on; `val` and `test` may be missing.

    `open_set` says whether test classes are ones that were not trained on; `notes` say what was decided.
    """

    train: Table
    val: Table | None
    test: Table | None
    open_set: bool
    notes: tuple[str, ...]


def split(table: Table, config: DataConfig, seed: int) -> Parts:
    """Training, validation and test rows, as the configuration wants them."""
    if not 0 <= config.validation < 1:
        raise ConfigError(
            f"data.validation is a share of the training classes, from 0 to below 1, not {config.validation}"
        )
    if not len(table.classes):
        raise ConfigError(
            f"{table.name} has no classes to learn from: put the images of each class into a folder of their own. To "
            "search among them with a model that is there, no classes are needed: nearfar index RUN DATA"
        )
    if "train" not in table.split_names:
        raise ConfigError(
            f"{table.name} has no rows to train on, only {' and '.join(table.split_names)}: "
            "nearfar evaluate RUN DATA measures a model on it"
        )
    table, notes, known_classes = _with_split(table, config.split, seed)
    by_image = len(_shared(table)) > 0
    if by_image and not known_classes:
        rest = table.split(*(name for name in table.split_names if name not in ("train", "val")))
        check_classes(table.split("train").labels, rest.labels)
    table, note = _with_validation(table, config.validation, by_image, seed)
    tested = [name for name in table.split_names if name not in ("train", "val")]
    train = table.split("train")
    train = train.select(train.labels != _UNLABELLED).compact()
    val = table.split("val") if "val" in table.split_names else None
    test = table.split(*tested) if tested else None
    if test is None:
        notes = (*notes, f"{table.name} has no test rows: the validation rows are measured instead")
    return Parts(train, val, test, not by_image, (*notes, *note))


def _shared(table: Table) -> NDArray[np.int64]:
    """Classes that are both trained on and tested."""
    tested = [name for name in table.split_names if name not in ("train", "val")]
    if not tested:
        return np.zeros(0, np.int64)
    return np.intersect1d(table.split("train").classes, table.split(*tested).classes)


def _with_split(table: Table, kind: str, seed: int) -> tuple[Table, tuple[str, ...], bool]:
    """The table with the split that was asked for, what was done in words, and whether it may test known classes."""
    own = halves_note(table.num_classes) not in table.notes
    few = table.num_classes < FEW_CLASSES
    if kind == "auto" and (own or not few):
        return table, () if own else (halves_note(table.num_classes),), False
    if kind == "classes" and (not own or not len(_shared(table))):
        return table, (), False
    if kind == "images" and own and len(_shared(table)):
        return table, ("the data's own split shares classes: other images of the same classes are tested",), True
    if kind == "classes":
        ids = zero_shot(np.array([table.label_name(row) for row in range(len(table))]))
        return dataclasses.replace(table, split_ids=ids).compact(), (halves_note(table.num_classes),), False
    ids = np.full(len(table), SPLITS.index("train"), np.int8)
    ids[_share_of_each_class(table.labels, TEST_SHARE, seed)] = SPLITS.index("test")
    ids[table.labels == _UNLABELLED] = SPLITS.index("test")
    few_note = f"{table.num_classes} classes are too few to leave some out" if kind == "auto" else "by choice"
    return (
        dataclasses.replace(table, split_ids=ids).compact(),
        (f"split by image ({few_note}): {TEST_SHARE:.0%} of every class are tested, the classes are known",),
        True,
    )


def _with_validation(table: Table, share: float, by_image: bool, seed: int) -> tuple[Table, tuple[str, ...]]:
    """The table with validation rows taken from the training rows, unless it has some or none are wanted."""
    if "val" in table.split_names:
        train, val = table.split("train"), table.split("val")
        if not by_image and len(np.intersect1d(train.classes, val.classes)):
            return table, ("the data's own validation rows are of training classes: they say little of unseen ones",)
        return table, ()
    if share == 0:
        return table, ("no validation: the last epoch is kept",)
    train_rows = np.flatnonzero(table.split_ids == SPLITS.index("train"))
    labels = table.labels[train_rows]
    classes = np.setdiff1d(labels, _UNLABELLED)
    sizes = np.bincount(labels[labels >= 0], minlength=1)
    searchable = classes[sizes[classes] >= 2]
    if by_image or len(classes) < 4 or len(searchable) < 2:
        held = train_rows[_share_of_each_class(labels, share, seed + 1)]
        if not len(held):
            return table, ("too few images to hold some out for validation: the last epoch is kept",)
        what = f"{len(held):,} images of the training classes are held out to choose the best epoch"
    else:
        count = max(round(share * len(classes)), min(10, len(classes) // 4), 2)
        chosen = np.random.default_rng([seed, 1]).permutation(searchable)[:count]
        held = train_rows[np.isin(labels, chosen)]
        what = f"{len(chosen):,} of {len(classes):,} training classes are held out to choose the best epoch"
    ids = table.split_ids.copy()
    ids[held] = SPLITS.index("val")
    return dataclasses.replace(table, split_ids=ids), (what,)


def _share_of_each_class(labels: NDArray[np.int64], share: float, seed: int) -> NDArray[np.int64]:
    """Rows: of every class that share, rounded, at least two if it has five or more: each can find the other."""
    rng = np.random.default_rng([seed, 2])
    chosen = []
    for label in np.setdiff1d(labels, _UNLABELLED):
        rows = rng.permutation(np.flatnonzero(labels == label))
        count = max(round(share * len(rows)), 2 if len(rows) >= 5 else 0)
        chosen.append(rows[:count])
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
