"""One look at every row of a data set: which pictures can be decoded, and what each of them contains.

    found = survey(table)
    found.check(table, 0.25)                        # an error if more than a quarter cannot be read
    table, lines = found.kept(table), found.told(table)

Every file is read once. What was found is kept in the user's cache, under the file's place, size and times of change:
the next look at the same data costs no more than asking the file system.
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
from nearfar.data.splits import halves_note, zero_shot
from nearfar.data.tables import Table
from nearfar.errors import InputError
from nearfar.foundation.folders import cache_folder
from nearfar.imaging import BrokenImageError, Source, TooManyBrokenImagesError
from nearfar.imaging.decoding import decode, open_image
from nearfar.imaging.sources import Span, identity, read_encoded

SMALL = 1 / 8  # of a JPEG's sides: all of the file is read, and little of it computed
AT_A_TIME = 256  # pictures between two reports of progress
DIGITS = 32  # of a fingerprint
SHOWN = 5  # of what is left out; `nearfar doctor` lists more
DECODER = f"2 Pillow {PIL.__version__}"  # another one may read more, or less, and call it otherwise


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

    def told(self, table: Table, data: str | None = None) -> list[str]:
        """What a command says of it: how many are left out, the first of them, and how to see the others.

        Args:
            table: with all rows.
            data: what the user calls it; by default, where its files are.
        """
        if not self.broken:
            return []
        count, more = len(self.broken), len(self.broken) - SHOWN
        lines = [f"left out: {count:,} of {len(table):,} images cannot be read"]
        lines += [f"  {line}" for line in self.listed(table, SHOWN)]
        if more > 0:
            place = data or (table.images.root if isinstance(table.images, Files) else table.name)
            lines.append(f"  and {more:,} more: nearfar doctor {shlex.quote(place)} lists them")
        return lines

    def check(self, table: Table, most: float) -> None:
        """Raise `TooManyBrokenImagesError` if more than that share of all rows is broken, or if all are."""
        if not 0 <= most <= 1:
            raise InputError(f"max_broken is a fraction between 0 and 1, not {most}")
        count, total = len(self.broken), len(table)
        first = f"The first: {'; '.join(self.listed(table, SHOWN))}"
        if 0 < count == total:
            raise TooManyBrokenImagesError(f"none of the {total:,} images of {table.name} can be read. {first}")
        if count > most * total:
            raise TooManyBrokenImagesError(
                f"{count:,} of {total:,} images of {table.name} cannot be read, more than the {most:.0%} allowed. "
                f"{first}. Is the disk whole, and the copy complete? Repair or remove them, or allow more with "
                "--max_broken"
            )

    def kept(self, table: Table) -> Table:
        """The rows that can be read, as if there were no others: where classes are halved and one of them has no image
        left, those that are left are halved.
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
        data = source.read() if isinstance(source, Span) else read_encoded(source)
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
        # Not what the system would not read: a disk that is not there, or a folder that is closed, leaves no trace in
        # a file's times.
        self._keep([(keys[row], *found[row]) for row in todo if keys[row] and found[row][0]])
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
