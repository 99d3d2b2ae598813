"""Ranks from an approximate FAISS index, for those who want to know what such an index costs in accuracy."""

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
TRAINING = 2**29  # bytes of vectors that an index is trained with


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
    """Some queries and the ranks of their matches among the first `depth` that the index finds, until all have had
    their turn. A match that it does not find has the rank NOT_FOUND.

    Args:
        index: as `faiss.index_factory` takes it, such as "HNSW32"; after a semicolon, search parameters as
            `faiss.ParameterSpace` takes them: "IVF1024,Flat;nprobe=16".
        progress: told how many (query, gallery item) pairs have been settled since the last time.
    """
    listed = np.setdiff1d(np.arange(len(gallery)), protocol.junk_columns)  # junk would take places in the lists
    found, lengths = _build(gallery, listed, index)
    depth = min(depth, len(listed))
    for start in range(0, len(queries), QUERIES_AT_A_TIME):
        turn = np.arange(start, min(start + QUERIES_AT_A_TIME, len(queries)))
        vectors = _as_faiss_takes_them(queries, turn)
        scores, columns = found.search(vectors, depth)
        if queries.similarity == "hamming":
            scores, tolerance = -scores, TIED_CODES
        else:
            tolerance = TIED * np.linalg.norm(vectors, axis=1)[:, None] * lengths[columns]
        # Who ties with the last of a list may tie with others that are not on it. A list that ends early has them all.
        whole = depth == len(listed) or columns[:, -1:] < 0
        columns = np.where(columns < 0, -1, listed[columns])
        yield turn, _ranks(scores, columns, tolerance, whole, protocol, turn, ties)
        progress(len(turn) * len(gallery))


def _as_faiss_takes_them(vectors: Vectors, part: Part) -> NDArray[Any]:
    if isinstance(vectors.rows, Codes):
        return vectors.rows.packed(part)
    return vectors.read(part).contiguous().cpu().numpy()


def _build(gallery: Vectors, listed: Ints, description: str) -> tuple[Any, NDArray[np.float64]]:
    """An index of these items, and the lengths of their vectors."""
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
            f"index={description!r} is no FAISS index of {gallery.dimension} dimensions: {reason}"
        ) from None
    count = min(len(listed), TRAINING // (4 * gallery.dimension))
    if not index.is_trained:
        sample = np.sort(np.random.default_rng(0).choice(listed, count, replace=False))
        index.train(_as_faiss_takes_them(gallery, sample))
    lengths = np.empty(len(listed))
    for piece in gallery.pieces():
        part = slice(*np.searchsorted(listed, (piece.start, piece.stop)))
        vectors = _as_faiss_takes_them(gallery, listed[part])
        lengths[part] = np.linalg.norm(vectors, axis=1)
        index.add(vectors)
    return index, lengths


def _ranks(scores: Any, columns: Any, tolerance: Any, whole: Any, protocol: Protocol, turn: Ints, ties: Ties) -> Ranks:
    pairs = protocol.pairs(turn)
    key = pairs.row * protocol.gallery + pairs.column
    order = np.argsort(key)
    listed = np.arange(len(turn))[:, None] * protocol.gallery + columns
    at = np.minimum(np.searchsorted(key[order], listed), max(len(key) - 1, 0))
    known = (key[order][at] == listed) if len(key) else np.zeros(listed.shape, np.bool_)
    match = known & pairs.match[order][at] if len(key) else known
    negative = (columns >= 0) & ~known
    similar = torch.from_numpy(scores).double()
    bounds = bounds_of(similar, torch.as_tensor(tolerance), ties)
    match &= whole | (bounds.numpy() > scores[:, -1:]) | (ties == "optimistic")
    bounds = torch.where(torch.from_numpy(match), bounds, torch.inf).sort(1).values
    matches, found = pairs.matches(len(turn)), match.sum(1)
    bounds = bounds[:, : int(found.max(initial=0))]
    before = count_at_least(similar.masked_fill(~torch.from_numpy(negative), -torch.inf), bounds).numpy()
    ranks = Ranks.of(np.full(int(matches.sum()), NOT_FOUND), matches)
    there = ranks.place <= found[ranks.query]
    query, place = ranks.query[there], ranks.place[there]
    ranks.rank[there] = place + before[query, found[query] - place]
    return ranks
