"""Approximate FAISS structures of the vectors of a segment, and exact search.

Vectors have unit length, so that the inner product is the cosine. Searches return similarities (Q, k), descending, and
rows (Q, k), padded with -1.
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

faiss: Any = _faiss  # its annotations are incomplete
SMALLEST = {"hnsw": 1_000, "ivfpq": 10_000}  # rows; with fewer, exact search is as fast, and no structure is built
BLOCK = 8192  # rows added at a time
LINKS = 32  # of a node of the graph
EFFORT_BUILDING, EFFORT = 120, 96  # candidates: more have a higher recall and take longer
SHORTLIST = 10  # IVF-PQ compares this multiple of k candidates exactly

Found = tuple[Floats, NDArray[np.int64]]


def build(kind: Kind, vectors: NDArray[Any], path: Path) -> None:
    """Build a structure and write it."""
    n, dimension = vectors.shape
    if kind == "hnsw":
        index: Any = faiss.IndexHNSWFlat(dimension, LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EFFORT_BUILDING
    else:
        lists = min(int(4 * n**0.5), n // 39)  # k-means needs 39 points for each
        index = faiss.IndexIVFPQ(
            faiss.IndexFlatIP(dimension), dimension, lists, _pieces(dimension), 8, faiss.METRIC_INNER_PRODUCT
        )
        sample = np.sort(np.random.default_rng(0).choice(n, min(n, 256 * lists, 200_000), replace=False))
        index.train(_plain(vectors[sample]))
    for start in range(0, n, BLOCK):
        index.add(_plain(vectors[start : start + BLOCK]))
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:  # FAISS's type for errors of the file system
        raise FileError(f"{path} could not be written: {error}") from error


def _pieces(dimension: int) -> int:
    """The number of bytes of a quantised vector: the largest divisor of the dimension up to dimension / 8."""
    return max(pieces for pieces in range(1, max(1, dimension // 8) + 1) if dimension % pieces == 0)


def read(path: Path) -> Any:
    """Read a structure."""
    return faiss.read_index(str(path))


def find(kind: Kind, structure: Any, vectors: NDArray[Any], queries: Floats, k: int) -> Found:
    """Search a structure. The candidates of IVF-PQ are compared again with the exact vectors."""
    if kind == "hnsw":
        return _searched(structure, queries, k, faiss.SearchParametersHNSW(efSearch=max(EFFORT, 2 * k)))
    probes = max(8, structure.nlist // 16)
    wanted = min(max(SHORTLIST * k, 100), len(vectors))
    _, rows = _searched(structure, queries, wanted, faiss.SearchParametersIVF(nprobe=probes))
    similarities = np.full(rows.shape, -np.inf, np.float32)
    for query, listed in enumerate(rows):
        valid = listed >= 0
        similarities[query, valid] = vectors[listed[valid]] @ queries[query]
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)


def _searched(structure: Any, queries: Floats, k: int, parameters: Any) -> Found:
    """Search with parameters. If faiss.contrib.torch_utils has been imported, as pytorch-metric-learning does, `search`
    takes no parameters, and the original method is `search_numpy`.
    """
    search = getattr(structure, "search_numpy", structure.search)
    result: Found = search(_plain(queries), k, params=parameters)
    return result


def _plain(vectors: NDArray[Any]) -> NDArray[Any]:
    """A plain array instead of a memory map, which torch_utils would mistake for a tensor."""
    return np.ascontiguousarray(vectors).view(np.ndarray)


def find_exactly(vectors: NDArray[Any], queries: Floats, k: int) -> Found:
    """Search by comparing with all vectors."""
    result: Found = faiss.knn(_plain(queries), _plain(vectors), k, metric=faiss.METRIC_INNER_PRODUCT)
    return result


def find_codes(codes: NDArray[Any], queries: NDArray[np.uint8], k: int, bits: int) -> Found:
    """Search packed codes. The similarity is the cosine of the codes as vectors of -1 and 1."""
    distances, rows = faiss.knn_hamming(queries, codes, k)
    return (1 - distances.astype(np.float32) * (2 / bits)), rows.astype(np.int64)
