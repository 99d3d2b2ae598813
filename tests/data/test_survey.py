"""A survey against a folder that is messy on purpose: what counts, what is left out and why, and what is kept of it."""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import nearfar.data
from nearfar.data import SPLITS, Encoded, Table, TooManyBrokenImagesError
from nearfar.data import survey as surveys
from nearfar.data.default_splits import halves_note
from nearfar.data.survey import row_name, survey
from tests.data.making import encoded, image
from tests.messy import Messy, messy


@pytest.fixture(scope="module")
def mess(tmp_path_factory: pytest.TempPathFactory) -> Messy:
    return messy(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(folder: Path, classes: int, each: int = 2) -> Path:
    for number in range(classes):
        for row in range(each):
            image(folder / f"{number:02}" / f"{row}.png", number * each + row)
    return folder


def test_what_cannot_be_read_is_left_out_and_all_else_counts(mess: Messy) -> None:
    table = nearfar.data.open(mess.folder)
    assert len(table) == mess.total and table.num_classes == 13
    found = survey(table)
    reasons = {row_name(table, row): reason for row, reason in found.broken.items()}
    assert reasons.keys() == mess.broken.keys()
    for name, word in mess.broken.items():
        assert re.search(word, reasons[name]), (name, reasons[name])
    kept = found.readable_rows(table)
    assert isinstance(kept.images, nearfar.data.Files)
    names = {kept.images.name(row) for row in range(len(kept))}
    assert names >= set(mess.odd) and not names & mess.broken.keys() and len(names) == mess.total - len(mess.broken)
    assert kept.notes == table.notes and kept.num_classes == 13


def test_equal_files_have_equal_fingerprints(mess: Messy) -> None:
    table = nearfar.data.open(mess.folder)
    by_name = {row_name(table, row): mark for row, mark in enumerate(survey(table).fingerprints)}
    assert by_name["thing 08/copy of 0.png"] == by_name["thing 08/0.png"]
    assert by_name["thing 11/stray.png"] == by_name["mug, red/1.png"]
    assert by_name["thing 07/gone.jpg"] == ""
    whole = [mark for mark in by_name.values() if mark]
    assert len(set(whole)) == len(whole) - 2


def test_the_second_look_reads_no_file(mess: Messy, monkeypatch: pytest.MonkeyPatch) -> None:
    table = nearfar.data.open(mess.folder)
    first = survey(table)
    read = list[str]()
    look = surveys._inspect

    def counted(source: object) -> tuple[str, str]:
        read.append(Path(str(source)).name)
        return look(source)  # type: ignore[arg-type]

    monkeypatch.setattr(surveys, "_inspect", counted)
    assert survey(table) == first
    # What the system would not read may be there the next time, though nothing about the file has changed.
    assert sorted(read) == ["circle.jpg", "gone.jpg", *([] if os.getuid() == 0 else ["forbidden.png"])]


def test_a_repaired_file_counts_again(tmp_path: Path) -> None:
    folder = files(tmp_path / "photos", 4)
    (folder / "00" / "0.png").write_bytes(b"")
    table = nearfar.data.open(folder)
    assert list(survey(table).broken.values()) == ["the file is empty"]
    shutil.copy(folder / "01" / "0.png", folder / "00" / "0.png")
    assert not survey(table).broken


def test_the_fraction_is_of_all_images(tmp_path: Path) -> None:
    folder = files(tmp_path / "photos", 4)
    for name in ("00/0.png", "03/1.png"):
        (folder / name).write_bytes(b"no picture")
    table = nearfar.data.open(folder)
    found = survey(table)
    found.check(table, 0.25)
    message = r"2 of 8 images of photos cannot be read, more than the 20% allowed\. The first: 00/0\.png: not an image"
    with pytest.raises(TooManyBrokenImagesError, match=message):
        found.check(table, 0.2)
    with pytest.raises(ValueError, match="max_broken must be a fraction"):
        found.check(table, 25)
    for path in folder.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(TooManyBrokenImagesError, match=r"none of the 8 images of photos can be read"):
        survey(table).check(table, 1.0)


def test_what_is_said(tmp_path: Path) -> None:
    folder = files(tmp_path / "my photos", 4, 3)
    table = nearfar.data.open(folder)
    assert survey(table).report(table) == []
    for number in range(4):
        for row in range(2):
            (folder / f"{number:02}" / f"{row}.png").write_bytes(b"")
    found = survey(table)
    assert found.report(table) == [
        "left out: 8 of 12 images cannot be read",
        *(f"  {name}.png: the file is empty" for name in ("00/0", "00/1", "01/0", "01/1", "02/0")),
        f"  and 3 more: nearfar doctor '{folder}' lists them",
    ]
    assert found.report(table, "photos")[-1] == "  and 3 more: nearfar doctor photos lists them"


def test_a_class_without_a_readable_image_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    folder = files(tmp_path / "photos", 9)
    for row in range(2):
        (folder / "01" / f"{row}.png").write_bytes(b"")
    table = nearfar.data.open(folder)
    kept = survey(table).readable_rows(table)
    shutil.rmtree(folder / "01")
    expected = nearfar.data.open(folder)
    assert expected.notes == (halves_note(8),)
    assert kept.notes == expected.notes and kept.label_names == expected.label_names
    assert np.array_equal(kept.labels, expected.labels) and np.array_equal(kept.split_ids, expected.split_ids)
    assert kept.paths == expected.paths


def test_images_that_are_no_files() -> None:
    none = np.zeros(3, np.int64)
    table = Table(
        "made", none, ("a",), np.full(3, SPLITS.index("train"), np.int8), Encoded([encoded(1), b"", encoded(1)])
    )
    found = survey(table)
    assert found.broken == {1: "the file is empty"} and found.fingerprints[0] == found.fingerprints[2]
    assert found.report(table)[1:] == ["  #1: the file is empty"]
