"""Prediction intervals of FAR, TAR and precision for other classes.

Pairs are not independent: a class of dissimilar images rejects many pairs, and two similar classes accept many. The
sample consists of classes, so the uncertainty is that of classes. With a of n pairs accepted, s = (a + ½)/(n + 1),

    f = log s_different,      r = log(s_same / (1 - s_same)),      q = log s_same - log s_different

the variance of each estimate is found by leaving out one class c at a time (the jackknife):
J = (C-1)/C Σ_c (x_c - mean x)², but at least the variance for independent pairs, such as 1/(a + ½) for f. The rate
measured on m unseen classes differs from that of the C known ones by both errors, so that its interval is
x ± t_{C-1} √(J + V_m).  For TAR, V_m = J·C/m.  For FAR, the excess of false accepts of two classes is
e_ij = u_i + u_j + w_ij,  with the variances U of the class effects and W of their interactions, estimated from the
moments of e; then

    V_m = J·(4 U/m + 2 W/(m (m-1))) / (the expectation of J: Σ_c (k_c (k_c + 1) U + k_c W) / P²)

where class c is compared with k_c others, and P is the number of pairs of classes. The jackknife counts W twice, which
compensates for few classes and heavy tails (measured in docs/LOG.md). Precision at a share p of same pairs is
logistic(log(p/(1-p)) + q).

References: Efron and Stein, The jackknife estimate of variance, Annals of Statistics 9 (1981); Griffing, Concept of
general and specific combining ability in relation to diallel crossing systems, Australian J. of Biological Sciences 9
(1956), method 4, for U and W.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.evaluation.student import quantile

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]
HALF = 0.5  # of a pair, added so that no logarithm is infinite
ALL: Interval = (0.0, 1.0)


@dataclass(frozen=True)
class Rates:
    """The rates of a threshold, with intervals. `precision` is None if nothing is accepted. `needed` is the approximate
    number of classes from which the interval of the precision excludes the share of same pairs.
    """

    far: float
    tar: float
    precision: float | None
    far_interval: Interval
    tar_interval: Interval
    precision_interval: Interval
    needed: float


def rates(accepted: Floats, pairs: Floats, *, share: float, unseen: float, confidence: float) -> Rates:
    """FAR, TAR, and precision at `share`, with intervals for the rates of `unseen` other classes (see above).

    Args:
        accepted, pairs: (C, C) symmetric counts, with the pairs within a class on the diagonal. There must be pairs of
            the same class and of different classes.
        share: the share of same pairs, between 0 and 1.
        unseen: the number of classes that the intervals are for; infinity for the whole population of classes.
        confidence: such as 0.9.
    """
    has_same = np.diag(pairs) > 0
    same, different = _LeftOut(np.diag(accepted), np.diag(pairs), 1), _LeftOut(*_between(accepted, pairs), 2)
    far, tar = different.accepted / different.pairs, same.accepted / same.pairs
    accepting = share * tar + (1 - share) * far
    precision = share * tar / accepting if accepting > 0 else None
    count = int(has_same.sum())
    if count < 3 or same.pairs_without.min() <= 0 or different.pairs_without.min() <= 0:
        return Rates(far, tar, precision, ALL, ALL, ALL, math.inf)

    f, r, q = np.log(different.smoothed), _logit(same.smoothed), np.log(same.smoothed) - np.log(different.smoothed)
    known_f, known_r = _jackknife(np.log(different.without)), _jackknife(_logit(same.without[has_same]))
    known_t = _jackknife(np.log(same.without))
    known_q = _jackknife(np.log(same.without) - np.log(different.without))
    missing = max(0.0, 1 / (different.accepted + HALF) - known_f)  # the bound for independent pairs
    known_f, known_q = known_f + missing, known_q + missing
    known_r = max(known_r, 1 / (same.accepted + HALF) + 1 / (same.pairs - same.accepted + HALF))

    more_same = count / unseen
    more_different = unseen_over_known(*_between(accepted, pairs), unseen)
    weight = known_f / (known_f + known_t)
    t = quantile((1 + confidence) / 2, count - 1)
    half_f = t * math.sqrt(known_f * (1 + more_different))
    half_r = t * math.sqrt(known_r * (1 + more_same))
    half_q = t * math.sqrt(known_q * (1 + weight * more_different + (1 - weight) * more_same))

    class_pairs = np.count_nonzero(_between(accepted, pairs)[1]) / 2
    n_different = different.pairs / class_pairs * unseen * (unseen - 1) / 2  # of the unseen, with as many images
    n_same = same.pairs / count * unseen
    far_interval = _around(far, (math.exp(min(0.0, f + d)) for d in (-half_f, half_f)), n_different)
    low, high = (_logistic(_logit(share) + q + d) for d in (-half_q, half_q))
    return Rates(
        far,
        tar,
        precision,
        far_interval,
        _around(tar, (_logistic(r + d) for d in (-half_r, half_r)), n_same),
        (low, 1.0 if far_interval[0] == 0 else high),
        needed=count * (half_q / q) ** 2 if q > 0 else math.inf,
    )


class _LeftOut:
    """Counts of accepted and of all pairs, in total and without each class. A pair belongs to `ends` classes."""

    def __init__(self, accepted: Floats, pairs: Floats, ends: int):
        by_class, pairs_by_class = (x if x.ndim == 1 else x.sum(1) for x in (accepted, pairs))
        self.accepted, self.pairs = float(by_class.sum()) / ends, float(pairs_by_class.sum()) / ends
        self.pairs_without = self.pairs - pairs_by_class
        self.smoothed = _smoothed(self.accepted, self.pairs)
        self.without: Floats = _smoothed(self.accepted - by_class, self.pairs_without)


def _between(accepted: Floats, pairs: Floats) -> tuple[Floats, Floats]:
    """The counts of pairs of different classes."""
    return accepted - np.diag(np.diag(accepted)), pairs - np.diag(np.diag(pairs))


def _smoothed(accepted: Any, pairs: Any) -> Any:
    return (accepted + HALF) / (pairs + 2 * HALF)


def _jackknife(values: Floats) -> float:
    return float((len(values) - 1) / len(values) * ((values - values.mean()) ** 2).sum())


def unseen_over_known(accepted: Floats, pairs: Floats, unseen: float) -> float:
    """V_m / J of log FAR, from the counts of pairs of different classes."""
    if math.isinf(unseen):
        return 0.0
    class_pairs = np.count_nonzero(pairs) / 2
    unseen_pairs = unseen * (unseen - 1) / 2
    compared = np.count_nonzero(pairs, axis=1).astype(np.float64)  # k
    of_class, of_pair = components(accepted - accepted.sum() / pairs.sum() * pairs, compared)
    estimated = float((compared * (compared + 1)).sum() * of_class + compared.sum() * of_pair) / class_pairs**2
    if estimated == 0:
        return class_pairs / unseen_pairs  # without false accepts, the classes do not differ
    # The logarithm of a sum over few classes is skewed: with few unseen classes W counts up to twice.
    skew = 2 - min(1.0, unseen / np.count_nonzero(compared))
    return (4 * of_class / unseen + skew * of_pair / unseen_pairs) / estimated


def components(excess: Floats, k: Floats) -> tuple[float, float]:
    """U and W, clipped at 0, by matching the expectations of Σ_c (Σ_d e_cd)² and Σ_{c<d} e_cd²; Σ e = 0."""
    pairs, squares, cubes = k.sum() / 2, (k**2).sum(), (k**3).sum()
    by_class, by_pair = float((excess.sum(1) ** 2).sum()), float((excess**2).sum() / 2)
    a, b = (k * (k + 1)).sum() - 4 * cubes / pairs + (squares / pairs) ** 2, k.sum() - squares / pairs
    c, d = 2 * pairs - squares / pairs, pairs - 1
    determinant = a * d - b * c
    if determinant <= 1e-9 * a * d:  # folds of two classes cannot separate U from W
        return 0.0, by_pair / max(d, 1.0)
    return max(0.0, (by_class * d - by_pair * b) / determinant), max(0.0, (a * by_pair - c * by_class) / determinant)


def _around(point: float, ends: Any, pairs: float) -> Interval:
    """Remove the half pairs from the ends of an interval for `pairs` pairs, and clip it to [0, 1]."""
    low, high = (min(1.0, max(0.0, x if math.isinf(pairs) else x + HALF * (2 * x - 1) / pairs)) for x in ends)
    return min(point, low), max(point, high)


def _logit(x: Any) -> Any:
    return np.log(x / (1 - x))


def _logistic(x: float) -> float:
    return float(1 / (1 + np.exp(-min(max(x, -700.0), 700.0))))


def in_percent(share: float) -> str:
    """Format a share with two digits, or more near 100 %.

    >>> in_percent(0.0123), in_percent(0.957), in_percent(0.9957), in_percent(0.0003)
    ('1.2 %', '96 %', '99.57 %', '0.03 %')
    """
    return f"{float(f'{100 * share:.2g}' if share < 0.99 else f'{100 * share:.2f}'):g} %"


def range_in_percent(interval: Interval) -> str:
    """Format an interval of shares.

    >>> range_in_percent((0.0, 0.25))
    '0 to 25 %'
    """
    return f"{in_percent(interval[0]).removesuffix(' %')} to {in_percent(interval[1])}"
