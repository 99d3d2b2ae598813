"""The embedded data set: as described, the same every time, difficult as promised."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearfar.data
from nearfar.commands.grammar import configuration
from nearfar.data import Table, glyphs
from nearfar.data.embedded import HELD_OUT
from nearfar.data.opening import path_of, reopen
from nearfar.foundation.folders import cache_folder
from nearfar.training.config import TrainConfig
from nearfar.training.defaults import resolve

pytest.importorskip("matplotlib")
SMALL = {"classes": 60, "per_class": 8, "size": 24}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def pixels(table: Table) -> np.ndarray:
    return np.stack([table.images[row] for row in range(len(table))])


def recall_at_1(x: np.ndarray, labels: np.ndarray) -> float:
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    similarity = x @ x.T
    np.fill_diagonal(similarity, -2)
    return float((labels[similarity.argmax(1)] == labels).mean())


def test_split_and_faces(cache: Path) -> None:
    table = glyphs(**SMALL, cache=cache)
    train, test = table.split("train"), table.split("test")
    assert len(train) == len(test) == 240 and train.num_classes == test.num_classes == 30
    assert not set(train.classes) & set(test.classes) and len(set(table.label_names)) == 60
    faces = np.array(table.names["face"])
    assert not set(faces[train.columns["face"]]) & set(HELD_OUT)
    assert set(HELD_OUT) <= set(faces[test.columns["face"]]) and len(faces) == 16
    assert table.images[0].shape == (24, 24) and table.images[0].dtype == np.uint8
    assert nearfar.data.EvalTransform(24, None)(table.images[0]).shape == (3, 24, 24)


def test_the_same_every_time_and_made_once(cache: Path, tmp_path: Path) -> None:
    first, again = glyphs(**SMALL, cache=cache), glyphs(**SMALL, cache=tmp_path)
    assert np.array_equal(pixels(first), pixels(again)) and first.label_names == again.label_names
    (file,) = tmp_path.iterdir()  # and nothing unfinished beside it
    written = file.stat().st_mtime_ns
    glyphs(**SMALL, cache=tmp_path)
    assert file.stat().st_mtime_ns == written
    other = glyphs(**SMALL, seed=1, cache=tmp_path)
    assert other.label_names != first.label_names and len(list(tmp_path.iterdir())) == 2


def test_raw_pixels_do_badly_and_the_easy_ones_do_well(cache: Path) -> None:
    """Of 30 test characters; of the 600 of the whole set, pixels find far fewer."""
    found = {}
    for difficulty in (0.0, 1.0):
        test = glyphs(**SMALL, difficulty=difficulty, cache=cache).split("test")
        x = pixels(test).reshape(len(test), -1).astype(np.float32)
        found[difficulty] = recall_at_1(x - x.mean(1, keepdims=True), test.labels)
    assert found[0.0] > 0.9
    assert found[1.0] < 0.65


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("NEARFAR_CACHE")
    assert cache_folder().name == "nearfar"


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **arrays: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fails)
    with pytest.raises(OSError, match="disk full"):
        glyphs(**SMALL, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"classes=5000: the faces have only 1[0-9]{3} distinct characters"):
        glyphs(classes=5000, cache=tmp_path)
    with pytest.raises(ValueError, match="there must be at least 2 classes"):
        glyphs(classes=1, cache=tmp_path)


def test_open_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []
    monkeypatch.setattr("nearfar.data.opening.glyphs", lambda: seen.append(1))
    monkeypatch.chdir(tmp_path)
    nearfar.data.open("glyphs")
    nearfar.data.open()
    assert seen == [1, 1]


def test_a_folder_called_like_the_embedded_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever names it gets it; whoever names nothing, or whose configuration says so, gets what is embedded."""
    embedded = glyphs(**SMALL, cache=tmp_path / "cache")
    monkeypatch.setattr("nearfar.data.opening.glyphs", lambda: embedded)
    monkeypatch.chdir(tmp_path)
    for row in range(0, 480, 60):
        place = tmp_path / "glyphs" / f"letter {row}"
        place.mkdir(parents=True)
        for number in (0, 1):
            Image.fromarray(embedded.images[row + number].squeeze()).save(place / f"{number}.png")
    assert nearfar.data.open() is embedded
    assert reopen("glyphs") is embedded
    for own in (nearfar.data.open("glyphs"), nearfar.data.open("./glyphs"), reopen(path_of("glyphs"))):
        assert (len(own), own.embedded) == (16, False)
    told = {words: configuration({}, words).data.path for words in (None, "glyphs", "./glyphs")}
    assert told == {None: "glyphs", "glyphs": str(tmp_path / "glyphs"), "./glyphs": "./glyphs"}
    rows = embedded.split("train").compact()
    assert resolve(TrainConfig(), rows).data.path == "glyphs"  # so that a run of it is measured on it, anywhere
