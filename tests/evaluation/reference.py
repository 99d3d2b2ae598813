"""Retrieval metrics the naive way: sort the gallery of one query, walk down the list. Pure Python and float64."""

import math
from collections.abc import Callable, Sequence

import numpy as np

Ignored = Callable[[int, int], bool]  # of query and gallery item


def ranking(similarity: Sequence[float], kinds: Sequence[str], ties: str, tolerance: float = 0.0) -> list[bool]:
    """Which places of the ranked list hold a match. `kinds` of the items: match, negative or ignored."""
    matches = sorted((s for s, kind in zip(similarity, kinds, strict=True) if kind == "match"), reverse=True)
    negatives = [s for s, kind in zip(similarity, kinds, strict=True) if kind == "negative"]
    places = [False] * (len(matches) + len(negatives))
    for number, s in enumerate(matches):
        before = [n for n in negatives if (n >= s - tolerance if ties == "pessimistic" else n > s + tolerance)]
        places[number + len(before)] = True
    return places


def recall(places: Sequence[bool], k: int) -> float:
    return float(any(places[:k]))


def precision(places: Sequence[bool], k: int) -> float:
    return sum(places[:k]) / k


def ndcg(places: Sequence[bool], k: int) -> float:
    def gain(order: Sequence[bool]) -> float:
        return sum(1 / math.log2(place + 2) for place, match in enumerate(order[:k]) if match)

    return gain(places) / gain(sorted(places, reverse=True))


def average_precision(places: Sequence[bool], stop: int | None = None) -> float:
    total = 0.0
    for place, match in enumerate(places[:stop], 1):
        if match:
            total += sum(places[:place]) / place
    return total / sum(places)


def trapezoid(places: Sequence[bool]) -> float:
    """As Market-1501's evaluation walks the list."""
    good, area, old_recall, old_precision, found = sum(places), 0.0, 0.0, 1.0, 0
    for place, match in enumerate(places, 1):
        found += match
        new_recall, new_precision = found / good, found / place
        area += (new_recall - old_recall) * (old_precision + new_precision) / 2
        old_recall, old_precision = new_recall, new_precision
        if found == good:
            break
    return area


def of_query(places: Sequence[bool], ks: Sequence[int]) -> dict[str, float]:
    """All metrics of a query that has a match."""
    count = sum(places)
    first = places.index(True) + 1
    last = max(place for place, match in enumerate(places, 1) if match)
    values = {f"recall@{k}": recall(places, k) for k in ks}
    values |= {f"precision@{k}": precision(places, k) for k in ks}
    values |= {f"ndcg@{k}": ndcg(places, k) for k in ks}
    return values | {
        "map@r": average_precision(places, count),
        "r_precision": precision(places, count),
        "map": average_precision(places),
        "map_trapezoid": trapezoid(places),
        "mrr": 1 / first,
        "minp": count / last,
    }


def similarities(queries: np.ndarray, gallery: np.ndarray, kind: str) -> np.ndarray:
    x, y = queries.astype(np.float64), gallery.astype(np.float64)
    if kind == "cosine":

        def unit(v: np.ndarray) -> np.ndarray:
            length = np.sqrt((v * v).sum(1, keepdims=True))
            return v / np.where(length > 0, length, 1)

        x, y = unit(x), unit(y)
    if kind == "l2":
        return -((x[:, None] - y[None]) ** 2).sum(2)
    return x @ y.T


def retrieval(
    similarity: np.ndarray,
    labels: Sequence,
    gallery_labels: Sequence,
    ks: Sequence[int],
    *,
    ignored: Ignored,
    ties: str = "pessimistic",
    tolerance: float = 0.0,
) -> dict[str, float]:
    """Means over the queries that have a match, and the two counts."""
    rows, without = [], 0
    for q, own in enumerate(labels):
        kinds = [
            "ignored" if ignored(q, g) else "match" if other == own else "negative"
            for g, other in enumerate(gallery_labels)
        ]
        if "match" not in kinds:
            without += 1
            continue
        rows.append(of_query(ranking(similarity[q].tolist(), kinds, ties, tolerance), ks))
    means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    return means | {"queries": len(rows), "queries_without_match": without}
