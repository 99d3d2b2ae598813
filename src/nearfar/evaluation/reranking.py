"""Re-ranking: k-reciprocal re-ranking, query expansion and database augmentation.

No array has (queries + gallery)² numbers: neighbours are lists, sets of neighbours are sparse matrices, and the final
similarities are computed in blocks of query rows.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearfar.errors import InputError, MissingPackageError
from nearfar.evaluation import inputs
from nearfar.evaluation.neighbours import SIMILARITIES_AT_A_TIME, nearest, neighbours, pair_products, products
from nearfar.evaluation.progress import Progress

Sparse = Any  # scipy.sparse.csr_array, whose package has no types
ENTRIES_AT_A_TIME = 2**21  # entries of sparse matrices
NUMBERS_AT_A_TIME = 2**24  # gathered numbers of embeddings
ROUNDING = 1e-6  # of a squared distance of unit vectors


class KReciprocal:
    """k-reciprocal re-ranking (Zhong et al., CVPR 2017, arXiv 1701.08398) of a gallery for every query.

        R(p, k)  = { g in N(p, k) : p in N(g, k) }                                     k-reciprocal neighbours
        R*(p)    = R(p, k1) ∪ R(q, k1/2) for every q in R(p, k1) with |R(p, k1) ∩ R(q, k1/2)| > 2/3 |R(q, k1/2)|
        V_p[g]   ∝ exp(-d(p, g)) for g in R*(p), else 0;  then the mean of V over p's k2 nearest, p among them
        d_J(p,g) = 1 - Σ min(V_p, V_g) / Σ max(V_p, V_g)
        d*       = (1 - lambda_) d_J + lambda_ d

    Neighbours are searched among queries and gallery together. Details follow the authors' code, which produced the
    published results: d is the squared Euclidean distance of unit vectors divided by the largest in p's row; N(p, k)
    has p itself and k others; the comparison with 2/3 is strict; k1/2 is rounded half to even. Equal similarities are
    ordered by index.

    Calling it with a slice of the queries returns minus d* to the whole gallery, as `rank_metrics` expects. Rounding
    errors of d* are about 1e-6, so smaller differences should count as ties:

        rank_metrics(KReciprocal(queries, gallery), labels, gallery_labels, cameras=..., ..., tolerance=1e-6)

    Args:
        queries: (Q, D), gallery: (G, D); tensors, arrays or memory maps; they are normalised to unit length. Without a
            gallery, the queries are searched among themselves (leave-one-out).
        k1, k2, lambda_: the parameters; the defaults are the paper's.
        progress: whether to show a bar; None shows it on a terminal if the search for neighbours takes long.
        device: the device for similarities; by default that of `queries` if it is a tensor, else the CPU.
    """

    def __init__(
        self,
        queries: Any,
        gallery: Any = None,
        *,
        k1: int = 20,
        k2: int = 6,
        lambda_: float = 0.3,
        progress: bool | None = None,
        device: torch.device | str | None = None,
    ):
        if k1 < 1 or k2 < 1:
            raise InputError(f"k1 and k2 must be at least 1, not {k1} and {k2}")
        if not 0 <= lambda_ <= 1:
            raise InputError(f"lambda_ must be between 0 and 1, not {lambda_}")
        self.lambda_ = lambda_
        if gallery is None:
            self._x, first = _unit_vectors(queries, "queries", device), 0
            self.queries = len(self._x)
        else:
            self._x, first = _together(queries, gallery, device)
            self.queries = first
        self._gallery = self._x[first:]
        with Progress(len(self._x) ** 2, "neighbours", progress) as bar:
            lists = neighbours(self._x, max(k1 + 1, k2), bar)
        largest = 2 - 2 * lists.farthest
        # Distances of the size of rounding errors are zero: a collapsed set has d = 0 everywhere.
        self._largest = np.where(largest > ROUNDING, largest, np.float32(np.inf))
        features = self._features(lists.indices, k1)
        if k2 > 1:
            features = _mean_over(features, lists.indices[:, :k2])
        self._of_queries = features[: self.queries]
        self._by_feature = features[first:].tocsc()

    def __call__(self, queries: slice) -> Tensor:
        """Minus d* of some queries with every gallery item, (queries, G), on the CPU."""
        start, stop, _ = queries.indices(self.queries)
        near = products(self._x[start:stop], self._gallery).cpu().numpy()
        # -d* = lambda_ min(2s - 2, 0) / largest - (1 - lambda_) (1 - shared / (2 - shared)), in place
        near -= 1
        np.minimum(near, 0, out=near)
        near *= 2 * self.lambda_ / self._largest[start:stop, None]
        near -= 1 - self.lambda_
        step = max(1, ENTRIES_AT_A_TIME // len(self._gallery))
        for first in range(start, stop, step):
            last = min(stop, first + step)
            shared = self._shared(first, last)
            shared /= 2 - shared  # every V sums to 1, so that Σ max = 2 - Σ min
            shared *= 1 - self.lambda_
            near[first - start : last - start] += shared
        return torch.from_numpy(near)

    def _features(self, lists: npt.NDArray[np.int64], k1: int) -> Sparse:
        """V (N, N) before averaging."""
        sparse = _scipy_sparse()
        reciprocal = _reciprocal(lists[:, : k1 + 1])
        half = _reciprocal(lists[:, : round(k1 / 2) + 1])
        sizes = np.diff(half.indptr)
        step = max(1, ENTRIES_AT_A_TIME // (k1 + 1) ** 2)
        blocks = []
        for start in range(0, len(lists), step):
            block = reciprocal[start : start + step]
            common = (block @ half.T).multiply(block).tocsr()  # |R(p, k1) ∩ R(q, k1/2)| for q in R(p, k1)
            common.data = (3 * common.data > 2 * sizes[common.indices]).astype(np.int32)
            common.eliminate_zeros()
            expanded = (block + common @ half).tocsr()
            expanded.data = self._weights(expanded.indptr, expanded.indices, start)
            blocks.append(expanded)
        return sparse.vstack(blocks, format="csr")

    def _weights(
        self, pointers: npt.NDArray[np.int32], columns: npt.NDArray[np.int32], start: int
    ) -> npt.NDArray[np.float32]:
        """exp(-d) at the entries of some rows of a sparse matrix, normalised to a sum of 1 per row."""
        counts = np.diff(pointers)
        rows = np.repeat(np.arange(start, start + len(counts)), counts)
        similarities = pair_products(self._x, rows, columns.astype(np.int64))
        weights = np.exp(np.minimum(2 * similarities - 2, 0) / self._largest[rows])
        # Every row has an entry: p is its own neighbour.
        weights /= np.repeat(np.add.reduceat(weights, pointers[:-1]), counts)
        return weights

    def _shared(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        """Σ min(V_q, V_g) for some queries, summed over the features that a query and a gallery item share."""
        index, features = self._by_feature, self._of_queries[start:stop]
        lengths = np.diff(index.indptr)[features.indices]
        ends = np.cumsum(lengths)
        shared = np.zeros((stop - start) * len(self._gallery))
        query = np.repeat(np.arange(stop - start), np.diff(features.indptr)) * len(self._gallery)
        first = 0
        while first < len(lengths):  # blocks of features with at most ENTRIES_AT_A_TIME entries
            done = ends[first] - lengths[first]
            last = max(first + 1, int(np.searchsorted(ends, done + ENTRIES_AT_A_TIME, side="right")))
            part = slice(first, last)
            length = lengths[part]
            starts = index.indptr[features.indices[part]] - (ends[part] - length - done)
            entry = np.arange(int(length.sum())) + np.repeat(starts, length)
            smaller = np.minimum(index.data[entry], np.repeat(features.data[part], length))
            position = index.indices[entry] + np.repeat(query[part], length)
            shared += np.bincount(position, smaller, len(shared))
            first = last
        return shared.reshape(stop - start, -1)


def expand_queries(
    queries: Any,
    gallery: Any,
    *,
    k: int = 10,
    alpha: float = 3.0,
    progress: bool | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """α query expansion (Radenović et al., TPAMI 2018, arXiv 1711.02512): each query q with unit length becomes

        normalize( q + Σ_{g in the k nearest of the gallery} max(s(q, g), 0)^alpha g )

    to be searched instead. alpha = 0 is average query expansion. The default `device` is that of the queries if they
    are a tensor, else the CPU. `progress` shows a bar; None shows it on a terminal if the computation takes long.
    """
    x, n = _together(queries, gallery, device)
    _check_expansion(k, alpha)
    return _expanded(x[:n], x[n:], k, alpha, progress, same=False)


def augment_database(
    gallery: Any,
    *,
    k: int = 10,
    alpha: float = 3.0,
    progress: bool | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Database-side augmentation: expand every gallery vector by its k nearest others in the gallery, as
    `expand_queries` does for queries.
    """
    _check_expansion(k, alpha)
    x = _unit_vectors(gallery, "gallery", device)
    return _expanded(x, x, k, alpha, progress, same=True)


def _expanded(x: Tensor, gallery: Tensor, k: int, alpha: float, progress: bool | None, *, same: bool) -> Tensor:
    k = min(k, len(gallery) - same)
    result = torch.empty_like(x)
    step = max(1, min(SIMILARITIES_AT_A_TIME // len(gallery), NUMBERS_AT_A_TIME // (x.shape[1] * max(1, k))))
    with Progress(len(x) * len(gallery), "expansion", progress) as bar:
        for start in range(0, len(x), step):
            block = x[start : start + step]
            similarities = products(block, gallery)
            if same:
                row = torch.arange(len(block), device=x.device)
                similarities[row, row + start] = -torch.inf
            near = nearest(similarities, k)
            weights = similarities.gather(1, near).clamp_min(0).pow(alpha)
            result[start : start + step] = normalize(block + torch.einsum("bk,bkd->bd", weights, gallery[near]))
            bar(similarities.numel())
    return result


def _together(queries: Any, gallery: Any, device: torch.device | str | None) -> tuple[Tensor, int]:
    """The unit vectors of queries and gallery in one tensor, and the number of queries."""
    q = _unit_vectors(queries, "queries", device)
    g = _unit_vectors(gallery, "gallery", q.device)
    if q.shape[1] != g.shape[1]:
        raise InputError(f"queries have {q.shape[1]} dimensions, but the gallery has {g.shape[1]}")
    return torch.cat([q, g]), len(q)


def _unit_vectors(source: Any, name: str, device: torch.device | str | None) -> Tensor:
    x = inputs.unit_vectors(source, name, device)
    if not len(x):
        raise InputError(f"{name} {tuple(x.shape)} must not be empty")
    return x


def _check_expansion(k: int, alpha: float) -> None:
    if k < 1 or alpha < 0:
        raise InputError(f"k must be at least 1 and alpha not negative, not {k} and {alpha}")


def _reciprocal(lists: npt.NDArray[np.int64]) -> Sparse:
    """(N, N) with ones for pairs of rows that are in each other's lists."""
    n, k = lists.shape
    pointers = np.arange(0, n * k + 1, k)
    listed = _scipy_sparse().csr_array((np.ones(n * k, dtype=np.int32), lists.ravel(), pointers), shape=(n, n))
    return listed.multiply(listed.T).tocsr()


def _mean_over(features: Sparse, lists: npt.NDArray[np.int64]) -> Sparse:
    """The mean of the features of each row's neighbours."""
    n, k = lists.shape
    share = np.full(n * k, 1 / k, dtype=np.float32)
    return (
        _scipy_sparse().csr_array((share, lists.ravel(), np.arange(0, n * k + 1, k)), shape=(n, n)) @ features
    ).tocsr()


def _scipy_sparse() -> Any:
    try:
        from scipy import sparse
    except ImportError as error:
        raise MissingPackageError("k-reciprocal re-ranking needs scipy: pip install nearfar[all]") from error
    return sparse
