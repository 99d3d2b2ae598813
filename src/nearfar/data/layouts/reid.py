"""Person re-identification: Market-1501 and MSMT17."""

import re
from pathlib import Path

import numpy as np

from nearfar.data.columns import Files
from nearfar.data.lists import LayoutError, fields, first_existing, inside, whole_number
from nearfar.data.tables import Table, number_classes, split_column
from nearfar.imaging import images_below

MARKET = {"train": "bounding_box_train", "query": "query", "gallery": "bounding_box_test"}
MARKET_NAME = re.compile(r"(-?\d+)_c(\d+)")
MSMT17_FOLDERS = {"train": ("train", "mask_train_v2"), "test": ("test", "mask_test_v2")}
MSMT17_LISTS = (("train", "train"), ("val", "train"), ("query", "test"), ("gallery", "test"))


def recognise_market(root: Path) -> bool:
    """The three folders."""
    return all(root.joinpath(folder).is_dir() for folder in MARKET.values())


def read_market(root: Path) -> Table:
    """Names such as 0002_c1s1_000451_03.jpg: person, camera. Junk boxes (person -1) play no part in the protocol and
    are left out; distractors (person 0000) stay in the gallery, as a class that no query has.
    """
    names, persons, cameras, splits = [], [], [], []
    junk = 0
    for split, folder in MARKET.items():
        for name in images_below(root / folder):
            match = MARKET_NAME.match(name)
            if match is None:
                raise LayoutError(f"{root / folder / name} is not named like 0002_c1s1_000451_03.jpg")
            if match[1] == "-1":
                junk += 1
                continue
            names.append(f"{folder}/{name}")
            persons.append(match[1])
            cameras.append(int(match[2]))
            splits.append(split)
    split_ids = split_column(splits)
    labels, label_names = number_classes(persons, split_ids)
    notes = (f"{junk:,} junk boxes (person -1) are left out, as the protocol has it",) if junk else ()
    return Table(
        "Market-1501",
        labels,
        label_names,
        split_ids,
        Files(root, names),
        columns={"camera": np.array(cameras, np.int64)},
        notes=notes,
    )


def recognise_msmt17(root: Path) -> bool:
    """The lists, and the training folder of either version."""
    lists = all(root.joinpath(f"list_{name}.txt").exists() for name in ("train", "query", "gallery"))
    return lists and first_existing(root, MSMT17_FOLDERS["train"]) is not None


def read_msmt17(root: Path) -> Table:
    """list_{train,val,query,gallery}.txt: path person. The val list has the persons of train, so it is no zero-shot
    validation: it counts as train, as in most papers. Persons of query and gallery, numbered from 0 again, are others.
    """
    folders = {}
    for part, known in MSMT17_FOLDERS.items():
        found = first_existing(root, known)
        if found is None:
            raise LayoutError(f"{root} has no folder {' or '.join(known)}")
        folders[part] = found
    names, persons, cameras, splits = [], [], [], []
    val = 0
    for which, part in MSMT17_LISTS:
        path = root / f"list_{which}.txt"
        if which == "val" and not path.exists():
            continue
        for name, person in (row[:2] for row in fields(path, 2)):
            pieces = name.rpartition("/")[2].split("_")
            if len(pieces) < 3 or not pieces[2].isdigit():
                raise LayoutError(f"{path} names {name!r}, whose third field is no camera")
            names.append(inside(root, name, folders[part]))
            persons.append(f"{part} {whole_number(person, path):04d}")
            cameras.append(int(pieces[2]))
            splits.append("train" if part == "train" else which)
            val += which == "val"
    split_ids = split_column(splits)
    labels, label_names = number_classes(persons, split_ids)
    version = "V2" if folders["train"].startswith("mask") else "V1"
    return Table(
        "MSMT17",
        labels,
        label_names,
        split_ids,
        Files(root, names),
        columns={"camera": np.array(cameras, np.int64)},
        notes=(f"{version}; train includes the {val:,} images of list_val.txt",),
    )
