"""Statistics, against scipy and by hand."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from nearfar.compare.statistics import all_pairs, half_width, holm, summary
from nearfar.evaluation.class_means import class_mean


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


LABELS = np.repeat(np.arange(25), 6)


def made(g: np.random.Generator, seeds: int, above: float = 0.0, of_seed: float = 0.003) -> np.ndarray:
    """Values of 25 classes with 6 queries each."""
    return 0.4 + above + g.normal(0, of_seed, (seeds, 1)) + g.normal(0, 0.03, (seeds, 150))


def test_a_mean_has_both_intervals() -> None:
    g = np.random.default_rng(2)
    values = made(g, 3) + np.repeat(g.normal(0, 0.05, 25), 6)
    found = summary(values, LABELS)
    assert found.value == pytest.approx(values.mean())
    assert found.seeds == pytest.approx(half_width(values.mean(1)))
    assert (found.low, found.high) == pytest.approx(class_mean(values, LABELS).interval())
    assert found.high - found.low > 2 * found.seeds  # classes count for more here


def test_pairs_are_of_the_same_queries_and_seeds() -> None:
    g = np.random.default_rng(3)
    values = {"a": made(g, 4), "slightly better": made(g, 4, 0.002), "better": made(g, 4, 0.05)}
    pairs = all_pairs(values, LABELS)
    assert [(pair.first, pair.second) for pair in pairs] == list(itertools.combinations(values, 2))
    for pair in pairs:
        mean = class_mean(values[pair.second] - values[pair.first], LABELS)
        assert (pair.difference, pair.p) == (mean.value, mean.p_value)
        assert (pair.low, pair.high) == pytest.approx(mean.interval())
    assert [pair.p_holm for pair in pairs] == pytest.approx(naive_holm([pair.p for pair in pairs]))
    slightly, clearly, _ = pairs
    assert clearly.significant and (clearly.verdict("better"), clearly.verdict("a")) == ("better", "worse")
    assert clearly.needed == "" and (clearly.seeds, clearly.classes) == (None, None)
    assert slightly.verdict("a") == slightly.verdict("slightly better") == "cannot be told"
    assert slightly.needed.endswith("would suffice")


def test_what_no_seed_changes_is_compared_with_every_run() -> None:
    g = np.random.default_rng(4)
    plain = made(g, 1, 0.0, 0.0)
    values = {
        "features": plain,
        "other features": plain + 0.05 + g.normal(0, 0.01, plain.shape),
        "loss": plain + made(g, 3),
    }
    untrained = ("features", "other features")
    baselines, loss, _ = all_pairs(values, LABELS, untrained)
    assert baselines.significant  # by classes only: nothing else is drawn
    assert loss.significant and loss.difference == pytest.approx((values["loss"] - plain).mean())
    alone = all_pairs({**values, "loss": values["loss"][:1]}, LABELS, untrained)
    assert [pair.p for pair in alone[1:]] == [1.0, 1.0] and not alone[1].significant  # one run says nothing of others
    assert alone[1].needed == "a single run is not enough"


def test_equals_are_not_told_apart() -> None:
    values = np.random.default_rng(5).uniform(0, 1, (3, 150))
    (pair,) = all_pairs({"a": values, "b": values.copy()}, LABELS)
    assert pair.p == pair.p_holm == 1.0
    assert not pair.significant and pair.verdict("a") == "cannot be told"
    assert all_pairs({"a": values}, LABELS) == []
