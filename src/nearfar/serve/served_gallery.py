"""The images of an index, under keys that do not reveal paths."""

import contextlib
import functools
import hashlib
import logging
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import NearfarError
from nearfar.foundation.files import write_file
from nearfar.imaging import Source
from nearfar.report.markup import readable
from nearfar.retrieval.index import Hit, Index
from nearfar.serve.images import thumbnail

Floats = NDArray[np.float32]
LOG = logging.getLogger("nearfar.serve")
REFRESH_SECONDS = 2.0  # between checks for changes by other processes
THUMBNAIL_BYTES = 64_000_000  # of the cache
UNLABELLED = -1


class UnknownItemError(NearfarError, LookupError):
    """There is no such image in the gallery."""


def item_key(image: str) -> str:
    """The key of an image in URLs, a digest of its id. Among a million images, the chance of a collision is 1 in 40
    million.

    >>> item_key("photos/cat.jpg")
    '2bac54f5dad364a9'
    """
    return hashlib.blake2b(image.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Catalogue:
    """A snapshot of the gallery.

    Attributes:
        ids: the images' ids, sorted by label and id; those without a label come last.
        keys: the images' keys in URLs.
        labels: (N,) positions in `names`; -1 without a label.
        names: the classes' names in natural order (2 before 10).
        row: the row of each key.
        rows: the rows of each class.
    """

    ids: tuple[str, ...]
    keys: tuple[str, ...]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    row: dict[str, int]
    rows: dict[str, range]

    @classmethod
    def of(cls, index: Index, previous: "Catalogue | None" = None) -> "Catalogue":
        """A snapshot of an index; keys of `previous` are reused."""
        display = functools.cache(readable)
        pairs = [(display(item.label), item.id) for item in index.listed()]
        names = tuple(sorted({label for label, _ in pairs if label}, key=_natural_order))
        number = {name: position for position, name in enumerate(names)} | {"": len(names)}
        pairs.sort(key=lambda pair: (number[pair[0]], pair[1]))
        ids = tuple(image for _, image in pairs)
        known = {} if previous is None else dict(zip(previous.ids, previous.keys, strict=True))
        keys = tuple(known[image] if image in known else item_key(image) for image in ids)
        labels = np.array([number[label] for label, _ in pairs], np.int64)
        ends = np.searchsorted(labels, np.arange(len(names) + 1)).tolist()
        labels[labels == len(names)] = UNLABELLED
        rows = {name: range(ends[position], ends[position + 1]) for position, name in enumerate(names)}
        return cls(ids, keys, labels, names, {key: row for row, key in enumerate(keys)}, rows)

    def label(self, row: int) -> str | None:
        """The class of a row."""
        label = int(self.labels[row])
        return None if label == UNLABELLED else self.names[label]


def _natural_order(name: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key that compares digits as numbers: 2 before 10."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name) if part)


class ServedGallery:
    """An index with its images, to which pictures can be added.

    Args:
        index: the searched index.
        pictures: returns the source of an id, or raises KeyError.
        added: the folder for added pictures.
    """

    def __init__(self, index: Index, pictures: Callable[[str], Source], added: Path):
        self.index, self.added = index, added.resolve()
        self._pictures = pictures
        self._catalogue = Catalogue.of(index)
        self._refreshed = time.monotonic()
        self._refresh_lock, self._change_lock = threading.Lock(), threading.Lock()
        self._thumbnails: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._thumbnail_bytes = 0
        self._thumbnail_lock = threading.Lock()

    @property
    def catalogue(self) -> Catalogue:
        """The current snapshot; changes by other processes appear after `REFRESH_SECONDS`."""
        if time.monotonic() - self._refreshed > REFRESH_SECONDS and self._refresh_lock.acquire(blocking=False):
            try:
                if self.index.refresh():
                    self._catalogue = Catalogue.of(self.index, self._catalogue)
                self._refreshed = time.monotonic()
            finally:
                self._refresh_lock.release()
        return self._catalogue

    @property
    def threshold(self) -> float | None:
        """The calibrated threshold, if there is one."""
        stored = self.index.about.threshold
        return None if stored is None else float(stored["threshold"])

    def image(self, key: str) -> str:
        """The id of a key. Raises `UnknownItemError` if there is none."""
        catalogue = self.catalogue
        if key not in catalogue.row:
            raise UnknownItemError(key)
        return catalogue.ids[catalogue.row[key]]

    def vector(self, image: str) -> Floats:
        """The embedding of an image, (1, D)."""
        try:
            return self.index.vectors([image])
        except KeyError as error:
            raise UnknownItemError(image) from error

    def search(self, vector: Floats, k: int, exclude: str | None = None) -> list[Hit]:
        """The k nearest images, without `exclude`."""
        hits = self.index.search(vector, k if exclude is None else k + 1)[0]
        return [hit for hit in hits if hit.id != exclude][:k]

    # Pictures

    def source(self, image: str) -> Source:
        """The picture of an image of the gallery. Only images of the gallery can be opened."""
        if image not in self.index:
            raise UnknownItemError(image)
        try:
            return image if self._is_added(image) else self._pictures(image)
        except KeyError as error:
            raise UnknownItemError(image) from error

    def thumbnail(self, image: str, side: int) -> bytes:
        """A thumbnail in WebP, from a cache of recent ones."""
        with self._thumbnail_lock:
            if (cached := self._thumbnails.get((image, side))) is not None:
                self._thumbnails.move_to_end((image, side))
                return cached
        webp = thumbnail(self.source(image), side)
        with self._thumbnail_lock:
            if (image, side) not in self._thumbnails:
                self._thumbnails[image, side] = webp
                self._thumbnail_bytes += len(webp)
            while self._thumbnail_bytes > THUMBNAIL_BYTES:
                self._thumbnail_bytes -= len(self._thumbnails.popitem(last=False)[1])
        return webp

    # Changes are on the disk when these methods return.

    def add(self, picture: bytes, vector: Floats, label: str) -> str:
        """Store a PNG picture, add it to the index, and return its id. Adding it again changes its class."""
        image = str(self.added / f"{hashlib.sha256(picture).hexdigest()[:32]}.png")
        with self._change_lock:
            new = image not in self.index
            write_file(Path(image), picture)  # first, so that every picture in the index exists
            try:
                with self.index.change() as change:
                    change.put([image], vector, [label])
            except BaseException:
                with contextlib.suppress(Exception):
                    self.index.refresh()  # keep the picture if the change was committed before the error
                    if new and image not in self.index:
                        Path(image).unlink(missing_ok=True)
                raise
            self._catalogue = Catalogue.of(self.index, self._catalogue)
        return image

    def remove(self, image: str) -> None:
        """Remove an image from the index. Its file is deleted only if it is in `added`."""
        with self._change_lock:
            with self.index.change() as change:
                if not change.remove([image]):
                    raise UnknownItemError(image)
            self._catalogue = Catalogue.of(self.index, self._catalogue)
            if self._is_added(image):
                try:
                    Path(image).unlink(missing_ok=True)
                except OSError as error:  # the image has been removed from the index nevertheless
                    LOG.warning("the file of a removed picture could not be deleted: %s", error)
        with self._thumbnail_lock:
            for entry in [entry for entry in self._thumbnails if entry[0] == image]:
                self._thumbnail_bytes -= len(self._thumbnails.pop(entry))

    def _is_added(self, image: str) -> bool:
        return os.path.dirname(image) == str(self.added)


def display_name(image: str) -> str:
    """The file name or row in an id, without folders.

    >>> display_name("/home/me/photos/cat.jpg"), display_name("glyphs#17")
    ('cat.jpg', '#17')
    """
    _, row, number = image.rpartition("#")
    if row and number.isdecimal():
        return f"#{number}"
    return readable(re.split(r"[/\\]", image)[-1])
