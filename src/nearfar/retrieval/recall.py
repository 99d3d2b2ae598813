"""How much of what an exact search finds an approximate index finds too."""

import time
from dataclasses import dataclass

import numpy as np

from nearfar.retrieval.index import Floats, Index

QUERIES = 200
REPEATS = 20  # single queries whose time is taken


@dataclass(frozen=True)
class Recall:
    """Share of the true k nearest that an index finds, and how long it takes for a single query (median)."""

    k: int
    recall: float
    queries: int
    milliseconds: float

    def __str__(self) -> str:
        return (
            f"recall@{self.k} against exact search {self.recall:.1%} ({self.queries} queries), "
            f"{self.milliseconds:.2f} ms a query"
        )


def measured_recall(index: Index, k: int = 10, queries: int = QUERIES, seed: int = 0) -> Recall | None:
    """Search for images of the index, drawn at random, and compare with what all products say; None where it holds
    fewer than k others.

    Images that are as similar as the k-th count as found, whichever of them are given.
    """
    ids = [item.id for item in index.listed()]
    if len(ids) <= k:
        return None
    drawn = np.random.default_rng(seed).choice(len(ids), min(queries, len(ids)), replace=False)
    names = [ids[row] for row in np.sort(drawn).tolist()]
    vectors = index.vectors(names)
    least = _kth_best(index, names, vectors, k)
    found = index.search(vectors, k + 1)
    hits = [
        sum(hit.similarity >= bound - 1e-5 for hit in [hit for hit in listed if hit.id != name][:k])
        for name, listed, bound in zip(names, found, least.tolist(), strict=True)
    ]
    times = []
    for query in vectors[:REPEATS]:
        began = time.perf_counter()
        index.search(query[None], k)
        times.append(time.perf_counter() - began)
    return Recall(k, sum(hits) / (k * len(names)), len(names), float(np.median(times)) * 1000)


def _kth_best(index: Index, names: list[str], vectors: Floats, k: int) -> Floats:
    """The similarity of the k-th nearest of all others, for each query."""
    best = np.full((len(names), k), -np.inf, np.float32)
    place = {name: row for row, name in enumerate(names)}
    for ids, piece in index.pieces():
        similarities = vectors @ piece.T
        for column, name in enumerate(ids):
            if name in place:
                similarities[place[name], column] = -np.inf  # itself
        best = -np.partition(-np.concatenate([best, similarities], 1), k - 1, axis=1)[:, :k]
    least: Floats = best.min(1)
    return least
