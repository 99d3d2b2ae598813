"""Retrieval metrics of embeddings, or of similarities computed in blocks.

retrieval_metrics   metrics of embeddings: leave-one-out, query against gallery, person re-identification
rank_metrics        metrics of similarities that a function returns for some queries at a time, such as re-ranked ones
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.errors import InputError, InputTypeError
from nearfar.evaluation import inputs
from nearfar.evaluation import metrics as definitions
from nearfar.evaluation.approximate import approximate_ranks
from nearfar.evaluation.class_means import CONFIDENCE, check_confidence, intervals
from nearfar.evaluation.clustering import clustering_metrics
from nearfar.evaluation.counting import count_at_least
from nearfar.evaluation.hamming import Codes
from nearfar.evaluation.inputs import Ints, Rows
from nearfar.evaluation.metrics import CLUSTERING, Floats, Ranks
from nearfar.evaluation.multi_query import pool_queries
from nearfar.evaluation.progress import Progress
from nearfar.evaluation.protocols import Protocol
from nearfar.evaluation.search import TILE, exact_ranks
from nearfar.evaluation.ties import Ties, bounds_of
from nearfar.evaluation.vectors import Similarity, Vectors

SCORES_AT_A_TIME = 2**23  # in rank_metrics
MEMORY_BUDGET = 2**28


def retrieval_metrics(
    embeddings: Any,
    labels: Any,
    ks: Sequence[int] = (1, 2, 4, 8),
    *,
    gallery: Any = None,
    gallery_labels: Any = None,
    cameras: Any = None,
    gallery_cameras: Any = None,
    ids: Any = None,
    gallery_ids: Any = None,
    junk: Any = None,
    multi_query: Literal["mean", "max"] | None = None,
    metrics: str | Iterable[str] | None = None,
    similarity: Similarity = "cosine",
    ties: Ties = "pessimistic",
    index: str | None = None,
    ci: bool = False,
    confidence: float = CONFIDENCE,
    resamples: int | None = None,
    seed: int = 0,
    per_query: bool = False,
    progress: bool | None = None,
    memory_budget: int = MEMORY_BUDGET,
    tile: int = TILE,
) -> dict[str, Any]:
    """Exact retrieval metrics of embeddings in bounded memory; see `nearfar.evaluation.metrics` for their definitions.

    Each item is a query to all others (leave-one-out), or each of `embeddings` to the `gallery`.
    `nearfar.evaluation.protocols` defines matches and ignored items. Queries without a match are left out and counted.

    Ties count against the model: a negative that is as similar as a match is ranked before it. Similarities are tied if
    they differ by at most 8 float32 ulps of 1 (9.5e-7 times the norms of the vectors). So a model that maps everything
    to one point scores close to zero.

    Args:
        embeddings: (N, D), a tensor on any device or a numpy array, of any floating-point width. They need not be
            normalised. Memory maps are read in pieces.
        labels: (N,) integers, strings or other values, but not floats.
        ks: the numbers k of recall@k, precision@k and ndcg@k.
        gallery, gallery_labels: (G, D) and (G,), to be searched instead.
        cameras, gallery_cameras: for re-identification: gallery items with the query's label and camera are ignored.
        ids, gallery_ids: gallery items with the query's id are ignored.
        junk: label or labels of gallery items that are ignored for all queries; by default −1 if there are cameras,
            otherwise none. Label 0, the distractors of re-identification, needs no special treatment: no query has it.
        multi_query: pool the queries of the same label and camera by "mean" or "max" of their coordinates, after
            normalisation if `similarity` is "cosine".
        metrics: names such as ("recall@1", "map@r", "nmi"); "recall" stands for recall at all `ks`. The default is all
            metrics except nmi and ami, which need faiss and scikit-learn and only use `embeddings`.
        similarity: "cosine", "dot", "l2" for the Euclidean distance, or "hamming" for binary codes. For "hamming",
            embeddings and gallery are uint8 with eight bits per byte, as `pack_bits` returns them.
        ties: "optimistic" ranks a match before negatives that are as similar, for comparison with other libraries.
        index: an approximate FAISS index to search instead, such as "IVF1024,Flat;nprobe=16". Matches that it misses
            count as never found. The number of neighbours suffices for the largest of `ks` and of the classes, so
            `map`, `mrr` and `minp` are lower bounds.
        ci: add confidence intervals of the means for other classes (`nearfar.evaluation.class_means`).
        confidence: the confidence of the intervals.
        resamples: ignored, for compatibility.
        seed: the seed of the clustering.
        per_query: add the values of every query, NaN for those without a match.
        progress: whether to show a bar; None shows it on a terminal if the computation takes long.
        memory_budget: bytes of vectors that may be held in memory; larger sets are read repeatedly.
        tile: queries and gallery items multiplied at a time; does not change the result.

    Returns a dictionary with the mean of each metric over the queries, "queries" and "queries_without_match". With
    `ci`, it has "ci", a (low, high) pair by metric, and "ci_classes", the number of classes. With `per_query`, it has
    "per_query", an array (N,) by metric, and "query_labels".

    >>> import numpy as np
    >>> from nearfar.evaluation import retrieval_metrics
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1], [1, 0.9]], dtype=np.float32)
    >>> result = retrieval_metrics(embeddings, ["cat", "cat", "dog", "dog"], ks=[1])
    >>> result["recall@1"], result["mrr"], result["queries"]
    (0.75, 0.8333333333333334, 4)
    """
    wanted = definitions.names(metrics, ks)
    _check_choice("similarity", similarity, ("cosine", "dot", "l2", "hamming"))
    _check_choice("ties", ties, ("pessimistic", "optimistic"))
    _check_choice("multi_query", multi_query, (None, "mean", "max"))
    if ci:
        check_confidence(confidence)
    if tile < 1 or memory_budget < 0:
        raise InputError(f"tile={tile} must be at least 1 and memory_budget={memory_budget} not negative")
    read = Codes if similarity == "hamming" else Rows
    rows = read(embeddings, "embeddings")
    labels = inputs.labels(labels, len(rows), "labels")
    if (gallery is None) != (gallery_labels is None):
        raise InputError("gallery and gallery_labels go together")
    searched = rows
    if gallery is not None:
        searched = read(gallery, "gallery", rows.device)
        if searched.dimension != rows.dimension:
            raise InputError(f"embeddings have {rows.dimension} dimensions, but the gallery has {searched.dimension}")
        gallery_labels = inputs.labels(gallery_labels, len(searched), "gallery_labels")
        if ids is None and cameras is None and _is_same(embeddings, gallery):
            warnings.warn(
                "the gallery is the same as the queries, and each finds itself first: leave the gallery out to search "
                "all other items, or give ids and gallery_ids",
                stacklevel=2,
            )
    clusters = [name for name in wanted if name in CLUSTERING]
    ranked = [name for name in wanted if name not in CLUSTERING]
    clustered, clustered_labels = embeddings, labels
    if clusters and similarity == "hamming":
        raise InputError(f"{' and '.join(clusters)} need real vectors, not binary codes")
    if multi_query is not None:
        if not isinstance(rows, Rows):
            raise InputError("multi_query needs real vectors, not binary codes")
        if cameras is None or gallery is None or ids is not None:
            raise InputError(
                "multi_query pools queries by label and camera: it needs a gallery and cameras, and no ids"
            )
        seen = inputs.labels(cameras, len(rows), "cameras")
        pooled, labels, cameras = pool_queries(rows, labels, seen, multi_query, normalize=similarity == "cosine")
        rows = Rows(pooled, "embeddings")
    protocol = Protocol(
        labels,
        gallery_labels,
        cameras=cameras,
        gallery_cameras=gallery_cameras,
        ids=ids,
        gallery_ids=gallery_ids,
        junk=junk,
    )
    right = Vectors(searched, similarity, gallery=True)
    left = right if gallery is None and similarity != "l2" else Vectors(rows, similarity, gallery=False)
    with Progress(len(left) * len(right), "retrieval", progress) as bar:
        if index is None:
            parts = exact_ranks(left, right, protocol, ties, memory_budget=memory_budget, tile=tile, progress=bar)
        else:
            depth = max(
                (int(name.partition("@")[2]) for name in ranked if name.startswith(definitions.AT_K)), default=1
            )
            depth += int(protocol.pair_counts().max()) + 1  # one more, to recognise ties with the last result
            parts = approximate_ranks(left, right, protocol, ties, index=index, depth=depth, progress=bar)
        values = values_of(parts, ranked, protocol.queries)
    result = summary(values, protocol.query_labels, ci, confidence, per_query)
    if clusters:
        normalize = similarity == "cosine"
        result = (
            clustering_metrics(clustered, clustered_labels, normalize=normalize, seed=seed, metrics=clusters) | result
        )
    return result


def rank_metrics(
    rows: Callable[[slice], Tensor],
    labels: Any,
    gallery_labels: Any = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    *,
    cameras: Any = None,
    gallery_cameras: Any = None,
    ids: Any = None,
    gallery_ids: Any = None,
    junk: Any = None,
    metrics: str | Iterable[str] | None = None,
    ties: Ties = "pessimistic",
    tolerance: float = 0.0,
    ci: bool = False,
    confidence: float = CONFIDENCE,
    resamples: int | None = None,
    seed: int = 0,
    per_query: bool = False,
    progress: bool | None = None,
    block: int | None = None,
) -> dict[str, Any]:
    """Retrieval metrics of similarities that are computed in blocks.

    Args:
        rows: `rows(slice(a, b))` returns the finite similarities (b − a, G) of the queries a … b−1 to the whole
            gallery, higher for more alike (negate distances). It is called once for each block, in order.
        labels, gallery_labels, …: as in `retrieval_metrics`. Without `gallery_labels`, G = N and self is ignored.
        tolerance: the largest difference of tied similarities.
        block: queries at a time; by default as many as have 2^23 similarities.

    Returns the same dictionary as `retrieval_metrics`.
    """
    wanted = definitions.names(metrics, ks)
    if clusters := [name for name in wanted if name in CLUSTERING]:
        raise InputError(f"{' and '.join(clusters)} need embeddings, not similarities: use clustering_metrics")
    _check_choice("ties", ties, ("pessimistic", "optimistic"))
    if ci:
        check_confidence(confidence)
    protocol = Protocol(
        labels,
        gallery_labels,
        cameras=cameras,
        gallery_cameras=gallery_cameras,
        ids=ids,
        gallery_ids=gallery_ids,
        junk=junk,
    )
    if not 0 <= tolerance < np.inf or (block is not None and block < 1):
        raise InputError(f"tolerance={tolerance} must not be negative, and block={block} must be at least 1")
    block = block or max(1, SCORES_AT_A_TIME // protocol.gallery)

    def parts(bar: Progress) -> Iterator[tuple[Ints, Ranks]]:
        for start in range(0, protocol.queries, block):
            queries = np.arange(start, min(start + block, protocol.queries))
            scores = rows(slice(start, start + len(queries)))
            if not isinstance(scores, Tensor):
                raise InputTypeError(f"rows(…) must return a torch.Tensor, not {type(scores).__name__}")
            if scores.shape != (len(queries), protocol.gallery):
                raise InputError(
                    f"rows({start}:{start + len(queries)}) returned {tuple(scores.shape)} similarities, "
                    f"not {(len(queries), protocol.gallery)}"
                )
            if scores.is_floating_point() and not bool(torch.isfinite(scores).all()):
                bad = start + (~torch.isfinite(scores)).any(1).nonzero()
                raise InputError(f"the similarities of {len(bad)} queries (first: {int(bad[0])}) are not finite")
            yield queries, _ranks(scores, protocol, queries, ties, tolerance)
            bar(len(queries) * protocol.gallery)

    with Progress(protocol.queries * protocol.gallery, "retrieval", progress) as bar:
        values = values_of(parts(bar), wanted, protocol.queries)
    return summary(values, protocol.query_labels, ci, confidence, per_query)


def _ranks(scores: Tensor, protocol: Protocol, queries: Ints, ties: Ties, tolerance: float) -> Ranks:
    """The ranks of the matches, from the similarities (b, G) of some queries."""
    pairs = protocol.pairs(queries)
    matches = pairs.matches(len(queries))
    row, column, match = (torch.from_numpy(a).to(scores.device) for a in (pairs.row, pairs.column, pairs.match))
    place = np.arange(len(pairs.row[pairs.match])) - (np.cumsum(matches) - matches)[pairs.row[pairs.match]]
    if not scores.is_floating_point() or scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.double() if scores.element_size() > 2 else scores.float()  # exact conversions
    bounds = scores.new_full((len(queries), int(matches.max(initial=0))), torch.inf)
    bounds[row[match], torch.from_numpy(place).to(scores.device)] = scores[row[match], column[match]]
    used = torch.isfinite(bounds)
    bounds = bounds_of(bounds, tolerance, ties)
    scores = scores.index_put((row, column), scores.new_tensor(-torch.inf))  # a copy with only the negatives
    scores[:, torch.from_numpy(protocol.junk_columns).to(scores.device)] = -torch.inf
    bounds, order = bounds.sort(1)
    before = count_at_least(scores, bounds).flip(1)[used.gather(1, order).flip(1)]
    ranks = Ranks.of(before.cpu().numpy(), matches)
    ranks.rank[:] += ranks.place
    return ranks


def values_of(parts: Iterable[tuple[Ints, Ranks]], wanted: Sequence[str], queries: int) -> dict[str, Floats]:
    """The values (queries,) of each metric and the numbers of matches; NaN for queries without a match."""
    values = {name: np.full(queries, np.nan) for name in ("matches", *wanted)}
    for block, ranks in parts:
        for name, value in definitions.evaluate(ranks, wanted).items():
            values[name][block] = value
        values["matches"][block] = np.where(ranks.matches > 0, ranks.matches, np.nan)
    return values


def summary(
    values: dict[str, Floats], labels: NDArray[Any], ci: bool, confidence: float, per_query: bool
) -> dict[str, Any]:
    """The result of `retrieval_metrics`, from the values of `values_of`."""
    used = ~np.isnan(values.pop("matches"))
    if not used.any():
        raise InputError(
            f"none of the {len(used)} queries has a match: no gallery item has its label without being ignored. "
            "Check the labels"
        )
    result: dict[str, Any] = {name: float(value[used].mean()) for name, value in values.items()}
    result |= {"queries": int(used.sum()), "queries_without_match": int((~used).sum())}
    if ci and values:
        result["ci"] = intervals(values, labels, confidence)
        result["ci_classes"] = len(np.unique(labels[used]))
    if per_query:
        result["per_query"], result["query_labels"] = values, labels
    return result


def _is_same(embeddings: Any, gallery: Any) -> bool:
    """Whether both are the same array, or share their memory."""
    if embeddings is gallery:
        return True
    if isinstance(embeddings, Tensor) and isinstance(gallery, Tensor):
        return embeddings.shape == gallery.shape and embeddings.data_ptr() == gallery.data_ptr()
    if isinstance(embeddings, np.ndarray) and isinstance(gallery, np.ndarray):
        return embeddings.shape == gallery.shape and np.shares_memory(embeddings, gallery)
    return False


def _check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
