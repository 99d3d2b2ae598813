"""Intervals cover what they should, over classes and runs; a comparison of models knows chance from a difference."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from nearfar.evaluation import compare, retrieval_metrics, student
from nearfar.evaluation.class_means import ClassMean, class_mean, intervals

X = np.random.default_rng(0).normal(size=(80, 6))
LABELS = np.arange(80) // 4
NOISY = X + 1.0 * np.repeat(np.random.default_rng(1).normal(size=(20, 6)), 4, 0)


# The distribution


@pytest.mark.parametrize("degrees", [1, 2, 3, 8, 99])
def test_students_tail_is_scipys(degrees: int) -> None:
    t = np.array([-3.0, -0.5, 0.0, 0.1, 2.0, 12.7])
    assert student.above(t, degrees) == pytest.approx(scipy.stats.t.sf(t, degrees), rel=1e-9)


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.1, 1.0), (1.0, 0.1), (0.01, 1.0)])
@pytest.mark.parametrize("degrees", [(1, 99), (2, 9), (4, 3000), (2, 2)])
def test_the_sum_of_two_errors(scales: tuple[float, float], degrees: tuple[int, int]) -> None:
    """P(|a T + b U| > d) by scipy's quadrature over U, and the quantile that belongs to it."""
    a, b = scales
    for distance in (0.5, 2.0, 5.0):

        def tail(u: float, distance: float = distance) -> float:
            density: float = scipy.stats.t.pdf(u, degrees[1])
            return density * float(scipy.stats.t.sf((distance - b * u) / a, degrees[0]))

        pieces = [-np.inf, -5, 0, distance / b - 8 * a / b, distance / b, distance / b + 8 * a / b, np.inf]
        edges = sorted(set(pieces))
        expected = 2 * sum(
            scipy.integrate.quad(tail, low, high, limit=200, epsabs=1e-12)[0] for low, high in itertools.pairwise(edges)
        )
        found = student.beyond(distance, ((a, degrees[0]), (b, degrees[1])))
        assert found == pytest.approx(expected, rel=0.03, abs=3e-4)
    width = student.half_width(((a, degrees[0]), (b, degrees[1])), 0.95)
    assert student.beyond(width, ((a, degrees[0]), (b, degrees[1]))) == pytest.approx(0.05, abs=1e-4)


@pytest.mark.parametrize("degrees", [(2, 99), (9, 3)])
def test_of_two_errors_a_large_one_is_all(degrees: tuple[int, int]) -> None:
    for scales in ((1.0, 1e-6), (1e-6, 1.0)):
        errors = tuple(zip(scales, degrees, strict=True))
        only = degrees[scales.index(1.0)]
        assert student.beyond(2.5, errors) == pytest.approx(2 * scipy.stats.t.sf(2.5, only), rel=0.02)
        assert student.half_width(errors, 0.95) == pytest.approx(scipy.stats.t.ppf(0.975, only), rel=0.01)


def test_no_error_is_certain() -> None:
    assert student.beyond(0.0, ((0.0, 3),)) == 1.0
    assert student.beyond(0.1, ((0.0, 3), (0.0, 2))) == 0.0
    assert student.half_width(((0.0, 3), (0.0, 2)), 0.95) == 0.0


# Means


def test_equal_classes_have_students_interval_of_their_means() -> None:
    values = np.random.default_rng(2).normal(0.4, 0.1, 80)
    means = values.reshape(20, 4).mean(1)
    expected = scipy.stats.t.interval(0.9, 19, means.mean(), scipy.stats.sem(means))
    assert class_mean(values, LABELS).interval(0.9) == pytest.approx(expected)
    assert class_mean(values - 0.4, LABELS).p_value == pytest.approx(scipy.stats.ttest_1samp(means, 0.4).pvalue)


def test_unequal_classes_have_the_jackknifes() -> None:
    """By leaving out each class in turn."""
    g = np.random.default_rng(3)
    labels = np.repeat(np.arange(9), g.integers(1, 30, 9))
    values = g.random(len(labels)) + 0.3 * g.random(9)[labels]
    without = np.array([values[labels != c].mean() for c in range(9)])
    error = math.sqrt(8 / 9 * ((without - without.mean()) ** 2).sum())
    width = scipy.stats.t.ppf(0.975, 8) * error
    low, high = class_mean(values, labels).interval()
    assert (low, high) == pytest.approx((values.mean() - width, values.mean() + width))


def test_mean_squares_are_those_of_the_table() -> None:
    g = np.random.default_rng(4)
    table = g.random((3, 5)) + g.random((3, 1))
    found = class_mean(np.repeat(table, 4, 1), np.arange(20) // 4)
    runs, classes, whole = table.mean(1), table.mean(0), table.mean()
    rest = table - runs[:, None] - classes + whole
    assert found.of_runs == pytest.approx(5 * runs.var(ddof=1))
    assert found.of_classes == pytest.approx(3 * classes.var(ddof=1))
    assert found.of_rest == pytest.approx((rest**2).sum() / 8)
    only_runs = class_mean(np.repeat(runs[:, None] - whole + 0.2, 20, 1), np.arange(20) // 4)
    expected = scipy.stats.t.interval(0.95, 2, 0.2, scipy.stats.sem(runs))
    assert only_runs.interval() == pytest.approx(expected, abs=1e-6)


def test_one_class_says_nothing_of_others() -> None:
    found = class_mean(np.array([0.1, 0.2]), np.array([7, 7]))
    assert found.interval() == (-math.inf, math.inf) and found.p_value == 1.0
    assert intervals({"m": np.array([0.1, np.nan])}, np.array([7, 7])) == {"m": (0.0, 1.0)}


def drawn(g: np.random.Generator, runs: int, classes: int, of_class: float, of_run: float) -> np.ndarray:
    """The difference of two contestants, 8 queries of each class; it is 0 on the mean of all classes and runs."""
    sides = g.normal(0, of_run, (2, runs, 1)) + g.normal(0, 0.03, (2, runs, 8 * classes))
    return (
        sides[1]
        - sides[0]
        + np.repeat(g.normal(0, of_class, classes), 8)
        + np.repeat(g.normal(0, 0.005, (runs, classes)), 8, axis=1)
    )


@pytest.mark.parametrize("of_run", [0.002, 0.01])
@pytest.mark.parametrize(("runs", "classes"), [(3, 10), (3, 100), (5, 30), (9, 100)])
def test_intervals_hold_for_other_classes_and_other_runs(runs: int, classes: int, of_run: float) -> None:
    """400 draws: 95 %, within three standard errors below and 99.5 % above; a test of classes or of runs only is worse
    than that somewhere.
    """
    g = np.random.default_rng(runs * classes)
    labels = np.repeat(np.arange(classes), 8)
    found = [class_mean(drawn(g, runs, classes, 0.02, of_run), labels) for _ in range(400)]
    within = np.mean([abs(each.value) <= each.half_width() for each in found])
    assert 0.95 - 3 * math.sqrt(0.05 * 0.95 / 400) <= within <= 0.995
    alarms = np.mean([each.p_value < 0.05 for each in found])
    assert alarms == pytest.approx(1 - within, abs=0.01)


def test_queries_classes_or_runs_by_themselves_claim_too_much() -> None:
    """The same draws by simpler tests, so that the one above is known to have something to find."""
    g = np.random.default_rng(5)
    labels = np.repeat(np.arange(100), 8)
    claims = dict.fromkeys(("queries", "classes", "runs", "both"), 0)
    for number in range(400):
        values = drawn(g, 3, 100, 0.02, 0.01 if number % 2 else 0.0005)
        samples = {"queries": values.mean(0), "classes": values.mean(0).reshape(100, 8).mean(1), "runs": values.mean(1)}
        for name, sample in samples.items():
            claims[name] += scipy.stats.ttest_1samp(sample, 0).pvalue < 0.05
        claims["both"] += class_mean(values, labels).p_value < 0.05
    assert claims["queries"] > 200 and claims["classes"] > 100 and claims["runs"] > 40
    assert claims["both"] < 34  # 5 % of 400, and three standard errors


def test_what_more_would_tell() -> None:
    """Of classes with a standard deviation of 0.02: t(C − 1) 0.02 / √C is below 0.006 from 46 on; of runs with one of
    0.01: t(S − 1) 0.01 / √S is below 0.012 from 6 on (both by scipy). Of a difference of 0 nothing would tell.
    """
    by_classes = ClassMean(0.006, runs=3, classes=30, of_runs=0.0, of_classes=3 * 0.02**2, of_rest=0.0)
    enough = [n for n in range(31, 301) if scipy.stats.t.ppf(0.975, n - 1) * 0.02 / math.sqrt(n) < 0.006]
    assert by_classes.p_value > 0.05 and by_classes.needed(0.05) == (None, enough[0])
    by_runs = ClassMean(0.012, runs=3, classes=30, of_runs=30 * 0.01**2, of_classes=0.0, of_rest=0.0)
    enough = [n for n in range(4, 21) if scipy.stats.t.ppf(0.975, n - 1) * 0.01 / math.sqrt(n) < 0.012]
    assert by_runs.p_value > 0.05 and by_runs.needed(0.05) == (enough[0], None)
    assert class_mean(np.zeros((3, 80)), LABELS).needed(0.05) == (None, None)


# Two models


def test_retrieval_with_intervals() -> None:
    found = retrieval_metrics(X, LABELS, ci=True)
    plain = retrieval_metrics(X, LABELS)
    assert {k: v for k, v in found.items() if k not in ("ci", "ci_classes")} == plain
    assert found["ci_classes"] == 20
    assert set(found["ci"]) == set(plain) - {"queries", "queries_without_match"}
    for name, (low, high) in found["ci"].items():
        assert 0 <= low <= found[name] <= high <= 1, name
    values = retrieval_metrics(X, LABELS, per_query=True)
    assert found["ci"]["map"] == pytest.approx(class_mean(values["per_query"]["map"], LABELS).interval())
    assert np.array_equal(values["query_labels"], LABELS)


def test_comparison() -> None:
    first, second = (retrieval_metrics(x, LABELS, per_query=True) for x in (X, NOISY))
    found = compare(first, second)
    assert set(found) == set(first["per_query"])
    for name, result in found.items():
        assert result.first == pytest.approx(first[name]) and result.second == pytest.approx(second[name])
        assert result.difference == pytest.approx(second[name] - first[name])
        assert result.ci[0] <= result.difference <= result.ci[1]
        assert 0 < result.p_value <= 1
        assert (result.classes, result.runs) == (20, 1)
    assert found["map"].difference > 0.1 and found["map"].p_value < 0.001 and found["map"].ci[0] > 0
    same = compare(first, first)["map"]
    assert (same.difference, same.ci, same.p_value) == (0, (0, 0), 1)
    back = compare(second, first)["map"]
    assert back.difference == pytest.approx(-found["map"].difference)


def test_runs_are_compared_with_runs() -> None:
    g = np.random.default_rng(7)
    runs = [retrieval_metrics(X + 0.05 * g.normal(size=X.shape), LABELS, per_query=True) for _ in range(6)]
    found = compare(runs[:3], runs[3:])["map@r"]
    table = [[run["per_query"]["map@r"] for run in side] for side in (runs[:3], runs[3:])]
    expected = class_mean(np.stack(table[1]) - np.stack(table[0]), LABELS)
    assert (found.runs, found.p_value) == (3, expected.p_value) and found.p_value > 0.05
    assert found.first == pytest.approx(np.mean(table[0]))


def test_what_cannot_be_compared() -> None:
    first = retrieval_metrics(X, LABELS, per_query=True)
    with pytest.raises(ValueError, match=r"the second result has no per-query values: .*per_query=True"):
        compare(first, retrieval_metrics(X, LABELS))
    with pytest.raises(ValueError, match="the first has 80 queries and the second 40"):
        compare(first, retrieval_metrics(X[:40], LABELS[:40], per_query=True))
    with pytest.raises(ValueError, match="no metric in common: recall@1 and map"):
        compare(*(retrieval_metrics(X, LABELS, metrics=name, per_query=True) for name in ("recall@1", "map")))
    with pytest.raises(ValueError, match="the first has 1 runs and the second 2"):
        compare(first, [first, first])
    with pytest.raises(ValueError, match="the classes of the 2 queries are unknown"):
        compare(*({"per_query": {"m": np.zeros(2)}} for _ in range(2)))
    assert compare(*({"per_query": {"m": np.zeros(2)}} for _ in range(2)), labels=["a", "b"])["m"].p_value == 1.0
    other = LABELS.copy()
    other[0] = 99
    with pytest.raises(ValueError, match="excluded different queries"):
        compare(first, retrieval_metrics(X, other, per_query=True))
