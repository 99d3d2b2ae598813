"""Cars196, as car_ims/ with cars_annos.mat, or as cars_train/, cars_test/ and devkit/."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.columns import Files
from nearfar.data.parsing import LayoutError, first_existing, inside
from nearfar.data.tables import SPLITS, Table, number_classes
from nearfar.errors import MissingPackageError

TRAIN_CLASSES = 98
OLD = "cars_annos.mat"
TRAIN = ("devkit/cars_train_annos.mat", "cars_train_annos.mat")
TEST = (
    "cars_test_annos_withlabels.mat",
    "devkit/cars_test_annos_withlabels.mat",
    "devkit/cars_test_annos_withlabels (1).mat",  # the name of a repeated download
)
META = ("devkit/cars_meta.mat", "cars_meta.mat")


def recognise(root: Path) -> bool:
    """Whether the annotations of either packaging exist."""
    return root.joinpath(OLD).exists() or first_existing(root, TRAIN) is not None


def read(root: Path) -> Table:
    """All images of both original splits: classes 1 to 98 are train, the others test."""
    if root.joinpath(OLD).exists():
        rows = _annotations(root / OLD, "relative_im_path")
        names = [inside(root, name) for name, _ in rows]
        values = [value for _, value in rows]
        class_names = _load(root / OLD).get("class_names")
    else:
        names, values = [], []
        for annotations, folder in ((TRAIN, "cars_train"), (TEST, "cars_test")):
            file = first_existing(root, annotations)
            if file is None:
                raise LayoutError(
                    f"{root} has no {annotations[0]}: the standard protocol uses the images and labels of both "
                    "original splits"
                )
            for name, value in _annotations(root / file, "fname"):
                names.append(inside(root, name, _images(root, folder)))
                values.append(value)
        meta = first_existing(root, META)
        class_names = None if meta is None else _load(root / meta).get("class_names")
    split_ids = np.where(np.array(values) <= TRAIN_CLASSES, SPLITS.index("train"), SPLITS.index("test")).astype(np.int8)
    labels, numbers = number_classes(values, split_ids)
    titles = [] if class_names is None else [_text(title) for title in class_names.ravel()]
    known = tuple(titles[int(number) - 1] if int(number) <= len(titles) else number for number in numbers)
    return Table("Cars196", labels, known, split_ids, Files(root, names))


def _images(root: Path, folder: str) -> str:
    """The folder of images; some archives contain cars_train/cars_train/."""
    return f"{folder}/{folder}" if root.joinpath(folder, folder).is_dir() else folder


def _load(path: Path) -> Mapping[str, Any]:
    try:
        from scipy.io import loadmat
    except ImportError as missing:
        raise MissingPackageError("Cars196 keeps its labels in .mat files: pip install 'nearfar[data]'") from missing
    try:
        content: Mapping[str, Any] = loadmat(str(path))
    except Exception as error:  # damaged files raise many types
        raise LayoutError(f"{path} is not a valid .mat file: {error}") from error
    return content


def _annotations(path: Path, name: str) -> list[tuple[str, int]]:
    """The name and class of every image."""
    content = _load(path)
    try:
        return [(_text(row[name]), int(row["class"].squeeze())) for row in content["annotations"].ravel()]
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise LayoutError(f"{path} does not list images and their classes: {error}") from error


def _text(value: Any) -> str:
    """A string of MATLAB, which is read as nested arrays."""
    return str(np.asarray(value).squeeze().item() if np.asarray(value).dtype != object else _text(value.item()))
