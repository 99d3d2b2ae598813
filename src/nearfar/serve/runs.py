"""The runs that are served: each a model, a gallery, and what the gallery tells of the model."""

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
from nearfar.serve.gallery import Catalogue, Gallery, key_of, shown_name
from nearfar.serve.identity import Calibrate, Identity, uncalibrated
from nearfar.serve.images import checked, to_keep
from nearfar.serve.insight import Evaluated, Insight
from nearfar.serve.limits import Limits, Slots
from nearfar.serve.security import WriteAccess
from nearfar.training.thresholds import said

Embed = Callable[[Source], NDArray[np.float32]]
"""A picture to its embedding, (1, D); safe to call from several threads."""


class UnknownRunError(NearfarError, LookupError):
    """There is no such run."""


@dataclass(frozen=True)
class About:
    """What is told of a run: its name, its loss, its data, and what it measured on its test classes."""

    name: str
    loss: str
    data: str
    metrics: Mapping[str, float]


class ServedRun:
    """A run, ready to answer."""

    def __init__(
        self,
        key: str,
        about: About,
        embed: Embed,
        gallery: Gallery,
        evaluated: Evaluated | None = None,
        calibrate: Calibrate = uncalibrated,
    ):
        self.key, self.about, self.gallery = key, about, gallery
        self.insight = Insight(gallery, evaluated)
        self.identity = Identity(gallery, calibrate)
        self._embed = embed

    def state(self) -> dict[str, Any]:
        """What is told of it."""
        catalogue, index = self.gallery.catalogue, self.gallery.index.about
        metrics = self.about.metrics
        return {
            "key": self.key,
            "name": self.about.name,
            "loss": self.about.loss,
            "data": self.about.data,
            "images": len(catalogue.ids),
            "classes": len(catalogue.names),
            "dimension": index.dimension,
            "index": index.kind,
            "threshold": self.gallery.threshold,
            "threshold_note": None if index.threshold is None else said(index.threshold),
            "metrics": {"recall_at_1": metrics.get("recall@1"), "map_at_r": metrics.get("map@r")},
        }

    def item(self, catalogue: Catalogue, row: int) -> dict[str, Any]:
        """What is told of an image."""
        return {
            "item": catalogue.keys[row],
            "label": catalogue.label(row),
            "name": shown_name(catalogue.ids[row]),
        }

    # Searching

    def search_picture(self, content: bytes, k: int, most_pixels: int) -> dict[str, Any]:
        """The neighbours of a picture that was sent."""
        return self._embedded_and_searched(checked(content, most_pixels).content, k)

    def identify_picture(self, content: bytes, far: float, most_pixels: int) -> dict[str, Any]:
        """Which class a picture that was sent is of, or none, at a false accept rate."""
        identifier, told = self.identity.answer(self._embed(checked(content, most_pixels).content), far)
        names = {name: readable(value) for name, value in told.to_dict().items() if isinstance(value, str)}
        found = identifier.calibration
        return {
            "run": self.key,
            **told.to_dict(),
            **names,
            "classes": len(identifier.enrolled.names),
            "calibration": None if found is None else found.to_dict(),
            "why_not": identifier.why_not or None,
        }

    def search_item(self, key: str, k: int) -> dict[str, Any]:
        """The neighbours of an image of the gallery."""
        image = self.gallery.image(key)
        return self._searched(self.gallery.vector(image), k, query=self._named(image), without=image)

    def search_item_of(self, other: "ServedRun", key: str, k: int) -> dict[str, Any]:
        """The neighbours, in this gallery and by this model, of an image of another's. If both galleries have it, it is
        left out here too.
        """
        image = other.gallery.image(key)
        query = other._named(image)
        return self._embedded_and_searched(other.gallery.source(image), k, query=query, without=image)

    def _embedded_and_searched(self, source: Source, k: int, **options: Any) -> dict[str, Any]:
        began = time.perf_counter()
        vector = self._embed(source)
        return self._searched(vector, k, model_seconds=time.perf_counter() - began, **options)

    def _searched(
        self,
        vector: NDArray[np.float32],
        k: int,
        *,
        query: dict[str, Any] | None = None,
        without: str | None = None,
        model_seconds: float = 0.0,
    ) -> dict[str, Any]:
        began = time.perf_counter()
        hits = self.gallery.search(vector, k, without)
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
        return {**_told(hit.id, hit.label), "similarity": round(hit.similarity, 6), "match": match}

    def _named(self, image: str) -> dict[str, Any]:
        return _told(image, self.gallery.index.items([image])[0].label)

    # What it gets wrong

    def mistakes(self) -> dict[str, Any]:
        """Worst queries and confused classes."""
        judged = self.insight.judged()
        catalogue, found = judged.catalogue, judged.found
        labels = catalogue.labels
        worst = [
            {
                "query": self.item(catalogue, int(found.queries[place])),
                "margin": round(float(found.margin[place]), 6),
                "found": [
                    {
                        **self.item(catalogue, int(row)),
                        "similarity": round(float(similarity), 6),
                        "right": bool(labels[row] == labels[found.queries[place]]),
                    }
                    for row, similarity in zip(found.nearest[place], found.similarity[place], strict=True)
                    if row >= 0
                ],
            }
            for place in judged.worst.tolist()
            if found.margin[place] < 0
        ]
        confused = [
            {
                "first": catalogue.names[pair.first],
                "second": catalogue.names[pair.second],
                "mistaken": pair.mistaken,
                "queries": pair.queries,
                "query": self.item(catalogue, pair.example[0]),
                "found": self.item(catalogue, pair.example[1]),
                "similarity": round(float(found.similarity[np.searchsorted(found.queries, pair.example[0]), 0]), 6),
            }
            for pair in judged.confused
        ]
        return {
            "evaluation": judged.evaluation,
            "queries": len(found.queries),
            "drawn": judged.drawn,
            "right": int((labels[found.nearest[:, 0]] == labels[found.queries]).sum()),
            "worst": worst,
            "confused": confused,
        }

    # Changes

    def add(self, content: bytes, label: str, most_pixels: int) -> dict[str, Any]:
        """Add a picture that was sent to a class."""
        picture = to_keep(checked(content, most_pixels))
        image = self.gallery.add(picture, self._embed(picture), label)
        return {"added": _told(image, label), "images": len(self.gallery.index)}

    def remove(self, key: str) -> dict[str, Any]:
        """Take an image out of the gallery."""
        self.gallery.remove(self.gallery.image(key))
        return {"removed": key, "images": len(self.gallery.index)}


def _told(image: str, label: str) -> dict[str, Any]:
    return {"item": key_of(image), "label": readable(label) or None, "name": shown_name(image)}


@dataclass(frozen=True)
class Serving:
    """Everything that answers need.

    Attributes:
        runs: by key: "a", and "b" if there are two.
        access: the token for writes.
        limits: what is refused.
        slots: threads for searching, judging and changing.
        pictures: threads for small pictures, so that a page full of them does not hold up a search.
    """

    runs: Mapping[str, ServedRun]
    access: WriteAccess
    limits: Limits
    slots: Slots
    pictures: Slots

    def run(self, key: str) -> ServedRun:
        """The run of a key."""
        if key not in self.runs:
            raise UnknownRunError(key)
        return self.runs[key]
