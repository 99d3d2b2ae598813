"""Retrieval metrics as pure functions of the ranks at which every query's matches stand.

A query with R matches (gallery items of its class) has their ranks r_1 < r_2 < … < r_R, counted from 1 among the items
that are not ignored for it. Every metric here is a function of these ranks alone, `hits(k)` being the number of ranks
up to k:

    recall@k        1 if r_1 ≤ k, else 0            (the re-identification literature's CMC at rank k)
    precision@k     hits(k) / k
    ndcg@k          Σ_{r_i ≤ k} 1/log2(r_i + 1)  /  Σ_{i ≤ min(R, k)} 1/log2(i + 1)
    r_precision     hits(R) / R
    map@r           1/R Σ_{r_i ≤ R} i / r_i          (Musgrave et al., A Metric Learning Reality Check, 2020)
    map             1/R Σ_i i / r_i                  (mean of the precisions at the hits)
    map_trapezoid   1/R Σ_i ((i−1)/(r_i−1) + i/r_i)/2, the first fraction being 1 if r_i = 1
                                                     (Market-1501's original code)
    mrr             1 / r_1
    minp            R / r_R                          (Ye et al., Deep Learning for Person Re-identification, 2021)

A match that an approximate search did not find has the rank NOT_FOUND: it adds nothing.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOT_FOUND = np.iinfo(np.int64).max
AT_K = ("recall", "precision", "ndcg")
WHOLE = ("map@r", "r_precision", "map", "map_trapezoid", "mrr", "minp")
CLUSTERING = ("nmi", "ami")


@dataclass(frozen=True)
class Ranks:
    """The ranks of the matches of some queries: `rank` (P,) rises within each query, `query` (P,) says whose it is,
    `matches` (Q,) is R, `place` (P,) is i = 1 … R.
    """

    query: Ints
    place: Ints
    rank: Ints
    matches: Ints

    @classmethod
    def of(cls, rank: Ints, matches: Ints) -> "Ranks":
        """From ranks that stand query after query."""
        query = np.repeat(np.arange(len(matches)), matches)
        first = np.cumsum(matches) - matches
        return cls(query, np.arange(len(rank)) - first[query] + 1, rank, matches)

    def sum(self, values: Floats | NDArray[np.bool_]) -> Floats:
        """Per query, of a value per match."""
        return np.bincount(self.query, values, minlength=len(self.matches)).astype(np.float64, copy=False)

    def share(self, values: Floats | NDArray[np.bool_]) -> Floats:
        """The sum divided by R; NaN for queries without a match."""
        with np.errstate(invalid="ignore"):
            return self.sum(values) / self.matches

    @property
    def precision(self) -> Floats:
        """At each match."""
        return np.where(self.rank == NOT_FOUND, 0.0, self.place / self.rank)


def recall(ranks: Ranks, k: int) -> Floats:
    """Whether there is a match among the first k."""
    return _defined(ranks, ranks.sum((ranks.place == 1) & (ranks.rank <= k)))


def precision(ranks: Ranks, k: int) -> Floats:
    """The share of matches among the first k (of k, even if the gallery is smaller)."""
    hits = ranks.sum(ranks.rank <= k)
    return _defined(ranks, hits / k)


def ndcg(ranks: Ranks, k: int) -> Floats:
    """Discounted cumulative gain of the first k, against the best possible; a match gains 1, anything else 0."""
    gain = np.where(ranks.rank <= k, 1 / np.log2(np.minimum(ranks.rank, k) + 1.0), 0.0)
    best = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(1, k + 1) + 1.0))])
    with np.errstate(invalid="ignore"):
        share: Floats = ranks.sum(gain) / best[np.minimum(ranks.matches, k)]
    return share


def map_at_r(ranks: Ranks) -> Floats:
    """Average precision that stops at rank R and divides by R."""
    return ranks.share(np.where(ranks.rank <= ranks.matches[ranks.query], ranks.precision, 0.0))


def r_precision(ranks: Ranks) -> Floats:
    """The share of matches among the first R."""
    return ranks.share(ranks.rank <= ranks.matches[ranks.query])


def average_precision(ranks: Ranks) -> Floats:
    """The mean precision at the hits."""
    return ranks.share(ranks.precision)


def average_precision_trapezoid(ranks: Ranks) -> Floats:
    """The area under the precision-recall curve by the trapezoidal rule, as Market-1501's code has it."""
    before = np.where(ranks.rank > 1, (ranks.place - 1) / np.maximum(ranks.rank - 1, 1), 1.0)
    return ranks.share(np.where(ranks.rank == NOT_FOUND, 0.0, (before + ranks.precision) / 2))


def reciprocal_rank(ranks: Ranks) -> Floats:
    """1 / the rank of the first match."""
    return _defined(ranks, ranks.sum(np.where(ranks.place == 1, ranks.precision, 0.0)))


def inverse_negative_penalty(ranks: Ranks) -> Floats:
    """R / the rank of the last match, the hardest."""
    last = ranks.place == ranks.matches[ranks.query]
    return _defined(ranks, ranks.sum(np.where(last, ranks.precision, 0.0)))


def _defined(ranks: Ranks, values: Floats) -> Floats:
    return np.where(ranks.matches > 0, values, np.nan)


_AT_K: dict[str, Callable[[Ranks, int], Floats]] = {"recall": recall, "precision": precision, "ndcg": ndcg}
_WHOLE: dict[str, Callable[[Ranks], Floats]] = {
    "map@r": map_at_r,
    "r_precision": r_precision,
    "map": average_precision,
    "map_trapezoid": average_precision_trapezoid,
    "mrr": reciprocal_rank,
    "minp": inverse_negative_penalty,
}


def names(metrics: str | Iterable[str] | None, ks: Sequence[int]) -> list[str]:
    """What was asked for, spelt out: "recall" is recall at each of `ks`; None is everything but nmi and ami."""
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise ValueError(f"ks must be whole numbers from 1 up, not {k!r}")
    if metrics is None:
        metrics = (*AT_K, *WHOLE)
    elif isinstance(metrics, str):
        metrics = (metrics,)
    found: dict[str, None] = {}
    for name in metrics:
        if name in AT_K:
            if not ks:
                raise ValueError(f'"{name}" needs ks, such as ks=(1, 10), or a name such as "{name}@1"')
            found |= dict.fromkeys(f"{name}@{int(k)}" for k in ks)
        elif name in WHOLE or name in CLUSTERING or re.fullmatch(rf"({'|'.join(AT_K)})@[1-9]\d*", name):
            found[name] = None
        else:
            known = [*(f"{n}@{k}" for n in AT_K for k in ks), *AT_K, *WHOLE, *CLUSTERING]
            near = difflib.get_close_matches(str(name), known, 1)
            raise ValueError(
                f"there is no metric {name!r}" + (f"; did you mean {near[0]!r}?" if near else "") + " Metrics are "
                f"{', '.join(AT_K)} (with ks, or as recall@1), {', '.join((*WHOLE, *CLUSTERING))}"
            )
    return list(found)


def evaluate(ranks: Ranks, wanted: Sequence[str]) -> dict[str, Floats]:
    """Each metric of each query (Q,); NaN for queries without a match."""
    values = {}
    for name in wanted:
        if name in _WHOLE:
            values[name] = _WHOLE[name](ranks)
        else:
            kind, _, k = name.partition("@")
            values[name] = _AT_K[kind](ranks, int(k))
    return values
