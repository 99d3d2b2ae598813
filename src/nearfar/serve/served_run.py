"""A served run: its model, its gallery, and the analyses of both."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import NearfarError
from nearfar.imaging import Source
from nearfar.report.markup import readable
from nearfar.retrieval.index import Hit
from nearfar.serve.analysis import EvaluationRows, GalleryAnalysis
from nearfar.serve.identification import Calibrate, GalleryIdentifier, uncalibrated
from nearfar.serve.images import checked_upload, stored_png
from nearfar.serve.limits import Limits, Slots
from nearfar.serve.security import WriteAccess
from nearfar.serve.served_gallery import Catalogue, ServedGallery, display_name, item_key
from nearfar.training.thresholds import said

Embed = Callable[[Source], NDArray[np.float32]]
"""Embeds a picture as (1, D); safe to call from several threads."""


class UnknownRunError(NearfarError, LookupError):
    """There is no such run."""


@dataclass(frozen=True)
class RunSummary:
    """Name, loss, data and test metrics of a run."""

    name: str
    loss: str
    data: str
    metrics: Mapping[str, float]


class ServedRun:
    """Answers the API's requests for one run, as JSON values."""

    def __init__(
        self,
        key: str,
        summary: RunSummary,
        embed: Embed,
        gallery: ServedGallery,
        test_rows: EvaluationRows | None = None,
        calibrate: Calibrate = uncalibrated,
    ):
        self.key, self.summary, self.gallery = key, summary, gallery
        self.analysis = GalleryAnalysis(gallery, test_rows)
        self.identifier = GalleryIdentifier(gallery, calibrate)
        self._embed = embed

    def state(self) -> dict[str, Any]:
        """The run's part of the server's state."""
        catalogue, index = self.gallery.catalogue, self.gallery.index.about
        metrics = self.summary.metrics
        return {
            "key": self.key,
            "name": self.summary.name,
            "loss": self.summary.loss,
            "data": self.summary.data,
            "images": len(catalogue.ids),
            "classes": len(catalogue.names),
            "dimension": index.dimension,
            "index": index.kind,
            "threshold": self.gallery.threshold,
            "threshold_note": None if index.threshold is None else said(index.threshold),
            "metrics": {"recall_at_1": metrics.get("recall@1"), "map_at_r": metrics.get("map@r")},
        }

    def item(self, catalogue: Catalogue, row: int) -> dict[str, Any]:
        """Key, label and name of an image."""
        return {
            "item": catalogue.keys[row],
            "label": catalogue.label(row),
            "name": display_name(catalogue.ids[row]),
        }

    # Searching

    def search_picture(self, content: bytes, k: int, max_pixels: int) -> dict[str, Any]:
        """The neighbours of an uploaded picture."""
        return self._embed_and_search(checked_upload(content, max_pixels).content, k)

    def identify_picture(self, content: bytes, far: float, max_pixels: int) -> dict[str, Any]:
        """The class of an uploaded picture at a false accept rate, or none."""
        identifier, answer = self.identifier.answer(self._embed(checked_upload(content, max_pixels).content), far)
        calibration = identifier.calibration
        return {
            "run": self.key,
            **{name: readable(value) if isinstance(value, str) else value for name, value in answer.to_dict().items()},
            "classes": len(identifier.enrolled.names),
            "calibration": None if calibration is None else calibration.to_dict(),
            "why_not": identifier.why_not or None,
        }

    def search_item(self, key: str, k: int) -> dict[str, Any]:
        """The neighbours of an image of the gallery."""
        image = self.gallery.image(key)
        return self._search(self.gallery.vector(image), k, query=self._query(image), exclude=image)

    def search_item_of(self, other: "ServedRun", key: str, k: int) -> dict[str, Any]:
        """The neighbours of an image of another run's gallery, in this gallery and by this model. The image itself is
        left out.
        """
        image = other.gallery.image(key)
        query = other._query(image)
        return self._embed_and_search(other.gallery.source(image), k, query=query, exclude=image)

    def _embed_and_search(self, source: Source, k: int, **options: Any) -> dict[str, Any]:
        began = time.perf_counter()
        vector = self._embed(source)
        return self._search(vector, k, model_seconds=time.perf_counter() - began, **options)

    def _search(
        self,
        vector: NDArray[np.float32],
        k: int,
        *,
        query: dict[str, Any] | None = None,
        exclude: str | None = None,
        model_seconds: float = 0.0,
    ) -> dict[str, Any]:
        began = time.perf_counter()
        hits = self.gallery.search(vector, k, exclude)
        seconds = time.perf_counter() - began
        return {
            "run": self.key,
            "query": query,
            "neighbours": [self._neighbour(hit) for hit in hits],
            "threshold": self.gallery.threshold,
            "model_ms": round(1000 * model_seconds, 2),
            "search_ms": round(1000 * seconds, 2),
        }

    def _neighbour(self, hit: Hit) -> dict[str, Any]:
        threshold = self.gallery.threshold
        match = None if threshold is None else hit.similarity >= threshold
        return {**_item(hit.id, hit.label), "similarity": round(hit.similarity, 6), "match": match}

    def _query(self, image: str) -> dict[str, Any]:
        return _item(image, self.gallery.index.items([image])[0].label)

    # Mistakes

    def mistakes(self) -> dict[str, Any]:
        """Worst queries and confused classes."""
        diagnosis = self.analysis.diagnosis()
        catalogue, results = diagnosis.catalogue, diagnosis.results
        labels = catalogue.labels
        worst = [
            {
                "query": self.item(catalogue, int(results.queries[position])),
                "margin": round(float(results.margin[position]), 6),
                "found": [
                    {
                        **self.item(catalogue, int(row)),
                        "similarity": round(float(similarity), 6),
                        "right": bool(labels[row] == labels[results.queries[position]]),
                    }
                    for row, similarity in zip(results.nearest[position], results.similarity[position], strict=True)
                    if row >= 0
                ],
            }
            for position in diagnosis.worst.tolist()
            if results.margin[position] < 0
        ]
        confused = [
            {
                "first": catalogue.names[pair.first],
                "second": catalogue.names[pair.second],
                "mistaken": pair.mistaken,
                "queries": pair.queries,
                "query": self.item(catalogue, pair.example[0]),
                "found": self.item(catalogue, pair.example[1]),
                "similarity": round(float(results.similarity[np.searchsorted(results.queries, pair.example[0]), 0]), 6),
            }
            for pair in diagnosis.confused
        ]
        return {
            "evaluation": diagnosis.evaluation,
            "queries": len(results.queries),
            "drawn": diagnosis.sampled,
            "right": int((labels[results.nearest[:, 0]] == labels[results.queries]).sum()),
            "worst": worst,
            "confused": confused,
        }

    # Changes

    def add(self, content: bytes, label: str, max_pixels: int) -> dict[str, Any]:
        """Add an uploaded picture to a class."""
        picture = stored_png(checked_upload(content, max_pixels))
        image = self.gallery.add(picture, self._embed(picture), label)
        return {"added": _item(image, label), "images": len(self.gallery.index)}

    def remove(self, key: str) -> dict[str, Any]:
        """Remove an image from the gallery."""
        self.gallery.remove(self.gallery.image(key))
        return {"removed": key, "images": len(self.gallery.index)}


def _item(image: str, label: str) -> dict[str, Any]:
    return {"item": item_key(image), "label": readable(label) or None, "name": display_name(image)}


@dataclass(frozen=True)
class Serving:
    """The state of the application.

    Attributes:
        runs: by key: "a", and "b" if there are two.
        access: the check of the write token.
        limits: the limits on requests.
        slots: threads for searches, analyses and changes.
        thumbnail_slots: threads for thumbnails, so that a page full of them does not delay a search.
    """

    runs: Mapping[str, ServedRun]
    access: WriteAccess
    limits: Limits
    slots: Slots
    thumbnail_slots: Slots

    def run(self, key: str) -> ServedRun:
        """The run of a key. Raises `UnknownRunError` if there is none."""
        if key not in self.runs:
            raise UnknownRunError(key)
        return self.runs[key]
