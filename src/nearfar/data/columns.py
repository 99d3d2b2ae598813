"""Columns of image sources. They are compact (megabytes for millions of rows), can be sent to worker processes, and
`select` does not copy the underlying data.
"""

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nearfar.imaging import Source, Span

Rows = npt.NDArray[np.int64]


class Images(Protocol):
    """A column of images."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Source: ...

    def select(self, rows: Rows) -> "Images": ...


class Files:
    """Paths of image files, stored as one block of text with offsets."""

    def __init__(self, root: str | PathLike[str], names: Iterable[str]):
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        self.root = str(root)
        self._text = b"".join(encoded)
        self._ends = ends
        self._starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends

    def __len__(self) -> int:
        return len(self._starts)

    def name(self, row: int) -> str:
        """The path relative to `root`."""
        return self._text[self._starts[row] : self._ends[row]].decode("utf-8", "surrogateescape")

    def __getitem__(self, row: int) -> str:
        return str(Path(self.root, self.name(row)))

    def select(self, rows: Rows) -> "Files":
        selected = object.__new__(Files)
        selected.root, selected._text = self.root, self._text
        selected._starts, selected._ends = self._starts[rows], self._ends[rows]
        return selected


class Spans:
    """Byte ranges of one or more files. Images in several pieces are held in memory: their length is negative, and
    -1 - length is their index in `held`.
    """

    def __init__(self, files: Sequence[str], file: Rows, offset: Rows, length: Rows, held: Sequence[bytes] = ()):
        self.files, self.held = tuple(files), tuple(held)
        self._file, self._offset, self._length = file, offset, length

    def __len__(self) -> int:
        return len(self._offset)

    def __getitem__(self, row: int) -> Span | bytes:
        length = int(self._length[row])
        if length < 0:
            return self.held[-1 - length]
        return Span(self.files[self._file[row]], int(self._offset[row]), length)

    def select(self, rows: Rows) -> "Spans":
        return Spans(self.files, self._file[rows], self._offset[rows], self._length[rows], self.held)


class Encoded:
    """Encoded images in memory."""

    def __init__(self, images: Sequence[bytes], rows: Rows | None = None):
        self._images = images
        self._rows = np.arange(len(images)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> bytes:
        return bytes(self._images[self._rows[row]])

    def select(self, rows: Rows) -> "Encoded":
        return Encoded(self._images, self._rows[rows])


class Pixels:
    """Decoded images in memory or memory-mapped: (N, H, W) or (N, H, W, channels)."""

    def __init__(self, pixels: npt.NDArray[Any], rows: Rows | None = None):
        self._pixels = pixels
        self._rows = np.arange(len(pixels)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        return np.asarray(self._pixels[self._rows[row]])

    def select(self, rows: Rows) -> "Pixels":
        return Pixels(self._pixels, self._rows[rows])
