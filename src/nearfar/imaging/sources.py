"""Image sources: paths, encoded bytes, byte ranges and pixels, with their descriptions and identities."""

import hashlib
import os
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nearfar.errors import MissingPackageError, NearfarError

try:
    from PIL import Image
except ImportError as missing:
    raise MissingPackageError("nearfar reads images with Pillow: pip install 'nearfar[data]'") from missing


@dataclass(frozen=True)
class Span:
    """An encoded image inside a larger file: `length` bytes from `offset`."""

    path: str
    offset: int
    length: int

    def read(self) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(self.length)


class Readable(Protocol):
    """An open file."""

    def read(self) -> bytes: ...


class ImageSequence(Protocol):
    """A lazy sequence of images: a list, or a column of a table."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Any: ...


Source = str | PathLike[str] | bytes | Span | npt.NDArray[Any]
"""One image of a data set: a path, encoded bytes, a byte range, or pixels (H, W), (H, W, 1) or (H, W, 3)."""

ImageLike = Source | Readable | Image.Image
"""Everything that can be decoded: a source, an open file or a Pillow image."""


class BrokenImageError(NearfarError, ValueError):
    """An image that is missing, damaged, or larger than is safe to decode."""

    def __init__(self, source: str, reason: str):
        super().__init__(f"{source}: {reason}")
        self.source, self.reason = source, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return BrokenImageError, (self.source, self.reason)


class TooManyBrokenImagesError(NearfarError, RuntimeError):
    """The fraction of broken images exceeds `max_broken`."""


def describe(image: ImageLike) -> str:
    """The source as messages name it."""
    if isinstance(image, Span):
        return f"{image.path} at byte {image.offset}"
    if isinstance(image, (str, PathLike)):
        return os.fspath(image)
    if isinstance(image, bytes):
        return f"{len(image)} bytes"
    return f"pixels of shape {image.shape}" if isinstance(image, np.ndarray) else repr(image)


def read_encoded(image: str | PathLike[str] | bytes | Readable) -> bytes:
    """The encoded bytes, read at once so that no broken file stays open."""
    if isinstance(image, bytes):
        return image
    return Path(image).read_bytes() if isinstance(image, (str, PathLike)) else image.read()


def identity(source: Source) -> str:
    """A string that changes with the image: path, size and times of change of its file, or a digest of what is in
    memory.
    """
    if isinstance(source, (bytes, np.ndarray)):
        return content(source)
    path = source.path if isinstance(source, Span) else os.fspath(source)
    state = os.stat(path)
    # Programs that copy a file may restore st_mtime, but not st_ctime.
    file = f"{Path(path).resolve()} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}"
    return f"{file} {source.offset} {source.length}" if isinstance(source, Span) else file


def content(source: Source) -> str:
    """A digest of the encoded image or its pixels, equal for copies of a file."""
    if isinstance(source, np.ndarray):
        return f"{source.shape} {source.dtype} {hashlib.sha256(np.ascontiguousarray(source).data).hexdigest()}"
    return hashlib.sha256(read_encoded(source)).hexdigest()
