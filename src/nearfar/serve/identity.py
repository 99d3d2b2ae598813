"""Who a picture is of, in a gallery that may change: classes are read anew when it has, and calibrated for."""

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nearfar.evaluation import NotCalibratedError, OpenSet
from nearfar.retrieval.identify import Answer, Enrolled, Identifier
from nearfar.retrieval.index import About, Index
from nearfar.serve.gallery import Catalogue, Gallery
from nearfar.serve.insight import Kept, NoInsightError

Calibrate = Callable[[About, NDArray[np.int64]], OpenSet]
"""For classes of so many images; raises `NotCalibratedError`, whose message names no file, where it cannot."""


class Identity:
    """The enrolled classes of a gallery.

    Args:
        calibrate: takes a second or so, and is asked once for each state of the gallery.
    """

    def __init__(self, gallery: Gallery, calibrate: Calibrate):
        self._gallery, self._calibrate = gallery, calibrate
        self._kept = Kept(self._made)
        self._known: tuple[tuple[int, ...], OpenSet | None, str] | None = None
        self._calibrating = threading.Lock()

    def identifier(self) -> Identifier:
        """For what the gallery holds now."""
        return self._kept.get(self._gallery.catalogue)

    def answer(self, vector: NDArray[np.float32]) -> tuple[Identifier, Answer]:
        """Who it is, (1, D), and by what that was found."""
        identifier = self.identifier()
        return identifier, identifier.answers(vector)[0]

    def _made(self, catalogue: Catalogue) -> Identifier:
        if not catalogue.names:
            raise NoInsightError("the gallery has no classes to tell apart: add images with the names of their classes")
        index: Index = self._gallery.index
        enrolled = Enrolled.of(index)
        # Which class has how many images does not matter: one that is renamed costs nothing.
        counts = tuple(sorted(enrolled.counts.tolist()))
        with self._calibrating:
            if self._known is None or self._known[0] != counts:
                try:
                    self._known = counts, self._calibrate(index.about, np.array(counts)), ""
                except NotCalibratedError as error:
                    self._known = counts, None, str(error)
            return Identifier(index, enrolled, *self._known[1:])


def uncalibrated(about: About, counts: NDArray[np.int64]) -> OpenSet:
    """Of a gallery that belongs to no run."""
    raise NotCalibratedError("nothing is known of held-out classes")
