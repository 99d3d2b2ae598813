"""Face verification: images by person, and lists of pairs that are the same person or not."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.columns import Files
from nearfar.data.lists import LayoutError, fields, first_existing, inside, lines, whole_number
from nearfar.data.tables import SPLITS, UNLABELLED, Pairs, Table, number_classes
from nearfar.imaging import images_below

AGEDB_NAME = re.compile(r"(\d+)_(.+)_(\d+)_([fm])\.\w+$", re.IGNORECASE)
PAIR_FOLDS = 10


def _test(
    name: str, root: Path, files: Sequence[str], people: Sequence[str], pairs: dict[str, Pairs], **more: Any
) -> Table:
    """All rows are for testing."""
    split_ids = np.full(len(files), SPLITS.index("test"), np.int8)
    labels, label_names = number_classes(people, split_ids, unlabelled=("",))
    return Table(name, labels, label_names, split_ids, Files(root, files), pairs=pairs, **more)


def _make_pairs(
    found: Iterable[tuple[str, str, bool, int]], row_of: dict[str, int], what: str
) -> tuple[Pairs, list[str]]:
    """Pairs of names as pairs of rows; a note on those whose image is not there."""
    kept, lost = [], 0
    for first, second, same, fold in found:
        if first in row_of and second in row_of:
            kept.append((row_of[first], row_of[second], same, fold))
        else:
            lost += 1
    columns = np.array(kept, np.int64).reshape(-1, 4).T
    notes = [f"{lost:,} pairs of {what} name images that are not here and are left out"] if lost else []
    return Pairs(columns[0], columns[1], columns[2].astype(bool), columns[3]), notes


def _is_lfw_list(path: Path) -> bool:
    """Its first line is the number of folds, if there are any, and the pairs of each kind in a fold."""
    first = next(lines(path), "").split()
    return 1 <= len(first) <= 2 and all(part.isdigit() for part in first)


def recognise_lfw(root: Path) -> bool:
    """A pairs.txt that begins like that of LFW."""
    return root.joinpath("pairs.txt").is_file() and _is_lfw_list(root / "pairs.txt")


def read_lfw(root: Path) -> Table:
    """pairs.txt: `10 300`; then per fold 300 lines `name n1 n2` and 300 lines `name1 n1 name2 n2`. Images are
    Name/Name_0001.jpg, here or in a folder below.
    """
    path = root / "pairs.txt"
    rows = list(fields(path, 1))
    header = [whole_number(part, path) for part in rows[0]]
    folds, each = (1, header[0]) if len(header) == 1 else header
    if len(rows) != 1 + folds * each * 2 or len(rows) == 1:
        raise LayoutError(f"{root / 'pairs.txt'} has {len(rows) - 1} pairs, but its first line says {folds * each * 2}")
    found = []
    for i, row in enumerate(rows[1:]):
        same = i % (2 * each) < each
        if len(row) != (3 if same else 4):
            raise LayoutError(f"pair {i + 1} of {root / 'pairs.txt'} is not one of {'one' if same else 'two'} persons")
        other = row[0] if same else row[2]
        numbers = whole_number(row[1], path), whole_number(row[-1], path)
        first, second = f"{row[0]}/{row[0]}_{numbers[0]:04d}", f"{other}/{other}_{numbers[1]:04d}"
        found.append((first, second, same, i // (2 * each)))
    folder = _holding(root, rows[1][0])
    names = images_below(root / folder)
    row_of = {name.rpartition(".")[0]: row for row, name in enumerate(names)}
    pairs, notes = _make_pairs(found, row_of, "pairs.txt")
    whole = [inside(root, name, folder) for name in names]
    return _test("LFW", root, whole, [name.partition("/")[0] for name in names], {"LFW": pairs}, notes=tuple(notes))


def _holding(root: Path, person: str) -> str:
    """The folder, `root` or one in it, that has the folder of a person."""
    for folder in ("", *sorted(entry.name for entry in root.iterdir() if entry.is_dir())):
        if root.joinpath(folder, person).is_dir():
            return folder
    raise LayoutError(f"neither {root} nor a folder in it has images of {person}")


def recognise_ytf(root: Path) -> bool:
    """splits.txt beside a folder of frames."""
    return root.joinpath("splits.txt").exists() and _ytf_folder(root) is not None


def _ytf_folder(root: Path) -> str | None:
    return first_existing(root, ("aligned_images_DB", "frame_images_DB"))


def read_ytf(root: Path) -> Table:
    """splits.txt: fold, first video, second video, same or not, ... with videos as Name/0. Images are frames, in
    aligned_images_DB/Name/0/; a video is a template, and pairs are of videos.
    """
    folder = _ytf_folder(root)
    assert folder is not None
    names = images_below(root / folder)
    videos = ["/".join(name.split("/")[:2]) for name in names]
    known, template = np.unique(videos, return_inverse=True) if videos else (np.array([]), np.zeros(0, np.int64))
    number = {video: i for i, video in enumerate(known.tolist())}
    found = (
        (row[1], row[2], row[3] == "1", int(row[0]) - 1)
        for row in fields(root / "splits.txt", 4, ",")
        if row[0].isdigit()
    )
    pairs, notes = _make_pairs(found, number, "splits.txt")
    pairs = Pairs(pairs.first, pairs.second, pairs.same, pairs.fold, of="template")
    return _test(
        "YTF",
        root,
        [inside(root, name, folder) for name in names],
        [name.partition("/")[0] for name in names],
        {"YTF": pairs},
        columns={"template": template, "media": template},
        notes=tuple(notes),
    )


def recognise_cfp(root: Path) -> bool:
    """The list of frontal images."""
    return root.joinpath("Protocol", "Pair_list_F.txt").exists()


def read_cfp(root: Path) -> Table:
    """Protocol/Pair_list_{F,P}.txt: number and path of frontal and profile images;
    Protocol/Split/{FF,FP}/01…10/{same,diff}.txt: pairs of these numbers, `12,34`.
    """
    rows: dict[str, dict[str, int]] = {"F": {}, "P": {}}
    names: list[str] = []
    for view, numbers in rows.items():
        for number, name, *_ in fields(root / "Protocol" / f"Pair_list_{view}.txt", 2):
            numbers[number] = len(names)
            names.append(inside(root, name, "Protocol"))
            if names[-1].count("/") < 2:
                raise LayoutError(f"Pair_list_{view}.txt of {root} names {name!r}, which is in no folder of a person")
    pairs = {}
    for protocol in ("FF", "FP"):
        folds = sorted(folder for folder in root.joinpath("Protocol", "Split", protocol).glob("*") if folder.is_dir())
        found = [
            (_numbered(rows, protocol[0], first), _numbered(rows, protocol[1], second), same, fold)
            for fold, folder in enumerate(folds)
            for same, file in ((True, "same.txt"), (False, "diff.txt"))
            for first, second, *_ in fields(folder / file, 2, ",")
        ]
        table = np.array(found, np.int64).reshape(-1, 4).T
        pairs[protocol] = Pairs(table[0], table[1], table[2].astype(bool), table[3])
    people = [name.split("/")[-3] for name in names]
    pose = np.array([0] * len(rows["F"]) + [1] * len(rows["P"]))
    return _test("CFP", root, names, people, pairs, columns={"pose": pose}, names={"pose": ("frontal", "profile")})


def _numbered(rows: dict[str, dict[str, int]], view: str, number: str) -> int:
    """The row of an image that a list of pairs names by its number."""
    if number not in rows[view]:
        raise LayoutError(f"a pair is of image {number[:80]!r}, which Pair_list_{view}.txt does not list")
    return rows[view][number]


def _folder_of_agedb(root: Path) -> str | None:
    for folder in ("", "AgeDB", "images"):
        if root.joinpath(folder).is_dir():
            some = [entry.name for entry, _ in zip(root.joinpath(folder).glob("*.jpg"), range(20), strict=False)]
            if some and all(AGEDB_NAME.match(name) for name in some):
                return folder
    return None


def recognise_agedb(root: Path) -> bool:
    """Images named number_person_age_gender."""
    return root.is_dir() and _folder_of_agedb(root) is not None


def read_agedb(root: Path) -> Table:
    """Names such as 12_MariaCallas_35_f.jpg: number, person, age, gender. Lists of pairs, if any, as in
    `read_pair_list`.
    """
    folder = _folder_of_agedb(root)
    assert folder is not None
    names = images_below(root / folder)
    matches = [AGEDB_NAME.match(name) for name in names]
    people = [match[2] if match else "" for match in matches]
    age = np.array([int(match[3]) if match else UNLABELLED for match in matches])
    whole = [inside(root, name, folder) for name in names]
    pairs, notes = _read_pair_lists(root, whole)
    return _test("AgeDB", root, whole, people, pairs, columns={"age": age}, notes=tuple(notes))


def _pair_lists(root: Path) -> list[Path]:
    def is_list(path: Path) -> bool:
        parts = next(lines(path), "").split()
        return len(parts) == 3 and parts[2] in ("0", "1", "-1")

    return [path for path in sorted(root.glob("*pair*.txt")) if is_list(path)]


def recognise_pair_list(root: Path) -> bool:
    """A list of two paths and an answer."""
    return root.is_dir() and bool(_pair_lists(root))


def read_pair_list(root: Path) -> Table:
    """Lists named *pair*.txt, with lines `path path 1` (the same; 0 or -1: not), the paths relative to the folder or to
    one in it. Ten folds, consecutive and equal, as LFW, CFP-FP and AgeDB-30 are distributed. Persons are not known.
    """
    names = images_below(root)
    pairs, notes = _read_pair_lists(root, names)
    return _test(root.name, root, names, [""] * len(names), pairs, notes=tuple(notes))


def _read_pair_lists(root: Path, names: Sequence[str]) -> tuple[dict[str, Pairs], list[str]]:
    row_of = {name: row for row, name in enumerate(names)}
    for row, name in enumerate(names):  # a list may leave out the folder that all images are in
        row_of.setdefault(name.partition("/")[2], row)
    pairs, notes = {}, []
    for path in _pair_lists(root):
        rows = list(fields(path, 3))
        found = (
            (inside(root, first), inside(root, second), same == "1", i * PAIR_FOLDS // len(rows))
            for i, (first, second, same, *_) in enumerate(rows)
        )
        pairs[path.stem], lost = _make_pairs(found, row_of, path.name)
        notes += lost
    return pairs, notes
