"""Who it is, or none of the enrolled: against scores by hand, through the command, and where nothing can be promised."""

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from nearfar.cli import main
from nearfar.evaluation import OpenSet
from nearfar.retrieval.build import add_images
from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.gallery import open_gallery
from nearfar.retrieval.identified import asked_for, scored
from nearfar.retrieval.identify import Enrolled, Identifier, calibration_of, in_words
from nearfar.retrieval.index import RetrievalError, make_index, open_index
from nearfar.training.held_out import HeldOut
from nearfar.training.runs import Run
from tests.retrieval.making import embedder, photos, run

SURE = OpenSet("template", 0.3, 0.01, 0.01, (0.0, 0.02), 0.9, (0.8, 0.95), 0.5, -1.0, 4.0, 4, 4, 20, 2.0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))


def hold_out(made: Run, classes: int = 30, each: int = 6, dimension: int = 8, *, open_set: bool = True) -> None:
    """Embeddings as of held-out classes: like those of the small network, all of them in one corner."""
    rng = np.random.default_rng(0)
    centres = 1 + 0.6 * rng.normal(size=(classes, 1, dimension))
    x = (centres + 0.1 * rng.normal(size=(classes, each, dimension))).reshape(-1, dimension).astype(np.float32)
    x[5] = np.nan  # of an image that could not be read
    labels = np.repeat(np.arange(classes), each)
    HeldOut(x, labels, np.zeros(len(x), np.int64), open_set).save(made)


@pytest.fixture
def dogs(tmp_path: Path) -> Path:
    """A run, four enrolled classes of two images in its index, and a folder with the others and two more classes."""
    all_of_them = photos(tmp_path / "all", classes=6, each=4)
    made = run(tmp_path / "run", all_of_them)
    hold_out(made)
    for path in sorted(all_of_them.rglob("*.png")):
        enrolled = path.parent.name < "pattern 4" and int(path.stem) % 4 < 2
        target = tmp_path / ("enrolled" if enrolled else "new") / path.parent.name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    assert main(["index", str(made.folder), str(tmp_path / "enrolled")]) == 0
    return tmp_path


def by_hand(path: Path, folder: Path, rule: str) -> list[tuple[float, str]]:
    """Scores of the classes, the best first; the picture itself is left out."""
    model = embedder()

    def vector(one: Path) -> list[float]:
        found = model.embed([one])[0].double()
        return (found / found.norm()).tolist()

    x, scores = vector(path), []
    for name in sorted(one for one in folder.iterdir() if one.is_dir()):
        images = [vector(one) for one in sorted(name.iterdir()) if one != path]
        if rule == "nearest":
            scores.append((max(sum(a * b for a, b in zip(x, y, strict=True)) for y in images), name.name))
        else:
            total = [sum(values) for values in zip(*images, strict=True)]
            length = math.sqrt(sum(value * value for value in total))
            scores.append((sum(a * b for a, b in zip(x, total, strict=True)) / length, name.name))
    return sorted(scores, reverse=True)


@pytest.mark.parametrize("rule", ["template", "nearest"])
def test_answers_are_those_by_hand(dogs: Path, rule: str) -> None:
    """Also of pictures that are enrolled, which are judged without themselves."""
    encoder = Encoder.of_run(dogs / "run")
    index = open_index(dogs / "run" / "index")
    found = OpenSet.from_dict({**SURE.to_dict(), "rule": rule})
    identifier = Identifier(index, Enrolled.of(index), found)
    pictures = [*sorted((dogs / "new").rglob("*.png")), *sorted((dogs / "enrolled").rglob("*.png"))]
    answers = identifier.answers(encoder.embed(pictures), [str(path) for path in pictures])
    for path, answer in zip(pictures, answers, strict=True):
        (first, name), (second, other) = by_hand(path, dogs / "enrolled", rule)[:2]
        assert answer.nearest == name and answer.similarity == pytest.approx(first, abs=1e-5)
        assert answer.runner_up == other and answer.runner_up_similarity == pytest.approx(second, abs=1e-5)
        evidence = first - second / 2
        assert answer.who == (name if evidence >= 0.3 else None)
        assert answer.probability == pytest.approx(1 / (1 + math.exp(1 - 4 * evidence)), abs=1e-4)
        assert answer.verdict == ("enrolled" if evidence >= 0.3 else "unsure" if evidence >= 0.25 else "none")
    without_ids = identifier.answers(encoder.embed(pictures[-1:]))[0]
    if rule == "nearest":
        assert without_ids.similarity == pytest.approx(1, abs=1e-5)  # nobody said that it is itself


def test_many_images_of_one_class_do_not_hide_the_runner_up(tmp_path: Path) -> None:
    encoder = Encoder(embedder())
    index = make_index(tmp_path / "index", encoder.about())
    rng = np.random.default_rng(0)
    near = np.ones(8) + 0.01 * rng.normal(size=(300, 8))
    far = np.array([[1.0, -1, 1, -1, 1, -1, 1, 1]])
    with index.change() as change:
        change.put([f"{n}" for n in range(300)], near.astype(np.float32), ["near"] * 300)
        change.put(["far", "nameless"], np.concatenate([far, near[:1]]).astype(np.float32), ["far", ""])
    found = OpenSet.from_dict({**SURE.to_dict(), "rule": "nearest"})
    identifier = Identifier(index, Enrolled.of(index), found)
    assert identifier.enrolled.names == ("far", "near") and identifier.enrolled.counts.tolist() == [1, 300]
    answer = identifier.answers(np.ones((1, 8), np.float32))[0]
    assert (answer.nearest, answer.runner_up) == ("near", "far")
    assert answer.runner_up_similarity == pytest.approx(2 / 8, abs=1e-5)
    # The only image of its class has nothing to be like but the other class.
    alone = identifier.answers(far.astype(np.float32), ["far"])[0]
    assert (alone.nearest, alone.runner_up) == ("near", None)
    with index.change() as change:
        change.remove([f"{n}" for n in range(300)])
    for one in (found, SURE):
        only = Identifier(index, Enrolled.of(index), one).answers(far.astype(np.float32), ["far"])[0]
        assert only.nearest == "far" and only.similarity == -1 and only.who is None and only.runner_up is None


def test_codes_are_compared_as_codes(tmp_path: Path) -> None:
    made = run(tmp_path / "run", photos(tmp_path / "photos"), head="hash", dimension=16)
    hold_out(made, dimension=16)
    encoder = Encoder.of_run(made)
    index = make_index(tmp_path / "run" / "index", encoder.about())
    add_images(index, encoder, open_gallery([tmp_path / "photos"]))
    identifier = Identifier.of(index, made, far=0.2)
    assert identifier.calibration is not None
    x = encoder.embed([tmp_path / "photos" / "pattern 0" / "000.png"])
    answer = identifier.answers(x)[0]
    wanted = []
    for folder in sorted((tmp_path / "photos").iterdir()):
        signs = [[1 if value > 0 else -1 for value in encoder.embed([path])[0]] for path in sorted(folder.iterdir())]
        own = [1 if value > 0 else -1 for value in x[0]]
        images = [sum(a * b for a, b in zip(own, one, strict=True)) / 16 for one in signs]
        total = [sum(values) for values in zip(*signs, strict=True)]
        length = math.sqrt(sum(value * value for value in total) * 16)
        template = sum(a * b for a, b in zip(own, total, strict=True)) / length
        wanted.append(template if identifier.calibration.rule == "template" else max(images))
    assert [answer.similarity, answer.runner_up_similarity] == pytest.approx(sorted(wanted)[:-3:-1], abs=1e-5)


# The command


def test_the_command_answers_and_names_what_is_broken(
    dogs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dogs / "new" / "pattern 1" / "broken.png").write_bytes(b"no picture")
    words = ["identify", str(dogs / "run"), str(dogs / "new"), "--far", "0.1"]
    capsys.readouterr()
    assert main([*words, "--csv", str(tmp_path / "out.csv")]) == 0
    told = capsys.readouterr().out
    assert "4 classes of 8 images" in told and "from 30 held-out classes" in told
    lines = told.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("picture "))
    assert lines[head].split() == ["picture", "who", "probability", "nearest", "runner-up"]
    assert sum(" %  pattern" in line for line in lines[head:]) == 16
    assert "! pattern 1/broken.png cannot be read: not an image" in told
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 17 and sum(row["verdict"] == "unreadable" for row in rows) == 1
    broken = next(row for row in rows if row["verdict"] == "unreadable")
    assert broken["picture"].endswith("broken.png") and broken["problem"].startswith("not an image")
    right = wrong = missed = taken = 0
    for row in rows:
        if row["verdict"] == "unreadable":
            continue
        known = row["folder"] < "pattern 4"
        right += known and row["who"] == row["folder"]
        wrong += known and row["who"] not in ("", row["folder"])
        missed += known and row["who"] == ""
        taken += not known and row["who"] != ""
    assert right + wrong + missed == 8
    text = f"Of 8 pictures in folders of enrolled classes, {right} ({right / 8:.0%}) are named rightly, {wrong} wrongly"
    assert text.replace("%", " %") in told and f"{missed} are not named" in told
    assert f"of 8 in other folders, {taken} (" in told
    # The same as JSON; and pictures that are enrolled are judged without themselves.
    assert main([*words, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["calibration"]["classes"] == 30 and whole["not_calibrated"] is None
    assert [one["who"] or "" for one in whole["answers"] if "who" in one] == [
        row["who"] for row in rows if row["verdict"] != "unreadable"
    ]
    assert whole["folders"]["right"] == right and whole["folders"]["taken"] == taken
    assert main(["identify", str(dogs / "run"), str(dogs / "enrolled")]) == 0
    assert "8 are enrolled themselves, and were judged by the others of their class" in capsys.readouterr().out


def test_pictures_and_folders_are_found(dogs: Path) -> None:
    one, folder = dogs / "new" / "pattern 0" / "002.png", dogs / "new" / "pattern 5"
    found = asked_for([one, folder])
    assert [asked.path for asked in found] == [str(one), *(str(folder / f"{n:03}.png") for n in range(20, 24))]
    assert found[0].shown == str(one) and found[1].shown == str(folder / "020.png")
    assert scored([], ["pattern 0"]) is None
    with pytest.raises(FileNotFoundError, match=r"there is no .*none\.png: give images"):
        asked_for([dogs / "none.png"])
    (dogs / "empty").mkdir()
    with pytest.raises(RetrievalError, match="contains no images"):
        asked_for([dogs / "empty"])


def test_nothing_readable_is_no_success(dogs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dogs / "broken.png").write_bytes(b"no picture")
    assert main(["identify", str(dogs / "run"), str(dogs / "broken.png")]) == 1
    assert "no picture could be read\n! " in capsys.readouterr().out


# Where nothing can be promised


def test_without_calibration_there_are_similarities_alone(dogs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dogs / "run" / "held_out.npz").unlink()
    capsys.readouterr()
    assert main(["identify", str(dogs / "run"), str(dogs / "new")]) == 0
    told = capsys.readouterr().out
    assert "not calibrated, because" in told and "has no embeddings of held-out classes" in told
    assert "train it again (nearfar train --config" in told
    assert "probability" not in told and "none of them" not in told and "0." in told
    assert "Of 8 pictures in folders of enrolled classes, " in told and "are nearest to their class." in told
    assert main(["identify", str(dogs / "run"), str(dogs / "new"), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["calibration"] is None and "held-out" in whole["not_calibrated"]
    assert {(one["verdict"], one["who"], one["probability"]) for one in whole["answers"]} == {
        ("uncalibrated", None, None)
    }


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"classes": 7}, "only 7 held-out classes have two or more images, and at least 8"),
        ({"open_set": False}, "held out images of its training classes"),
        ({"dimension": 4}, "belong to another model: train it again"),
    ],
)
def test_why_not(dogs: Path, options: dict[str, int], why: str) -> None:
    made = Run(dogs / "run")
    hold_out(made, **options)  # type: ignore[arg-type]
    identifier = Identifier.of(open_index(dogs / "run" / "index"), made)
    assert identifier.calibration is None and why in identifier.why_not


def test_an_index_without_classes_and_wrong_rates(dogs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(path) for path in (dogs / "new").rglob("*.png")]
    assert main(["index", str(dogs / "run"), *files, "--index", str(dogs / "nameless")]) == 0
    assert main(["identify", str(dogs / "run"), files[0], "--index", str(dogs / "nameless")]) == 2
    assert "has no classes: enrol some" in capsys.readouterr().err
    assert main(["identify", str(dogs / "run"), files[0], "--far", "2"]) == 2
    assert "FAR" in capsys.readouterr().err
    assert main(["identify", str(dogs / "run"), files[0], "--prior", "1"]) == 2
    assert "prior must be the share" in capsys.readouterr().err


def test_what_is_promised_in_words(dogs: Path) -> None:
    made, index = Run(dogs / "run"), open_index(dogs / "run" / "index")
    found = calibration_of(made, index.about, np.full(50, 2), 0.05, 0.5)
    assert "Extrapolated from 29 enrolled classes" in in_words(found)
    assert "(0 to 2 %);" in in_words(SURE) and "90 % are identified correctly (80 to 95 %)" in in_words(SURE)
    assert "nearest image" in in_words(OpenSet.from_dict({**SURE.to_dict(), "rule": "nearest"}))
