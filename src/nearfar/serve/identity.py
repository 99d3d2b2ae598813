"""Who a picture is of, in a gallery that may change: classes are read anew when it has, and calibrated for."""

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nearfar.evaluation import NotCalibratedError, OpenSet
from nearfar.retrieval.identify import FAR, Answer, Enrolled, Identifier
from nearfar.retrieval.index import About
from nearfar.serve.gallery import Catalogue, Gallery
from nearfar.serve.insight import Kept, NoInsightError

Calibrate = Callable[[About, NDArray[np.int64], float], OpenSet]
"""For classes of so many images, and a false accept rate. Where it cannot, it raises `NotCalibratedError`, whose
message names no file.
"""


class Identity:
    """The enrolled classes of a gallery.

    Args:
        calibrate: takes a second or so, and is asked once for each rate and state of the gallery.
    """

    def __init__(self, gallery: Gallery, calibrate: Calibrate):
        self._gallery, self._calibrate = gallery, calibrate
        self._kept = Kept(self._enrolled)
        self._known: dict[float, tuple[tuple[int, ...], OpenSet | None, str]] = {}  # by rate
        self._calibrating = threading.Lock()

    def identifier(self, far: float = FAR) -> Identifier:
        """For what the gallery holds now, and a false accept rate."""
        enrolled, index = self._kept.get(self._gallery.catalogue), self._gallery.index
        # Which class has how many images does not matter: one that is renamed costs nothing.
        counts = tuple(sorted(enrolled.counts.tolist()))
        with self._calibrating:
            if far not in self._known or self._known[far][0] != counts:
                try:
                    self._known[far] = counts, self._calibrate(index.about, np.array(counts), far), ""
                except NotCalibratedError as error:
                    self._known[far] = counts, None, str(error)
            return Identifier(index, enrolled, *self._known[far][1:])

    def answer(self, vector: NDArray[np.float32], far: float = FAR) -> tuple[Identifier, Answer]:
        """Who it is, (1, D), and by what that was found."""
        identifier = self.identifier(far)
        return identifier, identifier.answers(vector)[0]

    def _enrolled(self, catalogue: Catalogue) -> Enrolled:
        if not catalogue.names:
            raise NoInsightError("the gallery has no classes to tell apart: add images with the names of their classes")
        return Enrolled.of(self._gallery.index)


def uncalibrated(about: About, counts: NDArray[np.int64], far: float) -> OpenSet:
    """Of a gallery that belongs to no run."""
    raise NotCalibratedError("nothing is known of held-out classes")
