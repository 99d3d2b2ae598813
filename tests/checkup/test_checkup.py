"""What the doctor finds in data that was made to have it, and that it finds nothing where there is nothing."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearfar.checkup.checkup import CheckUp, check_up
from nearfar.checkup.near import sample
from nearfar.data import Pixels
from nearfar.training.config import TrainConfig
from nearfar.training.options import with_options
from tests.compare.making import trunk_file
from tests.training.making import SMALL, patterns


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tells_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Weights of a trunk that is good for nothing, by which pictures differ a little all the same."""
    monkeypatch.setattr("nearfar.checkup.near.THRESHOLD", 1 - 1e-5)
    return trunk_file(tmp_path)


def photos(folder: Path, classes: int = 24, each: int = 6, noise: float = 40.0) -> Path:
    table = patterns(classes=classes, each=each, noise=noise)
    assert table.images is not None
    for row in range(len(table)):
        path = folder / f"{int(table.labels[row]):02}" / f"{row:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(table.images[row])).save(path)
    return folder


def looked_at(folder: Path, **options: object) -> CheckUp:
    own = {name: value for name, value in SMALL.items() if name != "folds"}
    return check_up(with_options(TrainConfig(), {**own, "path": str(folder), **options}))


def found(result: CheckUp) -> list[str]:
    return [finding.what for finding in result.findings]


def where(result: CheckUp) -> list[str]:
    """What was found; which of the training classes are held out does not matter."""
    return [line.replace("(val)", "(train)") for finding in result.findings for line in finding.where]


def test_nothing_is_wrong(tmp_path: Path, tells_apart: str) -> None:
    result = looked_at(photos(tmp_path / "photos"), weights=tells_apart)
    assert found(result) == [] and result.unseen == ""
    text = result.text()
    assert "144 pictures\n" in text and "24, of 6 each\n" in text
    assert "test 72 of 12 classes" in text
    assert "with --freeze: " in text
    assert text.endswith("\n\nno problems found")


def test_what_was_not_looked_at_is_said(tmp_path: Path) -> None:
    """A network that is not pretrained cannot tell which pictures are nearly the same."""
    result = looked_at(photos(tmp_path / "photos"))
    assert found(result) == []
    assert result.text().endswith("nearfar duplicates DATA compares all of them")
    assert "\nno problems found, but convnet is not pretrained" in result.text()
    assert not result.text().endswith("no problems found")


def test_copies(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    shutil.copy(folder / "00" / "000.png", folder / "20" / "leak.png")
    shutil.copy(folder / "22" / "133.png", folder / "23" / "two labels.png")
    shutil.copy(folder / "21" / "127.png", folder / "21" / "again.png")
    result = looked_at(folder)
    assert found(result) == [
        "1 picture is both trained on and tested, byte for byte",
        "1 picture is in more than one class, byte for byte",
        "1 picture is contained more than once, byte for byte",
    ]
    assert where(result) == [
        "00/000.png (train) = 20/leak.png (test)",
        "22/133.png (test) = 23/two labels.png (test)",
        "21/127.png (test) = 21/again.png (test)",
    ]


def test_pictures_that_are_nearly_the_same(tmp_path: Path, tells_apart: str) -> None:
    folder = photos(tmp_path / "photos")
    picture = np.asarray(Image.open(folder / "01" / "006.png")).copy()
    picture[0, 0] ^= 1
    Image.fromarray(picture).save(folder / "20" / "nearly.png")
    shutil.copy(folder / "01" / "007.png", folder / "20" / "same.png")
    result = looked_at(folder, weights=tells_apart)
    assert found(result) == [
        "1 picture is both trained on and tested, byte for byte",
        "1 test picture is nearly identical to a training picture",
    ]
    assert where(result)[1] == "01/006.png (train) ~ 20/nearly.png (test): similarity 1.000"


def test_a_network_to_which_all_pictures_are_alike(tmp_path: Path) -> None:
    result = looked_at(photos(tmp_path / "photos"), weights=trunk_file(tmp_path))
    assert found(result) == [] and "finds too many pictures of photos alike" in result.unseen


def test_few_and_small_and_unequal_classes(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", classes=14, each=6)
    for path in sorted((folder / "03").iterdir())[1:]:
        path.unlink()
    rng = np.random.default_rng(0)
    for number in range(70):
        Image.fromarray(rng.integers(0, 255, (16, 16), np.uint8)).save(folder / "05" / f"more {number}.png")
    result = looked_at(folder)
    few, alone, unequal = found(result)
    assert few == "14 classes are few: 7 are trained on, 6 of them held out in turn, 7 are tested"
    assert result.findings[0].advice.startswith("There will be no threshold, which needs 10 held-out classes")
    assert alone.startswith("1 of 14 classes has only one picture") and result.findings[1].where == ("03",)
    assert unequal.startswith("class sizes are very unequal: 1 to 76 pictures, median 6")
    assert result.findings[2].where == ("05: 76",)


def test_too_few_classes_to_leave_some_out(tmp_path: Path) -> None:
    result = looked_at(photos(tmp_path / "photos", classes=5))
    assert [what[:49] for what in found(result)] == ["5 classes are too few to hold some out: pictures "]


def test_what_training_refuses_comes_first(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for path in sorted(photos(tmp_path / "all", classes=20).iterdir()):
        shutil.copytree(path, folder / path.name, ignore=lambda _, names: sorted(names)[1:])
    (folder / "00" / "empty.png").write_bytes(b"")
    result = looked_at(folder, loss="TripletMarginLoss")
    assert found(result)[0].startswith("training would fail: every class has only one image")
    assert found(result)[1].startswith("1 of 21 pictures cannot be read")
    assert result.batch is None
    flat = tmp_path / "flat"
    shutil.copytree(folder / "00", flat)
    assert found(looked_at(flat))[0].startswith("training would fail: flat has no classes to learn from")
    for path in flat.iterdir():
        path.write_bytes(b"")
    assert found(looked_at(flat)) == ["2 of 2 pictures cannot be read: more than max_broken=0.25 allows"]


def test_all_unreadable_files_are_listed_up_to_a_number(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", classes=40, each=20)
    for number in range(20):
        for row in range(11):
            (folder / f"{number:02}" / f"broken {row}.jpg").write_bytes(b"text")
    result = looked_at(folder)
    assert found(result)[0].startswith("220 of 1,020 pictures cannot be read")
    assert len(result.findings[0].where) == 201 and result.findings[0].where[-1] == "and 20 more"


def test_a_sample_is_of_whole_classes() -> None:
    table = patterns(classes=40, each=5)
    rows = sample(table, 102, seed=0)
    assert len(rows) == 100 and (np.diff(rows) > 0).all()
    assert np.unique(table.labels[rows], return_counts=True)[1].tolist() == [5] * 20
    assert np.array_equal(sample(table, 200, seed=0), np.arange(200))
    few = patterns(classes=4, each=50)
    assert len(sample(few, 40, seed=0)) == 40 and len(np.unique(few.labels[sample(few, 40, seed=0)])) == 4


def test_a_sample_is_looked_at_where_there_is_much(
    tmp_path: Path, tells_apart: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearfar.checkup.checkup.MOST_IMAGES", 100)
    result = looked_at(photos(tmp_path / "photos", classes=60, each=4), weights=tells_apart)
    assert found(result) == [] and "only 100 of 240 pictures were compared with each other" in result.unseen


def test_features_are_looked_at_too(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(20), 5)
    features = np.random.default_rng(0).normal(size=(100, 12)).astype(np.float32)
    features[1] = features[0]
    np.savez(tmp_path / "features.npz", features=features, labels=labels)
    config = with_options(TrainConfig(), {"path": str(tmp_path / "features.npz"), "dimension": 4, "batch_size": 16})
    result = check_up(config)
    assert found(result) == ["1 picture is contained more than once, byte for byte"]
    assert where(result) == ["#0 (train) = #1 (train)"] and "100 feature vectors\n" in result.text()


def test_pixels_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made = patterns(classes=20)
    assert isinstance(made.images, Pixels)
    monkeypatch.setattr("nearfar.checkup.checkup.reopen", lambda path, layout=None: made)
    assert found(looked_at(Path("patterns"))) == []
