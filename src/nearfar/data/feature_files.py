"""The files of a feature cache.

    folder/<digest of the key>/about.json              the key, the dimension, the type of the numbers
                               <writer>.rows           features, one row after the other
                               <writer>.ids            16 bytes for each: which image, which view

Every writer has files of its own, so that any number may work at once, without locks. Rows are on the disk before their
ids are written: a process killed at any time leaves whole rows with ids, which count, and at most a part of one batch
without, which is computed again.
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
COMMIT_BYTES = 4_000_000  # rows written between two waits for the disk


class Writer:
    """Appends to two files of its own; what it was given is on the disk once it is closed, and mostly before."""

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
            with contextlib.ExitStack() as files:  # both, or none
                self._rows, self._ids = [files.enter_context(path.open("wb")) for path in paths]
                files.pop_all()
        with np.errstate(over="ignore"):
            data = np.ascontiguousarray(rows, self._dtype)
        if not np.isfinite(data).all():
            largest = np.abs(rows).max()
            raise InputError(
                f"a feature of {largest:g} is too large for {self._dtype.name}: choose float32, or mend the network"
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
            os.fsync(self._rows.fileno())  # rows first: an id promises that its row is there
            self._ids.write(b"".join(ids.tobytes() for ids in self._waiting))
            self._ids.flush()
        self._waiting, self._unsaved = [], 0

    def __exit__(self, *error: object) -> None:
        if self._rows is not None:
            try:
                self._commit()
            finally:
                for file in (self._rows, self._ids):
                    with contextlib.suppress(OSError):  # of what could not be written: that has been told
                        file.close()


def _agree(folder: Path, key: str, dimension: int, dtype: np.dtype[Any]) -> None:
    """Say what the folder holds, or find that it holds that already. The first to say it wins."""
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
    there = _about(folder)
    if there != about:
        raise InputError(
            f"{folder} holds features of {there['dimension']} dimensions under this key, not {dimension}: "
            "the key must change whenever the network does"
        )


def _about(folder: Path) -> dict[str, Any]:
    """What the folder says it holds."""
    try:
        there: dict[str, Any] = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        if not there["dimension"] > 0:
            raise ValueError("no dimension")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'about.json'} is damaged: remove that folder, it is computed again") from error
    return there


class Index:
    """Which feature is where: shard and row as one number, shard * 2^40 + row."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]):
        self.shards: list[NDArray[Any]] = []
        self.dimension = 0
        ids, places = [np.empty(0, ID_TYPE)], [np.empty(0, np.int64)]
        if (folder / "about.json").is_file():
            self.dimension = _about(folder)["dimension"]
            for path in sorted(folder.glob("*.ids")):
                # Another process may be writing: ids and rows are counted as they are now, ids first.
                data = path.read_bytes()
                found = np.frombuffer(data[: len(data) // 16 * 16], ID_TYPE)
                shard = _map(path.with_suffix(".rows"), self.dimension, dtype)
                count = min(len(found), len(shard))
                if count:
                    ids.append(found[:count])
                    places.append(np.arange(count) + (len(self.shards) << 40))
                    self.shards.append(shard)
        every = np.concatenate(ids)
        order = np.argsort(every, kind="stable")
        self._ids, self._places = every[order], np.concatenate(places)[order]

    def places(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Where the features are; -1 where there is none."""
        if len(self._ids) == 0:
            return np.full(len(ids), -1, np.int64)
        at = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._places[at], -1)


def _map(path: Path, dimension: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The whole rows of a file, memory-mapped."""
    count = path.stat().st_size // (dimension * dtype.itemsize) if path.is_file() else 0
    if count == 0:
        return np.empty((0, dimension), dtype)
    return np.memmap(path, dtype, "r", shape=(count, dimension))
