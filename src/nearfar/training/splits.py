"""The split of a table into training, validation and test rows."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nearfar.data import SPLITS, Table
from nearfar.data.default_splits import halves_note, zero_shot
from nearfar.training.checks import check_classes
from nearfar.training.config import DataConfig
from nearfar.training.options import ConfigError

FEW_CLASSES = 8  # below, half of the classes would be too few to train on
TEST_SHARE = 0.25  # share of the images to test on, if images are split
VALIDATION = 0.1  # share of the training classes that is held out
FEW_HELD_OUT = 20  # classes, or ten times as many images: below, one validation split is unreliable
AFFORDABLE = 2_000  # training images up to which a whole network is also trained for every fold
FOLDS = 3  # more folds would train on more classes, but have fewer classes each to evaluate on
TRAIN, VAL = SPLITS.index("train"), SPLITS.index("val")
_UNLABELLED = -1


@dataclass(frozen=True)
class Parts:
    """The rows of a run, divided into training, validation and test rows.

    Attributes:
        table: all rows, each with its split.
        open_set: whether training and test classes are disjoint.
        notes: the decisions made.
        fold: (N,) for cross-fitting, the fold in which a training row is held out, -1 for other rows; None without
            cross-fitting.
        elsewhere: rows of other data to test on, in place of the test rows of `table`.
    """

    table: Table
    open_set: bool
    notes: tuple[str, ...] = ()
    fold: NDArray[np.int64] | None = None
    elsewhere: Table | None = None

    @cached_property
    def train(self) -> Table:
        """The training rows, with class ids from 0."""
        rows = self.table.split("train")
        return rows.select(rows.labels != _UNLABELLED).compact()

    @cached_property
    def val(self) -> Table | None:
        """The validation rows, if any."""
        return self.table.split("val") if "val" in self.table.split_names else None

    @property
    def to_choose_by(self) -> Table:
        """The training and validation rows: all labelled rows except the test rows."""
        return self.table.select(~self.is_test & (self.table.labels != _UNLABELLED))

    @cached_property
    def test(self) -> Table | None:
        """The test rows, if any."""
        if self.elsewhere is not None:
            return self.elsewhere
        return self.table.select(self.is_test) if self.is_test.any() else None

    @property
    def is_test(self) -> NDArray[np.bool_]:
        """Mask (N,) of the rows of `table` that are neither for training nor for validation."""
        return ~np.isin(self.table.split_ids, (TRAIN, VAL))

    @property
    def folds(self) -> int:
        """The number of folds; 0 without cross-fitting."""
        return 0 if self.fold is None else int(self.fold.max()) + 1

    def holding_out(self, number: int) -> "Parts":
        """The training rows, with those of one fold as validation rows."""
        assert self.fold is not None
        in_folds = self.fold >= 0
        ids = np.where(self.fold[in_folds] == number, VAL, TRAIN).astype(np.int8)
        return Parts(dataclasses.replace(self.table.select(in_folds), split_ids=ids), self.open_set)


def split(table: Table, config: DataConfig, seed: int, *, frozen: bool = False) -> Parts:
    """Split a table into training, validation and test rows, as the configuration says.

    Args:
        frozen: whether only a head is trained, which is fast enough for cross-fitting.
    """
    if config.validation is not None and not 0 <= config.validation < 1:
        raise ConfigError(
            f"data.validation is a share of the training classes, from 0 to below 1, not {config.validation}"
        )
    if not len(table.classes):
        raise ConfigError(
            f"{table.name} has no classes to learn from: put the images of each class into their own folder. To search "
            "them with a trained model, no classes are needed: nearfar index RUN DATA"
        )
    if "train" not in table.split_names and config.split != "all":
        raise ConfigError(
            f"{table.name} has no training rows, only {' and '.join(table.split_names)}: "
            "nearfar evaluate RUN DATA evaluates a model on it"
        )
    if config.test is not None and config.split in ("classes", "images"):
        raise ConfigError(
            f"--test {config.test} names other data to test on, but --split {config.split} holds out test data of "
            f"{table.name}: leave one of them out"
        )
    kind = config.split
    if kind == "auto" and config.test is not None and halves_note(table.num_classes) in table.notes:
        kind = "all"
    table, notes, known_classes = _with_split(table, kind, seed)
    by_image = len(_shared(table)) > 0
    if by_image and not known_classes:
        rest = table.split(*(name for name in table.split_names if name not in ("train", "val")))
        check_classes(table.split("train").labels, rest.labels)
    fold = None
    count = _folds(table, config, by_image, frozen)
    if count:
        fold = _dealt(table, count, by_image, seed)
        what = "images" if by_image else "classes"
        notes = (*notes, f"the training {what} are held out in {count} folds, to choose the model and its threshold")
    else:
        default = 0.0 if kind == "all" else VALIDATION  # 0: "all" holds out no classes
        share = default if config.validation is None else config.validation
        table, note = _with_validation(table, share, by_image, seed)
        notes = (*notes, *note)
    parts = Parts(table, not by_image, notes, fold)
    if parts.test is None and config.test is None:
        without = f"{table.name} has no test rows: the held-out rows are evaluated instead"
        if parts.val is None and not parts.folds:
            without = "there are no test data, so nothing will be evaluated: add some with --test DATA"
        parts = dataclasses.replace(parts, notes=(*notes, without))
    return parts


def _folds(table: Table, config: DataConfig, by_image: bool, frozen: bool) -> int:
    """The number of folds for cross-fitting; 0 for one validation split or none."""
    if "val" in table.split_names or config.folds == 1 or (config.folds is None and config.validation is not None):
        return 0
    labels = table.labels[(table.split_ids == TRAIN) & (table.labels != _UNLABELLED)]
    sizes = np.unique(labels, return_counts=True)[1]
    searchable = int(np.count_nonzero(sizes >= (4 if by_image else 2)))
    most = (
        int(sizes.min()) // 2 if by_image else searchable // 2
    )  # every fold needs two images of each class, or two classes
    if config.folds is not None:
        if not 2 <= config.folds <= most:
            raise ConfigError(
                f"data.folds={config.folds}: {table.name} has {searchable} classes to train on, enough for "
                f"{most if most >= 2 else 'no'} folds. Leave the option out, or reduce it"
            )
        return config.folds
    enough = len(labels) * VALIDATION >= 10 * FEW_HELD_OUT if by_image else len(sizes) * VALIDATION >= FEW_HELD_OUT
    if enough or most < 2 or not (frozen or len(labels) <= AFFORDABLE):
        return 0
    return min(FOLDS, most)


def _dealt(table: Table, folds: int, by_image: bool, seed: int) -> NDArray[np.int64]:
    """The fold (N,) in which each training row is held out, -1 for other rows: by class, or by image of every class."""
    rng = np.random.default_rng([seed, 3])
    fold = np.full(len(table), -1, np.int64)
    train = (table.split_ids == TRAIN) & (table.labels != _UNLABELLED)
    classes = rng.permutation(np.unique(table.labels[train]))
    for position, label in enumerate(classes):
        rows = np.flatnonzero(train & (table.labels == label))
        fold[rows] = rng.permutation(len(rows)) % folds if by_image else position % folds
    return fold


def _shared(table: Table) -> NDArray[np.int64]:
    """The classes that have both training and test rows."""
    tested = [name for name in table.split_names if name not in ("train", "val")]
    if not tested:
        return np.zeros(0, np.int64)
    return np.intersect1d(table.split("train").classes, table.split(*tested).classes)


def _with_split(table: Table, kind: str, seed: int) -> tuple[Table, tuple[str, ...], bool]:
    """The table with the requested split, notes, and whether it may test known classes."""
    if kind == "all":
        ids = np.full(len(table), TRAIN, np.int8)
        note = f"no class is held out for testing: all {table.num_classes:,} are for training"
        return dataclasses.replace(table, split_ids=ids).compact(), (note,), False
    has_split = halves_note(table.num_classes) not in table.notes
    few = table.num_classes < FEW_CLASSES
    if kind == "auto" and (has_split or not few):
        return table, () if has_split else (halves_note(table.num_classes),), False
    if kind == "classes" and (not has_split or not len(_shared(table))):
        return table, (), False
    if kind == "images" and has_split and len(_shared(table)):
        return table, ("the data's own split shares classes: other images of the same classes are tested",), True
    if kind == "classes":
        ids = zero_shot(np.array([table.label_name(row) for row in range(len(table))]))
        return dataclasses.replace(table, split_ids=ids).compact(), (halves_note(table.num_classes),), False
    ids = np.full(len(table), SPLITS.index("train"), np.int8)
    ids[_share_of_each_class(table.labels, TEST_SHARE, seed)] = SPLITS.index("test")
    ids[table.labels == _UNLABELLED] = SPLITS.index("test")
    few_note = f"{table.num_classes} classes are too few to hold some out" if kind == "auto" else "by choice"
    return (
        dataclasses.replace(table, split_ids=ids).compact(),
        (f"split by image ({few_note}): {TEST_SHARE:.0%} of every class are for testing, the classes are known",),
        True,
    )


def _with_validation(table: Table, share: float, by_image: bool, seed: int) -> tuple[Table, tuple[str, ...]]:
    """Take validation rows from the training rows, unless the table has some or `share` is 0."""
    if "val" in table.split_names:
        train, val = table.split("train"), table.split("val")
        if not by_image and len(np.intersect1d(train.classes, val.classes)):
            return table, (
                "the data's own validation rows belong to training classes: they say little about unseen ones",
            )
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
    """Draw the share of every class, rounded, but at least two rows of classes with five or more: queries need two."""
    rng = np.random.default_rng([seed, 2])
    chosen = []
    for label in np.setdiff1d(labels, _UNLABELLED):
        rows = rng.permutation(np.flatnonzero(labels == label))
        count = max(round(share * len(rows)), 2 if len(rows) >= 5 else 0)
        chosen.append(rows[:count])
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
