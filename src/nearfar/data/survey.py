"""Reads every image of a data set, to find broken images and to fingerprint the others.

    result = survey(table)
    result.check(table, 0.25)                       # an error if more than a quarter cannot be read
    table, lines = result.readable_rows(table), result.report(table)

Results are cached under the path, size and times of change of each file, so a second survey only asks the file system.
"""

import contextlib
import hashlib
import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import PIL
from numpy.typing import NDArray

from nearfar.data.columns import Files
from nearfar.data.default_splits import halves_note, zero_shot
from nearfar.data.tables import Table
from nearfar.errors import InputError
from nearfar.foundation.folders import cache_folder
from nearfar.imaging import BrokenImageError, Source, TooManyBrokenImagesError
from nearfar.imaging.decoding import decode, open_image
from nearfar.imaging.sources import Span, identity, read_encoded

DECODING_SCALE = 1 / 8  # decodes a JPEG at low cost, but reads all of the file
CHUNK = 256  # images between two updates of the progress
DIGITS = 32  # of a fingerprint
SHOWN = 5  # broken images in a report; `nearfar doctor` lists more
DECODER = f"2 Pillow {PIL.__version__}"  # part of the cache key, since another version may give other results


@dataclass(frozen=True)
class Survey:
    """The result of `survey`.

    Attributes:
        fingerprints: digests of the contents; "" for a file that could not be read.
        broken: the reason for each row that cannot be decoded.
    """

    fingerprints: tuple[str, ...]
    broken: Mapping[int, str]

    @property
    def readable(self) -> NDArray[np.bool_]:
        """(N,) whether each row can be decoded."""
        mask = np.ones(len(self.fingerprints), np.bool_)
        mask[list(self.broken)] = False
        return mask

    def listed(self, table: Table, most: int | None = None) -> list[str]:
        """The broken rows with their reasons."""
        return [f"{row_name(table, row)}: {self.broken[row]}" for row in sorted(self.broken)[:most]]

    def report(self, table: Table, data: str | None = None) -> list[str]:
        """Lines for the user about the broken images; empty if there are none.

        Args:
            table: the surveyed table.
            data: the name that the user gave for it; by default the folder of its files.
        """
        if not self.broken:
            return []
        count, more = len(self.broken), len(self.broken) - SHOWN
        lines = [f"left out: {count:,} of {len(table):,} images cannot be read"]
        lines += [f"  {line}" for line in self.listed(table, SHOWN)]
        if more > 0:
            data = data or (table.images.root if isinstance(table.images, Files) else table.name)
            lines.append(f"  and {more:,} more: nearfar doctor {shlex.quote(data)} lists them")
        return lines

    def check(self, table: Table, max_broken: float) -> None:
        """Raise `TooManyBrokenImagesError` if more than this fraction of the rows is broken, or if all are."""
        if not 0 <= max_broken <= 1:
            raise InputError(f"max_broken must be a fraction between 0 and 1, not {max_broken}")
        count, total = len(self.broken), len(table)
        first = f"The first: {'; '.join(self.listed(table, SHOWN))}"
        if 0 < count == total:
            raise TooManyBrokenImagesError(f"none of the {total:,} images of {table.name} can be read. {first}")
        if count > max_broken * total:
            raise TooManyBrokenImagesError(
                f"{count:,} of {total:,} images of {table.name} cannot be read, more than the {max_broken:.0%} "
                f"allowed. {first}. Check the disk, and that the copy is complete. Repair or remove these images, or "
                "allow more with --max_broken"
            )

    def readable_rows(self, table: Table) -> Table:
        """The table without its broken rows. If the default split was used and a class has lost all its images, the
        remaining classes are split again.
        """
        if not self.broken:
            return table
        rest = table.select(self.readable)
        before, after = halves_note(table.num_classes), halves_note(rest.num_classes)
        if before not in table.notes or rest.num_classes == table.num_classes:
            return rest
        ids = zero_shot([rest.label_name(row) for row in range(len(rest))], known=("",))
        notes = tuple(after if note == before else note for note in rest.notes)
        return replace(rest, split_ids=ids, notes=notes).compact()


def row_name(table: Table, row: int) -> str:
    """A permanent name of a row: its file relative to the data set's folder, or its number."""
    return table.images.name(row) if isinstance(table.images, Files) else f"#{row}"


def survey(table: Table, advance: Callable[[int], None] | None = None) -> Survey:
    """Read every row of a table. `advance` is called with the number of rows done."""
    if table.images is None:
        features = table.columns["features"]
        return Survey(tuple(_digest(np.ascontiguousarray(row).tobytes()) for row in features), {})
    images, rows = table.images, range(len(table))
    fingerprints, broken = [""] * len(table), dict[int, str]()
    with _SurveyCache() as cache, ThreadPoolExecutor(min(os.cpu_count() or 1, 8), "nearfar-survey") as pool:
        for start in range(0, len(table), CHUNK):
            chunk = rows[start : start + CHUNK]
            results = cache.inspect([images[row] for row in chunk], pool)
            for row, (fingerprints[row], reason) in zip(chunk, results, strict=True):
                if reason:
                    broken[row] = reason
            if advance is not None:
                advance(len(chunk))
    return Survey(tuple(fingerprints), broken)


def _inspect(source: Source) -> tuple[str, str]:
    """The fingerprint of an image, and the reason why it cannot be decoded; "" if it can."""
    if isinstance(source, np.ndarray):
        return _digest(f"{source.shape} {source.dtype}".encode() + np.ascontiguousarray(source).tobytes()), ""
    try:
        data = source.read() if isinstance(source, Span) else read_encoded(source)
    except FileNotFoundError:
        return "", "no such file"
    except OSError as error:
        return "", error.strerror or type(error).__name__
    try:
        decode(open_image(data), DECODING_SCALE)
    except BrokenImageError as error:
        return _digest(data), error.reason
    return _digest(data), ""


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=DIGITS // 2).hexdigest()


class _SurveyCache:
    """Earlier results in SQLite. If the file cannot be opened or written, nothing is cached."""

    def __init__(self) -> None:
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> "_SurveyCache":
        with contextlib.suppress(sqlite3.Error, OSError):
            folder = cache_folder()
            folder.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(folder / "survey.sqlite", timeout=60)
            database.execute("CREATE TABLE IF NOT EXISTS seen (key TEXT PRIMARY KEY, fingerprint TEXT, reason TEXT)")
            self._database = database
        return self

    def __exit__(self, *error: object) -> None:
        if self._database is not None:
            self._database.close()

    def inspect(self, sources: list[Source], pool: ThreadPoolExecutor) -> Iterator[tuple[str, str]]:
        """The results of `_inspect`, from the cache if possible."""
        keys = [_key(source) for source in sources]
        cached = self._load([key for key in keys if key])
        missing = [row for row, key in enumerate(keys) if key not in cached]
        computed = dict(zip(missing, pool.map(_inspect, [sources[row] for row in missing]), strict=True))
        # Files that the system could not read are not cached: a missing disk or a closed folder may become readable
        # without a change of the file's times.
        self._store([(keys[row], *computed[row]) for row in missing if keys[row] and computed[row][0]])
        return (computed[row] if row in computed else cached[key] for row, key in enumerate(keys))

    def _load(self, keys: list[str]) -> dict[str, tuple[str, str]]:
        if self._database is None or not keys:
            return {}
        with contextlib.suppress(sqlite3.Error):
            query = f"SELECT key, fingerprint, reason FROM seen WHERE key IN ({','.join('?' * len(keys))})"
            return {key: (fingerprint, reason) for key, fingerprint, reason in self._database.execute(query, keys)}
        return {}

    def _store(self, rows: list[tuple[str, str, str]]) -> None:
        if self._database is not None and rows:
            with contextlib.suppress(sqlite3.Error), self._database:
                self._database.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", rows)


def _key(source: Source) -> str:
    """The cache key of a file; "" for data in memory, which are not cached."""
    if isinstance(source, (bytes, np.ndarray)):
        return ""
    try:
        return _digest(f"{DECODER} {identity(source)}".encode("utf-8", "surrogateescape"))
    except OSError:
        return ""
