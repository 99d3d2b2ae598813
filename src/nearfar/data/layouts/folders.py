"""Folders of images: one folder per class, optionally inside one folder per split."""

import dataclasses
from pathlib import Path

import numpy as np

from nearfar.data.columns import Files
from nearfar.data.default_splits import halves_note, shared_classes, split_name, zero_shot
from nearfar.data.parsing import LayoutError
from nearfar.data.tables import Table, number_classes, split_column
from nearfar.imaging import images_below


def recognise(root: Path) -> bool:
    """Whether it is a folder."""
    return root.is_dir()


def read(root: Path) -> Table:
    """The folder of an image is its class. Top folders named train, val, test, query or gallery are splits; without
    them, half of the classes are train and half test. With two levels of folders, the outer one is the super-class.
    Images outside of any folder have no label.
    """
    names = images_below(root)
    if not names:
        raise LayoutError(f"{root} contains no images (files such as .jpg, .png, .webp)")
    folders = [name.rpartition("/")[0] for name in names]
    tops = {folder.partition("/")[0] for folder in folders}
    has_splits = all(split_name(top) for top in tops)  # images outside of folders have the top ""
    splits: list[str] = []
    if has_splits:
        splits = [split_name(folder.partition("/")[0]) or "" for folder in folders]
        folders = [folder.partition("/")[2] for folder in folders]
    classes = set(folders) - {""}
    split_ids = split_column(splits) if has_splits else zero_shot(folders, known=("",))
    labels, label_names = number_classes(folders, split_ids, unlabelled=("",))
    columns, value_names = {}, {}
    if classes and all(folder.count("/") == 1 for folder in classes) and "" not in folders:
        supers, super_class = np.unique([folder.partition("/")[0] for folder in folders], return_inverse=True)
        if 1 < len(supers) < len(classes):
            columns["super_class"], value_names["super_class"] = super_class, tuple(supers.tolist())
    table = Table(root.name, labels, label_names, split_ids, Files(root, names), columns=columns, names=value_names)
    notes = shared_classes(table) if has_splits else [halves_note(len(classes))] if classes else ["no class folders"]
    if classes and "" in folders:
        notes.append(f"{folders.count(''):,} images are outside of the class folders and have no label")
    return dataclasses.replace(table, notes=tuple(notes))
