"""Identification against loops over every search, ties worked by hand, and far more distractors than fit a block."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.evaluation import identification_metrics

Array = np.ndarray


def cosines(a: Array, b: Array) -> Array:
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a.astype(np.float64), b.astype(np.float64)))
    return a @ b.T


def naive_searches(
    probes: Array, labels: Array, gallery: Array | None, gallery_labels: Array | None, distractors: Array, each: bool
) -> tuple[list[tuple[float, list[float]]], list[float]]:
    """(similarity of the mate, similarities of the strangers) of every mated search; best strangers of the others."""
    known, known_labels = (probes, labels) if gallery is None else (gallery, gallery_labels)
    s, d = cosines(probes, known), cosines(probes, distractors)
    mated, unmated = [], []
    for i in range(len(probes)):
        mates = [j for j in range(len(known)) if known_labels[j] == labels[i] and not (gallery is None and i == j)]
        strangers = list(d[i])
        if not each:
            strangers += [s[i, j] for j in range(len(known)) if known_labels[j] != labels[i]]
        if not mates:
            unmated.append(max(strangers))
        elif each:
            mated += [(s[i, j], strangers) for j in mates]
        else:
            mated.append((max(s[i, j] for j in mates), strangers))
    return mated, unmated


@pytest.mark.parametrize("protocol", ["gallery", "megaface"])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("fnir_rank", [1, 3, None])
def test_against_loops(protocol: str, own: bool, fnir_rank: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.evaluation.identification.STRANGERS_AT_A_TIME", 23)
    monkeypatch.setattr("nearfar.evaluation.identification.PROBES_AT_A_TIME", 11)
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((12, 8))
    labels = np.r_[rng.integers(0, 8, 50), np.arange(8, 12)]
    gallery_labels = rng.integers(0, 8, 40)
    probes = (centres[labels] + rng.standard_normal((54, 8))).astype(np.float32)
    gallery = (centres[gallery_labels] + rng.standard_normal((40, 8))).astype(np.float32)
    distractors = rng.standard_normal((300, 8)).astype(np.float32)
    given = (None, None) if own else (gallery, gallery_labels)
    mated, unmated = naive_searches(probes, labels, *given, distractors, each=protocol == "megaface")
    assert mated and len(unmated) >= 4
    names = np.array([f"person {i}" for i in range(12)])
    found = identification_metrics(
        torch.from_numpy(probes),
        names[labels],
        None if own else gallery,
        None if own else names[gallery_labels],
        distractors=distractors,
        protocol=protocol,
        ranks=(1, 5, 20),
        fpirs=(0.25, 0.5, 1.0),
        fnir_rank=fnir_rank,
    )
    ranks = [1 + sum(x >= mate for x in strangers) for mate, strangers in mated]
    for k in (1, 5, 20):
        assert found[f"rank@{k}"] == pytest.approx(np.mean([r <= k for r in ranks]), abs=1e-12)
    assert 0 < found["rank@1"] < found["rank@20"] < 1 or protocol == "gallery"
    assert found["mated_searches"] == len(mated) and found["unmated_searches"] == len(unmated)
    assert found["distractors"] == 300
    for fpir in (0.25, 0.5, 1.0):
        # The lowest threshold, among all scores and above, that lets through few enough of the unmated.
        scores = sorted({*unmated, *(mate for mate, _ in mated)})
        allowed = [t for t in [-1.0, *(t + 1e-9 for t in scores)] if np.mean(np.array(unmated) >= t) <= fpir]
        misses = [
            mate < min(allowed) or (fnir_rank is not None and rank > fnir_rank)
            for (mate, _), rank in zip(mated, ranks, strict=True)
        ]
        assert found[f"fnir@fpir={fpir:g}"] == pytest.approx(np.mean(misses), abs=1e-12)
        assert np.mean(np.array(unmated) >= found[f"threshold@fpir={fpir:g}"]) <= fpir


def test_ties_count_against_the_model() -> None:
    same = np.ones((4, 16), np.float32)
    found = identification_metrics(same, [0, 0, 1, 1], distractors=same[:2], ranks=(1, 3, 4, 5))
    # The two of the other label and the two distractors are as near as the mate: rank 5.
    assert [found[f"rank@{k}"] for k in (1, 3, 4, 5)] == [0, 0, 0, 1]
    found = identification_metrics(same, [0, 0, 1, 1], distractors=same[:2], ranks=(1, 2, 3), protocol="megaface")
    assert [found[f"rank@{k}"] for k in (1, 2, 3)] == [0, 0, 1]


def test_ties_that_rounding_hides() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 512)).astype(np.float32)
    probes, labels = np.concatenate([x, x * 3]), np.tile(np.arange(6), 2)
    copies = np.repeat(x, 3000, axis=0) * rng.uniform(0.5, 2, (18000, 1)).astype(np.float32)
    found = identification_metrics(probes, labels, distractors=copies, protocol="megaface", ranks=(1, 3000, 3001))
    assert [found[f"rank@{k}"] for k in (1, 3000, 3001)] == [0, 0, 1]


@pytest.mark.parametrize("protocol", ["gallery", "megaface"])
@pytest.mark.parametrize("own", [True, False])
def test_verification_against_loops(protocol: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.evaluation.identification.STRANGERS_AT_A_TIME", 23)
    monkeypatch.setattr("nearfar.evaluation.identification.PROBES_AT_A_TIME", 7)
    rng = np.random.default_rng(6)
    centres = rng.standard_normal((6, 5))
    labels, gallery_labels = rng.integers(0, 6, 30), rng.integers(0, 5, 40)
    probes = (centres[labels] + rng.standard_normal((30, 5))).astype(np.float32)
    gallery = (centres[gallery_labels] + rng.standard_normal((40, 5))).astype(np.float32)
    distractors = rng.standard_normal((80, 5)).astype(np.float32)
    known, known_labels = (probes, labels) if own else (gallery, gallery_labels)
    s = cosines(probes, known)
    everybody = [(i, j) for i in range(30) for j in range(len(known))]
    mates = np.array([s[i, j] for i, j in everybody if labels[i] == known_labels[j] and not (own and i == j)])
    strangers = cosines(probes, distractors).ravel()
    if protocol == "gallery":
        strangers = np.r_[strangers, [s[i, j] for i, j in everybody if labels[i] != known_labels[j]]]
    fars = (0.0, 1 / len(strangers), 0.01, 0.1, 0.5, 1.0)
    found = identification_metrics(
        probes,
        labels,
        None if own else gallery,
        None if own else gallery_labels,
        distractors=distractors,
        protocol=protocol,
        fars=fars,
    )
    assert found["stranger_pairs"] == len(strangers)
    for far in fars:
        rates = [np.mean(mates >= t) for t in [-2, *(strangers + 1e-9)] if np.mean(strangers >= t) <= far]
        assert found[f"tar@far={far:g}"] == max(rates), far
        assert np.mean(strangers >= found[f"threshold@far={far:g}"]) <= far
    assert 0 < found["tar@far=0.1"] < found["tar@far=0.5"] < found["tar@far=1"] == 1


def test_verification_of_a_collapsed_set() -> None:
    same = np.ones((4, 300), np.float32) * np.array([[1], [2], [0.3], [0.7]], np.float32)
    found = identification_metrics(same, [0, 0, 1, 1], distractors=same, protocol="megaface", fars=(0.5, 1.0))
    assert (found["tar@far=0.5"], found["tar@far=1"]) == (0, 1)  # strangers are as similar as mates


def test_fewer_strangers_than_the_rate_needs() -> None:
    with pytest.warns(UserWarning, match="FAR 0.01 cannot be measured with 8 pairs of probe and stranger"):
        found = identification_metrics(np.eye(4), [0, 0, 1, 1], np.eye(4), [0, 0, 1, 1], fars=(0.01,))
    assert found["tar@far=0.01"] == 0.5  # each probe has itself for a mate, and another


def test_more_scores_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.evaluation.identification.SCORES_KEPT", 10)
    with pytest.raises(ValueError, match="needs 12 scores of strangers, and at most 10 are kept"):
        identification_metrics(np.eye(4), [0, 0, 1, 1], distractors=np.ones((6, 4)), protocol="megaface", fars=(0.5,))


def test_each_turn_counts_in_megaface() -> None:
    # One person: a good pair and a bad picture. Similarities of the pictures: 0-1: 1, 0-2 and 1-2: 0.6.
    probes = np.array([[1, 0], [1, 0], [0.6, 0.8]])
    distractor = np.array([[0.8, 0.6]])  # 0.8 to the good ones, 0.96 to the bad one
    turns = identification_metrics(probes, [1, 1, 1], distractors=distractor, protocol="megaface", ranks=(1,))
    assert turns["rank@1"] == pytest.approx(2 / 6) and turns["mated_searches"] == 6
    best = identification_metrics(probes, [1, 1, 1], distractors=distractor, ranks=(1,))
    assert best["rank@1"] == pytest.approx(2 / 3) and best["mated_searches"] == 3


def test_distractors_may_be_a_memory_map_of_half_precision(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    probes, labels = rng.standard_normal((8, 4)), np.arange(8) // 2
    file = np.lib.format.open_memmap(tmp_path / "d.npy", "w+", np.float16, (20_000, 4))
    file[:] = rng.standard_normal((20_000, 4))
    file.flush()
    mapped = np.load(tmp_path / "d.npy", mmap_mode="r")
    found = identification_metrics(probes, labels, distractors=mapped, protocol="megaface", ranks=(1, 100, 10_000))
    s, d = cosines(probes, probes), cosines(probes, np.array(mapped))
    ranks = [1 + np.sum(d[i] >= s[i, i ^ 1]) for i in range(8)]
    assert [found[f"rank@{k}"] for k in (1, 100, 10_000)] == [
        np.mean([r <= k for r in ranks]) for k in (1, 100, 10_000)
    ]


def test_fewer_unmated_searches_than_the_rate_needs() -> None:
    probes = np.eye(4)
    with pytest.warns(UserWarning, match=r"FPIR 0\.1 cannot be measured with 2 unmated searches"):
        found = identification_metrics(probes, [0, 1, 8, 9], np.eye(4)[:2], [0, 1], fpirs=(0.1,))
    assert found["fnir@fpir=0.1"] == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": "lfw"}, 'protocol must be "gallery" or "megaface", not \'lfw\''),
        ({"protocol": "megaface", "distractors": None}, "give distractors="),
        ({"ranks": (0, 1)}, "from 1 up, not 0"),
        ({"ranks": (1, 2.5)}, "whole numbers from 1 up, not 2.5"),
        ({"fnir_rank": -1}, "from 1 up, not -1"),
        ({"ranks": ()}, "ranks= is empty"),
        ({"fpirs": (1.5,)}, "an FPIR must be between 0 and 1"),
        ({"fars": (0.1, -0.1)}, "a FAR must be between 0 and 1"),
        ({"distractors": np.ones((0, 4))}, "distractors= is empty"),
        ({"fpirs": (0.1,)}, "fpirs= needs probes without one"),
        ({"gallery": np.eye(4)}, "gallery and gallery_labels go together"),
        ({"probe_labels": [0, 0, 1]}, "3 probe_labels for 4"),
        ({"probe_labels": [0, 1, 2, 3]}, "no probe has a mate"),
        ({"probe_labels": [0, 0, 0, 0], "distractors": None}, "only one label and there are no distractors"),
        ({"distractors": np.ones((3, 5))}, "distractors have 5 dimensions, but the probes 4"),
        ({"distractors": np.array([[np.nan, 1, 1, 1], [1, 1, 1, 1]])}, "1 of 2 distractors hold NaN"),
        ({"probes": np.ones((0, 4)), "probe_labels": []}, "no probe has a mate"),
        ({"gallery": np.ones((0, 4)), "gallery_labels": np.array([], int)}, "no probe has a mate"),
    ],
)
def test_bad_input(change: dict, message: str) -> None:
    good = {"probes": np.eye(4), "probe_labels": [0, 0, 1, 1], "distractors": np.ones((3, 4))}
    with pytest.raises(ValueError, match=message):
        identification_metrics(**good | change)
