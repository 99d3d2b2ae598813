"""Retrieval metrics computed by several processes, identical to those of one process.

    holds="all"     every process has all embeddings and searches for a share of the queries
    holds="part"    every process has a part of the embeddings, which is never sent; the queries are sent to all
                    processes in blocks, and each process counts the negatives of its part

The second is for galleries that do not fit into one machine. It is exact because counts add up: the rank of a match is
its position among the matches, whose few similarities are gathered, plus the number of negatives before it, which is
the sum over the processes (see `search.py`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from nearfar.errors import InputError, StateError
from nearfar.evaluation import inputs
from nearfar.evaluation import metrics as definitions
from nearfar.evaluation.class_means import CONFIDENCE, check_confidence
from nearfar.evaluation.inputs import Ints, Rows
from nearfar.evaluation.metrics import CLUSTERING, Floats, Ranks
from nearfar.evaluation.progress import Progress
from nearfar.evaluation.protocols import Protocol, Share
from nearfar.evaluation.retrieval import MEMORY_BUDGET, summary, values_of
from nearfar.evaluation.search import TILE, Across, exact_ranks
from nearfar.evaluation.ties import Ties
from nearfar.evaluation.vectors import Similarity, Vectors, parts_of

Holds = Literal["all", "part"]


def distributed_retrieval_metrics(
    embeddings: Any,
    labels: Any,
    ks: Sequence[int] = (1, 2, 4, 8),
    *,
    holds: Holds = "part",
    group: distributed.ProcessGroup | None = None,
    gallery: Any = None,
    gallery_labels: Any = None,
    cameras: Any = None,
    gallery_cameras: Any = None,
    ids: Any = None,
    gallery_ids: Any = None,
    junk: Any = None,
    metrics: str | Iterable[str] | None = None,
    similarity: Similarity = "cosine",
    ties: Ties = "pessimistic",
    ci: bool = False,
    confidence: float = CONFIDENCE,
    resamples: int | None = None,
    seed: int = 0,
    per_query: bool = False,
    progress: bool | None = None,
    memory_budget: int = MEMORY_BUDGET,
    tile: int = TILE,
) -> dict[str, Any]:
    """`retrieval_metrics` of the embeddings of all processes. Every process calls it and gets the result.

    Args:
        holds: "all" if every process passes all embeddings and labels; "part" if each passes a part of any size. The
            parts are joined in the order of the ranks.
        group: a group of `torch.distributed`; by default all processes.
        similarity: "cosine", "dot" or "l2"; codes ("hamming") are small enough for one machine.
        progress: whether to show a bar, in the first process.

    The other arguments are those of `retrieval_metrics`. Approximate indexes, pooled queries and clustering are not
    supported.
    """
    wanted = definitions.names(metrics, ks)
    if clusters := [name for name in wanted if name in CLUSTERING]:
        raise InputError(f"{' and '.join(clusters)} cannot be distributed: use clustering_metrics in one process")
    if holds not in ("all", "part"):
        raise InputError(f'holds must be "all" or "part", not {holds!r}')
    if similarity not in ("cosine", "dot", "l2"):
        raise InputError(f'similarity must be "cosine", "dot" or "l2" in a distributed search, not {similarity!r}')
    if ties not in ("pessimistic", "optimistic"):
        raise InputError(f'ties must be "pessimistic" or "optimistic", not {ties!r}')
    if ci:
        check_confidence(confidence)
    if (gallery is None) != (gallery_labels is None):
        raise InputError("gallery and gallery_labels go together")
    ranks = _Ranks(group)
    rows = Rows(embeddings, "embeddings")
    searched = rows if gallery is None else Rows(gallery, "gallery", rows.device)
    columns = {
        "labels": inputs.labels(labels, len(rows), "labels"),
        "gallery_labels": None if gallery is None else inputs.labels(gallery_labels, len(searched), "gallery_labels"),
        "cameras": cameras,
        "gallery_cameras": gallery_cameras,
        "ids": ids,
        "gallery_ids": gallery_ids,
    }
    if holds == "part":
        columns = {name: ranks.join(values) for name, values in columns.items()}
    protocol = Protocol(**columns, junk=junk)
    with Progress(
        protocol.queries * protocol.gallery // ranks.size, "retrieval", progress if ranks.rank == 0 else False
    ) as bar:
        options: dict[str, Any] = {"memory_budget": memory_budget, "tile": tile, "progress": bar}
        if holds == "all":
            values = _by_queries(rows, searched, protocol, similarity, ties, wanted, ranks, options)
        else:
            parts = _by_gallery(rows, searched, protocol, similarity, ties, ranks, options)
            values = values_of(parts, wanted, protocol.queries)
    return summary(values, protocol.query_labels, ci, confidence, per_query)


def _by_queries(
    rows: Rows,
    searched: Rows,
    protocol: Protocol,
    similarity: Similarity,
    ties: Ties,
    wanted: Sequence[str],
    ranks: "_Ranks",
    options: dict[str, Any],
) -> dict[str, Floats]:
    """The metrics of all queries; each process computes those of a share of the queries."""
    queries = np.array_split(np.arange(protocol.queries), ranks.size)[ranks.rank]
    left = Vectors(Rows(rows.read(queries, torch.float32), "embeddings"), similarity, gallery=False)
    right = Vectors(searched, similarity, gallery=True)
    blocks = exact_ranks(left, right, Share(protocol, queries), ties, **options) if len(queries) else ()
    values = values_of(blocks, wanted, len(queries))
    return {name: ranks.gather(torch.from_numpy(value)).numpy() for name, value in values.items()}


def _by_gallery(
    rows: Rows,
    searched: Rows,
    protocol: Protocol,
    similarity: Similarity,
    ties: Ties,
    ranks: "_Ranks",
    options: dict[str, Any],
) -> Iterator[tuple[Ints, Ranks]]:
    """Yield blocks of queries with their ranks; each process searches its part of the gallery."""
    counts = ranks.counts(len(searched))
    if not counts.all():
        raise InputError(f"process {int(counts.argmin())} has no gallery: every process needs a part of it")
    last = int(counts[: ranks.rank + 1].sum())
    columns = slice(last - len(searched), last)
    right = Vectors(searched, similarity, gallery=True)
    offset = int(ranks.counts(len(rows))[: ranks.rank].sum())  # of this process's queries among all
    at_a_time = max(options["tile"], options["memory_budget"] // 2 // (4 * rows.dimension))
    for part in parts_of(protocol.queries, at_a_time):
        local = slice(*np.clip((part.start - offset, part.stop - offset), 0, len(rows)).tolist())
        queries = Rows(ranks.gather(rows.float32(local)), "embeddings")
        share = Share(protocol, np.arange(part.start, part.stop), columns)
        left = Vectors(queries, similarity, gallery=False)
        for block, block_ranks in exact_ranks(left, right, share, ties, across=ranks, **options):
            yield part.start + block, block_ranks


class _Ranks(Across):
    """The processes of a group, each with a part of the gallery."""

    def __init__(self, group: distributed.ProcessGroup | None):
        if not distributed.is_initialized():
            raise StateError(
                "torch.distributed is not initialised: call torch.distributed.init_process_group first, or use "
                "retrieval_metrics"
            )
        self.group, self.rank, self.size = group, distributed.get_rank(group), distributed.get_world_size(group)

    def counts(self, count: int) -> Ints:
        """The counts of all processes."""
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        distributed.all_gather(counts, torch.tensor([count]), group=self.group)
        return torch.cat(counts).numpy()

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (n, ...) of all processes in the order of their ranks; n may differ."""
        counts = self.counts(len(rows))
        padded = rows.new_zeros(int(counts.max()), *rows.shape[1:])
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(received, padded, group=self.group)
        return torch.cat([part[:count] for part, count in zip(received, counts.tolist(), strict=True)])

    def join(self, values: Any) -> NDArray[Any] | None:
        """The labels, cameras or ids of all processes."""
        parts: list[Any] = [None] * self.size
        distributed.all_gather_object(parts, None if values is None else inputs.to_numpy(values), group=self.group)
        if any(part is None for part in parts):
            if not all(part is None for part in parts):
                raise InputError("some processes pass labels, cameras or ids that others do not: pass them in all")
            return None
        kinds = {part.dtype.kind for part in parts}
        if len(kinds) > 1:
            parts = [part.astype(object) for part in parts]  # otherwise numpy would turn numbers into strings
        return np.concatenate(parts)

    def total(self, counts: Tensor) -> Tensor:
        distributed.all_reduce(counts, group=self.group)
        return counts

    def union(self, row: Ints, bound: Tensor) -> tuple[Ints, Tensor]:
        return self.gather(torch.from_numpy(row)).numpy(), self.gather(bound)
