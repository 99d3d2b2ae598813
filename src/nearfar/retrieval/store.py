"""The folder of an index: immutable segments, and a manifest that says which of them count.

    index.json                  the manifest: what the index is, and its segments
    NAME.vectors                of a segment: (n, D) float32, or (n, bytes) of codes; a .npy file, memory-mapped
    NAME.rows                   its ids, labels and states; an .npz file
    NAME.hnsw, NAME.ivfpq       an approximate FAISS index over its vectors, in the same order
    NAME.dead-NUMBER            which of its rows have been removed or replaced since: n bits
    pending.json                the segments of a change that is under way, or was interrupted
    lock                        held by the process that changes the index

A change writes new files, flushes them to the disk, and then replaces the manifest, which is what makes them count: a
process killed at any moment leaves the old index or the new one. Readers have the files of their manifest open; those
that no manifest names any more are removed, and a reader that comes too late for one reads the manifest again.
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
PATIENCE = 5.0  # seconds that a change waits for another
_OURS = re.compile(r"[0-9a-f]{16}\.(vectors|rows|hnsw|ivfpq|dead-\d+)|\.(index|pending)\.json\.[0-9a-f]+")


@dataclass(frozen=True)
class Part:
    """A segment, as a manifest names it: its files and their sizes."""

    name: str
    count: int
    files: Mapping[str, int]  # ending: bytes
    dead: str = ""  # the ending of the file that says which rows are gone; "" if none is
    dead_count: int = 0

    def path(self, folder: Path, ending: str) -> Path:
        return folder / f"{self.name}.{ending}"

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "files": dict(self.files)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Part":
        """From what `to_dict` gave."""
        part = cls(**values)
        for value, kind in zip(vars(part).values(), (str, int, dict, str, int), strict=True):
            if not isinstance(value, kind):
                raise TypeError(f"{value!r} in place of {kind.__name__}")
        return part


@dataclass(frozen=True)
class Manifest:
    """What counts."""

    about: About
    parts: tuple[Part, ...] = ()
    generation: int = 0

    @property
    def count(self) -> int:
        """Images that are there."""
        return sum(part.count - part.dead_count for part in self.parts)

    def to_json(self) -> str:
        parts = [part.to_dict() for part in self.parts]
        words = {"format": FORMAT, "generation": self.generation, "about": self.about.to_dict(), "parts": parts}
        return json.dumps(words, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        values = json.loads(text)
        if values["format"] != FORMAT:
            raise RetrievalError(f"it has format {values['format']}, this version of nearfar reads {FORMAT}")
        parts = tuple(Part.from_dict(part) for part in values["parts"])
        return cls(About.from_dict(values["about"]), parts, int(values["generation"]))


def _loaded(path: Path, mmap_mode: Literal["r"] | None = None) -> Any:
    """What numpy reads there; its own words of a file that is none speak of pickles."""
    try:
        return np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except FileNotFoundError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedIndexError(f"{path} cannot be read") from error


class Segment:
    """The rows of a part, open: vectors memory-mapped, texts in memory."""

    def __init__(self, folder: Path, part: Part):
        self.part = part
        for ending, size in part.files.items():
            found = part.path(folder, ending).stat().st_size
            if found != size:
                raise DamagedIndexError(f"{part.path(folder, ending)} has {found:,} bytes, not {size:,}")
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
                    f"{part.path(folder, part.dead)} does not say which {part.dead_count:,} are gone"
                )

    def __len__(self) -> int:
        return self.part.count

    def places(self, ids: Sequence[str], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The rows of these ids that are alive; -1 for those that are not here."""
        if not len(self):
            return np.full(len(ids), -1, np.int64)
        at = np.searchsorted(self.keys, keys).clip(max=len(self) - 1)
        result = np.full(len(ids), -1, np.int64)
        for number in np.flatnonzero(self.keys[at] == keys).tolist():
            place = int(at[number])
            while place < len(self) and self.keys[place] == keys[number]:  # texts that share a key are told apart
                row = int(self.order[place])
                if self.ids[row] == ids[number] and (self.alive is None or self.alive[row]):
                    result[number] = row
                place += 1
        return result

    def living(self) -> NDArray[np.int64]:
        """The rows that are there."""
        return np.arange(len(self)) if self.alive is None else np.flatnonzero(self.alive)


@dataclass(frozen=True)
class Rows:
    """Rows to be written: the vectors as blocks (n, width), one after the other."""

    ids: Sequence[str]
    keys: NDArray[np.uint64]
    labels: Sequence[str]
    states: NDArray[np.uint8]
    blocks: Iterable[NDArray[Any]]
    width: int
    dtype: np.dtype[Any]


class Store:
    """The folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def exists(self) -> bool:
        """Whether there is a manifest."""
        return (self.folder / MANIFEST).is_file()

    def is_own(self) -> bool:
        """Whether nothing is in the folder but what indexes leave there."""
        own = {MANIFEST, PENDING, LOCK}
        return all(path.name in own or _OURS.fullmatch(path.name) for path in self.folder.iterdir())

    def generation(self) -> int:
        """A number that changes with the index."""
        return self.manifest().generation

    def manifest(self) -> Manifest:
        """What counts now."""
        path = self.folder / MANIFEST
        if not path.is_file():
            raise MissingFileError(f"{self.folder}: there is no index here; nearfar index RUN makes one")
        try:
            return Manifest.from_json(path.read_text(encoding="utf-8"))
        except RetrievalError as error:
            raise RetrievalError(f"{path}: {error}") from error
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise self.damaged(f"{path} cannot be read ({type(error).__name__}: {error})") from error

    def damaged(self, what: str) -> DamagedIndexError:
        """An error that says what to do."""
        return DamagedIndexError(
            f"the index is damaged: {what}. The images are not: remove {self.folder} and build it again, "
            "with nearfar index"
        )

    def segments(self, parts: Sequence[Part], opened: Mapping[str, Segment] | None = None) -> list[Segment]:
        """The rows of parts; of those that are open already with the same dead rows, as they are."""
        result = []
        for part in parts:
            have = (opened or {}).get(part.name)
            if have is not None and have.part == part:
                result.append(have)
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
        """Be the only one who changes the index; another process may be waited for, but not long."""
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
        """New rows, on the disk, that count once a manifest names them."""
        part = Part(uuid.uuid4().hex[:16], len(rows.ids), {})
        about = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False}
        path = part.path(self.folder, "vectors")
        with named_errors(path), path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {**about, "shape": (len(rows.ids), rows.width)})
            for block in rows.blocks:
                file.write(np.ascontiguousarray(block).data)  # `tofile` does not say why it cannot
        own, named = Texts.of(rows.ids), Texts.of(rows.labels)
        arrays: dict[str, Any] = {
            "ids": own.block,
            "id_ends": own.ends,
            "labels": named.block,
            "label_ends": named.ends,
        }
        path = part.path(self.folder, "rows")
        with named_errors(path), path.open("wb") as file:
            np.savez(file, states=rows.states, keys=rows.keys, **arrays)
        return self.with_sizes(part, "vectors", "rows")

    def with_sizes(self, part: Part, *endings: str) -> Part:
        """The part with these files too, once they are on the disk."""
        sizes = dict(part.files)
        for ending in endings:
            with part.path(self.folder, ending).open("rb") as file:
                os.fsync(file.fileno())
                sizes[ending] = os.fstat(file.fileno()).st_size
        return replace(part, files=sizes)

    def write_dead(self, part: Part, alive: NDArray[np.bool_], generation: int) -> Part:
        """The same part without the rows that are gone."""
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
        """From now on this counts."""
        write_file(self.folder / MANIFEST, manifest.to_json())

    def sweep(self, parts: Sequence[Part]) -> None:
        """Remove files of segments that neither these parts nor a pending change name."""
        kept: set[str] = set()
        for part in [*parts, *self.pending()[1]]:
            kept |= {f"{part.name}.{ending}" for ending in (*part.files, part.dead) if ending}
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in kept:
                with contextlib.suppress(OSError):  # it costs room, no more
                    path.unlink()

    def pending(self) -> tuple[str, tuple[Part, ...]]:
        """The segments of a change that is not complete, and what they are rows of; none if that cannot be told."""
        try:
            values = json.loads((self.folder / PENDING).read_text(encoding="utf-8"))
            return str(values["of"]), tuple(Part.from_dict(part) for part in values["parts"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", ()

    def write_pending(self, of: str, parts: Sequence[Part]) -> None:
        """Take note of segments, so that a change which is interrupted can go on."""
        if not parts:
            (self.folder / PENDING).unlink(missing_ok=True)
            return
        write_file(self.folder / PENDING, json.dumps({"of": of, "parts": [part.to_dict() for part in parts]}))


def packed_states(states: Sequence[str]) -> NDArray[np.uint8]:
    """(n, 16) digests of states; "" becomes zeros, which no state is."""
    digests = (
        hashlib.blake2b(state.encode("utf-8", "surrogateescape"), digest_size=STATE_BYTES).digest()
        if state
        else bytes(STATE_BYTES)
        for state in states
    )
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, STATE_BYTES)
