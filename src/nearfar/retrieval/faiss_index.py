"""An index in a folder, searched by FAISS. store.py defines the folder, change.py its changes."""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import UnknownNameError
from nearfar.retrieval import structures
from nearfar.retrieval.change import FaissChange
from nearfar.retrieval.index import About, Floats, Hit, Item, Kind, RetrievalError
from nearfar.retrieval.store import Manifest, Segment, Store
from nearfar.retrieval.texts import hashed
from nearfar.retrieval.vectors import checked, model_checked, packed, unit, unpacked

ROWS_AT_A_TIME = 4096  # rows of each of `pieces`
ATTEMPTS = 20  # to read the manifest and its files while other processes change them


@dataclass(frozen=True)
class Snapshot:
    """The state of the index in one manifest. Later changes do not affect it."""

    manifest: Manifest
    segments: list[Segment]
    structures: dict[str, Any] = field(default_factory=dict)  # by the name of the segment

    def locate(self, ids: Sequence[str]) -> list[tuple[Segment, int]]:
        """The segments and rows of images."""
        keys = hashed(ids)
        locations: dict[int, tuple[Segment, int]] = {}
        for segment in self.segments:
            places = segment.places(ids, keys)
            locations |= {number: (segment, int(places[number])) for number in np.flatnonzero(places >= 0).tolist()}
        for number, name in enumerate(ids):
            if number not in locations:
                raise UnknownNameError(f"there is no image {name} in the index")
        return [locations[number] for number in range(len(ids))]


class FaissIndex:
    """An index in a folder; see `nearfar.retrieval.index.Index`."""

    def __init__(self, store: Store, snapshot: Snapshot, fresh: bool):
        self._store, self._snapshot, self._fresh = store, snapshot, fresh
        self._refreshing = threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> "FaissIndex":
        """Open an existing index."""
        store = Store(folder)
        return cls(store, _snapshot(store, None), fresh=False)

    @classmethod
    def make(cls, folder: Path, about: About, *, replace: bool = False) -> "FaissIndex":
        """Make a new index. It is written to the disk by its first change."""
        store = Store(folder)
        if store.exists() and not replace:
            raise RetrievalError(f"{folder} already has an index: open it, or replace it")
        if folder.exists() and not folder.is_dir():
            raise RetrievalError(f"{folder} is a file: give a folder for the index")
        if folder.is_dir() and not store.is_own():
            raise RetrievalError(f"{folder} has other files: give a new or empty folder for the index")
        return cls(store, Snapshot(Manifest(about), []), fresh=True)

    @property
    def where(self) -> str:
        """The path of the folder."""
        return str(self._store.folder)

    @property
    def about(self) -> About:
        """The description of the index."""
        return self._snapshot.manifest.about

    def __len__(self) -> int:
        return self._snapshot.manifest.count

    def check(self, model: str) -> None:
        """Raise `WrongModelError` unless the index belongs to this model."""
        model_checked(self.where, self.about, model)

    # Searching

    def search(self, vectors: Floats, k: int = 10, *, threshold: float | None = None) -> list[list[Hit]]:
        """The nearest images of every query."""
        similarities, segments, rows, opened = self._nearest(vectors, k)
        result = []
        for query in range(len(similarities)):
            hits = []
            for similarity, number, row in zip(similarities[query], segments[query], rows[query], strict=True):
                if row < 0 or (threshold is not None and similarity < threshold):
                    break
                segment = opened[number]
                hits.append(Hit(segment.ids[row], segment.labels[row], float(similarity)))
            result.append(hits)
        return result

    def _nearest(
        self, vectors: Floats, k: int
    ) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64], Sequence[Segment]]:
        """Similarities, segment numbers and rows, each (Q, k') and padded with rows of -1, and the segments."""
        snapshot = self._snapshot
        about = snapshot.manifest.about
        array = checked(vectors, about.dimension, "queries")
        if k < 1:
            raise RetrievalError(f"k must be at least 1, not {k}")
        queries: NDArray[Any] = packed(array) if about.similarity == "hamming" else unit(array)
        similarities = [np.empty((len(queries), 0), np.float32)]
        rows = [np.empty((len(queries), 0), np.int64)]
        numbers = [np.empty((len(queries), 0), np.int64)]
        for number, segment in enumerate(snapshot.segments):
            nearest = _living(segment, snapshot.structures.get(segment.part.name), about, queries, k)
            similarities.append(nearest[0])
            rows.append(nearest[1])
            numbers.append(np.full(nearest[1].shape, number))
        best = np.concatenate(similarities, 1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(best, order, 1)
        best_rows, best_numbers = (np.take_along_axis(np.concatenate(parts, 1), order, 1) for parts in (rows, numbers))
        return best, best_numbers, best_rows, snapshot.segments

    # Lookup

    def __contains__(self, image: str) -> bool:
        keys = hashed([image])
        return any(segment.places([image], keys)[0] >= 0 for segment in self._snapshot.segments)

    def items(self, ids: Sequence[str]) -> list[Item]:
        """The items of some images."""
        return [Item(segment.ids[row], segment.labels[row]) for segment, row in self._snapshot.locate(ids)]

    def vectors(self, ids: Sequence[str]) -> Floats:
        """The embeddings of some images."""
        snapshot = self._snapshot
        stored = [segment.vectors[row] for segment, row in snapshot.locate(ids)]
        return self._as_vectors(np.stack(stored)) if stored else np.empty((0, self.about.dimension), np.float32)

    def _as_vectors(self, stored: NDArray[Any]) -> Floats:
        if self.about.similarity == "hamming":
            return unpacked(stored, self.about.dimension)
        return np.asarray(stored, np.float32)

    def listed(self) -> Iterator[Item]:
        """Yield the items of all images."""
        for segment in self._snapshot.segments:
            for row in segment.living().tolist():
                yield Item(segment.ids[row], segment.labels[row])

    def pieces(self) -> Iterator[tuple[list[str], Floats]]:
        """Yield the ids and vectors of all images."""
        for segment in self._snapshot.segments:
            living = segment.living()
            for start in range(0, len(living), ROWS_AT_A_TIME):
                rows = living[start : start + ROWS_AT_A_TIME]
                yield segment.ids.take(rows.tolist()), self._as_vectors(segment.vectors[rows])

    # Changing

    @contextlib.contextmanager
    def change(self) -> Iterator[FaissChange]:
        """Yield a change, which becomes visible when the block ends."""
        with self._store.locked():
            about = self.about
            if not self._fresh:
                self.refresh()
                model_checked(self.where, self.about, about.model)  # another process may have replaced it
            elif self._store.exists():
                manifest = replace(self._snapshot.manifest, generation=_generation(self._store))
                self._snapshot = replace(self._snapshot, manifest=manifest)
            change = FaissChange(self._store, self._snapshot.manifest, self._snapshot.segments)
            try:
                yield change
                change.finish()
            finally:
                change.close()
            self._fresh = False
            self.refresh()

    def compact(self, kind: Kind | None = None) -> None:
        """Merge all segments into one, optionally of another kind."""
        with self.change() as change:
            change.compact(kind or self.about.kind)

    def set_threshold(self, threshold: Mapping[str, Any] | None) -> None:
        """Store a threshold with the index."""
        with self.change() as change:
            change.set_threshold(threshold)

    def refresh(self) -> bool:
        """Read the changes of other processes. Returns whether there are any."""
        if self._fresh:
            return False
        with self._refreshing:
            if self._store.generation() == self._snapshot.manifest.generation:
                return False
            self._snapshot = _snapshot(self._store, self._snapshot)
            return True

    def close(self) -> None:
        """Close the files."""
        self._snapshot = Snapshot(self._snapshot.manifest, [])


def _snapshot(store: Store, before: Snapshot | None) -> Snapshot:
    """Read the current state. If files are removed before they are opened, there is a newer manifest to read."""
    opened = {} if before is None else {segment.part.name: segment for segment in before.segments}
    built = {} if before is None else before.structures
    missing: tuple[int, FileNotFoundError] | None = None
    for _ in range(ATTEMPTS):
        manifest = store.manifest()
        if missing is not None and missing[0] == manifest.generation:
            raise store.damaged(f"{missing[1].filename} is missing")
        try:
            segments = store.segments(manifest.parts, opened)
            current = {}
            for segment in segments:
                name, kind = segment.part.name, manifest.about.kind
                if kind in segment.part.files:
                    current[name] = built[name] if name in built else _structure(store, segment, kind)
            return Snapshot(manifest, segments, current)
        except FileNotFoundError as error:
            missing = manifest.generation, error
    raise RetrievalError(f"{store.folder} changes too often to be read: try again")


def _generation(store: Store) -> int:
    """The generation of an index that is replaced. The new one continues it, so that readers notice the change."""
    try:
        return store.generation()
    except RetrievalError:  # damaged
        return time.time_ns() // 1_000_000


def _structure(store: Store, segment: Segment, kind: Kind) -> Any:
    path = segment.part.path(store.folder, kind)
    try:
        return structures.read(path)
    except RuntimeError as error:
        if not path.exists():
            raise FileNotFoundError(2, "removed by another process", str(path)) from error
        raise store.damaged(f"{path} is not a FAISS index") from error


def _living(segment: Segment, structure: Any, about: About, queries: NDArray[Any], k: int) -> structures.Found:
    """The nearest k rows of a segment that are not deleted. Searches more rows until there are enough."""
    total, alive = len(segment), segment.alive
    wanted = min(k, total)
    similarities, rows = _search_segment(segment, structure, about, queries, wanted)
    if alive is None:
        return similarities, rows
    enough = min(k, int(np.count_nonzero(alive)))
    best = np.full((len(queries), enough), -np.inf, np.float32)
    chosen = np.full((len(queries), enough), -1, np.int64)
    remaining = np.arange(len(queries))
    while True:
        living = (rows >= 0) & alive[rows]
        done = (living.sum(1) >= enough) | (wanted == total)
        order = np.argsort(~living[done], axis=1, kind="stable")[:, :enough]  # living rows first, in their order
        kept = np.take_along_axis(living[done], order, 1)
        best[remaining[done]] = np.where(kept, np.take_along_axis(similarities[done], order, 1), -np.inf)
        chosen[remaining[done]] = np.where(kept, np.take_along_axis(rows[done], order, 1), -1)
        remaining = remaining[~done]
        if not len(remaining):
            return best, chosen
        wanted = min(total, 4 * wanted)
        similarities, rows = _search_segment(segment, structure, about, queries[remaining], wanted)


def _search_segment(segment: Segment, structure: Any, about: About, queries: NDArray[Any], k: int) -> structures.Found:
    if about.similarity == "hamming":
        return structures.find_codes(segment.vectors, queries, k, about.dimension)
    if structure is None:
        return structures.find_exactly(segment.vectors, queries, k)
    return structures.find(about.kind, structure, segment.vectors, queries, k)
