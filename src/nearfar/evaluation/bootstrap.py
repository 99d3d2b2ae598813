"""How far a mean over queries can be trusted: bootstrap intervals, and a paired comparison of two models.

Both take the queries as independent draws. Queries of one class resemble each other, so where classes are few the true
uncertainty about *new classes* is larger than these intervals.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import InputError
from nearfar.evaluation.metrics import Floats

RESAMPLES = 2000
CONFIDENCE = 0.95


def check(resamples: int, confidence: float) -> None:
    """A number of resamples and a probability."""
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, not {resamples}")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be between 0 and 1, such as 0.95, not {confidence}")


def intervals(
    values: Floats,
    *,
    groups: NDArray[Any] | None = None,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Floats:
    """The percentile bootstrap interval of each column's mean: (Q, M) to (M, 2).

    Every resample draws Q of the Q queries with replacement, the same ones for all columns.

    Args:
        groups: (Q,) for instance the queries' classes: whole groups are drawn instead of queries.
    """
    check(resamples, confidence)
    generator = np.random.default_rng(seed)
    sizes = np.ones(len(values))
    if groups is not None:
        found, group = np.unique(groups, return_inverse=True)
        sums = np.zeros((len(found), values.shape[1]))
        np.add.at(sums, group, values)
        values, sizes = sums, np.bincount(group).astype(np.float64)
    count = len(values)
    means = np.empty((resamples, values.shape[1]))
    for mean in means:
        times_drawn = np.bincount(generator.integers(count, size=count), minlength=count)
        mean[:] = times_drawn @ values / (times_drawn @ sizes)
    tail = (1 - confidence) / 2
    return np.quantile(means, [tail, 1 - tail], axis=0).T


@dataclass(frozen=True)
class Difference:
    """Of a metric between two models, on the same queries: second − first.

    `ci` is the bootstrap interval of the mean difference. `p_value` is that of a sign-flip test: how often a
    difference as large as this one, or larger, comes about if it is a toss-up for each query which model is which.
    """

    first: float
    second: float
    difference: float
    ci: tuple[float, float]
    p_value: float


def compare(
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> dict[str, Difference]:
    """Whether the second model is better than the first: every metric that both have.

    Args:
        first, second: what `retrieval_metrics` returned with `per_query=True`, for the same queries in the same order.
        resamples: both of the bootstrap and of the sign-flip test; the smallest p-value is 1/(resamples + 1).
        confidence: of the interval.
        seed: the same seed gives the same result.
    """
    check(resamples, confidence)
    for name, result in (("first", first), ("second", second)):
        if "per_query" not in result:
            raise InputError(f"the {name} result has no per-query values: call retrieval_metrics with per_query=True")
    a, b = first["per_query"], second["per_query"]
    shared = [name for name in a if name in b]
    if not shared:
        raise InputError(f"the two have no metric in common: {', '.join(a)} and {', '.join(b)}")
    if len(a[shared[0]]) != len(b[shared[0]]):
        raise InputError(
            f"the first has {len(a[shared[0]])} queries and the second {len(b[shared[0]])}: "
            "compare two models on the same queries"
        )
    left, right = (np.stack([values[name] for name in shared], 1) for values in (a, b))
    used = ~np.isnan(left[:, 0])
    if not np.array_equal(used, ~np.isnan(right[:, 0])):
        raise InputError("the two excluded different queries: compare two models on the same queries and labels")
    left, right = left[used], right[used]
    delta = right - left
    ci = intervals(delta, resamples=resamples, confidence=confidence, seed=seed)
    p_values = _sign_flip(delta, resamples, seed)
    return {
        name: Difference(
            float(left[:, i].mean()),
            float(right[:, i].mean()),
            float(delta[:, i].mean()),
            (float(ci[i, 0]), float(ci[i, 1])),
            float(p_values[i]),
        )
        for i, name in enumerate(shared)
    }


def _sign_flip(delta: Floats, resamples: int, seed: int) -> Floats:
    generator = np.random.default_rng([seed, 1])
    observed = np.abs(delta.sum(0))
    # Sums of the same numbers in another order differ in their last digits.
    enough = observed - 1e-12 * np.abs(delta).sum(0)
    as_large = np.zeros(delta.shape[1])
    for _ in range(resamples):
        signs = 1.0 - 2.0 * generator.integers(2, size=len(delta))
        as_large += np.abs(signs @ delta) >= enough
    return (1 + as_large) / (1 + resamples)
