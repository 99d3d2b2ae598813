"""How far means can be trusted, and which differences are none.

Two things are uncertain. Which seed: another run of the same setting ends elsewhere; the interval over seeds is
Student's. Which queries: other test images would have given another mean; the interval and the tests are those of
`nearfar.evaluation.bootstrap`, of each query's mean over the seeds, the same queries for all. Many pairs are tested at
once, so that some would differ "significantly" by chance: Holm's correction holds the probability of any such mistake.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nearfar.evaluation.bootstrap import CONFIDENCE, RESAMPLES, compare, intervals

Floats = NDArray[np.float64]
LEVEL = 1 - CONFIDENCE


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and queries, with `seeds`: half the width of its interval over seeds (NaN of a single one), and
    `low`, `high`: its interval over queries.
    """

    value: float
    seeds: float
    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """The difference second − first of two contestants; `p_holm` is corrected for all pairs."""

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float

    @property
    def significant(self) -> bool:
        """Whether they differ, at 5 % for all pairs together."""
        return self.p_holm < LEVEL


def summary(per_query: Floats, seed: int = 0) -> Mean:
    """Of values (seeds, queries) without NaN."""
    low, high = intervals(per_query.mean(0)[:, None], seed=seed)[0]
    return Mean(float(per_query.mean()), half_width(per_query.mean(1)), float(low), float(high))


def half_width(values: Sequence[float] | Floats, confidence: float = CONFIDENCE) -> float:
    """Half the width of Student's interval of the mean: t · s / sqrt(n); NaN of a single value.

    >>> round(half_width([1.0, 2.0, 3.0]), 4)
    2.4841
    """
    from scipy.stats import t

    count = len(values)
    if count < 2:
        return math.nan
    spread = float(np.std(np.asarray(values, np.float64), ddof=1))
    return float(t.ppf((1 + confidence) / 2, count - 1)) * spread / math.sqrt(count)


def all_pairs(per_query: Mapping[str, Floats], seed: int = 0) -> list[Pair]:
    """Every pair of contestants, by values (queries,) of the same queries without NaN."""
    names = list(itertools.combinations(per_query, 2))
    if not names:
        return []
    sides = [{f"{a}\n{b}": per_query[pair[side]] for pair in names for a, b in [pair]} for side in (0, 1)]
    # The smallest p-value is 1/(resamples + 1), and Holm's correction multiplies it by the number of pairs.
    resamples = max(RESAMPLES, 100 * len(names))
    found = compare({"per_query": sides[0]}, {"per_query": sides[1]}, resamples=resamples, seed=seed)
    tested = [
        Pair(a, b, each.difference, each.ci[0], each.ci[1], each.p_value, math.nan)
        for a, b in names
        for each in [found[f"{a}\n{b}"]]
    ]
    corrected = holm([pair.p for pair in tested])
    return [replace(pair, p_holm=p) for pair, p in zip(tested, corrected, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p-values: the smallest times n, the next times n − 1, ..., none below one before it, none above 1.

    References: Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics, 1979.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[index]))
        corrected[index] = largest
    return corrected
