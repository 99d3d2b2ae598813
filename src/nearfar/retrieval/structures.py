"""Approximate FAISS structures over the vectors of one segment, by name; and exact search without one.

Vectors have length 1, so that the inner product is the cosine. All functions give similarities (Q, k), falling, and
rows (Q, k), -1 where nothing more was found.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import FileError, MissingPackageError
from nearfar.retrieval.index import Floats, Kind

try:
    import faiss as _faiss
except ImportError as missing:
    raise MissingPackageError("an index in a folder needs faiss: pip install 'nearfar[retrieval]'") from missing

faiss: Any = _faiss  # its annotations leave out most of it
SMALLEST = {"hnsw": 1_000, "ivfpq": 10_000}  # rows below which an exact search is as quick; a structure is not built
BLOCK = 8192  # rows handed over at a time
LINKS = 32  # of a node of the graph
EFFORT_BUILDING, EFFORT = 120, 96  # candidates looked at: more find more, and take longer
SHORTLIST = 10  # of IVF-PQ: so many times k candidates are compared again, exactly

Found = tuple[Floats, NDArray[np.int64]]


def build(kind: Kind, vectors: NDArray[Any], path: Path) -> None:
    """Build a structure and write it."""
    n, dimension = vectors.shape
    if kind == "hnsw":
        index: Any = faiss.IndexHNSWFlat(dimension, LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EFFORT_BUILDING
    else:
        lists = min(int(4 * n**0.5), n // 39)  # k-means wants 39 points for each
        index = faiss.IndexIVFPQ(
            faiss.IndexFlatIP(dimension), dimension, lists, _pieces(dimension), 8, faiss.METRIC_INNER_PRODUCT
        )
        sample = np.sort(np.random.default_rng(0).choice(n, min(n, 256 * lists, 200_000), replace=False))
        index.train(_plain(vectors[sample]))
    for start in range(0, n, BLOCK):
        index.add(_plain(vectors[start : start + BLOCK]))
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:  # what the disk says, in its words
        raise FileError(f"{path} could not be written: {error}") from error


def _pieces(dimension: int) -> int:
    """How many bytes a vector is quantised to: one for eight numbers, or for as few more as divide the dimension."""
    return max(pieces for pieces in range(1, max(1, dimension // 8) + 1) if dimension % pieces == 0)


def read(path: Path) -> Any:
    """A structure that was built."""
    return faiss.read_index(str(path))


def find(kind: Kind, structure: Any, vectors: NDArray[Any], queries: Floats, k: int) -> Found:
    """The nearest by a structure; what IVF-PQ finds is compared again with the vectors themselves."""
    if kind == "hnsw":
        return _searched(structure, queries, k, faiss.SearchParametersHNSW(efSearch=max(EFFORT, 2 * k)))
    probes = max(8, structure.nlist // 16)
    wanted = min(max(SHORTLIST * k, 100), len(vectors))
    _, rows = _searched(structure, queries, wanted, faiss.SearchParametersIVF(nprobe=probes))
    similarities = np.full(rows.shape, -np.inf, np.float32)
    for query, listed in enumerate(rows):
        there = listed >= 0
        similarities[query, there] = vectors[listed[there]] @ queries[query]
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)


def _searched(structure: Any, queries: Floats, k: int, parameters: Any) -> Found:
    """Where someone has imported faiss.contrib.torch_utils, as pytorch-metric-learning does, `search` takes tensors and
    no parameters; the original is kept under another name.
    """
    search = getattr(structure, "search_numpy", structure.search)
    found: Found = search(_plain(queries), k, params=parameters)
    return found


def _plain(vectors: NDArray[Any]) -> NDArray[Any]:
    """The same as an array that is no memory map, which torch_utils would take for a tensor."""
    return np.ascontiguousarray(vectors).view(np.ndarray)


def find_exactly(vectors: NDArray[Any], queries: Floats, k: int) -> Found:
    """The nearest by comparing with all."""
    found: Found = faiss.knn(_plain(queries), _plain(vectors), k, metric=faiss.METRIC_INNER_PRODUCT)
    return found


def find_codes(codes: NDArray[Any], queries: NDArray[np.uint8], k: int, bits: int) -> Found:
    """The nearest of packed codes; the similarity is the cosine of the codes as vectors of -1 and 1."""
    distances, rows = faiss.knn_hamming(queries, codes, k)
    return (1 - distances.astype(np.float32) * (2 / bits)), rows.astype(np.int64)
