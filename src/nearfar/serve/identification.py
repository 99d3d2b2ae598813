"""Open-set identification against a gallery that may change."""

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nearfar.evaluation import NotCalibratedError, OpenSet
from nearfar.retrieval.identify import Answer, Enrolled, Identifier
from nearfar.retrieval.index import About, Index
from nearfar.serve.analysis import AnalysisError, CachedResult
from nearfar.serve.served_gallery import Catalogue, ServedGallery

Calibrate = Callable[[About, NDArray[np.int64]], OpenSet]
"""Calibrates for the given numbers of images per class. Raises `NotCalibratedError`, whose message names no file, if it
cannot."""


class GalleryIdentifier:
    """Identifies pictures among the classes of a gallery.

    Args:
        calibrate: called once for each list of class sizes; it takes about a second.
    """

    def __init__(self, gallery: ServedGallery, calibrate: Calibrate):
        self._gallery, self._calibrate = gallery, calibrate
        self._identifier = CachedResult(self._build)
        self._calibration: tuple[tuple[int, ...], OpenSet | None, str] | None = None
        self._calibration_lock = threading.Lock()

    def current(self) -> Identifier:
        """The identifier for the current gallery."""
        return self._identifier.get(self._gallery.catalogue)

    def answer(self, vector: NDArray[np.float32]) -> tuple[Identifier, Answer]:
        """Identify an embedding (1, D); returns the identifier that was used, too."""
        identifier = self.current()
        return identifier, identifier.answers(vector)[0]

    def _build(self, catalogue: Catalogue) -> Identifier:
        if not catalogue.names:
            raise AnalysisError("the gallery has no classes to tell apart: add images with the names of their classes")
        index: Index = self._gallery.index
        enrolled = Enrolled.of(index)
        # The calibration depends on the class sizes only, so renaming a class does not repeat it.
        counts = tuple(sorted(enrolled.counts.tolist()))
        with self._calibration_lock:
            if self._calibration is None or self._calibration[0] != counts:
                try:
                    self._calibration = counts, self._calibrate(index.about, np.array(counts)), ""
                except NotCalibratedError as error:
                    self._calibration = counts, None, str(error)
            return Identifier(index, enrolled, *self._calibration[1:])


def uncalibrated(about: About, counts: NDArray[np.int64]) -> OpenSet:
    """The `Calibrate` of a gallery without a run."""
    raise NotCalibratedError("no held-out classes are known")
