"""What a search finds: which queries go well, which badly, and which classes are taken for each other."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearfar.evaluation.hamming import on_grid

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
SIMILARITIES = 100_000_000  # compared in all, at most
MOST_QUERIES = 2_000
FEWEST_QUERIES = 100
AT_A_TIME = 2**22  # similarities: 16 MB, of which there are a few


@dataclass(frozen=True)
class Found:
    """What queries found. All numbers are rows of the embeddings.

    Attributes:
        queries: (Q,) those that have a match to find and something else to confuse it with.
        nearest: (Q, k) by falling similarity; -1 where there are no more.
        similarity: (Q, k) of these.
        positive: (Q,) similarity of the nearest match.
        negative: (Q,) similarity of the nearest that is none.
    """

    queries: Rows
    nearest: Rows
    similarity: Floats
    positive: Floats
    negative: Floats

    @property
    def margin(self) -> Floats:
        """By how much the nearest match is nearer than what is none; above zero if the first found is right."""
        return self.positive - self.negative


def drawn_queries(queries: Rows, gallery: int, seed: int) -> Rows:
    """As many queries as a report has time for, drawn without replacement: 100 to 2,000, the fewer the larger the
    gallery.
    """
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
    """Each query against the gallery but for itself; with cameras, also but for its own class by its own camera. The
    gallery is read piece by piece.

    Args:
        embeddings: (N, D), without NaN.
        labels: (N,).
        queries, gallery: rows, in rising order.
        cameras: (N,).
        k: how many of the nearest to keep.
        binary: whether the embeddings are `signs`, of which many pairs are exactly as similar.
    """
    k = min(k, len(gallery))
    asked, own = _unit(embeddings[queries]), labels[queries][:, None]
    best, nearest = np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), -1, np.int64)
    positive, negative = (np.full(len(queries), -np.inf, np.float32) for _ in range(2))
    step = max(1, AT_A_TIME // max(len(queries), 1))
    for start in range(0, len(gallery), step):
        rows = gallery[start : start + step]
        s = asked @ _unit(embeddings[rows]).T
        if binary:
            s = on_grid(s, embeddings.shape[1])
        same = own == labels[rows]
        ignored = queries[:, None] == rows
        if cameras is not None:
            ignored |= same & (cameras[queries][:, None] == cameras[rows])
        s[ignored] = -np.inf
        positive = np.maximum(positive, np.where(same, s, -np.inf).max(1))
        negative = np.maximum(negative, np.where(same, -np.inf, s).max(1))
        # Those found before come first, so that of equal ones the lower row stays first.
        s, numbers = np.concatenate([best, s], 1), np.concatenate([nearest, np.broadcast_to(rows, s.shape)], 1)
        order = _largest(s, k)
        best, nearest = np.take_along_axis(s, order, 1), np.take_along_axis(numbers, order, 1)
    nearest[np.isinf(best)] = -1
    kept = np.isfinite(positive) & np.isfinite(negative)
    return Found(queries[kept], nearest[kept], best[kept], positive[kept], negative[kept])


def _unit(x: Floats) -> Floats:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12), np.float32)


def _largest(s: Floats, k: int) -> Rows:
    """Columns of the k largest of each row, the lower column first where they are equal."""
    if k < s.shape[1]:
        least = np.partition(s, -k, axis=1)[:, -k]
        s = np.where(s >= least[:, None], s, -np.inf)  # the sort below is stable: of those that tie, the first remain
    return np.argsort(-s, axis=1, kind="stable")[:, :k]


def examples(found: Found, labels: Rows, count: int) -> dict[str, Rows]:
    """Places in `found` of the best, typical and worst queries by margin, at most one of each class in each group.

    Typical are those around the median. A query is in one group only, the worst having the first choice.
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
    """Two classes taken for each other.

    Attributes:
        first, second: labels, the lower one first.
        mistaken: queries of either whose nearest is of the other.
        queries: of either.
        example: rows of the most confident mistake: a query, and what it found.
    """

    first: int
    second: int
    mistaken: int
    queries: int
    example: tuple[int, int]


def confusions(found: Found, labels: Rows, count: int) -> list[Confusion]:
    """The pairs of classes that are confused most often; of equally many, the lower labels first."""
    if not len(found.queries):
        return []
    own, other = labels[found.queries], labels[found.nearest[:, 0]]
    low, high = np.minimum(own, other), np.maximum(own, other)
    asked = Counter(own.tolist())
    wrong = own != other
    often = Counter(zip(low[wrong].tolist(), high[wrong].tolist(), strict=True))
    result = []
    for (a, b), times in sorted(often.items(), key=lambda item: (-item[1], item[0]))[:count]:
        places = np.flatnonzero(wrong & (low == a) & (high == b))
        place = places[np.argmax(found.similarity[places, 0])]
        pair = int(found.queries[place]), int(found.nearest[place, 0])
        result.append(Confusion(a, b, times, asked[a] + asked[b], pair))
    return result
