"""The files of a feature cache.

    folder/<digest of the key>/about.json              the key, the dimension, the type of the numbers
                               <writer>.rows           features, one row after the other
                               <writer>.ids            16 bytes for each: which image, which view

Each writer has separate files, so that several processes may write at once without locks. Rows are flushed to the disk
before their ids are written. A killed process leaves complete rows with ids, which are used, and at most part of a
batch without ids, which is computed again.
"""

import contextlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import InputError
from nearfar.foundation.files import named_errors

ID_TYPE = np.dtype("S16")
COMMIT_BYTES = 4_000_000  # size of the rows between two flushes to the disk


class Writer:
    """Appends to two new files. Closing it flushes them to the disk."""

    def __init__(self, folder: Path, key: str, dtype: np.dtype[Any]):
        self._folder, self._key, self._dtype = folder, key, dtype
        self._name = uuid.uuid4().hex
        self._rows: Any = None
        self._ids: Any = None
        self._waiting: list[NDArray[Any]] = []
        self._unsaved = 0

    def __enter__(self) -> "Writer":
        return self

    def add(self, ids: NDArray[Any], rows: NDArray[Any]) -> None:
        if self._rows is None:
            _agree(self._folder, self._key, rows.shape[1], self._dtype)
            paths = [self._folder / f"{self._name}.{ending}" for ending in ("rows", "ids")]
            with contextlib.ExitStack() as files:  # open both or neither
                self._rows, self._ids = [files.enter_context(path.open("wb")) for path in paths]
                files.pop_all()
        with np.errstate(over="ignore"):
            data = np.ascontiguousarray(rows, self._dtype)
        if not np.isfinite(data).all():
            largest = np.abs(rows).max()
            raise InputError(
                f"a feature of {largest:g} is too large for {self._dtype.name}: choose float32, or repair the network"
            )
        with named_errors(self._folder / f"{self._name}.rows"):
            self._rows.write(data.data)
        self._waiting.append(ids)
        self._unsaved += data.nbytes
        if self._unsaved >= COMMIT_BYTES:
            self._commit()

    def _commit(self) -> None:
        with named_errors(self._folder / f"{self._name}.rows"):
            self._rows.flush()
            os.fsync(self._rows.fileno())  # rows first, because an id promises that its row exists
            self._ids.write(b"".join(ids.tobytes() for ids in self._waiting))
            self._ids.flush()
        self._waiting, self._unsaved = [], 0

    def __exit__(self, *error: object) -> None:
        if self._rows is not None:
            try:
                self._commit()
            finally:
                for file in (self._rows, self._ids):
                    with contextlib.suppress(OSError):  # already raised by the failed write
                        file.close()


def _agree(folder: Path, key: str, dimension: int, dtype: np.dtype[Any]) -> None:
    """Write about.json, unless another writer has done so with the same content. The first writer wins."""
    about = {"key": key, "dimension": dimension, "dtype": dtype.name}
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{uuid.uuid4().hex}.draft"
    try:
        with named_errors(draft):
            draft.write_text(json.dumps(about), encoding="utf-8")
        try:
            os.link(draft, folder / "about.json")  # whole, or not at all
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            draft.replace(folder / "about.json")
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    existing = _about(folder)
    if existing != about:
        raise InputError(
            f"{folder} holds features of {existing['dimension']} dimensions under this key, not {dimension}: "
            "the key must change whenever the network does"
        )


def _about(folder: Path) -> dict[str, Any]:
    """The content of about.json."""
    try:
        about: dict[str, Any] = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        if not about["dimension"] > 0:
            raise ValueError("no dimension")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'about.json'} is damaged: remove this folder to compute it again") from error
    return about


class Index:
    """The positions of the features: shard and row as one number, shard * 2^40 + row."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]):
        self.shards: list[NDArray[Any]] = []
        self.dimension = 0
        ids, positions = [np.empty(0, ID_TYPE)], [np.empty(0, np.int64)]
        if (folder / "about.json").is_file():
            self.dimension = _about(folder)["dimension"]
            for path in sorted(folder.glob("*.ids")):
                # Another process may be writing. Reading the ids first makes sure that their rows exist.
                data = path.read_bytes()
                stored = np.frombuffer(data[: len(data) // 16 * 16], ID_TYPE)
                shard = _map(path.with_suffix(".rows"), self.dimension, dtype)
                count = min(len(stored), len(shard))
                if count:
                    ids.append(stored[:count])
                    positions.append(np.arange(count) + (len(self.shards) << 40))
                    self.shards.append(shard)
        all_ids = np.concatenate(ids)
        order = np.argsort(all_ids, kind="stable")
        self._ids, self._positions = all_ids[order], np.concatenate(positions)[order]

    def positions(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """The positions of features; -1 for missing ones."""
        if len(self._ids) == 0:
            return np.full(len(ids), -1, np.int64)
        nearest = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
        return np.where(self._ids[nearest] == ids, self._positions[nearest], -1)


def _map(path: Path, dimension: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The complete rows of a file, memory-mapped."""
    count = path.stat().st_size // (dimension * dtype.itemsize) if path.is_file() else 0
    if count == 0:
        return np.empty((0, dimension), dtype)
    return np.memmap(path, dtype, "r", shape=(count, dimension))
