"""Confidence intervals of a mean over queries, for other classes and other training runs.

Queries of one class resemble each other, and so do the queries of one run. The sample therefore consists of C classes
and S runs. Leaving out class c, with n_c of the Q queries, moves the mean m of a run by (m_c − m) n_c / (Q − n_c). So
the jackknife's value of class c is

    y_c = m + (C−1) n_c / (Q − n_c) · (m_c − m)             its mean m_c, if all classes have as many queries

The table y_sc has the mean squares M_run of the runs, M_class of the classes and M_rest of the residuals. The error of
the mean is the sum of two independent errors,

    √(M_run / (S C)) · T_{S−1}                               the variation between runs
    √((M_class − M_rest)₊ / (S C)) · T_{C−1}                 the variation between classes

and with a single run √(M_class / C) · T_{C−1}, where T is Student's t. Intervals, and p-values of the hypothesis that
the mean is 0, are those of the sum. If one error is small, the interval is Student's interval of the other. Otherwise
it is somewhat too wide (as in the Behrens-Fisher problem), and much too wide with two runs, which determine a variance
poorly. A difference between two models on the same queries is such a mean, with the runs of both paired in order.

References: Searle, Casella and McCulloch, Variance Components (1992), chapter 4, for the table; Efron and Stein, The
jackknife estimate of variance, Annals of Statistics 9 (1981). docs/LOG.md lists methods with worse coverage.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import InputError
from nearfar.evaluation import student

Floats = NDArray[np.float64]
Interval = tuple[float, float]
CONFIDENCE = 0.95
MOST_RUNS, MOST_CLASSES = 20, 10  # limits of `ClassMean.needed`: runs, and times the number of classes


def check_confidence(confidence: float) -> None:
    """Raise `InputError` if `confidence` is not a probability."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be between 0 and 1, such as 0.95, not {confidence}")


def interval_note(classes: int) -> str:
    """The note shown next to intervals."""
    return f"95 % intervals for other classes of this kind, estimated from these {classes:,}"


@dataclass(frozen=True)
class ClassMean:
    """A mean over queries, with the mean squares M_run, M_class and M_rest (0 for a single run), see above."""

    value: float
    runs: int
    classes: int
    of_runs: float
    of_classes: float
    of_rest: float

    @property
    def errors(self) -> tuple[student.Error, ...]:
        """The errors of the mean: that of the runs, if there are several, and that of the classes."""
        cells = self.runs * self.classes
        of_classes = math.sqrt(max(0.0, self.of_classes - self.of_rest) / cells), self.classes - 1
        return ((math.sqrt(self.of_runs / cells), self.runs - 1), of_classes) if self.runs > 1 else (of_classes,)

    def half_width(self, confidence: float = CONFIDENCE) -> float:
        """Half the width of the interval; infinite if there is a single class."""
        return student.half_width(self.errors, confidence) if self.classes > 1 else math.inf

    def interval(self, confidence: float = CONFIDENCE, limits: Interval = (-math.inf, math.inf)) -> Interval:
        """The interval of the mean over all classes and runs, clipped to `limits`."""
        width = self.half_width(confidence)
        return max(limits[0], self.value - width), min(limits[1], self.value + width)

    @property
    def p_value(self) -> float:
        """The p-value of the hypothesis that the mean over all classes and runs is 0."""
        return student.beyond(abs(self.value), self.errors) if self.classes > 1 else 1.0

    def needed(self, level: float) -> tuple[int | None, int | None]:
        """The number of runs with these classes, and the number of classes with these runs, that would lead to a
        p-value below `level` if the mean and the variances stay the same; None beyond MOST_RUNS and MOST_CLASSES.
        """
        if self.classes < 2 or self.value == 0:
            return None, None
        runs = (
            _first(lambda n: self._expected(n, self.classes) < level, self.runs, MOST_RUNS) if self.runs > 1 else None
        )
        classes = _first(lambda n: self._expected(self.runs, n) < level, self.classes, MOST_CLASSES * self.classes)
        return runs, classes

    def _expected(self, runs: int, classes: int) -> float:
        """The p-value with other numbers of runs and classes, if the mean and the variances stay the same."""
        run = max(0.0, self.of_runs - self.of_rest) / self.classes
        class_ = max(0.0, self.of_classes - self.of_rest) / self.runs
        of_runs = math.sqrt(run / runs + self.of_rest / (runs * classes)), runs - 1
        of_classes = math.sqrt(class_ / classes), classes - 1
        return student.beyond(abs(self.value), (of_runs, of_classes) if runs > 1 else (of_classes,))


def _first(enough: Any, low: int, high: int) -> int | None:
    """The least number in (low, high] that is enough, if all larger ones are; None if there is none."""
    if low >= high or not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def class_mean(values: Floats, labels: NDArray[Any]) -> ClassMean:
    """The mean of values (queries,), or of the values of several runs (runs, queries).

    Args:
        values: without NaN.
        labels: (queries,) class of each query.
    """
    table = np.atleast_2d(values)
    _, group = np.unique(labels, return_inverse=True)
    sizes = np.bincount(group).astype(np.float64)
    runs, classes, queries = len(table), len(sizes), table.shape[1]
    means = table.mean(1)
    if classes < 2:
        return ClassMean(float(means.mean()), runs, classes, 0.0, 0.0, 0.0)
    sums = np.stack([np.bincount(group, row) for row in table])
    y = (classes - 1) * (sums - sizes * means[:, None]) / (queries - sizes)  # minus the run's mean
    by_class = y.mean(0) - y.mean()
    of_classes = runs * float((by_class**2).sum()) / (classes - 1)
    if runs == 1:
        return ClassMean(float(means[0]), runs, classes, 0.0, of_classes, 0.0)
    rest = y - y.mean(1, keepdims=True) - by_class
    return ClassMean(
        value=float(means.mean()),
        runs=runs,
        classes=classes,
        of_runs=classes * float(means.var(ddof=1)),
        of_classes=of_classes,
        of_rest=float((rest**2).sum()) / ((runs - 1) * (classes - 1)),
    )


def intervals(
    values: Mapping[str, Floats], labels: NDArray[Any], confidence: float = CONFIDENCE
) -> dict[str, tuple[float, float]]:
    """The interval of each metric's mean over queries, for other classes. Queries with NaN are left out."""
    result = {}
    for name, value in values.items():
        used = ~np.isnan(value)
        result[name] = class_mean(value[used], labels[used]).interval(confidence, (0.0, 1.0))
    return result


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two models on the same queries: second − first.

    The interval `ci` and the p-value are for other classes, and for other runs if there were several `runs` of each.
    """

    first: float
    second: float
    difference: float
    ci: tuple[float, float]
    p_value: float
    classes: int = 0
    runs: int = 1


Result = Mapping[str, Any]


def compare(
    first: Result | Sequence[Result],
    second: Result | Sequence[Result],
    *,
    labels: Any = None,
    resamples: int | None = None,
    confidence: float = CONFIDENCE,
    seed: int | None = None,
) -> dict[str, Difference]:
    """Compare two models in every metric that both results have.

    Args:
        first, second: the results of `retrieval_metrics` with `per_query=True` for the same queries in the same order;
            or two lists of results of the same number of runs, so that the difference holds for other runs, too.
        labels: the classes of the queries, if the results do not have them.
        confidence: confidence of the intervals.
        resamples, seed: ignored, for compatibility; the computation is deterministic.
    """
    check_confidence(confidence)
    sides = [[side] if isinstance(side, Mapping) else list(side) for side in (first, second)]
    if not sides[0] or len(sides[0]) != len(sides[1]):
        raise InputError(
            f"the first has {len(sides[0])} runs and the second {len(sides[1])}: give the same number of each"
        )
    for name, side in zip(("first", "second"), sides, strict=True):
        if any("per_query" not in result for result in side):
            raise InputError(f"the {name} result has no per-query values: call retrieval_metrics with per_query=True")
    results = [result["per_query"] for side in sides for result in side]
    shared = [name for name in results[0] if all(name in result for result in results)]
    if not shared:
        raise InputError(f"the two have no metric in common: {', '.join(results[0])} and {', '.join(results[-1])}")
    counts = [len(result[shared[0]]) for result in results]
    if len(set(counts)) > 1:
        raise InputError(
            f"the first has {counts[0]} queries and the second {counts[-1]}: compare two models on the same queries"
        )
    labels = sides[0][0].get("query_labels") if labels is None else np.asarray(labels)
    if labels is None or len(labels) != counts[0]:
        raise InputError(f"the classes of the {counts[0]} queries are unknown: pass them as labels")
    used = ~np.isnan(results[0][shared[0]])
    if any(not np.array_equal(used, ~np.isnan(result[shared[0]])) for result in results):
        raise InputError("the two excluded different queries: compare two models on the same queries and labels")
    differences = {}
    for name in shared:
        left, right = (np.stack([result["per_query"][name][used] for result in side]) for side in sides)
        mean = class_mean(right - left, labels[used])
        interval = mean.interval(confidence, (-1.0, 1.0))
        values = float(left.mean()), float(right.mean()), mean.value
        differences[name] = Difference(*values, interval, mean.p_value, mean.classes, mean.runs)
    return differences
