"""The images of an index, under keys that are no paths."""

import contextlib
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
LOOK_EVERY = 2.0  # seconds between two looks at whether another process has changed the index
THUMBNAIL_BYTES = 64_000_000  # of small pictures that are kept
UNLABELLED = -1


class UnknownItemError(NearfarError, LookupError):
    """There is no such image in the gallery."""


def key_of(image: str) -> str:
    """What an image is called in addresses: a digest of its id, the same tomorrow. Two of a million images would share
    one by a chance of one in 40 million.

    >>> key_of("photos/cat.jpg")
    '2bac54f5dad364a9'
    """
    return hashlib.blake2b(image.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Catalogue:
    """What the gallery held at some moment, class by class.

    Attributes:
        ids: of the images, by label and then by themselves; those without a label at the end.
        keys: what they are called in addresses.
        labels: (N,) places in `names`; -1 for none.
        names: of the classes, in order; 2 before 10.
        row: of every key.
        rows: of every class; they stand together.
    """

    ids: tuple[str, ...]
    keys: tuple[str, ...]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    row: dict[str, int]
    rows: dict[str, range]

    @classmethod
    def of(cls, index: Index, before: "Catalogue | None" = None) -> "Catalogue":
        """What an index holds now; `before` spares the keys that are known from being made again."""
        shown = _Readable()
        pairs = [(shown[item.label], item.id) for item in index.listed()]
        names = tuple(sorted({label for label, _ in pairs if label}, key=_natural))
        number = {name: place for place, name in enumerate(names)} | {"": len(names)}
        pairs.sort(key=lambda pair: (number[pair[0]], pair[1]))
        ids = tuple(image for _, image in pairs)
        known = {} if before is None else dict(zip(before.ids, before.keys, strict=True))
        keys = tuple(known[image] if image in known else key_of(image) for image in ids)
        labels = np.array([number[label] for label, _ in pairs], np.int64)
        ends = np.searchsorted(labels, np.arange(len(names) + 1)).tolist()
        labels[labels == len(names)] = UNLABELLED
        rows = {name: range(ends[place], ends[place + 1]) for place, name in enumerate(names)}
        return cls(ids, keys, labels, names, {key: row for row, key in enumerate(keys)}, rows)

    def label(self, row: int) -> str | None:
        """The class of a row."""
        place = int(self.labels[row])
        return None if place == UNLABELLED else self.names[place]


class _Readable(dict[str, str]):
    """Names as they can be shown, each made once."""

    def __missing__(self, name: str) -> str:
        self[name] = made = readable(name)
        return made


def _natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Numbers in a name count as numbers: 2 before 10."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name) if part)


class Gallery:
    """An index, its images, and the pictures that were added to it.

    Args:
        index: to search in.
        pictures: where the picture of an id is; a KeyError if it cannot be found.
        added: folder for pictures that are sent to be added.
    """

    def __init__(self, index: Index, pictures: Callable[[str], Source], added: Path):
        self.index, self.added = index, added.resolve()
        self._pictures = pictures
        self._catalogue = Catalogue.of(index)
        self._looked = time.monotonic()
        self._looking, self._changing = threading.Lock(), threading.Lock()
        self._thumbnails: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._thumbnail_bytes = 0
        self._keeping = threading.Lock()

    @property
    def catalogue(self) -> Catalogue:
        """What the gallery holds, other processes' changes included, a few seconds late."""
        if time.monotonic() - self._looked > LOOK_EVERY and self._looking.acquire(blocking=False):
            try:
                if self.index.refresh():
                    self._catalogue = Catalogue.of(self.index, self._catalogue)
                self._looked = time.monotonic()
            finally:
                self._looking.release()
        return self._catalogue

    @property
    def threshold(self) -> float | None:
        """The calibrated one."""
        stored = self.index.about.threshold
        return None if stored is None else float(stored["threshold"])

    def image(self, key: str) -> str:
        """The id behind a key; an `UnknownItemError` if there is none."""
        catalogue = self.catalogue
        if key not in catalogue.row:
            raise UnknownItemError(key)
        return catalogue.ids[catalogue.row[key]]

    def vector(self, image: str) -> Floats:
        """(1, D), its embedding."""
        try:
            return self.index.vectors([image])
        except KeyError as gone:
            raise UnknownItemError(image) from gone

    def search(self, vector: Floats, k: int, without: str | None = None) -> list[Hit]:
        """The nearest images, but for one."""
        hits = self.index.search(vector, k if without is None else k + 1)[0]
        return [hit for hit in hits if hit.id != without][:k]

    # Pictures

    def source(self, image: str) -> Source:
        """Where the picture of an image of the gallery is. Nothing else is ever opened."""
        if image not in self.index:
            raise UnknownItemError(image)
        try:
            return image if self._is_added(image) else self._pictures(image)
        except KeyError as gone:
            raise UnknownItemError(image) from gone

    def thumbnail(self, image: str, side: int) -> bytes:
        """A small picture, WebP; those asked for lately are kept."""
        with self._keeping:
            if (kept := self._thumbnails.get((image, side))) is not None:
                self._thumbnails.move_to_end((image, side))
                return kept
        made = thumbnail(self.source(image), side)
        with self._keeping:
            if (image, side) not in self._thumbnails:
                self._thumbnails[image, side] = made
                self._thumbnail_bytes += len(made)
            while self._thumbnail_bytes > THUMBNAIL_BYTES:
                self._thumbnail_bytes -= len(self._thumbnails.popitem(last=False)[1])
        return made

    # Changes: each is on the disk when the method returns

    def add(self, picture: bytes, vector: Floats, label: str) -> str:
        """Keep a picture (PNG) and put it into the index; its id. The same picture again changes its class."""
        image = str(self.added / f"{hashlib.sha256(picture).hexdigest()[:32]}.png")
        with self._changing:
            new = image not in self.index
            write_file(Path(image), picture)  # first, so that the index never names a picture that is not there
            try:
                with self.index.change() as change:
                    change.put([image], vector, [label])
            except BaseException:
                with contextlib.suppress(Exception):
                    self.index.refresh()  # it may have failed after it counted: a picture that is named stays
                    if new and image not in self.index:
                        Path(image).unlink(missing_ok=True)
                raise
            self._catalogue = Catalogue.of(self.index, self._catalogue)
        return image

    def remove(self, image: str) -> None:
        """Take an image out of the index. Its file is deleted if it was added here, and left alone elsewhere."""
        with self._changing:
            with self.index.change() as change:
                if not change.remove([image]):
                    raise UnknownItemError(image)
            self._catalogue = Catalogue.of(self.index, self._catalogue)
            if self._is_added(image):
                try:
                    Path(image).unlink(missing_ok=True)
                except OSError as error:  # out of the gallery it is
                    LOG.warning("a picture that was removed could not be deleted: %s", error)
        with self._keeping:
            for entry in [entry for entry in self._thumbnails if entry[0] == image]:
                self._thumbnail_bytes -= len(self._thumbnails.pop(entry))

    def _is_added(self, image: str) -> bool:
        return os.path.dirname(image) == str(self.added)


def shown_name(image: str) -> str:
    """The last part of an id: the name of a file, or a row; not where it is.

    >>> shown_name("/home/me/photos/cat.jpg"), shown_name("glyphs#17")
    ('cat.jpg', '#17')
    """
    _, row, number = image.rpartition("#")
    if row and number.isdecimal():
        return f"#{number}"
    return readable(re.split(r"[/\\]", image)[-1])
