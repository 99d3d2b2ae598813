"""Person re-identification: Market-1501 and MSMT17."""

import re
from pathlib import Path

import numpy as np

from nearfar.data.columns import Files
from nearfar.data.parsing import LayoutError, fields, first_existing, inside, whole_number
from nearfar.data.tables import Table, number_classes, split_column
from nearfar.imaging import images_below

MARKET = {"train": "bounding_box_train", "query": "query", "gallery": "bounding_box_test"}
MARKET_NAME = re.compile(r"(-?\d+)_c(\d+)")
MSMT17_FOLDERS = {"train": ("train", "mask_train_v2"), "test": ("test", "mask_test_v2")}
MSMT17_LISTS = (("train", "train"), ("val", "train"), ("query", "test"), ("gallery", "test"))


def recognise_market(root: Path) -> bool:
    """Whether the three folders exist."""
    return all(root.joinpath(folder).is_dir() for folder in MARKET.values())


def read_market(root: Path) -> Table:
    """Names such as 0002_c1s1_000451_03.jpg contain the person and the camera. Junk boxes (person -1) are left out, as
    in the protocol; distractors (person 0000) are a class of the gallery without queries.
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
    notes = (f"{junk:,} junk boxes (person -1) are left out, as in the protocol",) if junk else ()
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
    """Whether the lists and the training folder of either version exist."""
    lists = all(root.joinpath(f"list_{name}.txt").exists() for name in ("train", "query", "gallery"))
    return lists and first_existing(root, MSMT17_FOLDERS["train"]) is not None


def read_msmt17(root: Path) -> Table:
    """list_{train,val,query,gallery}.txt have lines `path person`. The val list has the persons of train, so it counts
    as train, as in most papers. Query and gallery have other persons, numbered from 0 again.
    """
    folders = {}
    for part, candidates in MSMT17_FOLDERS.items():
        folder = first_existing(root, candidates)
        if folder is None:
            raise LayoutError(f"{root} has no folder {' or '.join(candidates)}")
        folders[part] = folder
    names, persons, cameras, splits = [], [], [], []
    val = 0
    for split, part in MSMT17_LISTS:
        path = root / f"list_{split}.txt"
        if split == "val" and not path.exists():
            continue
        for name, person in (row[:2] for row in fields(path, 2)):
            tokens = name.rpartition("/")[2].split("_")
            if len(tokens) < 3 or not tokens[2].isdigit():
                raise LayoutError(f"{path} names {name!r}, whose third field is not a camera")
            names.append(inside(root, name, folders[part]))
            persons.append(f"{part} {whole_number(person, path):04d}")
            cameras.append(int(tokens[2]))
            splits.append("train" if part == "train" else split)
            val += split == "val"
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
