"""Retrieval metrics as functions of the ranks of every query's matches.

A query with R matches (gallery items of its class) has their ranks r_1 < r_2 < … < r_R, counted from 1 among the items
that are not ignored for it. Every metric is a function of these ranks only; `hits(k)` is the number of ranks up to k:

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

A match that an approximate search missed has the rank NOT_FOUND and contributes 0.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import InputError, InputTypeError
from nearfar.foundation.suggestions import suggestion

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOT_FOUND = np.iinfo(np.int64).max
AT_K = ("recall", "precision", "ndcg")
WHOLE = ("map@r", "r_precision", "map", "map_trapezoid", "mrr", "minp")
CLUSTERING = ("nmi", "ami")


@dataclass(frozen=True)
class Ranks:
    """The ranks of the matches of some queries: `rank` (P,) ascends within each query, `query` (P,) is the query of
    each match, `place` (P,) is i = 1 … R, and `matches` (Q,) is R.
    """

    query: Ints
    place: Ints
    rank: Ints
    matches: Ints

    @classmethod
    def of(cls, rank: Ints, matches: Ints) -> "Ranks":
        """Make it from ranks that are ordered by query."""
        query = np.repeat(np.arange(len(matches)), matches)
        first = np.cumsum(matches) - matches
        return cls(query, np.arange(len(rank)) - first[query] + 1, rank, matches)

    def sum(self, which: NDArray[np.bool_], values: Floats | None = None) -> Floats:
        """The sum of the values (P,) of the selected matches of each query, or their number without values. NaN for
        queries without a match.
        """
        selected = np.flatnonzero(which)
        weights = None if values is None else values[selected]
        total = np.bincount(self.query[selected], weights, minlength=len(self.matches))
        return np.where(self.matches > 0, total, np.nan)

    @cached_property
    def found(self) -> NDArray[np.bool_]:
        """(P,) whether each match was found."""
        found: NDArray[np.bool_] = self.rank != NOT_FOUND
        return found

    @cached_property
    def precision(self) -> Floats:
        """(P,) the precision at each match; 0 if it was not found."""
        return np.where(self.found, self.place / self.rank, 0.0)


def recall(ranks: Ranks, k: int) -> Floats:
    """Whether there is a match among the first k."""
    return ranks.sum((ranks.place == 1) & (ranks.rank <= k))


def precision(ranks: Ranks, k: int) -> Floats:
    """The number of matches among the first k, divided by k even if the gallery is smaller."""
    return ranks.sum(ranks.rank <= k) / k


def ndcg(ranks: Ranks, k: int) -> Floats:
    """Discounted cumulative gain of the first k relative to the best possible; matches have gain 1, others 0."""
    hits = ranks.rank <= k
    gain = np.zeros(len(hits))
    gain[hits] = 1 / np.log2(ranks.rank[hits] + 1.0)
    most = min(k, int(ranks.matches.max(initial=1)))
    best = np.cumsum(1 / np.log2(np.arange(1, most + 1) + 1.0))
    share: Floats = ranks.sum(hits, gain) / best[np.clip(ranks.matches, 1, most) - 1]
    return share


def map_at_r(ranks: Ranks) -> Floats:
    """Average precision over the ranks up to R, divided by R."""
    return ranks.sum(ranks.rank <= ranks.matches[ranks.query], ranks.precision) / ranks.matches


def r_precision(ranks: Ranks) -> Floats:
    """The share of matches among the first R."""
    return ranks.sum(ranks.rank <= ranks.matches[ranks.query]) / ranks.matches


def average_precision(ranks: Ranks) -> Floats:
    """The mean of the precisions at the matches."""
    return ranks.sum(ranks.found, ranks.precision) / ranks.matches


def average_precision_trapezoid(ranks: Ranks) -> Floats:
    """The area under the precision-recall curve by the trapezoidal rule, as in Market-1501's code."""
    before = np.where(ranks.rank > 1, (ranks.place - 1) / np.maximum(ranks.rank - 1, 1), 1.0)
    return ranks.sum(ranks.found, (before + ranks.precision) / 2) / ranks.matches


def reciprocal_rank(ranks: Ranks) -> Floats:
    """1 / rank of the first match."""
    return ranks.sum(ranks.place == 1, ranks.precision)


def inverse_negative_penalty(ranks: Ranks) -> Floats:
    """R / rank of the last match."""
    return ranks.sum(ranks.place == ranks.matches[ranks.query], ranks.precision)


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
    """The full names of metrics: "recall" stands for recall at each of `ks`, None for all but nmi and ami."""
    if not isinstance(ks, Iterable):
        raise InputTypeError(f"ks must be a sequence of whole numbers such as ({ks!r},), not {ks!r}")
    ks = tuple(ks)
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"ks must be whole numbers from 1 up, not {k!r}")
    if metrics is None:
        metrics = (*AT_K, *WHOLE)
    elif isinstance(metrics, str):
        metrics = (metrics,)
    full: dict[str, None] = {}
    for name in metrics:
        if name in AT_K:
            if not ks:
                raise InputError(f'"{name}" needs ks, such as ks=(1, 10), or a name such as "{name}@1"')
            full |= dict.fromkeys(f"{name}@{int(k)}" for k in ks)
        elif name in WHOLE or name in CLUSTERING or re.fullmatch(rf"({'|'.join(AT_K)})@[1-9]\d*", name):
            full[name] = None
        else:
            known = [*(f"{n}@{k}" for n in AT_K for k in ks), *AT_K, *WHOLE, *CLUSTERING]
            listed = f"{', '.join(AT_K)} (with ks, or as recall@1), {', '.join((*WHOLE, *CLUSTERING))}"
            raise InputError(f"there is no metric {name!r}: {suggestion(str(name), known, f'there are {listed}')}")
    return list(full)


def evaluate(ranks: Ranks, wanted: Sequence[str]) -> dict[str, Floats]:
    """The values (Q,) of each metric; NaN for queries without a match."""
    values = {}
    for name in wanted:
        if name in _WHOLE:
            values[name] = _WHOLE[name](ranks)
        else:
            kind, _, k = name.partition("@")
            values[name] = _AT_K[kind](ranks, int(k))
    return values
