"""A run goes by its own split, however its data have changed since."""

import csv
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearfar.data
from nearfar.cli import main
from nearfar.data.survey import survey
from nearfar.foundation.run_folder import RunError
from nearfar.serve import server
from nearfar.serve.served_run import ServedRun
from nearfar.training.evaluate import evaluate, rows_of
from nearfar.training.kept_split import KeptSplit, parts_of
from nearfar.training.options import ConfigError
from nearfar.training.runs import Run
from nearfar.training.train import StoppedError, train
from tests.retrieval.making import photos
from tests.training.making import SMALL

OPTIONS = {**SMALL, "max_steps": 2, "quiet": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten classes of five pictures, of which the first five are trained on, and a run; `data` and `run` restore them."""
    place = tmp_path_factory.mktemp("kept") / "place"
    data = photos(place / "photos", classes=10, each=5)
    train(data, out=str(place / "run"), **OPTIONS)
    shutil.copytree(place, place.with_name("as it was"))
    return place


@pytest.fixture
def data(place: Path) -> Path:
    shutil.rmtree(place)
    shutil.copytree(place.with_name("as it was"), place)
    return place / "photos"


@pytest.fixture
def run(data: Path) -> Run:
    return Run(data.with_name("run"))


def names_tested(run: Run, given: Path | None = None) -> set[str]:
    table = rows_of(run, given)[0]
    return {table.label_name(row) for row in range(len(table))}


def lines(run: Run) -> list[dict[str, str]]:
    with (run.folder / "split.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_row_is_named(run: Run, data: Path) -> None:
    rows = lines(run)
    assert [row["image"] for row in rows] == sorted(str(path.relative_to(data)) for path in data.glob("*/*.png"))
    assert all(row["image"].startswith(row["label"]) and len(row["fingerprint"]) == 32 for row in rows)
    roles = {row["label"]: row["role"] for row in rows}
    assert [roles[f"pattern {i}"] for i in range(5, 10)] == ["test"] * 5
    assert sorted(roles[f"pattern {i}"] for i in range(5)) == ["train"] * 3 + ["val"] * 2


def test_an_added_class_shifts_nothing(run: Run, data: Path) -> None:
    """Sorted before all others, it would move a trained class into the test half of a split made anew."""
    shutil.copytree(data / "pattern 9", data / "a new one")
    for path in (data / "a new one").iterdir():
        Image.fromarray(np.full((16, 16), hash(path.name) % 200, np.uint8)).save(path)
    assert names_tested(run) == {f"pattern {i}" for i in range(5, 10)}
    notes = parts_of(run).notes
    assert any(note == "new classes, not evaluated: 1 class (a new one)" for note in notes)
    before = run.metrics["after"]["map@r"]
    assert evaluate(run)["map@r"] == before


def test_the_run_s_folder_given_as_data_is_measured_without_what_was_trained_on(run: Run, data: Path) -> None:
    shutil.copytree(data / "pattern 9", data / "a new one")
    for number, path in enumerate(sorted((data / "a new one").iterdir())):
        Image.fromarray(np.full((16, 16), 10 * number, np.uint8)).save(path)
    assert names_tested(run, data) == {f"pattern {i}" for i in range(5, 10)} | {"a new one"}
    assert "left out, since they or their classes were trained on: 25 images" in rows_of(run, data)[1]


def test_other_data_is_measured_whole_but_for_copies_of_trained_pictures(run: Run, data: Path, tmp_path: Path) -> None:
    other = photos(tmp_path / "other", classes=3, each=4)
    for path in other.glob("*/*.png"):
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    shutil.copy(data / "pattern 0" / "000.png", other / "pattern 1" / "copy.png")
    table, notes = rows_of(run, other)
    assert len(table) == 12
    assert notes[0] == "left out, since they or their classes were trained on: 1 image"
    assert any(note.startswith("in classes with the name of a training class: ") for note in notes)


def test_gone_changed_and_moved_pictures_are_told(run: Run, data: Path) -> None:
    shutil.rmtree(data / "pattern 5")
    changed = data / "pattern 6" / "030.png"
    Image.fromarray(np.zeros((16, 16), np.uint8)).save(changed)
    (data / "pattern 7" / "035.png").rename(data / "pattern 7" / "renamed.png")
    parts = parts_of(run)
    first = ", ".join(f"pattern 5/02{number}.png" for number in (5, 6, 7))
    assert parts.notes == (
        f"missing: 5 images ({first}, ...)",
        "changed since the run began: 1 image (pattern 6/030.png)",
        "renamed or copied since, and treated as before: 1 image (pattern 7/renamed.png)",
    )
    assert parts.test is not None and len(parts.test) == 20


def test_a_trained_picture_under_another_class_is_not_unseen(run: Run, data: Path) -> None:
    seen = next(row for row in lines(run) if row["role"] == "train")
    shutil.copy(data / seen["image"], data / "pattern 9" / "copied.png")
    shutil.move(data / seen["image"], data / "pattern 8" / "moved.png")
    parts = parts_of(run)
    assert parts.test is not None
    names = {Path(path).name for path in parts.test.paths}
    assert "copied.png" not in names and "moved.png" not in names
    assert len(parts.test) == 25


def test_images_of_a_test_class_moved_into_a_trained_one_are_not_measured(run: Run, data: Path) -> None:
    trained = next(row["label"] for row in lines(run) if row["role"] == "train")
    (data / "pattern 9").rename(data / trained / "inside")  # a folder of its own class is a class of its own
    assert "25 of the run" not in " ".join(parts_of(run).notes)
    for path in (data / trained / "inside").iterdir():
        path.rename(data / trained / f"moved-{path.name}")
    parts = parts_of(run)
    assert parts.test is not None and len(parts.test) == 20
    assert any("moved to training classes, and not evaluated: " in note for note in parts.notes)


def test_runs_from_before_are_split_anew_and_say_so(run: Run) -> None:
    kept = parts_of(run)
    (run.folder / "split.csv").unlink()
    anew = parts_of(run)
    assert anew.test is not None and kept.test is not None and anew.test.paths == kept.test.paths
    assert anew.val is not None and kept.val is not None and anew.val.paths == kept.val.paths
    assert any("older than saved splits" in note for note in anew.notes)


def test_a_damaged_split_is_an_error(run: Run) -> None:
    (run.folder / "split.csv").write_text("image,other\na,b\n")
    with pytest.raises(RunError, match=r"split\.csv is damaged"):
        parts_of(run)


def test_unreadable_pictures_are_left_out_and_repaired_ones_are_new(tmp_path: Path, data: Path) -> None:
    broken = data / "pattern 6" / "030.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:60])
    run = train(data, out=str(tmp_path / "run"), **OPTIONS)
    row = next(row for row in lines(run) if row["role"] == "left out")
    assert row["image"] == "pattern 6/030.png" and row["reason"]
    broken.write_bytes(whole)
    assert any(note.startswith("new, in test classes, and not evaluated: ") for note in parts_of(run).notes)
    assert len(rows_of(run, None)[0]) == 24


def test_going_on_with_other_pictures_is_refused(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nearfar.training import fit

    class Stopping(fit.Recorder):
        def after_step(self, learner, step):  # type: ignore[no-untyped-def]
            self.stopping = learner.done == 1
            super().after_step(learner, step)

    monkeypatch.setattr(fit, "Recorder", Stopping)
    with pytest.raises(StoppedError):
        train(data, out=str(tmp_path / "run"), **OPTIONS)
    monkeypatch.undo()
    run = Run(tmp_path / "run")
    seen = next(row for row in lines(run) if row["role"] == "train")
    path = data / seen["image"]
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(RunError, match=r"training images of .* are missing or changed: 1 \(pattern"):
        train(resume=run.folder, quiet=True)
    path.write_bytes(whole)
    assert train(resume=run.folder, quiet=True).finished


def test_splits_of_what_is_not_files(tmp_path: Path) -> None:
    table = nearfar.data.glyphs(classes=20, per_class=3)
    found = survey(table)
    assert not found.broken and len(set(found.fingerprints)) == 60
    run = train(table, out=str(tmp_path / "run"), **OPTIONS)
    kept = KeptSplit.load(run)
    assert kept is not None and [row.image for row in kept.rows] == [f"#{row}" for row in range(60)]
    assert kept.match(table, found).parts().test is not None


def change(data: Path) -> None:
    """A class is added, one is removed, and a picture of a third replaced."""
    shutil.copytree(data / "pattern 9", data / "a new one")
    for number, path in enumerate(sorted((data / "a new one").iterdir())):
        Image.fromarray(np.full((16, 16), 10 * number, np.uint8)).save(path)
    shutil.rmtree(data / "pattern 5")
    Image.fromarray(np.full((16, 16), 77, np.uint8)).save(data / "pattern 6" / "030.png")


CHANGES = (
    "missing: 5 images (pattern 5/025.png, ",
    "changed since the run began: 1 image (pattern 6/030.png)",
    "new classes, not evaluated: 1 class (a new one)",
)


@pytest.mark.parametrize("command", [["evaluate"], ["report"], ["export", "--format", "safetensors"], ["index"]])
def test_commands_say_what_has_changed(
    run: Run, data: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    change(data)
    assert main([command[0], str(run.folder), *command[1:]]) == 0
    said = capsys.readouterr().out
    assert [words for words in CHANGES if words not in said] == []
    if command[0] == "report":
        page = (run.folder / "report.html").read_text()
        assert [words for words in CHANGES if words not in page] == []


def test_the_server_says_what_has_changed_and_judges_by_the_split(
    run: Run, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(data)
    served: list[ServedRun] = []

    def app(runs: Mapping[str, ServedRun], **_: object) -> None:
        served.extend(runs.values())

    monkeypatch.setattr(server, "create_app", app)
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda *_, **__: None)
    assert main(["serve", str(run.folder), "--port", "0"]) == 0
    said = capsys.readouterr().out
    assert [words for words in CHANGES if f"note: {words}" not in said] == []
    assert "run: 50 images of 10 classes" in said  # the gallery is the folder as it is now
    mistakes = served[0].mistakes()
    assert mistakes["evaluation"] and mistakes["queries"] == 20  # of the four test classes that are left


def test_a_run_tested_on_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All classes are trained on, and the other data measured but for what was trained on, by every command."""
    data, others = (
        photos(tmp_path / "photos", classes=6, each=5),
        photos(tmp_path / "others", classes=4, each=5, seed=9),
    )
    copied = sorted(data.glob("*/*.png"))[0]
    shutil.copy(copied, sorted(others.iterdir())[0] / "copy.png")
    run = train(data, out=str(tmp_path / "run"), **{**OPTIONS, "test": str(others), "evaluation.watch_test": True})
    assert {row["role"] for row in lines(run)} == {"train"}
    assert run.config.data.test == str(others)
    assert (run.metrics["measured_on"], run.metrics["open_set"], run.metrics["classes"]) == ("test", True, 4)
    found = evaluate(run)
    assert (found["data"], found["images"]) == ("others", 20)
    assert {name: found[name] for name in run.metrics["after"]} == run.metrics["after"]
    assert {name: value for name, value in evaluate(run, others).items() if name in run.metrics["after"]} == {
        **run.metrics["after"]
    }
    assert "left out, since they or their classes were trained on: 1 image" in found["notes"]
    assert "test recall@1" in (run.folder / "curves.csv").read_text().splitlines()[0]
    assert main(["report", str(run.folder)]) == 0
    with pytest.raises(ConfigError, match="were trained on, so nothing can be evaluated"):
        evaluate(run, data)


def test_a_run_without_test_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = photos(tmp_path / "photos", classes=6, each=5)
    run = train(data, out=str(tmp_path / "run"), **{**OPTIONS, "split": "all", "quiet": False})
    shown = capsys.readouterr()
    assert "there are no test data, so nothing will be evaluated" in shown.err
    assert (
        f"nothing was evaluated, since there are no test data: nearfar evaluate {run.folder} DATA does so" in shown.out
    )
    assert run.metrics["after"] == {} and run.metrics["verdict"] == ""
    with pytest.raises(ConfigError, match="has neither test nor validation rows: name other data"):
        evaluate(run)
    others = photos(tmp_path / "others", classes=4, each=5, seed=9)
    assert evaluate(run, others)["images"] == 20
    assert main(["train", str(data), "--test", str(tmp_path / "nowhere")]) == 2
    assert f"there is no {tmp_path / 'nowhere'}" in capsys.readouterr().err
