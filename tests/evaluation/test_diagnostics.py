"""Diagnostics against loops over all pairs in float64, and sets whose answer is known."""

import itertools

import numpy as np
import pytest
import torch

from nearfar.evaluation import diagnose

Array = np.ndarray


def clustered(n: int = 60, classes: int = 7, dimension: int = 5) -> tuple[Array, Array]:
    """The last class has one sample."""
    rng = np.random.default_rng(0)
    labels = np.r_[rng.integers(0, classes - 1, n - 1), classes - 1]
    x = rng.standard_normal((classes, dimension))[labels] + 0.5 * rng.standard_normal((n, dimension))
    return x.astype(np.float32), labels


def cosines(x: Array) -> Array:
    x = x.astype(np.float64)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    x = x / np.where(length > 0, length, 1)
    return x @ x.T


@pytest.mark.parametrize("anchors", [None, 17])
@pytest.mark.parametrize("block", [2**24, 60 * 7])
def test_pairs_against_loops(anchors: int | None, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.evaluation.diagnostics.SIMILARITIES_AT_A_TIME", block)
    x, labels = clustered()
    names = np.array(["cat", "dog", "owl", "bee", "ant", "fox", "eel"])[labels]
    s = cosines(x)
    found = diagnose(torch.from_numpy(x), names, bins=40, k=3, anchors=anchors, seed=4)
    rows = found.anchors.tolist()
    assert rows == sorted(set(rows)) and len(rows) == (anchors or 60)
    assert (found.samples, found.classes, found.dimension, found.zero_vectors) == (60, 7, 5, 0)

    positive = [s[i, j] for i in rows for j in range(60) if i != j and labels[i] == labels[j]]
    negative = [s[i, j] for i in rows for j in range(60) if labels[i] != labels[j]]
    edges = np.linspace(-1, 1, 41)
    np.testing.assert_array_equal(found.histogram.edges, edges)
    np.testing.assert_array_equal(found.histogram.positive, np.histogram(positive, edges)[0])
    np.testing.assert_array_equal(found.histogram.negative, np.histogram(negative, edges)[0])

    for place, i in enumerate(rows):
        own = [s[i, j] for j in range(60) if i != j and labels[i] == labels[j]]
        other = [s[i, j] for j in range(60) if labels[i] != labels[j]]
        wished = [min(own), max(own)] if own else [np.nan, np.nan]
        assert [found.hardest_positive[place], found.easiest_positive[place]] == pytest.approx(
            wished, abs=1e-6, nan_ok=True
        )
        assert found.hardest_negative[place] == pytest.approx(max(other), abs=1e-6)

    potential = [np.exp(-2 * (2 - 2 * s[i, j])) for i in rows for j in range(60) if i != j]
    assert found.uniformity == pytest.approx(np.log(np.mean(potential)), abs=1e-6)

    occurrences = np.zeros(60)
    for i in rows:
        occurrences[sorted((j for j in range(60) if j != i), key=lambda j: -s[i, j])[:3]] += 1
    np.testing.assert_array_equal(found.hubness.occurrences, occurrences)


def test_classes_against_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.evaluation.diagnostics.SAMPLES_AT_A_TIME", 13)
    x, labels = clustered()
    s = cosines(x)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    found = diagnose(x.astype(np.float64), labels)
    of_class = {c: [i for i in range(60) if labels[i] == c] for c in set(labels.tolist())}
    pairs = [(i, j) for rows in of_class.values() for i, j in itertools.permutations(rows, 2)]
    assert found.alignment == pytest.approx(np.mean([np.sum((unit[i] - unit[j]) ** 2) for i, j in pairs]), abs=1e-6)
    intra = [
        np.mean([1 - s[i, j] for i, j in itertools.permutations(rows, 2)])
        for rows in of_class.values()
        if len(rows) > 1
    ]
    centres = np.array([unit[rows].mean(0) for rows in of_class.values()])
    inter = [1 - c for c in cosines(centres)[~np.eye(7, dtype=bool)]]
    assert len(intra) == 6
    assert found.density.intra == pytest.approx(np.mean(intra), abs=1e-6)
    assert found.density.inter == pytest.approx(np.mean(inter), abs=1e-6)
    assert found.density.ratio == pytest.approx(np.mean(intra) / np.mean(inter), abs=1e-6)


@pytest.mark.parametrize("n", [60, 4])
def test_spectrum_against_numpy(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.evaluation.spectrum.ROWS_AT_A_TIME", 9)
    x, labels = clustered()
    x, labels = x[:n], labels[:n]
    unit = x.astype(np.float64) / np.linalg.norm(x, axis=1, keepdims=True)
    found = diagnose(x, labels).spectrum
    singular = np.linalg.svd(unit, compute_uv=False)
    np.testing.assert_allclose(found.singular_values, singular, atol=1e-6)
    share = singular / singular.sum()
    uniform = 1 / len(share)
    assert found.decay == pytest.approx(sum(uniform * np.log(uniform / p) for p in share), abs=1e-5)
    centred = np.linalg.svd(unit - unit.mean(0), compute_uv=False)
    np.testing.assert_allclose(found.variances[: min(n, 5)], centred**2 / n, atol=1e-7)
    p = centred[centred > 1e-6] / centred[centred > 1e-6].sum()
    assert found.effective_rank == pytest.approx(np.exp(-np.sum(p * np.log(p))), rel=1e-4)


def test_spectrum_of_known_sets() -> None:
    corners = np.array(list(itertools.product([-1, 1], repeat=4)), np.float32)
    even = diagnose(corners, np.arange(16) // 2).spectrum
    assert even.decay == pytest.approx(0, abs=1e-6) and even.effective_rank == pytest.approx(4, abs=1e-5)
    assert even.collapsed_dimensions == 0
    flat = np.zeros((16, 10), np.float32)
    flat[:, [2, 3, 5, 8]] = corners
    collapsed = diagnose(flat, np.arange(16) // 2).spectrum
    assert collapsed.effective_rank == pytest.approx(4, abs=1e-4) and collapsed.collapsed_dimensions == 6
    # Four shares of 1/4, and six of 2^-23 as near to zero as float32 can tell.
    assert collapsed.decay == pytest.approx(-np.log(10) - (4 * np.log(1 / 4) + 6 * np.log(2**-25)) / 10, abs=1e-4)


def test_a_collapsed_set() -> None:
    x = np.tile(np.random.default_rng(0).standard_normal(24), (50, 1)) * np.linspace(1, 3, 50)[:, None]
    found = diagnose(x, np.arange(50) % 5)
    summary = found.summary()
    assert summary["uniformity"] == pytest.approx(0, abs=1e-5) and summary["alignment"] == pytest.approx(0, abs=1e-5)
    assert summary["effective_rank"] == 0 and summary["collapsed_dimensions"] == 24
    assert np.isnan(summary["density"])
    # Everybody ties with everybody: nobody is a hub.
    np.testing.assert_allclose(found.hubness.occurrences, 10)
    assert (summary["hubness_skewness"], summary["hub_share"], summary["orphan_share"]) == (0, 0, 0)


def test_hubness_by_hand() -> None:
    # A star: everybody's nearest is the centre, whose nearest is the first point (a little nearer than the others).
    angles = np.array([0.0, 0.5])
    arms = np.array([[np.cos(angles[1]), *(np.sin(angles[1]) * np.eye(6)[i])] for i in range(6)])
    arms[0, 1] *= 0.9
    found = diagnose(np.concatenate([[np.eye(7)[0]], arms]), np.zeros(7, int), k=1).hubness
    assert found.occurrences.tolist() == [6, 1, 0, 0, 0, 0, 0]
    assert found.hub_share == pytest.approx(6 / 7) and found.orphan_share == pytest.approx(5 / 7)
    deviations = found.occurrences - 1
    assert found.skewness == pytest.approx(np.mean(deviations**3) / np.mean(deviations**2) ** 1.5)


def test_tied_neighbours_share_the_last_place() -> None:
    found = diagnose(np.array([[1.0, 0], [0, 1], [0, 1], [-1, 0], [-1, 0]]), [0] * 5, k=1).hubness
    # The first ties with rows 1 and 2, which are its nearest; the twins have each other.
    assert found.occurrences.tolist() == [0, 1.5, 1.5, 1, 1]


def test_where_there_is_nothing_to_measure() -> None:
    x, _ = clustered(20)
    one = diagnose(x, np.zeros(20, int))
    assert np.isnan(one.hardest_negative).all() and one.histogram.negative.sum() == 0
    assert one.histogram.positive.sum() == 20 * 19
    assert np.isnan([one.density.inter, one.density.ratio]).all() and np.isfinite(one.alignment)
    alone = diagnose(x, np.arange(20))
    assert np.isnan(alone.hardest_positive).all() and np.isnan(alone.easiest_positive).all()
    assert np.isnan([alone.alignment, alone.density.intra, alone.density.ratio]).all()
    assert np.isfinite(alone.density.inter) and alone.histogram.positive.sum() == 0
    x[5] = 0
    assert diagnose(x, np.arange(20)).zero_vectors == 1


def test_half_precision_and_few_rows() -> None:
    x, labels = clustered()
    whole, half = diagnose(x, labels).summary(), diagnose(torch.from_numpy(x).bfloat16(), labels).summary()
    assert half["uniformity"] == pytest.approx(whole["uniformity"], abs=0.02) and half != whole
    assert diagnose(x[:2], [0, 0], k=10).hubness.occurrences.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": np.ones((1, 3)), "labels": [0]}, "1 embeddings have no pairs"),
        ({"labels": [0, 1]}, "2 labels for 4 embeddings"),
        ({"embeddings": np.array([[1, np.nan], [1, 2], [np.inf, 0], [1, 1]])}, "2 of 4 embeddings hold NaN"),
        ({"k": 0}, "must be at least 1"),
        ({"bins": 0}, "must be at least 1"),
        ({"anchors": 0}, "must be at least 1"),
    ],
)
def test_bad_input(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        diagnose(**{"embeddings": np.eye(4), "labels": [0, 0, 1, 1]} | change)
