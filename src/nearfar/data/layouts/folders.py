"""Folders of images: a folder per class, perhaps inside a folder per split."""

import dataclasses
from pathlib import Path

import numpy as np

from nearfar.data.columns import Files
from nearfar.data.lists import LayoutError
from nearfar.data.splits import halves_note, shared_classes, split_name, zero_shot
from nearfar.data.tables import Table, number_classes, split_column
from nearfar.imaging import images_below


def recognise(root: Path) -> bool:
    """Any folder."""
    return root.is_dir()


def read(root: Path) -> Table:
    """The folder an image is in is its class. Folders named train, val, test, query or gallery at the top are splits;
    without them the classes are halved. Where classes lie in folders of folders, the outer one is their super-class.
    Images that are in no folder have no label.
    """
    names = images_below(root)
    if not names:
        raise LayoutError(f"{root} has no images in it (endings such as .jpg, .png, .webp)")
    folders = [name.rpartition("/")[0] for name in names]
    tops = {folder.partition("/")[0] for folder in folders}
    given = all(split_name(top) for top in tops)  # "" is no split: nor is a folder with loose images
    splits: list[str] = []
    if given:
        splits = [split_name(folder.partition("/")[0]) or "" for folder in folders]
        folders = [folder.partition("/")[2] for folder in folders]
    known = set(folders) - {""}
    split_ids = split_column(splits) if given else zero_shot(folders, known=("",))
    labels, label_names = number_classes(folders, split_ids, unlabelled=("",))
    columns, value_names = {}, {}
    if known and all(folder.count("/") == 1 for folder in known) and "" not in folders:
        above, super_class = np.unique([folder.partition("/")[0] for folder in folders], return_inverse=True)
        if 1 < len(above) < len(known):
            columns["super_class"], value_names["super_class"] = super_class, tuple(above.tolist())
    table = Table(root.name, labels, label_names, split_ids, Files(root, names), columns=columns, names=value_names)
    notes = shared_classes(table) if given else [halves_note(len(known))] if known else ["no folders: no labels"]
    if known and "" in folders:
        notes.append(f"{folders.count(''):,} images are in no class folder and have no label")
    return dataclasses.replace(table, notes=tuple(notes))
