"""Adding and removing through the server: an answer of success is on the disk, any other has changed nothing."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from nearfar.imaging import load_image
from nearfar.retrieval.index import open_index
from tests.faults.crash import FAULTS, Crasher, How, Outcome, points
from tests.serve.making import embed, served

FEW = 1
GONE = "has no such image"


def contents(folder: Path) -> dict[str, str]:
    """Labels by id. Every picture that is named is there, and is the one that was embedded."""
    index = open_index(folder / "index")
    found = {item.id: item.label for item in index.listed()}
    for name, row in zip(found, index.vectors(list(found)), strict=True):
        load_image(name)
        np.testing.assert_allclose(row, embed(name)[0], atol=1e-5)
    index.close()
    return found


@pytest.fixture(scope="module")
def gallery(crasher: Crasher, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A gallery with an added picture, which every case begins with; and where it is kept."""
    folder, kept = (tmp_path_factory.mktemp("gallery") / name for name in ("now", "before"))
    served(folder, classes=3, each=3)
    outcome = crasher.call("change_gallery", str(folder), "add", "1", "first", folder=folder)
    assert answered(outcome) == 201
    shutil.copytree(folder, kept)
    return folder, kept


def answered(outcome: Outcome) -> int:
    return int(json.loads(outcome.said.strip().splitlines()[-1])["status"])


CASES = {
    "a new picture": ("add", "2", "second"),
    "the same again": ("add", "1", "another class"),
    "a photograph away": ("remove", "photos/004.png", ""),
    "the added one away": ("remove", "added", ""),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", FAULTS)
def test_as_it_was_answered(case: str, how: How, crasher: Crasher, gallery: tuple[Path, Path]) -> None:
    folder, kept = gallery
    method, content, label = CASES[case]
    if method == "remove":
        content = str(folder / (f"added/{next((kept / 'added').iterdir()).name}" if content == "added" else content))

    def put_back() -> None:
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)

    def change(at: int = 0, how: How = "none") -> Outcome:
        return crasher.call("change_gallery", str(folder), method, content, label, folder=folder, at=at, how=how)

    put_back()
    before = contents(folder)
    whole = change()
    assert answered(whole) in (200, 201)
    after = contents(folder)
    assert before != after
    files = set((folder / "added").iterdir())
    for at in points(whole.changes, FEW, f"{case} {how}"):
        put_back()
        outcome = change(at, how)
        now, where = contents(folder), f"{case}, {how} at change {at}: {outcome}"
        if how == "kill":
            assert outcome.code == -signal.SIGKILL and now in (before, after), where
        else:
            check_answer(outcome, how, now, before, after, where)
            if now == before and how != "readonly":  # then nothing could be cleared away
                assert sorted((folder / "added").iterdir()) == sorted(kept_added(kept, folder)), where
        again = change()
        assert answered(again) in (200, 201) or (now == after and method == "remove" and GONE in again.said), where
        assert contents(folder) == after
        assert set((folder / "added").iterdir()) >= files


def kept_added(kept: Path, folder: Path) -> list[Path]:
    return [folder / "added" / path.name for path in (kept / "added").iterdir()]


def check_answer(outcome: Outcome, how: How, now: dict, before: dict, after: dict, where: str) -> None:
    status = answered(outcome)
    if status in (200, 201):
        assert now == after, where
        return
    assert outcome.code == 0 and now == before, where
    assert status == (507 if how == "full" else 500), where
    assert str(status) != "507" or "nothing was changed" in outcome.said
