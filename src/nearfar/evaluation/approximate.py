"""Ranks from an approximate FAISS index, to measure the accuracy that it loses."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nearfar.errors import InputError, MissingPackageError
from nearfar.evaluation.counting import count_at_least
from nearfar.evaluation.hamming import Codes
from nearfar.evaluation.inputs import Ints, Part
from nearfar.evaluation.metrics import NOT_FOUND, Ranks
from nearfar.evaluation.protocols import Protocol
from nearfar.evaluation.ties import TIED, TIED_CODES, Ties, bounds_of
from nearfar.evaluation.vectors import Vectors

QUERIES_AT_A_TIME = 4096
TRAINING = 2**29  # largest size in bytes of the vectors that train an index


def approximate_ranks(
    queries: Vectors,
    gallery: Vectors,
    protocol: Protocol,
    ties: Ties,
    *,
    index: str,
    depth: int,
    progress: Callable[[int], None],
) -> Iterator[tuple[Ints, Ranks]]:
    """Yield blocks of queries with the ranks of their matches among the first `depth` results of the index. Matches
    that are not among them have the rank NOT_FOUND.

    Args:
        index: a description for `faiss.index_factory`, such as "HNSW32", optionally with search parameters for
            `faiss.ParameterSpace` after a semicolon: "IVF1024,Flat;nprobe=16".
        progress: called with the number of (query, gallery item) pairs of each block.
    """
    listed = np.setdiff1d(np.arange(len(gallery)), protocol.junk_columns)  # junk would fill places in the results
    built, lengths = _build(gallery, listed, index)
    depth = min(depth, len(listed))
    for start in range(0, len(queries), QUERIES_AT_A_TIME):
        block = np.arange(start, min(start + QUERIES_AT_A_TIME, len(queries)))
        vectors = _faiss_input(queries, block)
        scores, columns = built.search(vectors, depth)
        if queries.similarity == "hamming":
            scores, tolerance = -scores, TIED_CODES
        else:
            tolerance = TIED * np.linalg.norm(vectors, axis=1)[:, None] * lengths[columns]
        # The last result may tie with items beyond the list. A list that ends early is complete.
        complete = depth == len(listed) or columns[:, -1:] < 0
        columns = np.where(columns < 0, -1, listed[columns])
        yield block, _ranks(scores, columns, tolerance, complete, protocol, block, ties)
        progress(len(block) * len(gallery))


def _faiss_input(vectors: Vectors, part: Part) -> NDArray[Any]:
    if isinstance(vectors.rows, Codes):
        return vectors.rows.packed(part)
    return vectors.read(part).contiguous().cpu().numpy()


def _build(gallery: Vectors, listed: Ints, description: str) -> tuple[Any, NDArray[np.float64]]:
    """Build the index of the listed items. Returns it with the norms of their vectors."""
    try:
        import faiss
    except ImportError:
        raise MissingPackageError("index= needs faiss: pip install 'nearfar[evaluation]'") from None
    name, _, parameters = description.partition(";")
    try:
        if gallery.similarity == "hamming":
            index: Any = faiss.index_binary_factory(gallery.dimension, name)
        else:
            index = faiss.index_factory(gallery.dimension, name, faiss.METRIC_INNER_PRODUCT)
        if parameters:
            space: Any = faiss.ParameterSpace()
            space.set_index_parameters(index, parameters)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(
            f"index={description!r} is not a FAISS index of {gallery.dimension} dimensions: {reason}"
        ) from None
    count = min(len(listed), TRAINING // (4 * gallery.dimension))
    if not index.is_trained:
        sample = np.sort(np.random.default_rng(0).choice(listed, count, replace=False))
        index.train(_faiss_input(gallery, sample))
    lengths = np.empty(len(listed))
    for piece in gallery.pieces():
        part = slice(*np.searchsorted(listed, (piece.start, piece.stop)))
        vectors = _faiss_input(gallery, listed[part])
        lengths[part] = np.linalg.norm(vectors, axis=1)
        index.add(vectors)
    return index, lengths


def _ranks(
    scores: Any, columns: Any, tolerance: Any, complete: Any, protocol: Protocol, block: Ints, ties: Ties
) -> Ranks:
    pairs = protocol.pairs(block)
    key = pairs.row * protocol.gallery + pairs.column
    order = np.argsort(key)
    listed = np.arange(len(block))[:, None] * protocol.gallery + columns
    position = np.minimum(np.searchsorted(key[order], listed), max(len(key) - 1, 0))
    known = (key[order][position] == listed) if len(key) else np.zeros(listed.shape, np.bool_)
    match = known & pairs.match[order][position] if len(key) else known
    negative = (columns >= 0) & ~known
    similar = torch.from_numpy(scores).double()
    bounds = bounds_of(similar, torch.as_tensor(tolerance), ties)
    match &= complete | (bounds.numpy() > scores[:, -1:]) | (ties == "optimistic")
    bounds = torch.where(torch.from_numpy(match), bounds, torch.inf).sort(1).values
    matches, listed_matches = pairs.matches(len(block)), match.sum(1)
    bounds = bounds[:, : int(listed_matches.max(initial=0))]
    before = count_at_least(similar.masked_fill(~torch.from_numpy(negative), -torch.inf), bounds).numpy()
    ranks = Ranks.of(np.full(int(matches.sum()), NOT_FOUND), matches)
    in_list = ranks.place <= listed_matches[ranks.query]
    query, place = ranks.query[in_list], ranks.place[in_list]
    ranks.rank[in_list] = place + before[query, listed_matches[query] - place]
    return ranks
