"""The folder of an index: immutable segments, and a manifest that lists them.

    index.json                  the manifest: the description of the index, and its segments
    NAME.vectors                vectors of a segment: (n, D) float32, or (n, bytes) of codes; a memory-mapped .npy file
    NAME.rows                   its ids, labels and states; an .npz file
    NAME.hnsw, NAME.ivfpq       an approximate FAISS index of its vectors, in the same order
    NAME.dead-NUMBER            its deleted rows (removed or replaced): n bits
    pending.json                the segments of a change that is in progress or was interrupted
    lock                        locked by the process that changes the index

A change writes new files, flushes them to the disk, and then replaces the manifest, so that a process killed at any
time leaves the old index or the new one. Readers keep the files of their manifest open. Files that the manifest no
longer lists are removed, and a reader that misses one reads the manifest again.
"""

import contextlib
import hashlib
import json
import os
import re
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import MissingFileError
from nearfar.foundation.files import named_errors, write_file
from nearfar.retrieval.index import About, BusyIndexError, DamagedIndexError, RetrievalError
from nearfar.retrieval.texts import Texts

FORMAT = 1
MANIFEST = "index.json"
PENDING = "pending.json"
LOCK = "lock"
STATE_BYTES = 16
PATIENCE = 5.0  # seconds to wait for another change
_OURS = re.compile(r"[0-9a-f]{16}\.(vectors|rows|hnsw|ivfpq|dead-\d+)|\.(index|pending)\.json\.[0-9a-f]+")


@dataclass(frozen=True)
class Part:
    """A segment in a manifest, with its files and their sizes."""

    name: str
    count: int
    files: Mapping[str, int]  # sizes in bytes by extension
    dead: str = ""  # the extension of the file of deleted rows; "" if there is none
    dead_count: int = 0

    def path(self, folder: Path, ending: str) -> Path:
        return folder / f"{self.name}.{ending}"

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "files": dict(self.files)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Part":
        """The inverse of `to_dict`."""
        part = cls(**values)
        for value, kind in zip(vars(part).values(), (str, int, dict, str, int), strict=True):
            if not isinstance(value, kind):
                raise TypeError(f"{value!r} in place of {kind.__name__}")
        return part


@dataclass(frozen=True)
class Manifest:
    """The description of an index and its segments."""

    about: About
    parts: tuple[Part, ...] = ()
    generation: int = 0

    @property
    def count(self) -> int:
        """The number of images."""
        return sum(part.count - part.dead_count for part in self.parts)

    def to_json(self) -> str:
        parts = [part.to_dict() for part in self.parts]
        values = {"format": FORMAT, "generation": self.generation, "about": self.about.to_dict(), "parts": parts}
        return json.dumps(values, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        values = json.loads(text)
        if values["format"] != FORMAT:
            raise RetrievalError(f"it has format {values['format']}, this version of nearfar reads {FORMAT}")
        parts = tuple(Part.from_dict(part) for part in values["parts"])
        return cls(About.from_dict(values["about"]), parts, int(values["generation"]))


def _loaded(path: Path, mmap_mode: Literal["r"] | None = None) -> Any:
    """Load a numpy file. numpy's errors for damaged files are misleading, as they mention pickles."""
    try:
        return np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except FileNotFoundError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedIndexError(f"{path} cannot be read") from error


class Segment:
    """An open segment, with memory-mapped vectors, and texts in memory."""

    def __init__(self, folder: Path, part: Part):
        self.part = part
        for ending, size in part.files.items():
            actual = part.path(folder, ending).stat().st_size
            if actual != size:
                raise DamagedIndexError(f"{part.path(folder, ending)} has {actual:,} bytes, not {size:,}")
        self.folder = folder
        self.vectors: NDArray[Any] = _loaded(part.path(folder, "vectors"), mmap_mode="r")
        with _loaded(part.path(folder, "rows")) as rows:
            self.ids = Texts(rows["ids"], rows["id_ends"])
            self.labels = Texts(rows["labels"], rows["label_ends"])
            self.states: NDArray[np.uint8] = rows["states"]
            keys: NDArray[np.uint64] = rows["keys"]
        if not len(self.vectors) == len(self.ids) == len(self.labels) == len(self.states) == len(keys) == part.count:
            raise DamagedIndexError(f"{part.path(folder, 'rows')} and its vectors differ in length")
        self.order: NDArray[np.int64] = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        self.alive: NDArray[np.bool_] | None = None
        if part.dead:
            packed = _loaded(part.path(folder, part.dead))
            self.alive = np.unpackbits(packed, count=part.count) == 0
            if int(np.count_nonzero(~self.alive)) != part.dead_count:
                raise DamagedIndexError(
                    f"{part.path(folder, part.dead)} does not have {part.dead_count:,} deleted rows"
                )

    def __len__(self) -> int:
        return self.part.count

    def places(self, ids: Sequence[str], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The living rows of ids; -1 for those that are not in the segment."""
        if not len(self):
            return np.full(len(ids), -1, np.int64)
        first = np.searchsorted(self.keys, keys).clip(max=len(self) - 1)
        result = np.full(len(ids), -1, np.int64)
        for number in np.flatnonzero(self.keys[first] == keys).tolist():
            position = int(first[number])
            while position < len(self) and self.keys[position] == keys[number]:  # ids may share a key
                row = int(self.order[position])
                if self.ids[row] == ids[number] and (self.alive is None or self.alive[row]):
                    result[number] = row
                position += 1
        return result

    def living(self) -> NDArray[np.int64]:
        """The rows that are not deleted."""
        return np.arange(len(self)) if self.alive is None else np.flatnonzero(self.alive)


@dataclass(frozen=True)
class Rows:
    """Rows to be written, with the vectors in consecutive blocks (n, width)."""

    ids: Sequence[str]
    keys: NDArray[np.uint64]
    labels: Sequence[str]
    states: NDArray[np.uint8]
    blocks: Iterable[NDArray[Any]]
    width: int
    dtype: np.dtype[Any]


class Store:
    """Reads and writes the folder of an index."""

    def __init__(self, folder: Path):
        self.folder = folder

    def exists(self) -> bool:
        """Whether there is a manifest."""
        return (self.folder / MANIFEST).is_file()

    def is_own(self) -> bool:
        """Whether the folder has only files of indexes."""
        names = {MANIFEST, PENDING, LOCK}
        return all(path.name in names or _OURS.fullmatch(path.name) for path in self.folder.iterdir())

    def generation(self) -> int:
        """A number that changes with the index."""
        return self.manifest().generation

    def manifest(self) -> Manifest:
        """Read the manifest."""
        path = self.folder / MANIFEST
        if not path.is_file():
            raise MissingFileError(f"there is no index {self.folder}: make one with nearfar index RUN")
        try:
            return Manifest.from_json(path.read_text(encoding="utf-8"))
        except RetrievalError as error:
            raise RetrievalError(f"{path}: {error}") from error
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise self.damaged(f"{path} cannot be read ({type(error).__name__}: {error})") from error

    def damaged(self, reason: str) -> DamagedIndexError:
        """The error for damaged files."""
        return DamagedIndexError(
            f"the index is damaged: {reason}. The images are not affected: remove {self.folder} and build it again "
            "with nearfar index"
        )

    def segments(self, parts: Sequence[Part], opened: Mapping[str, Segment] | None = None) -> list[Segment]:
        """Open segments, reusing those in `opened` with the same deleted rows."""
        result = []
        for part in parts:
            existing = (opened or {}).get(part.name)
            if existing is not None and existing.part == part:
                result.append(existing)
                continue
            try:
                result.append(Segment(self.folder, part))
            except FileNotFoundError:
                raise
            except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zipfile.BadZipFile) as error:
                raise self.damaged(str(error)) from error
        return result

    # Writing

    @contextlib.contextmanager
    def locked(self, patience: float = PATIENCE) -> Iterator[None]:
        """Lock the index for changes. Raises `BusyIndexError` after `patience` seconds of another lock."""
        from filelock import FileLock, Timeout

        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / LOCK)
        try:
            lock.acquire(timeout=patience)
        except Timeout:
            raise BusyIndexError(f"another process is changing {self.folder}: try again when it is done") from None
        try:
            yield
        finally:
            lock.release()

    def write_segment(self, rows: "Rows") -> Part:
        """Write a new segment to the disk, to be listed in a manifest."""
        part = Part(uuid.uuid4().hex[:16], len(rows.ids), {})
        about = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False}
        path = part.path(self.folder, "vectors")
        with named_errors(path), path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {**about, "shape": (len(rows.ids), rows.width)})
            for block in rows.blocks:
                file.write(np.ascontiguousarray(block).data)  # errors of `tofile` have no reason
        ids, labels = Texts.of(rows.ids), Texts.of(rows.labels)
        arrays: dict[str, Any] = {
            "ids": ids.block,
            "id_ends": ids.ends,
            "labels": labels.block,
            "label_ends": labels.ends,
        }
        path = part.path(self.folder, "rows")
        with named_errors(path), path.open("wb") as file:
            np.savez(file, states=rows.states, keys=rows.keys, **arrays)
        return self.with_sizes(part, "vectors", "rows")

    def with_sizes(self, part: Part, *endings: str) -> Part:
        """Flush files to the disk and add them to the part."""
        sizes = dict(part.files)
        for ending in endings:
            with part.path(self.folder, ending).open("rb") as file:
                os.fsync(file.fileno())
                sizes[ending] = os.fstat(file.fileno()).st_size
        return replace(part, files=sizes)

    def write_dead(self, part: Part, alive: NDArray[np.bool_], generation: int) -> Part:
        """Write the deleted rows of a part. Returns the part with them."""
        ending = f"dead-{generation}"
        path, bits = part.path(self.folder, ending), np.packbits(~alive)
        with named_errors(path), path.open("wb") as file:
            about = {"descr": "|u1", "fortran_order": False, "shape": bits.shape}
            np.lib.format.write_array_header_1_0(file, about)
            file.write(bits.data)
            file.flush()
            os.fsync(file.fileno())
        return replace(part, dead=ending, dead_count=int(np.count_nonzero(~alive)))

    def commit(self, manifest: Manifest) -> None:
        """Replace the manifest."""
        write_file(self.folder / MANIFEST, manifest.to_json())

    def sweep(self, parts: Sequence[Part]) -> None:
        """Remove files of segments that belong neither to these parts nor to a pending change."""
        kept: set[str] = set()
        for part in [*parts, *self.pending()[1]]:
            kept |= {f"{part.name}.{ending}" for ending in (*part.files, part.dead) if ending}
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in kept:
                with contextlib.suppress(OSError):  # it only wastes space
                    path.unlink()

    def pending(self) -> tuple[str, tuple[Part, ...]]:
        """The key and the segments of an incomplete change; none if they cannot be read."""
        try:
            values = json.loads((self.folder / PENDING).read_text(encoding="utf-8"))
            return str(values["of"]), tuple(Part.from_dict(part) for part in values["parts"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", ()

    def write_pending(self, of: str, parts: Sequence[Part]) -> None:
        """Record segments, so that an interrupted change can be continued."""
        if not parts:
            (self.folder / PENDING).unlink(missing_ok=True)
            return
        write_file(self.folder / PENDING, json.dumps({"of": of, "parts": [part.to_dict() for part in parts]}))


def packed_states(states: Sequence[str]) -> NDArray[np.uint8]:
    """(n, 16) digests of states; zeros for ""."""
    digests = (
        hashlib.blake2b(state.encode("utf-8", "surrogateescape"), digest_size=STATE_BYTES).digest()
        if state
        else bytes(STATE_BYTES)
        for state in states
    )
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, STATE_BYTES)
