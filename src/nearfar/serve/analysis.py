"""Analyses of a model on a gallery: worst queries, confused classes, thresholds and a map.

They use those images of the gallery that are test rows of the run, with its protocol. A gallery without test rows is
analysed as a whole: every labelled image is searched for among all others.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import NearfarError
from nearfar.evaluation import diagnose
from nearfar.report import layout, queries
from nearfar.report.thresholds import Accepted, accepted
from nearfar.serve.served_gallery import UNLABELLED, Catalogue, ServedGallery, item_key

T = TypeVar("T")
Rows = NDArray[np.int64]
SEED = 0
NEIGHBOURS = 8  # shown for each query
WORST = 24  # queries
CONFUSED = 24  # pairs of classes
ANCHORS = 1_500  # images compared with all others, for the thresholds
BINS = 400  # of similarities


class AnalysisError(NearfarError, ValueError):
    """The gallery does not allow the analysis; the message says why."""


class CachedResult(Generic[T]):
    """A function of the catalogue, computed once for each catalogue."""

    def __init__(self, compute: Callable[[Catalogue], T]):
        self._compute = compute
        self._lock = threading.Lock()
        self._cached: tuple[Catalogue, T] | None = None

    def get(self, catalogue: Catalogue, *, any_age: bool = False) -> T:
        """The result for a catalogue; with `any_age`, an earlier result is returned if there is one."""
        cached = self._cached
        if cached is not None and (any_age or cached[0] is catalogue):
            return cached[1]
        with self._lock:
            if self._cached is None or not (any_age or self._cached[0] is catalogue):
                self._cached = catalogue, self._compute(catalogue)
            return self._cached[1]


@dataclass(frozen=True)
class EvaluationRows:
    """The test rows of a run.

    Attributes:
        ids: (N,).
        query, gallery: (N,) whether a row is a query, and whether it is in the gallery.
        cameras: (N,) if known; matches of the same class and camera are ignored.
    """

    ids: Sequence[str]
    query: NDArray[np.bool_]
    gallery: NDArray[np.bool_]
    cameras: Rows | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Results of the gallery's queries. Rows are those of `catalogue`.

    Attributes:
        evaluation: whether the queries are the run's test rows; otherwise they are all labelled images.
        results: the neighbours of each query.
        sampled: whether the queries are a random sample.
        worst: positions of the worst queries in `results`.
        confused: pairs of classes.
        accepted: the pairs that each threshold accepts.
        answered, right: for each threshold, the queries whose nearest image reaches it, and those of them whose
            nearest image is of their class.
    """

    catalogue: Catalogue
    evaluation: bool
    results: queries.SearchResults
    sampled: bool
    worst: Rows
    confused: list[queries.Confusion]
    accepted: Accepted
    answered: Rows
    right: Rows


@dataclass(frozen=True)
class FlatMap:
    """A two-dimensional layout of a sample of the images.

    Attributes:
        positions: (N, 2) from 0 to 1.
        rows: (N,) of `catalogue`.
        right: (N,) whether the nearest image is of the same class.
    """

    catalogue: Catalogue
    method: str
    positions: NDArray[np.floating]
    rows: Rows
    right: NDArray[np.bool_]


@dataclass(frozen=True)
class _Sample:
    """Sorted rows of the catalogue with their embeddings and labels; `queries` and `gallery` are positions in them."""

    evaluation: bool
    rows: Rows
    x: NDArray[np.float32]
    labels: Rows
    queries: Rows
    gallery: Rows
    cameras: Rows | None


class GalleryAnalysis:
    """Analyses of a gallery, computed when they are first requested.

    Args:
        test_rows: the run's test rows, if known.
    """

    def __init__(self, gallery: ServedGallery, test_rows: EvaluationRows | None = None):
        self._gallery, self._test_rows = gallery, test_rows
        self._diagnosis, self._map = CachedResult(self._diagnose), CachedResult(self._lay_out)

    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the current gallery."""
        return self._diagnosis.get(self._gallery.catalogue)

    def flat_map(self) -> FlatMap:
        """The map of the gallery as it was when the map was first requested."""
        return self._map.get(self._gallery.catalogue, any_age=True)

    def _diagnose(self, catalogue: Catalogue) -> Diagnosis:
        s = self._sample(catalogue)
        drawn = queries.drawn_queries(s.queries, len(s.gallery), SEED)
        results = queries.search(s.x, s.labels, drawn, s.gallery, cameras=s.cameras, k=NEIGHBOURS)
        if not len(results.queries):
            raise AnalysisError("no image of the gallery has both another image of its class and one of another class")
        curve = accepted(diagnose(s.x, s.labels, bins=BINS, anchors=ANCHORS, seed=SEED, progress=False).histogram)
        assert curve is not None  # some image has another of its class
        right = s.labels[results.nearest[:, 0]] == s.labels[results.queries]
        reached = results.similarity[:, :1] >= curve.at[None, :]
        nearest = np.where(results.nearest < 0, -1, s.rows[results.nearest])
        results = replace(results, queries=s.rows[results.queries], nearest=nearest)
        return Diagnosis(
            catalogue,
            s.evaluation,
            results,
            len(drawn) < len(s.queries),
            queries.examples(results, catalogue.labels, WORST)["worst"],
            queries.confusions(results, catalogue.labels, CONFUSED),
            curve,
            reached.sum(0),
            (reached & right[:, None]).sum(0),
        )

    def _lay_out(self, catalogue: Catalogue) -> FlatMap:
        s = self._sample(catalogue)
        points = layout.sample(s.labels, SEED)
        if len(points) < layout.FEWEST_POINTS:
            raise AnalysisError(f"a map needs at least {layout.FEWEST_POINTS} images with a label")
        positions, method = layout.flat(s.x[points], SEED)
        results = queries.search(s.x, s.labels, points, np.arange(len(s.rows)), k=1)
        right = np.zeros(len(points), np.bool_)
        right[np.searchsorted(points, results.queries)] = s.labels[results.nearest[:, 0]] == s.labels[results.queries]
        return FlatMap(catalogue, method, positions, s.rows[points], right)

    def _sample(self, catalogue: Catalogue) -> _Sample:
        rows = np.flatnonzero(catalogue.labels != UNLABELLED)
        queries, gallery, cameras = np.arange(len(rows)), np.arange(len(rows)), None
        test_rows = self._rows_in(catalogue)
        if test_rows is not None and self._test_rows is not None:
            rows, test = test_rows
            queries, gallery = (
                np.flatnonzero(self._test_rows.query[test]),
                np.flatnonzero(self._test_rows.gallery[test]),
            )
            cameras = None if self._test_rows.cameras is None else self._test_rows.cameras[test]
        if len(rows) < 2:
            raise AnalysisError("the gallery has fewer than two images with a label, so it cannot be analysed")
        try:
            x = self._gallery.index.vectors([catalogue.ids[row] for row in rows])
        except KeyError:
            raise AnalysisError("another process is changing the gallery: try again in a moment") from None
        return _Sample(test_rows is not None, rows, x, catalogue.labels[rows], queries, gallery, cameras)

    def _rows_in(self, catalogue: Catalogue) -> tuple[Rows, Rows] | None:
        """Sorted rows of the catalogue that are test rows, and their positions in `EvaluationRows`; None if there are
        fewer than two.
        """
        if self._test_rows is None:
            return None
        rows = np.array([catalogue.row.get(item_key(image), -1) for image in self._test_rows.ids], np.int64)
        test = np.flatnonzero(rows >= 0)
        test = test[catalogue.labels[rows[test]] != UNLABELLED]
        if len(test) < 2:
            return None
        test = test[np.argsort(rows[test])]
        return rows[test], test
