"""`Table`: a data set with one row per image, its label, split and further columns."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nearfar.data.columns import Files, Images, Rows
from nearfar.errors import InputError, InputTypeError

Array = npt.NDArray[Any]
SPLITS = ("train", "val", "test", "query", "gallery")
UNLABELLED = -1


@dataclass(frozen=True, eq=False)
class Pairs:
    """A list of verification pairs.

    `first` and `second` are rows of the table, or values of its `template` column if `of` is "template". `same` tells
    whether a pair has the same label; `fold` is the fold of a cross-validated protocol (0 if it has none).
    """

    first: Rows
    second: Rows
    same: npt.NDArray[np.bool_]
    fold: Rows
    of: Literal["row", "template"] = "row"

    def __post_init__(self) -> None:
        if not len(self.first) == len(self.second) == len(self.same) == len(self.fold):
            raise InputError("first, second, same and fold must have one value per pair")

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, eq=False)
class Table:
    """One row per image (or feature vector).

    Attributes:
        name: the name of the data set.
        labels: (N,) int64 class ids; -1 means no label. Training classes come first, so that the labels of
            `split("train")` run from 0 to `num_classes` - 1.
        label_names: the name of every class id.
        split_ids: (N,) index into `SPLITS`.
        images: a column of images that `load_image` takes; None if the rows are features only.
        columns: further columns (N, ...): camera, super_class, template, media, features, ...
        names: the names of the values of some columns, such as super_class.
        pairs: verification lists by name.
        notes: peculiarities of this copy: counts that differ from the official ones, rows left out, ...
        embedded: whether it is the embedded data set of small grey characters, which has its own defaults.
    """

    name: str
    labels: Rows
    label_names: tuple[str, ...]
    split_ids: npt.NDArray[np.int8]
    images: Images | None = None
    columns: Mapping[str, Array] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pairs: Mapping[str, Pairs] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    embedded: bool = False

    def __post_init__(self) -> None:
        lengths = {"labels": len(self.labels), "split_ids": len(self.split_ids)}
        lengths |= {name: len(column) for name, column in self.columns.items()}
        if self.images is not None:
            lengths["images"] = len(self.images)
        if len(set(lengths.values())) > 1:
            raise InputError(f"the columns of {self.name} differ in length: {lengths}")
        if self.images is None and "features" not in self.columns:
            raise InputError(f"{self.name} has neither images nor features")
        if len(self.labels) and (self.labels.min() < UNLABELLED or self.labels.max() >= len(self.label_names)):
            raise InputError(f"labels of {self.name} must be -1 or index its {len(self.label_names)} label_names")
        for name in ("columns", "names", "pairs"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | Array) -> "Table":
        return self.select(rows)

    def __getstate__(self) -> dict[str, Any]:
        """Mapping proxies cannot be pickled; dicts can."""
        return {
            name: dict(value) if isinstance(value, MappingProxyType) else value for name, value in vars(self).items()
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, MappingProxyType(value) if isinstance(value, dict) else value)

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {np.count_nonzero(self._in(name)):,}" for name in self.split_names)
        return f"Table({self.name!r}: {len(self):,} rows, {self.num_classes:,} classes; {counts})"

    def _in(self, *splits: str) -> npt.NDArray[np.bool_]:
        return np.isin(self.split_ids, [SPLITS.index(name) for name in splits])

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that have rows."""
        return tuple(SPLITS[i] for i in np.unique(self.split_ids))

    @property
    def classes(self) -> Rows:
        """The class ids that occur, in order."""
        return np.setdiff1d(self.labels, UNLABELLED)

    @property
    def num_classes(self) -> int:
        """The number of classes that occur."""
        return len(self.classes)

    @property
    def paths(self) -> list[str]:
        """The image files. Only data sets of single files have them; `images` works for all."""
        if self.images is None:
            raise InputError(f"{self.name} has no images, only features: use table.features")
        if not isinstance(self.images, Files):
            raise InputError(f"{self.name} does not keep its images as files: use table.images")
        return [self.images[row] for row in range(len(self))]

    @property
    def camera(self) -> Array | None:
        """The camera ids, if known."""
        return self.columns.get("camera")

    @property
    def super_class(self) -> Array | None:
        """The super-class ids, if known; their names are in `names["super_class"]`."""
        return self.columns.get("super_class")

    @property
    def template(self) -> Array | None:
        """The template ids (a template is a set of images of one person), if known."""
        return self.columns.get("template")

    @property
    def media(self) -> Array | None:
        """The ids of the media (photographs or videos), if known."""
        return self.columns.get("media")

    @property
    def features(self) -> Array | None:
        """(N, D) feature vectors, if the data set has them."""
        return self.columns.get("features")

    def label_name(self, row: int) -> str:
        """The name of a row's class; "" if it has none."""
        label = self.labels[row]
        return "" if label == UNLABELLED else self.label_names[label]

    def split(self, *names: str) -> "Table":
        """The rows of one or more splits. Class ids do not change, so those of query and gallery agree."""
        for name in names:
            if name not in SPLITS:
                raise InputError(f"there is no split {name!r}: the splits are {', '.join(SPLITS)}")
            if name not in self.split_names:
                raise InputError(f"{self.name} has no {name} rows, only {' and '.join(self.split_names) or 'none'}")
        return self.select(self._in(*names))

    def select(self, rows: slice | Array | Sequence[int]) -> "Table":
        """The rows of a boolean mask, indices or a slice. Pairs that contain another row are dropped."""
        index = self._indices(rows)
        contiguous = len(index) > 0 and index[-1] - index[0] == len(index) - 1 and bool((np.diff(index) == 1).all())
        cut = slice(int(index[0]), int(index[-1]) + 1) if contiguous else index  # slices keep memory-mapped columns so
        columns = {name: column[cut] for name, column in self.columns.items()}
        return dataclasses.replace(
            self,
            labels=self.labels[cut],
            split_ids=self.split_ids[cut],
            images=None if self.images is None else self.images.select(index),
            columns=columns,
            pairs={name: self._selected_pairs(pairs, index, columns) for name, pairs in self.pairs.items()},
        )

    def _indices(self, rows: slice | Array | Sequence[int]) -> Rows:
        if isinstance(rows, slice):
            return np.arange(len(self))[rows]
        array = np.asarray(rows)
        if array.dtype == np.bool_:
            if array.shape != (len(self),):
                raise InputError(f"a mask of shape {array.shape} cannot select from {len(self)} rows")
            return np.flatnonzero(array)
        if array.size == 0:
            return np.zeros(0, np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputTypeError(f"select rows by a boolean mask, integer indices or a slice, not {array.dtype}")
        if array.min() < -len(self) or array.max() >= len(self):
            raise IndexError(f"rows {array.min()} to {array.max()} are not all in a table of {len(self)}")
        return array.astype(np.int64) % len(self)

    def _selected_pairs(self, pairs: Pairs, index: Rows, columns: Mapping[str, Array]) -> Pairs:
        if pairs.of == "template":
            kept = np.isin(pairs.first, columns["template"]) & np.isin(pairs.second, columns["template"])
            return Pairs(pairs.first[kept], pairs.second[kept], pairs.same[kept], pairs.fold[kept], "template")
        new_row = np.full(len(self), -1, np.int64)
        new_row[index] = np.arange(len(index))
        first, second = new_row[pairs.first], new_row[pairs.second]
        kept = (first >= 0) & (second >= 0)
        return Pairs(first[kept], second[kept], pairs.same[kept], pairs.fold[kept])

    def compact(self) -> "Table":
        """The same rows with consecutive class ids, training classes first, without classes that have no rows.
        Class-level losses need this after `select` has removed classes.
        """
        train = np.unique(self.labels[self._in("train")])
        order = np.concatenate([train, np.setdiff1d(self.classes, train)])
        order = order[order != UNLABELLED]
        number = np.full(len(self.label_names) + 1, UNLABELLED, np.int64)  # the last entry is for label -1
        number[order] = np.arange(len(order))
        names = tuple(self.label_names[label] for label in order)
        return dataclasses.replace(self, labels=number[self.labels], label_names=names)

    def folds(self, k: int = 4, seed: int | None = None) -> Iterator["Table"]:
        """Class-disjoint cross-validation: k tables of the training rows, in each of which other classes are "val" and
        the rest "train", with new class ids.

        The folds are contiguous ranges of class ids (as in Musgrave et al., 2020) of nearly equal size. With a `seed`,
        classes are shuffled first.
        """
        train = self.split("train")
        classes = train.classes
        if not 2 <= k <= len(classes):
            raise InputError(f"k={k} folds of {len(classes)} training classes: k must be from 2 to {len(classes)}")
        if seed is not None:
            classes = np.random.default_rng(seed).permutation(classes)
        for held_out in np.array_split(classes, k):
            ids = np.where(np.isin(train.labels, held_out), SPLITS.index("val"), SPLITS.index("train"))
            yield dataclasses.replace(train, split_ids=ids.astype(np.int8)).compact()

    def summary(self) -> str:
        """The sizes of its splits, columns and pairs, in a few lines."""
        unit = "feature vectors" if self.images is None else "images"
        lines = [f"{self.name}: {len(self):,} {unit}, {self.num_classes:,} classes"]
        for name in self.split_names:
            part = self._in(name)
            labels = self.labels[part]
            sizes = np.bincount(labels[labels != UNLABELLED])
            sizes = sizes[sizes > 0]
            each = "no labels"
            if len(sizes):
                each = f"{sizes.min():,} to {sizes.max():,} each" if sizes.min() < sizes.max() else f"{sizes[0]:,} each"
            lines.append(f"  {name:8}{len(labels):>10,} {unit}{len(sizes):>9,} classes ({each})")
        for name, values in self.columns.items():
            if name != "features":
                lines.append(f"  {name}: {len(np.unique(values)):,} values")
        lines += [f"  pairs {name!r}: {len(p):,}, {int(p.same.sum()):,} the same" for name, p in self.pairs.items()]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def split_column(splits: Sequence[str] | Array) -> npt.NDArray[np.int8]:
    """Convert split names to `Table.split_ids`."""
    unique, inverse = np.unique(np.asarray(splits), return_inverse=True)
    names = unique.tolist()
    for name in names:
        if name not in SPLITS:
            raise InputError(f"there is no split {name!r}: the splits are {', '.join(SPLITS)}")
    ids = np.array([SPLITS.index(name) for name in names], np.int8)
    return ids[inverse] if len(ids) else np.zeros(0, np.int8)


def number_classes(
    values: Sequence[Any] | Array, split_ids: npt.NDArray[np.int8], unlabelled: Sequence[Any] = ()
) -> tuple[Rows, tuple[str, ...]]:
    """Class ids and class names for the label values of a data set: training classes first, then the others, each
    sorted (numbers by value). Values in `unlabelled` become -1.
    """
    unique, inverse = np.unique(np.asarray(values), return_inverse=True)
    names = [str(value) for value in unique]
    train = np.zeros(len(unique), bool)
    train[inverse[split_ids == SPLITS.index("train")]] = True
    numeric = all(name.isascii() and name.isdigit() for name in names)
    order = [i for i, value in enumerate(unique) if value not in unlabelled]
    order.sort(key=lambda i: (not train[i], int(names[i]) if numeric else 0, names[i]))
    number = np.full(len(unique), UNLABELLED, np.int64)
    number[order] = np.arange(len(order))
    labels = number[inverse] if len(unique) else np.zeros(0, np.int64)
    return labels, tuple(names[i] for i in order)
