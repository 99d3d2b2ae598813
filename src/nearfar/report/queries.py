"""Searches for a report: the best and worst queries, and the classes that are confused."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearfar.evaluation.hamming import on_grid

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
SIMILARITIES = 100_000_000  # computed at most
MOST_QUERIES = 2_000
FEWEST_QUERIES = 100
AT_A_TIME = 2**22  # similarities: a block of 16 MB; a few exist at a time


@dataclass(frozen=True)
class Found:
    """The results of queries. Queries and results are rows of the embeddings.

    Attributes:
        queries: (Q,) queries with at least one match and one negative.
        nearest: (Q, k) the nearest rows by descending similarity, padded with -1.
        similarity: (Q, k) their similarities.
        positive: (Q,) similarity of the nearest match.
        negative: (Q,) similarity of the nearest negative.
    """

    queries: Rows
    nearest: Rows
    similarity: Floats
    positive: Floats
    negative: Floats

    @property
    def margin(self) -> Floats:
        """Similarity of the nearest match minus that of the nearest negative; positive if the nearest row is right."""
        return self.positive - self.negative


def drawn_queries(queries: Rows, gallery: int, seed: int) -> Rows:
    """Draw 100 to 2,000 queries without replacement, fewer for a larger gallery, to bound the time of a report."""
    most = int(np.clip(SIMILARITIES // max(gallery, 1), FEWEST_QUERIES, MOST_QUERIES))
    if len(queries) <= most:
        return queries
    return np.sort(np.random.default_rng(seed).choice(queries, most, replace=False))


def search(
    embeddings: Floats,
    labels: Rows,
    queries: Rows,
    gallery: Rows,
    *,
    cameras: Rows | None = None,
    k: int = 8,
    binary: bool = False,
) -> Found:
    """Search the gallery with each query, in blocks. The query itself is ignored and, with cameras, images of its class
    by its camera.

    Args:
        embeddings: (N, D), without NaN.
        labels: (N,).
        queries, gallery: rows in ascending order.
        cameras: (N,).
        k: the number of nearest rows to keep.
        binary: whether the embeddings are `signs`, many of which are tied.
    """
    k = min(k, len(gallery))
    query_vectors, query_labels = _unit(embeddings[queries]), labels[queries][:, None]
    best, nearest = np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), -1, np.int64)
    positive, negative = (np.full(len(queries), -np.inf, np.float32) for _ in range(2))
    step = max(1, AT_A_TIME // max(len(queries), 1))
    for start in range(0, len(gallery), step):
        rows = gallery[start : start + step]
        s = query_vectors @ _unit(embeddings[rows]).T
        if binary:
            s = on_grid(s, embeddings.shape[1])
        same = query_labels == labels[rows]
        ignored = queries[:, None] == rows
        if cameras is not None:
            ignored |= same & (cameras[queries][:, None] == cameras[rows])
        s[ignored] = -np.inf
        positive = np.maximum(positive, np.where(same, s, -np.inf).max(1))
        negative = np.maximum(negative, np.where(same, -np.inf, s).max(1))
        # Earlier results come first, so that the lower row comes first among equals.
        s, numbers = np.concatenate([best, s], 1), np.concatenate([nearest, np.broadcast_to(rows, s.shape)], 1)
        order = _largest(s, k)
        best, nearest = np.take_along_axis(s, order, 1), np.take_along_axis(numbers, order, 1)
    nearest[np.isinf(best)] = -1
    kept = np.isfinite(positive) & np.isfinite(negative)
    return Found(queries[kept], nearest[kept], best[kept], positive[kept], negative[kept])


def _unit(x: Floats) -> Floats:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12), np.float32)


def _largest(s: Floats, k: int) -> Rows:
    """The columns of the k largest values of each row, with the lower column first among equals."""
    if k < s.shape[1]:
        least = np.partition(s, -k, axis=1)[:, -k]
        s = np.where(s >= least[:, None], s, -np.inf)  # the stable sort below keeps the first of equals
    return np.argsort(-s, axis=1, kind="stable")[:, :k]


def examples(found: Found, labels: Rows, count: int) -> dict[str, Rows]:
    """Positions in `found` of the best, typical and worst queries by margin, at most one of each class in each group.

    Typical queries are around the median. A query is in one group only; the worst are chosen first.
    """
    order = np.argsort(found.margin, kind="stable")
    distance = np.abs(found.margin - np.median(found.margin)) if len(order) else found.margin
    taken: set[int] = set()
    groups = {}
    for name, ranked in (("worst", order), ("best", order[::-1]), ("typical", np.argsort(distance, kind="stable"))):
        chosen: list[int] = []
        classes: set[int] = set()
        for place in ranked.tolist():
            if len(chosen) == count:
                break
            label = int(labels[found.queries[place]])
            if place not in taken and label not in classes:
                chosen.append(place)
                classes.add(label)
        taken.update(chosen)
        groups[name] = np.array(chosen, np.int64)
    return {name: groups[name] for name in ("best", "typical", "worst")}


@dataclass(frozen=True)
class Confusion:
    """Two classes that are confused.

    Attributes:
        first, second: labels, the lower one first.
        mistaken: number of queries of either class whose nearest image is of the other.
        queries: number of queries of both classes.
        example: rows of the most confident mistake: a query and its nearest image.
    """

    first: int
    second: int
    mistaken: int
    queries: int
    example: tuple[int, int]


def confusions(found: Found, labels: Rows, count: int) -> list[Confusion]:
    """The pairs of classes that are confused most often, with the lower labels first among equals."""
    if not len(found.queries):
        return []
    true, nearest = labels[found.queries], labels[found.nearest[:, 0]]
    low, high = np.minimum(true, nearest), np.maximum(true, nearest)
    queries_of = Counter(true.tolist())
    wrong = true != nearest
    mistakes = Counter(zip(low[wrong].tolist(), high[wrong].tolist(), strict=True))
    result = []
    for (a, b), times in sorted(mistakes.items(), key=lambda item: (-item[1], item[0]))[:count]:
        places = np.flatnonzero(wrong & (low == a) & (high == b))
        place = places[np.argmax(found.similarity[places, 0])]
        pair = int(found.queries[place]), int(found.nearest[place, 0])
        result.append(Confusion(a, b, times, queries_of[a] + queries_of[b], pair))
    return result
