"""Intervals cover what they should; the comparison of two models knows chance from a difference."""

import itertools

import numpy as np
import pytest

from nearfar.evaluation import compare, retrieval_metrics
from nearfar.evaluation.bootstrap import intervals

X = np.random.default_rng(0).normal(size=(80, 6))
LABELS = np.arange(80) // 4
NOISY = X + 1.0 * np.repeat(np.random.default_rng(1).normal(size=(20, 6)), 4, 0)


def test_intervals_of_a_mean() -> None:
    """As wide as the normal approximation says: ± 1.96 standard errors."""
    values = np.random.default_rng(2).normal(3, 2, size=(4000, 1))
    low, high = intervals(values)[0]
    error = values.std() / np.sqrt(4000)
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
    narrow_low, narrow_high = intervals(values, confidence=0.5)[0]
    assert narrow_high - narrow_low == pytest.approx(2 * 0.6745 * error, rel=0.1)


def test_intervals_cover_the_truth() -> None:
    covered = 0
    for seed in range(200):
        values = np.random.default_rng(seed).random((60, 1)) < 0.3
        low, high = intervals(values.astype(np.float64), resamples=300, seed=seed)[0]
        covered += low <= 0.3 <= high
    assert 180 <= covered <= 198  # 95 %, less what a percentile interval of 60 values lacks


def test_retrieval_with_intervals() -> None:
    found = retrieval_metrics(X, LABELS, ci=True, seed=3)
    plain = retrieval_metrics(X, LABELS)
    assert {k: v for k, v in found.items() if k != "ci"} == plain
    assert set(found["ci"]) == set(plain) - {"queries", "queries_without_match"}
    for name, (low, high) in found["ci"].items():
        assert low <= found[name] <= high, name
    assert found["ci"]["map"][0] < found["ci"]["map"][1]
    assert found == retrieval_metrics(X, LABELS, ci=True, seed=3)
    assert found["ci"] != retrieval_metrics(X, LABELS, ci=True, seed=4)["ci"]


def test_comparison() -> None:
    first, second = (retrieval_metrics(x, LABELS, per_query=True) for x in (X, NOISY))
    found = compare(first, second)
    assert set(found) == set(first["per_query"])
    for name, result in found.items():
        assert result.first == pytest.approx(first[name]) and result.second == pytest.approx(second[name])
        assert result.difference == pytest.approx(second[name] - first[name])
        assert result.ci[0] <= result.difference <= result.ci[1]
        assert 0 < result.p_value <= 1
    assert found["map"].difference > 0.1 and found["map"].p_value == 1 / 2001 and found["map"].ci[0] > 0
    assert found == compare(first, second)
    same = compare(first, first)["map"]
    assert (same.difference, same.ci, same.p_value) == (0, (0, 0), 1)
    back = compare(second, first)["map"]
    assert back.difference == pytest.approx(-found["map"].difference)


def test_p_value_is_the_share_of_sign_flips() -> None:
    """All 2^8 of them, by hand."""
    delta = np.array([0.5, 0.1, -0.2, 0.3, 0.0, 0.25, -0.05, 0.4])
    flips = [abs(np.dot(signs, delta)) >= abs(delta.sum()) - 1e-9 for signs in itertools.product((-1, 1), repeat=8)]
    first, second = {"per_query": {"m": np.zeros(8)}}, {"per_query": {"m": delta}}
    assert compare(first, second, resamples=20_000)["m"].p_value == pytest.approx(np.mean(flips), abs=0.01)


def test_p_values_are_uniform_by_chance() -> None:
    g = np.random.default_rng(5)
    p = []
    for seed in range(200):
        first, second = ({"per_query": {"m": g.random(50)}} for _ in range(2))
        p.append(compare(first, second, resamples=200, seed=seed)["m"].p_value)
    assert 2 <= np.sum(np.array(p) <= 0.05) <= 20
    assert 0.4 < np.mean(p) < 0.6


def test_what_cannot_be_compared() -> None:
    first = retrieval_metrics(X, LABELS, per_query=True)
    with pytest.raises(ValueError, match=r"the second result has no per-query values: .*per_query=True"):
        compare(first, retrieval_metrics(X, LABELS))
    with pytest.raises(ValueError, match="the first has 80 queries and the second 40"):
        compare(first, retrieval_metrics(X[:40], LABELS[:40], per_query=True))
    with pytest.raises(ValueError, match="no metric in common: recall@1 and map"):
        compare(*(retrieval_metrics(X, LABELS, metrics=name, per_query=True) for name in ("recall@1", "map")))
    other = LABELS.copy()
    other[0] = 99
    with pytest.raises(ValueError, match="excluded different queries"):
        compare(first, retrieval_metrics(X, other, per_query=True))
