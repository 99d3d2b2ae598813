"""How far a mean over queries can be trusted for other classes, and for other runs of what made it.

Queries of one class resemble each other, and all queries of a run share that run. So what was drawn are C classes and S
runs. The mean m of a run moves by (m_c − m) n_c / (Q − n_c) when class c with n_c of the Q queries is left out, so that
class c stands for the value (the jackknife's)

    y_c = m + (C−1) n_c / (Q − n_c) · (m_c − m)             its mean m_c, where all classes have as many queries

Of the table y_sc, with mean squares M_run of the runs' means, M_class of the classes' and M_rest of what remains,
the mean is off by two independent errors,

    √(M_run / (S C)) · T_{S−1}                               what differs from run to run
    √((M_class − M_rest)₊ / (S C)) · T_{C−1}                 what classes add to that

and with a single run by √(M_class / C) · T_{C−1}. T is Student's; an interval, and the p-value of a mean that may be
0, are those of the sum. Where one error is small, this is Student's interval of the other; in between it is rather too
wide (as in Behrens and Fisher's problem), and with two runs by far, since two runs tell little. A difference between
two models on the same queries is such a mean: its runs are paired, the first of one with the first of the other.

References: Searle, Casella and McCulloch, Variance Components (1992), chapter 4, for the table; Efron and Stein, The
jackknife estimate of variance, Annals of Statistics 9 (1981). docs/LOG.md has what covered worse.
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
MOST_RUNS, MOST_CLASSES = 20, 10  # runs, and times as many classes, beyond which nobody is told to go


def check_confidence(confidence: float) -> None:
    """A probability."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be between 0 and 1, such as 0.95, not {confidence}")


def interval_note(classes: int) -> str:
    """What is said of intervals wherever they are shown."""
    return f"95 % intervals: what other classes of this kind would give, judging by these {classes:,}"


@dataclass(frozen=True)
class ClassMean:
    """A mean over queries, and the mean squares of its runs and classes (see above); `of_rest` is 0 of a single run."""

    value: float
    runs: int
    classes: int
    of_runs: float
    of_classes: float
    of_rest: float

    @property
    def errors(self) -> tuple[student.Error, ...]:
        """Of the mean: of runs, if there are several, and of classes."""
        cells = self.runs * self.classes
        of_classes = math.sqrt(max(0.0, self.of_classes - self.of_rest) / cells), self.classes - 1
        return ((math.sqrt(self.of_runs / cells), self.runs - 1), of_classes) if self.runs > 1 else (of_classes,)

    def half_width(self, confidence: float = CONFIDENCE) -> float:
        """Of the interval; infinite if there is a single class."""
        return student.half_width(self.errors, confidence) if self.classes > 1 else math.inf

    def interval(self, confidence: float = CONFIDENCE, limits: Interval = (-math.inf, math.inf)) -> Interval:
        """Where the mean of all classes lies, and of all runs; within `limits`."""
        width = self.half_width(confidence)
        return max(limits[0], self.value - width), min(limits[1], self.value + width)

    @property
    def p_value(self) -> float:
        """How often a mean so far from 0, or further, would come about if it were 0 for all classes and runs."""
        return student.beyond(abs(self.value), self.errors) if self.classes > 1 else 1.0

    def needed(self, level: float) -> tuple[int | None, int | None]:
        """How many runs with these classes, and how many classes with these runs, would lead to a p-value below
        `level`, if the mean stays what it is; None where neither that nor a few times more would.
        """
        if self.classes < 2 or self.value == 0:
            return None, None
        runs = (
            _first(lambda n: self._expected(n, self.classes) < level, self.runs, MOST_RUNS) if self.runs > 1 else None
        )
        classes = _first(lambda n: self._expected(self.runs, n) < level, self.classes, MOST_CLASSES * self.classes)
        return runs, classes

    def _expected(self, runs: int, classes: int) -> float:
        """The p-value of so many runs and classes, with the variances that these have."""
        run = max(0.0, self.of_runs - self.of_rest) / self.classes
        own = max(0.0, self.of_classes - self.of_rest) / self.runs
        of_runs = math.sqrt(run / runs + self.of_rest / (runs * classes)), runs - 1
        of_classes = math.sqrt(own / classes), classes - 1
        return student.beyond(abs(self.value), (of_runs, of_classes) if runs > 1 else (of_classes,))


def _first(enough: Any, low: int, high: int) -> int | None:
    """The least number above `low` that is enough, as all above it are."""
    if low >= high or not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def class_mean(values: Floats, labels: NDArray[Any]) -> ClassMean:
    """The mean of values (queries,), or of several runs (runs, queries), and what it rests on.

    Args:
        values: without NaN.
        labels: (queries,) their classes.
    """
    table = np.atleast_2d(values)
    _, group = np.unique(labels, return_inverse=True)
    sizes = np.bincount(group).astype(np.float64)
    runs, classes, queries = len(table), len(sizes), table.shape[1]
    means = table.mean(1)
    if classes < 2:
        return ClassMean(float(means.mean()), runs, classes, 0.0, 0.0, 0.0)
    sums = np.stack([np.bincount(group, row) for row in table])
    y = (classes - 1) * (sums - sizes * means[:, None]) / (queries - sizes)  # less the run's mean
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
    """Of each metric's mean over queries, for other classes; queries whose value is NaN are left out."""
    found = {}
    for name, value in values.items():
        used = ~np.isnan(value)
        found[name] = class_mean(value[used], labels[used]).interval(confidence, (0.0, 1.0))
    return found


@dataclass(frozen=True)
class Difference:
    """Of a metric between two models, on the same queries: second − first, with its interval `ci` and its p-value.

    Both are for other classes than these `classes`, and other runs, where there were several `runs` of each.
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
    """Whether the second model is better than the first: every metric that both have.

    Args:
        first, second: what `retrieval_metrics` returned with `per_query=True`, for the same queries in the same order;
            or a list of as many such results each, of several runs: then the difference holds for other runs, too.
        labels: the queries' classes, for results that do not say them.
        confidence: of the interval.
        resamples, seed: without effect, since nothing is drawn any more.
    """
    check_confidence(confidence)
    sides = [[side] if isinstance(side, Mapping) else list(side) for side in (first, second)]
    if not sides[0] or len(sides[0]) != len(sides[1]):
        raise InputError(f"the first has {len(sides[0])} runs and the second {len(sides[1])}: give as many of each")
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
        raise InputError(f"the classes of the {counts[0]} queries are not known: give them as labels")
    used = ~np.isnan(results[0][shared[0]])
    if any(not np.array_equal(used, ~np.isnan(result[shared[0]])) for result in results):
        raise InputError("the two excluded different queries: compare two models on the same queries and labels")
    found = {}
    for name in shared:
        left, right = (np.stack([result["per_query"][name][used] for result in side]) for side in sides)
        mean = class_mean(right - left, labels[used])
        interval = mean.interval(confidence, (-1.0, 1.0))
        values = float(left.mean()), float(right.mean()), mean.value
        found[name] = Difference(*values, interval, mean.p_value, mean.classes, mean.runs)
    return found
