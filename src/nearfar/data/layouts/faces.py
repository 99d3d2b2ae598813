"""Face verification: images of persons, and lists of pairs of the same person or of two persons."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.columns import Files
from nearfar.data.parsing import LayoutError, fields, first_existing, inside, lines, whole_number
from nearfar.data.tables import SPLITS, UNLABELLED, Pairs, Table, number_classes
from nearfar.imaging import images_below

AGEDB_NAME = re.compile(r"(\d+)_(.+)_(\d+)_([fm])\.\w+$", re.IGNORECASE)
PAIR_FOLDS = 10


def _test_table(
    name: str, root: Path, files: Sequence[str], people: Sequence[str], pairs: dict[str, Pairs], **more: Any
) -> Table:
    """A table whose rows are all test."""
    split_ids = np.full(len(files), SPLITS.index("test"), np.int8)
    labels, label_names = number_classes(people, split_ids, unlabelled=("",))
    return Table(name, labels, label_names, split_ids, Files(root, files), pairs=pairs, **more)


def _make_pairs(
    named_pairs: Iterable[tuple[str, str, bool, int]], row_of: dict[str, int], file: str
) -> tuple[Pairs, list[str]]:
    """Convert pairs of names to pairs of rows, with a note on pairs of missing images."""
    rows, missing = [], 0
    for first, second, same, fold in named_pairs:
        if first in row_of and second in row_of:
            rows.append((row_of[first], row_of[second], same, fold))
        else:
            missing += 1
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    notes = [f"{missing:,} pairs of {file} name images that do not exist and are left out"] if missing else []
    return Pairs(columns[0], columns[1], columns[2].astype(bool), columns[3]), notes


def _is_lfw_list(path: Path) -> bool:
    """Whether the first line is the number of pairs of each kind in a fold, perhaps after the number of folds."""
    first = next(lines(path), "").split()
    return 1 <= len(first) <= 2 and all(number.isdigit() for number in first)


def recognise_lfw(root: Path) -> bool:
    """Whether pairs.txt begins like that of LFW."""
    return root.joinpath("pairs.txt").is_file() and _is_lfw_list(root / "pairs.txt")


def read_lfw(root: Path) -> Table:
    """pairs.txt begins with `10 300`; for each fold, 300 lines `name n1 n2` and 300 lines `name1 n1 name2 n2` follow.
    Images are Name/Name_0001.jpg in this folder or in a subfolder.
    """
    path = root / "pairs.txt"
    rows = list(fields(path, 1))
    header = [whole_number(part, path) for part in rows[0]]
    folds, each = (1, header[0]) if len(header) == 1 else header
    if len(rows) != 1 + folds * each * 2 or len(rows) == 1:
        raise LayoutError(f"{root / 'pairs.txt'} has {len(rows) - 1} pairs, but its first line says {folds * each * 2}")
    named_pairs = []
    for i, row in enumerate(rows[1:]):
        same = i % (2 * each) < each
        if len(row) != (3 if same else 4):
            persons = "the same person" if same else "two persons"
            raise LayoutError(f"pair {i + 1} of {root / 'pairs.txt'} is not a pair of {persons}")
        other = row[0] if same else row[2]
        numbers = whole_number(row[1], path), whole_number(row[-1], path)
        first, second = f"{row[0]}/{row[0]}_{numbers[0]:04d}", f"{other}/{other}_{numbers[1]:04d}"
        named_pairs.append((first, second, same, i // (2 * each)))
    folder = _folder_of_persons(root, rows[1][0])
    names = images_below(root / folder)
    row_of = {name.rpartition(".")[0]: row for row, name in enumerate(names)}
    pairs, notes = _make_pairs(named_pairs, row_of, "pairs.txt")
    files = [inside(root, name, folder) for name in names]
    people = [name.partition("/")[0] for name in names]
    return _test_table("LFW", root, files, people, {"LFW": pairs}, notes=tuple(notes))


def _folder_of_persons(root: Path, person: str) -> str:
    """`root` or its subfolder that contains the folder of a person."""
    for folder in ("", *sorted(entry.name for entry in root.iterdir() if entry.is_dir())):
        if root.joinpath(folder, person).is_dir():
            return folder
    raise LayoutError(f"neither {root} nor a folder in it has images of {person}")


def recognise_ytf(root: Path) -> bool:
    """Whether splits.txt and a folder of frames exist."""
    return root.joinpath("splits.txt").exists() and _ytf_folder(root) is not None


def _ytf_folder(root: Path) -> str | None:
    return first_existing(root, ("aligned_images_DB", "frame_images_DB"))


def read_ytf(root: Path) -> Table:
    """splits.txt has lines `fold, first video, second video, same, ...` with videos such as Name/0. Images are frames,
    in aligned_images_DB/Name/0/. Each video is a template, and pairs are pairs of videos.
    """
    folder = _ytf_folder(root)
    assert folder is not None
    names = images_below(root / folder)
    videos = ["/".join(name.split("/")[:2]) for name in names]
    unique, template = np.unique(videos, return_inverse=True) if videos else (np.array([]), np.zeros(0, np.int64))
    number = {video: i for i, video in enumerate(unique.tolist())}
    named_pairs = (
        (row[1], row[2], row[3] == "1", int(row[0]) - 1)
        for row in fields(root / "splits.txt", 4, ",")
        if row[0].isdigit()
    )
    pairs, notes = _make_pairs(named_pairs, number, "splits.txt")
    pairs = Pairs(pairs.first, pairs.second, pairs.same, pairs.fold, of="template")
    return _test_table(
        "YTF",
        root,
        [inside(root, name, folder) for name in names],
        [name.partition("/")[0] for name in names],
        {"YTF": pairs},
        columns={"template": template, "media": template},
        notes=tuple(notes),
    )


def recognise_cfp(root: Path) -> bool:
    """Whether the list of frontal images exists."""
    return root.joinpath("Protocol", "Pair_list_F.txt").exists()


def read_cfp(root: Path) -> Table:
    """Protocol/Pair_list_{F,P}.txt have the numbers and paths of frontal and profile images;
    Protocol/Split/{FF,FP}/01…10/{same,diff}.txt have pairs of these numbers, such as `12,34`.
    """
    rows: dict[str, dict[str, int]] = {"F": {}, "P": {}}
    names: list[str] = []
    for view, numbers in rows.items():
        for number, name, *_ in fields(root / "Protocol" / f"Pair_list_{view}.txt", 2):
            numbers[number] = len(names)
            names.append(inside(root, name, "Protocol"))
            if names[-1].count("/") < 2:
                raise LayoutError(
                    f"Pair_list_{view}.txt of {root} names {name!r}, which is not in the folder of a person"
                )
    pairs = {}
    for protocol in ("FF", "FP"):
        folds = sorted(folder for folder in root.joinpath("Protocol", "Split", protocol).glob("*") if folder.is_dir())
        numbered = [
            (_numbered(rows, protocol[0], first), _numbered(rows, protocol[1], second), same, fold)
            for fold, folder in enumerate(folds)
            for same, file in ((True, "same.txt"), (False, "diff.txt"))
            for first, second, *_ in fields(folder / file, 2, ",")
        ]
        table = np.array(numbered, np.int64).reshape(-1, 4).T
        pairs[protocol] = Pairs(table[0], table[1], table[2].astype(bool), table[3])
    people = [name.split("/")[-3] for name in names]
    pose = np.array([0] * len(rows["F"]) + [1] * len(rows["P"]))
    return _test_table(
        "CFP", root, names, people, pairs, columns={"pose": pose}, names={"pose": ("frontal", "profile")}
    )


def _numbered(rows: dict[str, dict[str, int]], view: str, number: str) -> int:
    """The row of a numbered image."""
    if number not in rows[view]:
        raise LayoutError(f"a pair contains image {number[:80]!r}, which Pair_list_{view}.txt does not list")
    return rows[view][number]


def _folder_of_agedb(root: Path) -> str | None:
    for folder in ("", "AgeDB", "images"):
        if root.joinpath(folder).is_dir():
            sample = [entry.name for entry, _ in zip(root.joinpath(folder).glob("*.jpg"), range(20), strict=False)]
            if sample and all(AGEDB_NAME.match(name) for name in sample):
                return folder
    return None


def recognise_agedb(root: Path) -> bool:
    """Whether images are named number_person_age_gender."""
    return root.is_dir() and _folder_of_agedb(root) is not None


def read_agedb(root: Path) -> Table:
    """Names such as 12_MariaCallas_35_f.jpg contain number, person, age and gender. Lists of pairs are read as by
    `read_pair_list`.
    """
    folder = _folder_of_agedb(root)
    assert folder is not None
    names = images_below(root / folder)
    matches = [AGEDB_NAME.match(name) for name in names]
    people = [match[2] if match else "" for match in matches]
    age = np.array([int(match[3]) if match else UNLABELLED for match in matches])
    files = [inside(root, name, folder) for name in names]
    pairs, notes = _read_pair_lists(root, files)
    return _test_table("AgeDB", root, files, people, pairs, columns={"age": age}, notes=tuple(notes))


def _pair_lists(root: Path) -> list[Path]:
    def is_list(path: Path) -> bool:
        first = next(lines(path), "").split()
        return len(first) == 3 and first[2] in ("0", "1", "-1")

    return [path for path in sorted(root.glob("*pair*.txt")) if is_list(path)]


def recognise_pair_list(root: Path) -> bool:
    """Whether there is a list of pairs of paths."""
    return root.is_dir() and bool(_pair_lists(root))


def read_pair_list(root: Path) -> Table:
    """Lists named *pair*.txt have lines `path path 1` (1 for the same person; 0 or -1 otherwise), with paths relative
    to this folder or to a subfolder. The pairs form ten consecutive folds of equal size, as in LFW, CFP-FP and
    AgeDB-30. Persons are not known.
    """
    names = images_below(root)
    pairs, notes = _read_pair_lists(root, names)
    return _test_table(root.name, root, names, [""] * len(names), pairs, notes=tuple(notes))


def _read_pair_lists(root: Path, names: Sequence[str]) -> tuple[dict[str, Pairs], list[str]]:
    row_of = {name: row for row, name in enumerate(names)}
    for row, name in enumerate(names):  # lists may omit the top folder
        row_of.setdefault(name.partition("/")[2], row)
    pairs, notes = {}, []
    for path in _pair_lists(root):
        rows = list(fields(path, 3))
        named_pairs = (
            (inside(root, first), inside(root, second), same == "1", i * PAIR_FOLDS // len(rows))
            for i, (first, second, same, *_) in enumerate(rows)
        )
        pairs[path.stem], note = _make_pairs(named_pairs, row_of, path.name)
        notes += note
    return pairs, notes
