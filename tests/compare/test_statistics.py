"""Statistics, against scipy and by hand."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from nearfar.compare.statistics import all_pairs, half_width, holm, summary


def naive_holm(p_values: list[float]) -> list[float]:
    """By its definition: how small the level of the whole family may be with this hypothesis still rejected."""
    corrected = []
    for p in p_values:
        # Step down through the sorted p-values; each that comes no later must pass its own threshold.
        before = [q for q in sorted(p_values) if q <= p]
        levels = [q * (len(p_values) - sum(r < q for r in p_values)) for q in before]
        corrected.append(min(1.0, max(levels)))
    return corrected


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm([0.5, 0.001]) == pytest.approx([0.5, 0.002])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_against_its_definition() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 5, 20):
        p_values = rng.uniform(0, 0.2, count).tolist()
        assert holm(p_values) == pytest.approx(naive_holm(p_values))
        bonferroni = [min(1.0, count * p) for p in p_values]
        assert all(p <= h <= b + 1e-15 for p, h, b in zip(p_values, holm(p_values), bonferroni, strict=True))


def test_interval_over_seeds_is_students() -> None:
    values = np.random.default_rng(1).normal(0.5, 0.1, 5)
    low, high = scipy.stats.t.interval(0.95, 4, values.mean(), scipy.stats.sem(values))
    assert half_width(values) == pytest.approx((high - low) / 2, rel=1e-12)
    assert math.isnan(half_width([0.5]))


def test_interval_over_queries_is_the_bootstraps() -> None:
    values = np.random.default_rng(2).beta(1, 3, (3, 400))
    found = summary(values)
    expected = scipy.stats.bootstrap(
        (values.mean(0),), np.mean, method="percentile", n_resamples=4000, rng=np.random.default_rng(0)
    ).confidence_interval
    assert found.value == pytest.approx(values.mean())
    assert [found.low, found.high] == pytest.approx([expected.low, expected.high], abs=0.002)
    assert found.seeds == pytest.approx(half_width([row.mean() for row in values]))


def test_pairs_against_scipy() -> None:
    rng = np.random.default_rng(3)
    base = rng.uniform(0, 1, 150)
    values = {
        "a": base,
        "slightly better": base + rng.normal(0.012, 0.06, 150),
        "better": base + rng.normal(0.05, 0.05, 150),
    }
    pairs = all_pairs(values)
    assert [(pair.first, pair.second) for pair in pairs] == list(itertools.combinations(values, 2))
    for pair in pairs:
        delta = values[pair.second] - values[pair.first]
        expected = scipy.stats.permutation_test(
            (delta,), np.mean, permutation_type="samples", n_resamples=4000, rng=np.random.default_rng(0)
        )
        assert pair.difference == pytest.approx(delta.mean())
        assert pair.p == pytest.approx(expected.pvalue, abs=0.012)
        interval = scipy.stats.bootstrap(
            (delta,), np.mean, method="percentile", n_resamples=4000, rng=np.random.default_rng(0)
        ).confidence_interval
        assert [pair.low, pair.high] == pytest.approx([interval.low, interval.high], abs=0.001)
    assert [pair.p_holm for pair in pairs] == pytest.approx(naive_holm([pair.p for pair in pairs]))
    assert pairs[1].significant  # a and better


def test_pairs_can_be_significant_however_many_there_are() -> None:
    """The smallest p-value of a permutation test is bounded, and Holm's correction multiplies it."""
    rng = np.random.default_rng(4)
    values = {str(i): i * 0.1 + rng.normal(0, 0.001, 20) for i in range(16)}
    pairs = all_pairs(values)
    assert len(pairs) == 120
    assert all(pair.significant for pair in pairs)


def test_equals_are_not_significant() -> None:
    values = np.random.default_rng(5).uniform(0, 1, 50)
    (pair,) = all_pairs({"a": values, "b": values.copy()})
    assert pair.p == pair.p_holm == 1.0
    assert not pair.significant
    assert all_pairs({"a": values}) == []
