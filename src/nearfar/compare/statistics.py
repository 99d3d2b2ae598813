"""Confidence intervals of means, and tests of differences.

Two things are random: the tested classes and the seeds of the runs. Intervals and tests are those of
`nearfar.evaluation.class_means` and include both: claims hold for other classes of the same kind and for other runs of
the same settings. Contestants are compared run by run, on the same queries. Since many pairs are tested at once, Holm's
correction bounds the probability of any false claim.
"""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nearfar.evaluation.class_means import CONFIDENCE, MOST_CLASSES, MOST_RUNS, class_mean
from nearfar.evaluation.student import quantile

Floats = NDArray[np.float64]
Verdict = Literal["better", "worse", "cannot be told"]
LEVEL = 1 - CONFIDENCE
NOTHING_WOULD = f"not even {MOST_RUNS} seeds or {MOST_CLASSES} times the classes would suffice"


@dataclass(frozen=True)
class Mean:
    """A mean over runs and queries, with `seeds`: half the width of its interval over seeds only (NaN of a single one),
    and `low`, `high`: its interval over classes and seeds.
    """

    value: float
    seeds: float
    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """The difference second − first of two contestants; `p_holm` is corrected for all pairs.

    `seeds`, `classes`: the number of either, with the other unchanged, that would make the difference significant, if
    the difference and its spread stay the same; None if it is significant already, or no sensible number would do.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    seeds: int | None = None
    classes: int | None = None

    @property
    def significant(self) -> bool:
        """Whether the difference is significant, at 5 % for all pairs together."""
        return self.p_holm < LEVEL

    def verdict(self, name: str) -> Verdict:
        """Whether the contestant of this name is better or worse than the other."""
        if not self.significant:
            return "cannot be told"
        return "better" if (self.difference > 0) == (name == self.second) else "worse"

    @property
    def needed(self) -> str:
        """Describe the data needed for a verdict; empty if the difference is significant.

        >>> Pair("a", "b", 0.01, -0.01, 0.03, 0.2, 0.4, seeds=7, classes=250).needed
        '7 seeds or 250 classes would suffice'
        """
        if self.significant:
            return ""
        if self.p == 1.0 and self.difference != 0:
            return "a single run is not enough"
        parts = [f"{count:,} {what}" for count, what in ((self.seeds, "seeds"), (self.classes, "classes")) if count]
        return f"{' or '.join(parts)} would suffice" if parts else NOTHING_WOULD


def summary(values: Floats, labels: NDArray[Any]) -> Mean:
    """Summarise values (seeds, queries) without NaN, given the queries' classes."""
    low, high = class_mean(values, labels).interval(limits=(0.0, 1.0))
    return Mean(float(values.mean()), half_width(values.mean(1)), low, high)


def half_width(values: Sequence[float] | Floats, confidence: float = CONFIDENCE) -> float:
    """Half the width of Student's interval of the mean: t · s / sqrt(n); NaN for a single value.

    >>> round(half_width([1.0, 2.0, 3.0]), 4)
    2.4841
    """
    count = len(values)
    if count < 2:
        return math.nan
    spread = float(np.std(np.asarray(values, np.float64), ddof=1))
    return quantile((1 + confidence) / 2, count - 1) * spread / math.sqrt(count)


def all_pairs(values: Mapping[str, Floats], labels: NDArray[Any], untrained: Collection[str] = ()) -> list[Pair]:
    """Compare every pair of contestants, by values (seeds, queries) of the same queries without NaN.

    Args:
        labels: the queries' classes.
        untrained: contestants that do not depend on a seed; they have one row. A trained contestant with one row has an
            unknown variance, so its differences are never significant.
    """
    names = list(itertools.combinations(values, 2))
    means = {(a, b): class_mean(values[b] - values[a], labels) for a, b in names}
    known = {name for name in values if name in untrained or len(values[name]) > 1}
    p_values = [means[pair].p_value if known.issuperset(pair) else 1.0 for pair in names]
    pairs = []
    for (a, b), p, corrected in zip(names, p_values, holm(p_values), strict=True):
        mean = means[a, b]
        low, high = mean.interval(limits=(-1.0, 1.0))
        pair = Pair(a, b, mean.value, low, high, p, corrected)
        if not pair.significant:
            seeds, classes = mean.needed(LEVEL / len(names))
            pair = replace(pair, seeds=seeds, classes=classes if p < 1 else None)
        pairs.append(pair)
    return pairs


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p-values: the smallest times n, the next times n − 1, ..., never decreasing, at most 1.

    References: Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics, 1979.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
