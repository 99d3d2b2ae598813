"""numpy arrays of feature vectors or decoded images, with labels."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.data.columns import Pixels
from nearfar.data.default_splits import halves_note, shared_classes, split_name, zero_shot
from nearfar.data.parsing import LayoutError
from nearfar.data.tables import SPLITS, UNLABELLED, Table, number_classes, split_column

Array = npt.NDArray[Any]
DATA = ("features", "embeddings", "images", "x", "X", "data", "arr_0")
LABELS = ("labels", "label", "y", "targets", "arr_1")


def recognise(path: Path) -> bool:
    """Whether it is a numpy file, or a folder with an array of a known name."""
    if path.is_dir():
        return any(path.joinpath(f"{name}.npy").exists() for name in DATA[:3])
    return path.suffix in (".npz", ".npy")


def read(path: Path) -> Table:
    """Reads an .npz with arrays `features` (N, D) or `images` (N, H, W[, 3]) of uint8, and `labels`; a folder with
    features.npy and labels.npy; or a file x.npy with x_labels.npy or labels.npy in the same folder. `splits` (names),
    `camera` and `super_class` are optional. .npy files are memory-mapped. Pickled objects are refused.
    """
    arrays = _load(path)
    data_name = next((name for name in DATA if name in arrays), None)
    if data_name is None:
        raise LayoutError(f"{path} has the arrays {', '.join(arrays)}, but none of {', '.join(DATA[:4])}")
    data = arrays[data_name]
    label_name = next((name for name in LABELS if name in arrays), None)
    n = len(np.atleast_1d(data))
    columns = {name: arrays[name] for name in ("camera", "super_class", "template", "media") if name in arrays}
    for name, array in {**columns, **({label_name: arrays[label_name]} if label_name else {})}.items():
        if array.shape != (n,):
            raise LayoutError(f"{name} of {path} has the shape {array.shape}, but there are {n} rows")
    images = None
    if data.ndim in (3, 4) and data.dtype == np.uint8:
        images = Pixels(data)
    elif data.ndim == 2 and data.dtype.kind == "f":
        columns["features"] = data
    else:
        raise LayoutError(
            f"{data_name} of {path} is {data.dtype} {data.shape}: features must be floats (N, D), images uint8 "
            "(N, H, W) or (N, H, W, 3)"
        )
    splits = next((arrays[name] for name in ("splits", "split") if name in arrays), None)
    if label_name is None:
        split_ids = np.full(n, SPLITS.index("test"), np.int8) if splits is None else _splits(splits, path)
        unlabelled = np.full(n, UNLABELLED, np.int64)
        return Table(path.stem, unlabelled, (), split_ids, images, columns, notes=("no labels",))
    values = arrays[label_name]
    if values.dtype.kind == "f":
        raise LayoutError(f"{label_name} of {path} are {values.dtype}: save class ids as integers, or names as text")
    split_ids = zero_shot(values, known=(UNLABELLED,)) if splits is None else _splits(splits, path)
    labels, names = number_classes(values, split_ids, unlabelled=(UNLABELLED,))
    table = Table(path.stem, labels, names, split_ids, images, columns)
    notes = [halves_note(len(names))] if splits is None else shared_classes(table)
    return dataclasses.replace(table, notes=tuple(notes))


def _splits(values: Array, path: Path) -> npt.NDArray[np.int8]:
    names = [split_name(str(value)) for value in values.tolist()]
    if None in names:
        unknown = str(values[names.index(None)])
        raise LayoutError(f"{path} has the split {unknown!r}: it must be train, val, test, query or gallery")
    return split_column([name for name in names if name is not None])


def _load(path: Path) -> Mapping[str, Array]:
    if path.is_dir():
        return {file.stem: _array(file) for file in sorted(path.glob("*.npy"))}
    if path.suffix == ".npz":
        with _array_errors(path), path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    arrays = {"features": _array(path)}
    candidates = [path.with_name(f"{path.stem}_labels.npy"), path.with_name("labels.npy")]
    labels = next((file for file in candidates if file.exists() and file != path), None)
    return arrays if labels is None else {**arrays, "labels": _array(labels)}


def _array(path: Path) -> Array:
    with _array_errors(path):
        array: Array = np.lib.format.open_memmap(path, mode="r")
        return array


@contextlib.contextmanager
def _array_errors(path: Path) -> Iterator[None]:
    """Turn whatever numpy raises on damaged or pickled arrays into `LayoutError`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.filename is not None):
            raise
        raise LayoutError(
            f"{path} is damaged, or holds pickled objects, which are refused: save plain arrays"
        ) from error
