"""Measures the recall of an approximate index against exact search."""

import time
from dataclasses import dataclass

import numpy as np

from nearfar.retrieval.index import Floats, Index

QUERIES = 200
REPEATS = 20  # single queries that are timed


@dataclass(frozen=True)
class Recall:
    """The share of the true k nearest images that an index finds, and its median time for a single query."""

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
    """Search for random images of the index and compare the results with exact search. Returns None if the index has at
    most k images.

    All images as similar as the k-th count as correct.
    """
    ids = [item.id for item in index.listed()]
    if len(ids) <= k:
        return None
    drawn = np.random.default_rng(seed).choice(len(ids), min(queries, len(ids)), replace=False)
    names = [ids[row] for row in np.sort(drawn).tolist()]
    vectors = index.vectors(names)
    least = _kth_best(index, names, vectors, k)
    results = index.search(vectors, k + 1)
    hits = [
        sum(hit.similarity >= bound - 1e-5 for hit in [hit for hit in listed if hit.id != name][:k])
        for name, listed, bound in zip(names, results, least.tolist(), strict=True)
    ]
    times = []
    for query in vectors[:REPEATS]:
        start = time.perf_counter()
        index.search(query[None], k)
        times.append(time.perf_counter() - start)
    return Recall(k, sum(hits) / (k * len(names)), len(names), float(np.median(times)) * 1000)


def _kth_best(index: Index, names: list[str], vectors: Floats, k: int) -> Floats:
    """The similarity of the k-th nearest other image of each query."""
    best = np.full((len(names), k), -np.inf, np.float32)
    row_of = {name: row for row, name in enumerate(names)}
    for ids, piece in index.pieces():
        similarities = vectors @ piece.T
        for column, name in enumerate(ids):
            if name in row_of:
                similarities[row_of[name], column] = -np.inf  # the query itself
        best = -np.partition(-np.concatenate([best, similarities], 1), k - 1, axis=1)[:, :k]
    least: Floats = best.min(1)
    return least
