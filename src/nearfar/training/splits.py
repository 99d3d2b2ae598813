"""Which rows are trained on, which choose the best epoch, and which are tested."""

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

FEW_CLASSES = 8  # below, halves of the classes would leave too little to train on
TEST_SHARE = 0.25  # of the images, where images are split
VALIDATION = 0.1  # share of the training classes that is held out, where there are enough of them
FEW_HELD_OUT = 20  # classes, or a tenth as many images: below, one validation split says too little
AFFORDABLE = 2_000  # training images up to which a whole network is trained once more for every fold
FOLDS = 3  # more would train on more classes, but leave fewer in a fold to be told apart
TRAIN, VAL = SPLITS.index("train"), SPLITS.index("val")
_UNLABELLED = -1


@dataclass(frozen=True)
class Parts:
    """The rows of a run: `table` holds them all, each in its split.

    Attributes:
        table: training, validation and test rows.
        open_set: whether test classes are ones that are not trained on.
        notes: what was decided.
        fold: (N,) for cross-fitting, the fold in which a training row is held out, and -1 for other rows; None where
            validation rows are held out once, or never.
        elsewhere: rows of other data to test on, in place of those of `table`.
    """

    table: Table
    open_set: bool
    notes: tuple[str, ...] = ()
    fold: NDArray[np.int64] | None = None
    elsewhere: Table | None = None

    @cached_property
    def train(self) -> Table:
        """The rows to train on, with class ids from 0 on."""
        rows = self.table.split("train")
        return rows.select(rows.labels != _UNLABELLED).compact()

    @cached_property
    def val(self) -> Table | None:
        """The rows to choose by, if any."""
        return self.table.split("val") if "val" in self.table.split_names else None

    @property
    def to_choose_by(self) -> Table:
        """The rows to train on and to choose by together: all labelled rows but the test rows."""
        return self.table.select(~self.is_test & (self.table.labels != _UNLABELLED))

    @cached_property
    def test(self) -> Table | None:
        """The rows to test on, if any."""
        if self.elsewhere is not None:
            return self.elsewhere
        return self.table.select(self.is_test) if self.is_test.any() else None

    @property
    def is_test(self) -> NDArray[np.bool_]:
        """(N,) which rows of `table` are not for training."""
        return ~np.isin(self.table.split_ids, (TRAIN, VAL))

    @property
    def folds(self) -> int:
        """How many times other training rows are held out; 0 where it is done once or never."""
        return 0 if self.fold is None else int(self.fold.max()) + 1

    def holding_out(self, number: int) -> "Parts":
        """The training rows alone, those of one fold as validation rows."""
        assert self.fold is not None
        there = self.fold >= 0
        ids = np.where(self.fold[there] == number, VAL, TRAIN).astype(np.int8)
        return Parts(dataclasses.replace(self.table.select(there), split_ids=ids), self.open_set)


def split(table: Table, config: DataConfig, seed: int, *, frozen: bool = False) -> Parts:
    """Training, validation and test rows, as the configuration wants them.

    Args:
        frozen: whether a head alone is trained, which takes so little time that it can be done for every fold.
    """
    if config.validation is not None and not 0 <= config.validation < 1:
        raise ConfigError(
            f"data.validation is a share of the training classes, from 0 to below 1, not {config.validation}"
        )
    if not len(table.classes):
        raise ConfigError(
            f"{table.name} has no classes to learn from: put the images of each class into a folder of their own. To "
            "search among them with a model that is there, no classes are needed: nearfar index RUN DATA"
        )
    if "train" not in table.split_names and config.split != "all":
        raise ConfigError(
            f"{table.name} has no rows to train on, only {' and '.join(table.split_names)}: "
            "nearfar evaluate RUN DATA measures a model on it"
        )
    if config.test is not None and config.split in ("classes", "images"):
        raise ConfigError(
            f"--test {config.test} gives other data to test on, and --split {config.split} keeps classes or images of "
            f"{table.name} for that: leave one of them out"
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
        notes = (*notes, f"the training {what} are held out in {count} folds, to choose what is kept and its threshold")
    else:
        default = 0.0 if kind == "all" else VALIDATION  # which would hold classes out
        share = default if config.validation is None else config.validation
        table, note = _with_validation(table, share, by_image, seed)
        notes = (*notes, *note)
    parts = Parts(table, not by_image, notes, fold)
    if parts.test is None and config.test is None:
        without = f"{table.name} has no test rows: the held-out rows are measured instead"
        if parts.val is None and not parts.folds:
            without = "there are no test data, so nothing will be measured: --test DATA names some"
        parts = dataclasses.replace(parts, notes=(*notes, without))
    return parts


def _folds(table: Table, config: DataConfig, by_image: bool, frozen: bool) -> int:
    """In how many folds the training rows are held out; 0 for one validation split, or none."""
    if "val" in table.split_names or config.folds == 1 or (config.folds is None and config.validation is not None):
        return 0
    labels = table.labels[(table.split_ids == TRAIN) & (table.labels != _UNLABELLED)]
    sizes = np.unique(labels, return_counts=True)[1]
    searchable = int(np.count_nonzero(sizes >= (4 if by_image else 2)))
    most = int(sizes.min()) // 2 if by_image else searchable // 2  # two of each, or two classes, in every fold
    if config.folds is not None:
        if not 2 <= config.folds <= most:
            raise ConfigError(
                f"data.folds={config.folds}: {table.name} has {searchable} classes to train on, enough for "
                f"{most if most >= 2 else 'no'} folds. Leave the option out, or give fewer"
            )
        return config.folds
    enough = len(labels) * VALIDATION >= 10 * FEW_HELD_OUT if by_image else len(sizes) * VALIDATION >= FEW_HELD_OUT
    if enough or most < 2 or not (frozen or len(labels) <= AFFORDABLE):
        return 0
    return min(FOLDS, most)


def _dealt(table: Table, folds: int, by_image: bool, seed: int) -> NDArray[np.int64]:
    """(N,) the fold in which each training row is held out, -1 for others: whole classes, or images of every class."""
    rng = np.random.default_rng([seed, 3])
    fold = np.full(len(table), -1, np.int64)
    train = (table.split_ids == TRAIN) & (table.labels != _UNLABELLED)
    classes = rng.permutation(np.unique(table.labels[train]))
    for place, label in enumerate(classes):
        rows = np.flatnonzero(train & (table.labels == label))
        fold[rows] = rng.permutation(len(rows)) % folds if by_image else place % folds
    return fold


def _shared(table: Table) -> NDArray[np.int64]:
    """Classes that are both trained on and tested."""
    tested = [name for name in table.split_names if name not in ("train", "val")]
    if not tested:
        return np.zeros(0, np.int64)
    return np.intersect1d(table.split("train").classes, table.split(*tested).classes)


def _with_split(table: Table, kind: str, seed: int) -> tuple[Table, tuple[str, ...], bool]:
    """The table with the split that was asked for, what was done in words, and whether it may test known classes."""
    if kind == "all":
        ids = np.full(len(table), TRAIN, np.int8)
        note = f"no class is kept for the test: all {table.num_classes:,} are for training"
        return dataclasses.replace(table, split_ids=ids).compact(), (note,), False
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
