"""Face identification: IJB-B and IJB-C templates, FaceScrub probes and MegaFace distractors."""

import csv
from pathlib import Path

import numpy as np

from nearfar.data.columns import Files
from nearfar.data.parsing import (
    LayoutError,
    fields,
    first_existing,
    inside,
    lines,
    read_json,
    table_of_numbers,
    whole_number,
)
from nearfar.data.tables import SPLITS, UNLABELLED, Array, Pairs, Table, number_classes, split_column

ROLES = ("none", "gallery G1", "gallery G2", "probe")
FACESCRUB = ("facescrub_images", "facescrub", "FaceScrub")
MEGAFACE = ("megaface_images", "megaface", "MegaFace", "FlickrFinal2")


def _ijb_meta(root: Path) -> Path | None:
    return next(iter(sorted(root.glob("meta/*_face_tid_mid.txt"))), None)


def recognise_ijb(root: Path) -> bool:
    """Whether the list of templates and media exists."""
    return _ijb_meta(root) is not None


def read_ijb(root: Path) -> Table:
    """meta/*_face_tid_mid.txt has lines `image template medium`, *_template_pair_label.txt `template template same`,
    *_name_5pts_score.txt `image landmarks score` (columns `landmarks` (N, 5, 2) and `score`). Images are in
    loose_crop/. Persons, and the column `role`, come from the lists of the 1:N protocol (*_1N_gallery_G1.csv …), if
    they exist.
    """
    faces = _ijb_meta(root)
    assert faces is not None
    prefix = faces.name.removesuffix("_face_tid_mid.txt")
    names, template, media = [], [], []
    for name, tid, mid, *_ in fields(faces, 3):
        names.append(inside(root, name, "loose_crop"))
        template.append(whole_number(tid, faces))
        media.append(whole_number(mid, faces))
    columns: dict[str, Array] = {"template": np.array(template, np.int64), "media": np.array(media, np.int64)}
    landmarks = faces.with_name(f"{prefix}_name_5pts_score.txt")
    if landmarks.exists():
        rows = list(fields(landmarks, 12))
        if [row[0] for row in rows] != [name.removeprefix("loose_crop/") for name in names]:
            raise LayoutError(f"{landmarks} and {faces} do not list the same images in the same order")
        try:
            values = np.array([row[1:12] for row in rows], np.float32)
        except ValueError as error:
            raise LayoutError(f"{landmarks} has landmarks that are not numbers: {error}") from error
        columns |= {"landmarks": values[:, :10].reshape(-1, 5, 2), "score": values[:, 10]}
    pairs = {}
    title = {"ijbb": "IJB-B", "ijbc": "IJB-C"}.get(prefix.lower(), prefix)
    listed = faces.with_name(f"{prefix}_template_pair_label.txt")
    if listed.exists():
        table = table_of_numbers(listed)
        if table.shape[1:] != (3,):
            raise LayoutError(f"{listed} must have lines of two templates and 1 (same) or 0")
        first, second, same = table.T
        pairs[title] = Pairs(first, second, same == 1, np.zeros(len(first), np.int64), of="template")
    subject, role = _one_to_n(faces.parent, prefix)
    people = [subject.get(tid, "") for tid in template]
    split_ids = np.full(len(names), SPLITS.index("test"), np.int8)
    labels, label_names = number_classes(people, split_ids, unlabelled=("",))
    known: dict[str, tuple[str, ...]] = {}
    if role:
        columns["role"] = np.array([role.get(tid, 0) for tid in template])
        known["role"] = ROLES
    return Table(title, labels, label_names, split_ids, Files(root, names), columns=columns, names=known, pairs=pairs)


def _one_to_n(meta: Path, prefix: str) -> tuple[dict[int, str], dict[int, int]]:
    """The person of each template and its role in 1:N identification. The lists begin with TEMPLATE_ID,SUBJECT_ID."""
    subject: dict[int, str] = {}
    role: dict[int, int] = {}
    for number, name in ((1, "gallery_G1"), (2, "gallery_G2"), (3, "probe_mixed")):
        path = meta / f"{prefix}_1N_{name}.csv"
        if path.exists():
            with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
                for row in csv.reader(file):
                    if len(row) > 1 and row[0].strip().isdigit():
                        subject[int(row[0])] = row[1].strip()
                        role[int(row[0])] = number
    return subject, role


def _megaface_lists(root: Path) -> tuple[Path, Path] | None:
    """The lists of probes and distractors of insightface's package or of the original development kit."""
    if root.joinpath("facescrub_lst").exists() and root.joinpath("megaface_lst").exists():
        return root / "facescrub_lst", root / "megaface_lst"
    for folder in ("devkit/templatelists", "templatelists", ""):
        probes = root / folder / "facescrub_features_list.json"
        distractors = sorted(root.joinpath(folder).glob("megaface_features_list.json*"), key=_size)
        if probes.exists() and distractors:
            return probes, distractors[-1]
    return None


def _size(path: Path) -> tuple[int, str]:
    """The number of distractors in a name such as megaface_features_list.json_1000000_1."""
    size = path.name.rpartition("json_")[2].partition("_")[0]
    return int(size) if size.isdigit() else 0, path.name


def recognise_megaface(root: Path) -> bool:
    """Whether the lists of probes and distractors exist."""
    return _megaface_lists(root) is not None


def read_megaface(root: Path) -> Table:
    """FaceScrub images are the query, MegaFace distractors of unknown persons (label -1) the gallery. Each query image
    serves in turn as the mate of the other images of its person.

    The column `noise` marks the images in insightface's lists of wrong images (facescrub_noises.txt,
    megaface_noises.txt); `table.select(~table.columns["noise"])` is the cleaned protocol. State which one you used.
    """
    lists = _megaface_lists(root)
    assert lists is not None
    folders = [first_existing(root, names) for names in (FACESCRUB, MEGAFACE)]
    if None in folders:
        raise LayoutError(f"{root} has no folder {' or '.join(FACESCRUB if folders[0] is None else MEGAFACE)}")
    names, people = [], []
    for path, depth, folder in zip(lists, (2, 3), folders, strict=True):
        for line in _listed(path):
            name = "/".join(line.split("/")[-depth:])  # without the root, which differs between copies
            names.append(inside(root, name, folder or ""))
            people.append(name.partition("/")[0] if depth == 2 else "")
    probe = np.array([person != "" for person in people], bool)
    split_ids = split_column(np.where(probe, "query", "gallery"))
    labels, label_names = number_classes(people, split_ids, unlabelled=("",))
    noise = np.zeros(len(names), bool)
    notes = []
    for file, depth, rows in (("facescrub_noises.txt", 1, probe), ("megaface_noises.txt", 3, ~probe)):
        if root.joinpath(file).exists():
            wrong = {_normalised(line) for line in lines(root / file) if not line.startswith("#")}
            listed = [_normalised("/".join(name.split("/")[-depth:])) in wrong for name in names]
            noise |= np.array(listed, bool) & rows
    if noise.any():
        notes.append(f"{int(noise.sum()):,} images are in the noise lists (column noise); they are included")
    return Table(
        "MegaFace",
        np.where(probe, labels, UNLABELLED),
        label_names,
        split_ids,
        Files(root, names),
        columns={"noise": noise},
        notes=tuple(notes),
    )


def _listed(path: Path) -> list[str]:
    if path.suffix == "" and ".json" not in path.name:
        return list(lines(path))
    content = read_json(path)
    if not isinstance(content.get("path"), list):
        raise LayoutError(f'{path} must hold {{"path": [...]}}')
    return [str(name) for name in content["path"]]


def _normalised(name: str) -> str:
    """The name without extension, underscores and spaces, which differ between noise lists and files."""
    stem, dot, ending = name.rpartition(".")
    return (stem if dot and ending.lower() in ("jpg", "png", "jpeg", "bmp") else name).replace("_", "").replace(" ", "")
