"""Who it is, through the API: against templates by hand, and as the gallery changes."""

import dataclasses
import math

import numpy as np
import pytest

from nearfar.evaluation import NotCalibratedError
from nearfar.serve.identification import uncalibrated
from nearfar.serve.served_gallery import ServedGallery
from nearfar.serve.served_run import ServedRun
from tests.serve.making import HOSTILE, PROMISE, bearer, client, embed, photos, picture, served


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> ServedRun:
    return served(tmp_path_factory.mktemp("served"), each=3)


def by_hand(content: bytes, folder) -> list[tuple[float, str]]:
    """Similarities to the templates of the classes, the best first."""
    classes: dict[str, list[list[float]]] = {}
    for path, label in photos(folder / "photos", each=3):
        classes.setdefault(label, []).append(embed(path)[0].tolist())
    x, scores = embed(content)[0].tolist(), []
    for label, images in classes.items():
        total = [sum(values) for values in zip(*images, strict=True)]
        length = math.sqrt(sum(value * value for value in total))
        scores.append((sum(a * b for a, b in zip(x, total, strict=True)) / length, label))
    return sorted(scores, reverse=True)


def test_who_it_is_or_none_of_them(run) -> None:
    asking, folder = client(run), run.gallery.added.parent
    enrolled = (folder / "photos" / "004.png").read_bytes()
    verdicts = set()
    for content in (enrolled, *(picture(seed=seed) for seed in range(6))):
        answer = asking.post("/api/runs/a/identify", content=content)
        assert answer.status_code == 200
        found = answer.json()
        (first, name), (second, other) = by_hand(content, folder)[:2]
        assert found["nearest"] == f"{name} {HOSTILE}" and found["runner_up"] == f"{other} {HOSTILE}"
        assert found["similarity"] == pytest.approx(first, abs=1e-5)
        assert found["runner_up_similarity"] == pytest.approx(second, abs=1e-5)
        evidence = first - second / 2
        assert found["probability"] == pytest.approx(1 / (1 + math.exp(4 - 10 * evidence)), abs=1e-4)
        assert found["who"] == (found["nearest"] if evidence >= 0.45 else None)
        assert found["classes"] == 10 and found["why_not"] is None
        assert found["calibration"]["far_interval"] == [0.0, 0.02] and found["calibration"]["classes"] == 30
        below = "unsure" if found["probability"] >= 0.5 else "none"
        assert found["verdict"] == ("enrolled" if evidence >= 0.45 else below)
        verdicts.add(found["verdict"])
    assert {"enrolled", "none"} <= verdicts


def test_without_calibration_there_are_similarities(tmp_path) -> None:
    asking = client(served(tmp_path, calibrate=uncalibrated, each=3))
    found = asking.post("/api/runs/a/identify", content=picture()).json()
    assert found["verdict"] == "uncalibrated" and found["who"] is found["probability"] is found["calibration"] is None
    assert found["why_not"] == "no held-out classes are known"
    assert found["similarity"] == pytest.approx(by_hand(picture(), tmp_path)[0][0], abs=1e-5)


def test_it_is_calibrated_once_and_again_when_the_classes_change(tmp_path) -> None:
    asked: list[list[int]] = []

    def calibrate(about, counts, far):
        assert far == 0.01
        asked.append(counts.tolist())
        if len(counts) > 4:
            raise NotCalibratedError("too many")
        return PROMISE

    run = served(tmp_path, classes=4, each=2, calibrate=calibrate)
    with client(run) as asking:

        def found() -> dict:
            return asking.post("/api/runs/a/identify", content=picture(seed=3)).json()

        assert [found()["verdict"] != "uncalibrated" for _ in range(3)] == [True] * 3
        assert asked == [[2, 2, 2, 2]]
        assert found()["who"] is None
        added = asking.post("/api/runs/a/items?label=mine", content=picture(seed=3), headers=bearer()).json()
        now = found()
        assert now["nearest"] == "mine" and now["similarity"] == pytest.approx(1, abs=1e-5)
        assert now["verdict"] == "uncalibrated" and now["why_not"] == "too many" and now["classes"] == 5
        assert asked == [[2, 2, 2, 2], [1, 2, 2, 2, 2]]
        asking.delete(f"/api/runs/a/items/{added['added']['item']}", headers=bearer())
        assert found()["nearest"] != "mine" and asked[2:] == [[2, 2, 2, 2]]


def test_the_rate_is_chosen_and_each_is_calibrated_once(tmp_path) -> None:
    asked: list[float] = []

    def calibrate(about, counts, far):
        asked.append(far)
        return dataclasses.replace(PROMISE, wished=far)

    with client(served(tmp_path, classes=4, each=2, calibrate=calibrate)) as asking:
        wished = [
            asking.post(f"/api/runs/a/identify?far={rate}", content=picture()).json()["calibration"]["wished"]
            for rate in ("0.1", "0.2", "0.1", "0.01")
        ]
        assert wished == [0.1, 0.2, 0.1, 0.01] and sorted(asked) == [0.01, 0.1, 0.2]
        assert asking.post("/api/runs/a/identify?far=0.123", content=picture()).status_code == 422


def test_a_gallery_without_classes_says_so(tmp_path) -> None:
    run = served(tmp_path, classes=2, each=2)
    with run.gallery.index.change() as change:
        ids = [item.id for item in list(run.gallery.index.listed())]
        change.put(ids, np.concatenate([embed(path) for path in ids]), [""] * len(ids))
    nameless = ServedRun("a", run.summary, embed, ServedGallery(run.gallery.index, str, tmp_path / "added"))
    answer = client(nameless).post("/api/runs/a/identify", content=picture())
    assert answer.status_code == 409 and "the gallery has no classes" in answer.json()["detail"]
