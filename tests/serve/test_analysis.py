"""Worst queries, confused classes, thresholds and the map, against loops over all pairs."""

from collections import Counter

import numpy as np
import pytest

from nearfar.serve.served_gallery import item_key
from tests.serve.making import HOSTILE, client, embed, photos, served

NOISE = 160.0  # so that there are mistakes


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The answers, and (N, N) similarities and labels to judge them by."""
    folder = tmp_path_factory.mktemp("served")
    asking = client(served(folder, noise=NOISE))
    pictures = photos(folder / "photos", noise=NOISE)
    x = np.concatenate([embed(path) for path, _ in pictures])
    s = x @ x.T
    np.fill_diagonal(s, -np.inf)
    keys = [item_key(path) for path, _ in pictures]
    labels = np.array([f"{label} {HOSTILE}" for _, label in pictures])
    return asking, s, labels, keys


def test_mistakes(asked) -> None:
    asking, s, labels, keys = asked
    found = asking.get("/api/runs/a/mistakes").json()
    nearest = labels[s.argmax(1)]
    right = int((nearest == labels).sum())
    assert 10 < right < 50  # else there is nothing to see
    assert (found["queries"], found["right"], found["drawn"]) == (60, right, False)
    margins = {}
    for i, key in enumerate(keys):
        same = labels == labels[i]
        margins[key] = s[i][same].max() - s[i][~same].max()
    shown = [one["margin"] for one in found["worst"]]
    assert shown == sorted(shown) and max(shown) < 0
    assert len({one["query"]["label"] for one in found["worst"]}) == len(found["worst"])  # one of each class
    for label in set(labels):
        mine = [one["margin"] for one in found["worst"] if one["query"]["label"] == label]
        worst = min(margins[key] for key, own in zip(keys, labels, strict=True) if own == label)
        assert mine == ([pytest.approx(worst, abs=1e-5)] if worst < 0 else [])
    for one in found["worst"]:
        row = s[keys.index(one["query"]["item"])]
        assert [hit["item"] for hit in one["found"]] == [keys[i] for i in np.argsort(-row)[:8]]
        assert [hit["right"] for hit in one["found"]] == [hit["label"] == one["query"]["label"] for hit in one["found"]]


def test_confused_classes(asked) -> None:
    asking, s, labels, keys = asked
    found = asking.get("/api/runs/a/mistakes").json()["confused"]
    wanted = Counter(tuple(sorted((labels[i], labels[j]))) for i, j in enumerate(s.argmax(1)) if labels[i] != labels[j])
    told = {tuple(sorted((pair["first"], pair["second"]))): pair["mistaken"] for pair in found}
    assert told == dict(wanted.most_common(24)) or sorted(told.values()) == sorted(n for _, n in wanted.most_common(24))
    for pair in found:
        i, j = keys.index(pair["query"]["item"]), keys.index(pair["found"]["item"])
        assert s[i].argmax() == j and pair["similarity"] == pytest.approx(s[i, j], abs=1e-5)
        assert {labels[i], labels[j]} == {pair["first"], pair["second"]} and pair["queries"] == 12


def test_thresholds_count_pairs_and_queries(asked) -> None:
    asking, s, labels, _ = asked
    found = asking.get("/api/runs/a/thresholds").json()
    same, alone = labels[:, None] == labels, ~np.eye(60, dtype=bool)
    assert found["calibrated"] == 0.9 and found["queries"] == 60
    assert len(found["at"]) > 20
    best, right = s.max(1), labels[s.argmax(1)] == labels
    for place, at in enumerate(found["at"]):
        near = np.abs(s - at) < 1e-4  # rounding may turn these over
        for kind, pairs in (("same", same & alone), ("other", ~same)):
            counted = int(((s >= at) & pairs).sum())
            assert abs(found[kind][place] - counted) <= int((near & pairs).sum())
        assert abs(found["answered"][place] - int((best >= at).sum())) <= int((np.abs(best - at) < 1e-4).sum())
        assert abs(found["right"][place] - int(((best >= at) & right).sum())) <= int((np.abs(best - at) < 1e-4).sum())
    assert found["same"][0] == 60 * 5 and found["other"][0] == 60 * 54  # the lowest accepts everything


def test_the_map(asked) -> None:
    asking, s, labels, keys = asked
    found = asking.get("/api/runs/a/map").json()
    assert sorted(found["item"]) == sorted(keys)
    assert min(found["x"] + found["y"]) >= 0 and max(found["x"] + found["y"]) <= 1
    for item, label, right in zip(found["item"], found["label"], found["right"], strict=True):
        row = keys.index(item)
        assert found["names"][label] == labels[row]
        assert right == (labels[s[row].argmax()] == labels[row])


def test_after_a_change_mistakes_are_new_and_the_map_has_no_holes(tmp_path) -> None:
    from tests.serve.making import bearer

    asking = client(served(tmp_path))
    before = asking.get("/api/runs/a/map").json()
    assert asking.get("/api/runs/a/mistakes").json()["queries"] == 60
    gone = before["item"][7]
    assert asking.delete(f"/api/runs/a/items/{gone}", headers=bearer()).status_code == 200
    assert asking.get("/api/runs/a/mistakes").json()["queries"] == 59
    after = asking.get("/api/runs/a/map").json()
    assert after["item"] == [item for item in before["item"] if item != gone]
    assert after["x"] == [x for x, item in zip(before["x"], before["item"], strict=True) if item != gone]
