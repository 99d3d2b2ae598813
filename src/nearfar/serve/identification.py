"""Open-set identification against a gallery that may change."""

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nearfar.evaluation import NotCalibratedError, OpenSet
from nearfar.retrieval.identify import FAR, Answer, Enrolled, Identifier
from nearfar.retrieval.index import About
from nearfar.serve.analysis import AnalysisError, CachedResult
from nearfar.serve.served_gallery import Catalogue, ServedGallery

Calibrate = Callable[[About, NDArray[np.int64], float], OpenSet]
"""Calibrates for the given numbers of images per class and a false accept rate. Raises `NotCalibratedError`, whose
message names no file, if it cannot.
"""


class GalleryIdentifier:
    """Identifies pictures among the classes of a gallery.

    Args:
        calibrate: called once for each rate and list of class sizes; it takes about a second.
    """

    def __init__(self, gallery: ServedGallery, calibrate: Calibrate):
        self._gallery, self._calibrate = gallery, calibrate
        self._enrolled = CachedResult(self._enrol)
        self._calibrations: dict[float, tuple[tuple[int, ...], OpenSet | None, str]] = {}  # by false accept rate
        self._calibration_lock = threading.Lock()

    def current(self, far: float = FAR) -> Identifier:
        """The identifier for the current gallery, at a false accept rate."""
        enrolled, index = self._enrolled.get(self._gallery.catalogue), self._gallery.index
        # The calibration depends on the class sizes only, so renaming a class does not repeat it.
        counts = tuple(sorted(enrolled.counts.tolist()))
        with self._calibration_lock:
            if far not in self._calibrations or self._calibrations[far][0] != counts:
                try:
                    self._calibrations[far] = counts, self._calibrate(index.about, np.array(counts), far), ""
                except NotCalibratedError as error:
                    self._calibrations[far] = counts, None, str(error)
            return Identifier(index, enrolled, *self._calibrations[far][1:])

    def answer(self, vector: NDArray[np.float32], far: float = FAR) -> tuple[Identifier, Answer]:
        """Identify an embedding (1, D); returns the identifier that was used, too."""
        identifier = self.current(far)
        return identifier, identifier.answers(vector)[0]

    def _enrol(self, catalogue: Catalogue) -> Enrolled:
        if not catalogue.names:
            raise AnalysisError("the gallery has no classes: add images with the names of their classes")
        return Enrolled.of(self._gallery.index)


def uncalibrated(about: About, counts: NDArray[np.int64], far: float) -> OpenSet:
    """The `Calibrate` of a gallery without a run."""
    raise NotCalibratedError("no held-out classes are known")
