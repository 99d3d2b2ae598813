"""Product data sets: Stanford Online Products and DeepFashion In-Shop."""

from pathlib import Path

import numpy as np

from nearfar.data.columns import Files
from nearfar.data.default_splits import split_name
from nearfar.data.parsing import LayoutError, fields, first_existing, inside, whole_number
from nearfar.data.tables import Table, number_classes, split_column

PARTITION = ("Eval/list_eval_partition.txt", "list_eval_partition.txt", "Anno/list_eval_partition.txt")


def recognise_sop(root: Path) -> bool:
    """Whether both lists exist."""
    return root.joinpath("Ebay_train.txt").exists() and root.joinpath("Ebay_test.txt").exists()


def read_sop(root: Path) -> Table:
    """Ebay_train.txt and Ebay_test.txt have lines `image_id class_id super_class_id path`."""
    names, values, supers, splits = [], [], [], []
    for split in ("train", "test"):
        path = root / f"Ebay_{split}.txt"
        for _, label, kind, name, *_ in fields(path, 4):
            if label == "class_id":
                continue
            names.append(inside(root, name))
            values.append(whole_number(label, path))
            supers.append(whole_number(kind, path))
            splits.append(split)
    split_ids = split_column(splits)
    labels, label_names = number_classes(values, split_ids)
    kinds, super_class = np.unique(supers, return_inverse=True)
    folder = {kind: name.partition("/")[0].removesuffix("_final") for kind, name in zip(supers, names, strict=True)}
    return Table(
        "Stanford Online Products",
        labels,
        label_names,
        split_ids,
        Files(root, names),
        columns={"super_class": super_class},
        names={"super_class": tuple(folder[kind] for kind in kinds)},
    )


def recognise_in_shop(root: Path) -> bool:
    """Whether the list of the evaluation exists."""
    return first_existing(root, PARTITION) is not None


def read_in_shop(root: Path) -> Table:
    """list_eval_partition.txt has a count, a header, and lines `image_name item_id evaluation_status`."""
    partition = first_existing(root, PARTITION)
    assert partition is not None
    folder = first_existing(root, ("Img/img", "img", "Img/img_highres", "img_highres"))
    if folder is None:
        raise LayoutError(f"{root} has no folder Img/img, img, Img/img_highres or img_highres")
    rows = [row for row in fields(root / partition, 1) if len(row) >= 3 and row[0] != "image_name"]
    names = [inside(root, name.removeprefix("img/"), folder) for name, *_ in rows]
    splits = [split_name(row[2]) for row in rows]
    if None in splits:
        status = rows[splits.index(None)][2]
        raise LayoutError(f"{root / partition} has the status {status!r}: it must be train, query or gallery")
    split_ids = split_column([split for split in splits if split is not None])
    labels, label_names = number_classes([row[1] for row in rows], split_ids)
    return Table("In-Shop", labels, label_names, split_ids, Files(root, names))
