"""What a gallery tells of its model: worst queries, confused classes, what thresholds accept, and a map.

Judged are those images of the gallery that the run is measured on, in the same way: the test rows, of classes that the
model has not seen. A gallery without any of them is judged as a whole: every labelled image is searched for among all
others.
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
from nearfar.serve.gallery import UNLABELLED, Catalogue, Gallery, key_of

T = TypeVar("T")
Rows = NDArray[np.int64]
SEED = 0
NEIGHBOURS = 8  # of each query that is shown
WORST = 24  # queries
CONFUSED = 24  # pairs of classes
ANCHORS = 1_500  # images compared with all others, for the thresholds
BINS = 400  # of similarities


class NoInsightError(NearfarError, ValueError):
    """The gallery cannot tell; the message says why."""


class Kept(Generic[T]):
    """A result that is computed once, by the first who asks, and again when what it was made of has changed."""

    def __init__(self, compute: Callable[[Catalogue], T]):
        self._compute = compute
        self._lock = threading.Lock()
        self._made: tuple[Catalogue, T] | None = None

    def get(self, catalogue: Catalogue, *, any_age: bool = False) -> T:
        """The result for a catalogue; or for an earlier one, if there is such a result and `any_age` will do."""
        made = self._made
        if made is not None and (any_age or made[0] is catalogue):
            return made[1]
        with self._lock:
            if self._made is None or not (any_age or self._made[0] is catalogue):
                self._made = catalogue, self._compute(catalogue)
            return self._made[1]


@dataclass(frozen=True)
class Evaluated:
    """The images that a run is measured on.

    Attributes:
        ids: (N,).
        query, gallery: (N,) which are searched for, and which are searched.
        cameras: (N,) where known: an image does not find its own class by its own camera.
    """

    ids: Sequence[str]
    query: NDArray[np.bool_]
    gallery: NDArray[np.bool_]
    cameras: Rows | None = None


@dataclass(frozen=True)
class Judged:
    """Queries of the gallery. Rows are those of `catalogue`.

    Attributes:
        evaluation: whether these are the images that the run is measured on; else all that have a label.
        found: what the queries found.
        drawn: whether they are a sample.
        worst: places in `found` of the worst.
        confused: pairs of classes.
        accepted: what thresholds accept, of pairs.
        answered, right: for each of these thresholds, the queries whose nearest image reaches it, and those of them
            whose nearest image is of their class.
    """

    catalogue: Catalogue
    evaluation: bool
    found: queries.Found
    drawn: bool
    worst: Rows
    confused: list[queries.Confusion]
    accepted: Accepted
    answered: Rows
    right: Rows


@dataclass(frozen=True)
class FlatMap:
    """A sample of what is judged on a plane: places (N, 2) from 0 to 1, rows of `catalogue`, and whether the nearest
    image of each is of its class.
    """

    catalogue: Catalogue
    method: str
    places: NDArray[np.floating]
    rows: Rows
    right: NDArray[np.bool_]


@dataclass(frozen=True)
class _Material:
    """What is judged: rows of the catalogue in rising order, their embeddings and labels, and places among them."""

    evaluation: bool
    rows: Rows
    x: NDArray[np.float32]
    labels: Rows
    queries: Rows
    gallery: Rows
    cameras: Rows | None


class Insight:
    """What a gallery tells.

    Args:
        gallery: to look at.
        evaluated: the images that the run is measured on, where they are known.
    """

    def __init__(self, gallery: Gallery, evaluated: Evaluated | None = None):
        self._gallery, self._evaluated = gallery, evaluated
        self._judged, self._map = Kept(self._judge), Kept(self._lay_out)

    def judged(self) -> Judged:
        """Of the gallery as it is now."""
        return self._judged.get(self._gallery.catalogue)

    def flat_map(self) -> FlatMap:
        """Of the gallery as it was when the map was first asked for."""
        return self._map.get(self._gallery.catalogue, any_age=True)

    def _judge(self, catalogue: Catalogue) -> Judged:
        m = self._material(catalogue)
        asked = queries.drawn_queries(m.queries, len(m.gallery), SEED)
        found = queries.search(m.x, m.labels, asked, m.gallery, cameras=m.cameras, k=NEIGHBOURS)
        if not len(found.queries):
            raise NoInsightError(
                "no image of the gallery has another of its class to find and one of another to confuse"
            )
        curve = accepted(diagnose(m.x, m.labels, bins=BINS, anchors=ANCHORS, seed=SEED, progress=False).histogram)
        assert curve is not None  # some image has another of its class
        right = m.labels[found.nearest[:, 0]] == m.labels[found.queries]
        reached = found.similarity[:, :1] >= curve.at[None, :]
        nearest = np.where(found.nearest < 0, -1, m.rows[found.nearest])
        found = replace(found, queries=m.rows[found.queries], nearest=nearest)
        return Judged(
            catalogue,
            m.evaluation,
            found,
            len(asked) < len(m.queries),
            queries.examples(found, catalogue.labels, WORST)["worst"],
            queries.confusions(found, catalogue.labels, CONFUSED),
            curve,
            reached.sum(0),
            (reached & right[:, None]).sum(0),
        )

    def _lay_out(self, catalogue: Catalogue) -> FlatMap:
        m = self._material(catalogue)
        chosen = layout.sample(m.labels, SEED)
        if len(chosen) < layout.FEWEST_POINTS:
            raise NoInsightError(f"a map needs at least {layout.FEWEST_POINTS} images with a label")
        places, method = layout.flat(m.x[chosen], SEED)
        found = queries.search(m.x, m.labels, chosen, np.arange(len(m.rows)), k=1)
        right = np.zeros(len(chosen), np.bool_)
        right[np.searchsorted(chosen, found.queries)] = m.labels[found.nearest[:, 0]] == m.labels[found.queries]
        return FlatMap(catalogue, method, places, m.rows[chosen], right)

    def _material(self, catalogue: Catalogue) -> _Material:
        labelled = np.flatnonzero(catalogue.labels != UNLABELLED)
        rows, queries, gallery, cameras = labelled, np.arange(len(labelled)), np.arange(len(labelled)), None
        there = self._there(catalogue)
        if there is not None and self._evaluated is not None:
            rows, own = there
            queries, gallery = np.flatnonzero(self._evaluated.query[own]), np.flatnonzero(self._evaluated.gallery[own])
            cameras = None if self._evaluated.cameras is None else self._evaluated.cameras[own]
        if len(rows) < 2:
            raise NoInsightError("the gallery has fewer than two images with a label, so there is nothing to judge")
        try:
            x = self._gallery.index.vectors([catalogue.ids[row] for row in rows])
        except KeyError:
            raise NoInsightError("another process is changing the gallery: try again in a moment") from None
        return _Material(there is not None, rows, x, catalogue.labels[rows], queries, gallery, cameras)

    def _there(self, catalogue: Catalogue) -> tuple[Rows, Rows] | None:
        """Rows of the catalogue, rising, that the run is measured on, and their places in `Evaluated`; None if the
        gallery has too few of them to say anything.
        """
        if self._evaluated is None:
            return None
        found = np.array([catalogue.row.get(key_of(image), -1) for image in self._evaluated.ids], np.int64)
        own = np.flatnonzero(found >= 0)
        own = own[catalogue.labels[found[own]] != UNLABELLED]
        if len(own) < 2:
            return None
        own = own[np.argsort(found[own])]
        return found[own], own
