"""One look at every row of a data set: which pictures can be decoded, and what each of them contains.

    found = survey(table)
    table.select(found.readable), found.listed(table)

Every file is read once. What was found is kept in the user's cache, under the file's place, size and times of change:
the next look at the same data costs no more than asking the file system.
"""

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import PIL
from numpy.typing import NDArray

from nearfar.data.columns import Files
from nearfar.data.embedded import cache_folder
from nearfar.data.tables import Table
from nearfar.imaging import BrokenImageError, Source, TooManyBrokenImagesError
from nearfar.imaging.decoding import decode, open_image
from nearfar.imaging.sources import Span, encoded, identity

SMALL = 1 / 8  # of a JPEG's sides: all of the file is read, and little of it computed
AT_A_TIME = 256  # pictures between two reports of progress
DIGITS = 32  # of a fingerprint
DECODER = f"Pillow {PIL.__version__}"  # another one may read more, or less


@dataclass(frozen=True)
class Survey:
    """What `survey` found, row by row.

    Attributes:
        fingerprints: digests of the contents; "" where a file could not be read at all.
        broken: the rows that cannot be decoded, and why.
    """

    fingerprints: tuple[str, ...]
    broken: Mapping[int, str]

    @property
    def readable(self) -> NDArray[np.bool_]:
        """(N,) whether each row can be used."""
        found = np.ones(len(self.fingerprints), np.bool_)
        found[list(self.broken)] = False
        return found

    def listed(self, table: Table, most: int | None = None) -> list[str]:
        """The broken rows, each with its reason."""
        return [f"{row_name(table, row)}: {self.broken[row]}" for row in sorted(self.broken)[:most]]

    def check(self, table: Table, most: float) -> None:
        """Raise `TooManyBrokenImagesError` if more than that share of all rows is broken."""
        if len(self.broken) > most * len(table):
            raise TooManyBrokenImagesError(
                f"{len(self.broken):,} of {len(table):,} images of {table.name} cannot be read, more than the "
                f"{most:.0%} allowed. The first: {'; '.join(self.listed(table, 3))}. Is the disk whole, and the copy "
                "complete? Repair or remove them, or allow more with --data.max_broken"
            )


def row_name(table: Table, row: int) -> str:
    """What a row is called, the same from one day to the next: its file below the data set's folder, or its number."""
    return table.images.name(row) if isinstance(table.images, Files) else f"#{row}"


def survey(table: Table, advance: Callable[[int], None] | None = None) -> Survey:
    """Read every row of a table. `advance` is called with the number of rows done."""
    if table.images is None:
        features = table.columns["features"]
        return Survey(tuple(_digest(np.ascontiguousarray(row).tobytes()) for row in features), {})
    images, rows = table.images, range(len(table))
    fingerprints, broken = [""] * len(table), dict[int, str]()
    with _Kept() as kept, ThreadPoolExecutor(min(os.cpu_count() or 1, 8), "nearfar-survey") as pool:
        for start in range(0, len(table), AT_A_TIME):
            chunk = rows[start : start + AT_A_TIME]
            looked = kept.looked([images[row] for row in chunk], pool)
            for row, (fingerprints[row], reason) in zip(chunk, looked, strict=True):
                if reason:
                    broken[row] = reason
            if advance is not None:
                advance(len(chunk))
    return Survey(tuple(fingerprints), broken)


def _look(source: Source) -> tuple[str, str]:
    """The fingerprint of an image, and why it cannot be decoded; "" if it can."""
    if isinstance(source, np.ndarray):
        return _digest(f"{source.shape} {source.dtype}".encode() + np.ascontiguousarray(source).tobytes()), ""
    try:
        data = source.read() if isinstance(source, Span) else encoded(source)
    except FileNotFoundError:
        return "", "no such file"
    except OSError as error:
        return "", error.strerror or type(error).__name__
    try:
        decode(open_image(data), SMALL)
    except BrokenImageError as error:
        return _digest(data), error.reason
    return _digest(data), ""


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=DIGITS // 2).hexdigest()


class _Kept:
    """What was found earlier. A cache that cannot be opened or written is done without."""

    def __init__(self) -> None:
        self._file: sqlite3.Connection | None = None

    def __enter__(self) -> "_Kept":
        with contextlib.suppress(sqlite3.Error, OSError):
            folder = cache_folder()
            folder.mkdir(parents=True, exist_ok=True)
            file = sqlite3.connect(folder / "survey.sqlite", timeout=60)
            file.execute("CREATE TABLE IF NOT EXISTS seen (key TEXT PRIMARY KEY, fingerprint TEXT, reason TEXT)")
            self._file = file
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def looked(self, sources: list[Source], pool: ThreadPoolExecutor) -> Iterator[tuple[str, str]]:
        """`_look` at each, unless it was looked at before."""
        keys = [_key(source) for source in sources]
        known = self._known([key for key in keys if key])
        todo = [row for row, key in enumerate(keys) if key not in known]
        found = dict(zip(todo, pool.map(_look, [sources[row] for row in todo]), strict=True))
        self._keep([(keys[row], *found[row]) for row in todo if keys[row]])
        return (found[row] if row in found else known[key] for row, key in enumerate(keys))

    def _known(self, keys: list[str]) -> dict[str, tuple[str, str]]:
        if self._file is None or not keys:
            return {}
        with contextlib.suppress(sqlite3.Error):
            asked = f"SELECT key, fingerprint, reason FROM seen WHERE key IN ({','.join('?' * len(keys))})"
            return {key: (fingerprint, reason) for key, fingerprint, reason in self._file.execute(asked, keys)}
        return {}

    def _keep(self, rows: list[tuple[str, str, str]]) -> None:
        if self._file is not None and rows:
            with contextlib.suppress(sqlite3.Error), self._file:
                self._file.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", rows)


def _key(source: Source) -> str:
    """Under which a file is known; "" for what is in memory, which is looked at each time."""
    if isinstance(source, (bytes, np.ndarray)):
        return ""
    try:
        return _digest(f"{DECODER} {identity(source)}".encode("utf-8", "surrogateescape"))
    except OSError:
        return ""
