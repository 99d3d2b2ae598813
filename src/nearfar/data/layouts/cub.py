"""CUB-200-2011: images.txt, image_class_labels.txt, classes.txt, images/."""

from pathlib import Path

import numpy as np

from nearfar.data.columns import Files
from nearfar.data.parsing import LayoutError, fields, inside, whole_number
from nearfar.data.tables import SPLITS, Table, number_classes

TRAIN_CLASSES = 100


def recognise(root: Path) -> bool:
    """Whether the lists and the folder of images exist."""
    return all(root.joinpath(name).exists() for name in ("images.txt", "image_class_labels.txt", "images"))


def read(root: Path) -> Table:
    """Classes 1 to 100 are train, the others test. train_test_split.txt is for classification and ignored."""
    images = {number: inside(root, name, "images") for number, name, *_ in fields(root / "images.txt", 2)}
    listed = root / "image_class_labels.txt"
    label_of = {line[0]: whole_number(line[1], listed) for line in fields(listed, 2)}
    if missing := images.keys() - label_of.keys():
        raise LayoutError(f"{len(missing)} images of {root} have no label in image_class_labels.txt")
    values = np.array([label_of[number] for number in images])
    split_ids = np.where(values <= TRAIN_CLASSES, SPLITS.index("train"), SPLITS.index("test")).astype(np.int8)
    labels, numbers = number_classes(values, split_ids)
    names = {}
    if root.joinpath("classes.txt").exists():
        names = {line[0]: line[1] for line in fields(root / "classes.txt", 2)}
    return Table(
        "CUB-200-2011",
        labels,
        tuple(names.get(number, number) for number in numbers),
        split_ids,
        Files(root, images.values()),
    )
