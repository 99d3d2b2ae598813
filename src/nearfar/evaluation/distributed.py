"""Retrieval metrics computed by several processes together, equal to those of one process in every digit.

    holds="all"     every process has all embeddings; each searches for its share of the queries
    holds="part"    every process has a part of the embeddings (what it has embedded), which stays where it is: the
                    queries travel, some at a time, and each process counts the negatives of its own part

The second is for galleries that do not fit into one machine. It is exact because counting falls into parts: a match's
rank is its place among the matches, whose similarities are few and are sent around, and the number of negatives before
it, which is the sum of what the processes count (see `search.py`).
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
    """What `retrieval_metrics` gives for the embeddings of all processes; every process calls it and gets it.

    Args:
        holds: "all": every process gives the same embeddings, labels and the like, whole. "part": each gives its own,
            of any number; together, in the order of their ranks, they are the whole.
        group: of `torch.distributed`; by default all processes.
        similarity: "cosine", "dot" or "l2"; codes ("hamming") are small enough for one machine.
        progress: show a bar, in the first process.

    The others are as in `retrieval_metrics`, which has more: approximate indexes, pooled queries, clustering.
    """
    wanted = definitions.names(metrics, ks)
    if clusters := [name for name in wanted if name in CLUSTERING]:
        raise InputError(f"{' and '.join(clusters)} cluster on one machine: use clustering_metrics")
    if holds not in ("all", "part"):
        raise InputError(f'holds must be "all" or "part", not {holds!r}')
    if similarity not in ("cosine", "dot", "l2"):
        raise InputError(
            f'similarity must be "cosine", "dot" or "l2" where processes search together, not {similarity!r}'
        )
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
        columns = {name: ranks.joined(values) for name, values in columns.items()}
    protocol = Protocol(**columns, junk=junk)
    with Progress(
        protocol.queries * protocol.gallery // ranks.size, "retrieval", progress if ranks.own == 0 else False
    ) as bar:
        options: dict[str, Any] = {"memory_budget": memory_budget, "tile": tile, "progress": bar}
        if holds == "all":
            values = _of_own_queries(rows, searched, protocol, similarity, ties, wanted, ranks, options)
        else:
            parts = _over_own_gallery(rows, searched, protocol, similarity, ties, ranks, options)
            values = values_of(parts, wanted, protocol.queries)
    return summary(values, protocol.query_labels, ci, confidence, per_query)


def _of_own_queries(
    rows: Rows,
    searched: Rows,
    protocol: Protocol,
    similarity: Similarity,
    ties: Ties,
    wanted: Sequence[str],
    ranks: "_Ranks",
    options: dict[str, Any],
) -> dict[str, Floats]:
    own = np.array_split(np.arange(protocol.queries), ranks.size)[ranks.own]
    left = Vectors(Rows(rows.read(own, torch.float32), "embeddings"), similarity, gallery=False)
    right = Vectors(searched, similarity, gallery=True)
    found = exact_ranks(left, right, Share(protocol, own), ties, **options) if len(own) else ()
    values = values_of(found, wanted, len(own))
    return {name: ranks.gathered(torch.from_numpy(value)).numpy() for name, value in values.items()}


def _over_own_gallery(
    rows: Rows,
    searched: Rows,
    protocol: Protocol,
    similarity: Similarity,
    ties: Ties,
    ranks: "_Ranks",
    options: dict[str, Any],
) -> Iterator[tuple[Ints, Ranks]]:
    counts = ranks.counts(len(searched))
    if not counts.all():
        raise InputError(f"process {int(counts.argmin())} has nothing to search in: every process needs a part")
    last = int(counts[: ranks.own + 1].sum())
    columns = slice(last - len(searched), last)
    right = Vectors(searched, similarity, gallery=True)
    begins = int(ranks.counts(len(rows))[: ranks.own].sum())  # this process's queries, among all
    at_a_time = max(options["tile"], options["memory_budget"] // 2 // (4 * rows.dimension))
    for part in parts_of(protocol.queries, at_a_time):
        mine = slice(*np.clip((part.start - begins, part.stop - begins), 0, len(rows)).tolist())
        travelling = Rows(ranks.gathered(rows.float32(mine)), "embeddings")
        share = Share(protocol, np.arange(part.start, part.stop), columns)
        left = Vectors(travelling, similarity, gallery=False)
        for some, found in exact_ranks(left, right, share, ties, across=ranks, **options):
            yield part.start + some, found


class _Ranks(Across):
    """The processes of a group, each with a part of the gallery."""

    def __init__(self, group: distributed.ProcessGroup | None):
        if not distributed.is_initialized():
            raise StateError(
                "there are no other processes: call torch.distributed.init_process_group first, or use "
                "retrieval_metrics"
            )
        self.group, self.own, self.size = group, distributed.get_rank(group), distributed.get_world_size(group)

    def counts(self, own: int) -> Ints:
        """What each process has."""
        found = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        distributed.all_gather(found, torch.tensor([own]), group=self.group)
        return torch.cat(found).numpy()

    def gathered(self, rows: Tensor) -> Tensor:
        """The rows (n, ...) of all processes, one after the other; n may differ."""
        counts = self.counts(len(rows))
        padded = rows.new_zeros(int(counts.max()), *rows.shape[1:])
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(received, padded, group=self.group)
        return torch.cat([own[:count] for own, count in zip(received, counts.tolist(), strict=True)])

    def joined(self, values: Any) -> NDArray[Any] | None:
        """Labels and the like of all processes."""
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, None if values is None else inputs.to_numpy(values), group=self.group)
        if any(part is None for part in found):
            if not all(part is None for part in found):
                raise InputError("some processes gave labels, cameras or ids that others did not")
            return None
        kinds = {part.dtype.kind for part in found}
        if len(kinds) > 1:
            found = [part.astype(object) for part in found]  # a number is no word, whoever gave it
        return np.concatenate(found)

    def total(self, counts: Tensor) -> Tensor:
        distributed.all_reduce(counts, group=self.group)
        return counts

    def union(self, row: Ints, bound: Tensor) -> tuple[Ints, Tensor]:
        return self.gathered(torch.from_numpy(row)).numpy(), self.gathered(bound)
