"""An index in a folder, searched by FAISS: see store.py for the folder, change.py for how it is changed."""

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

ROWS_AT_A_TIME = 4096  # of `pieces`
ATTEMPTS = 20  # to read a manifest and its files while others change them


@dataclass(frozen=True)
class Snapshot:
    """The index as one manifest has it; it stays so whatever is changed."""

    manifest: Manifest
    segments: list[Segment]
    structures: dict[str, Any] = field(default_factory=dict)  # by the name of the segment

    def locate(self, ids: Sequence[str]) -> list[tuple[Segment, int]]:
        """Where these images are."""
        keys = hashed(ids)
        found: dict[int, tuple[Segment, int]] = {}
        for segment in self.segments:
            places = segment.places(ids, keys)
            found |= {number: (segment, int(places[number])) for number in np.flatnonzero(places >= 0).tolist()}
        for number, name in enumerate(ids):
            if number not in found:
                raise UnknownNameError(f"there is no image {name} in the index")
        return [found[number] for number in range(len(ids))]


class FaissIndex:
    """An index in a folder; see `nearfar.retrieval.index.Index` for what it can do."""

    def __init__(self, store: Store, snapshot: Snapshot, fresh: bool):
        self._store, self._snapshot, self._fresh = store, snapshot, fresh
        self._refreshing = threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> "FaissIndex":
        """One that exists."""
        store = Store(folder)
        return cls(store, _snapshot(store, None), fresh=False)

    @classmethod
    def make(cls, folder: Path, about: About, *, replace: bool = False) -> "FaissIndex":
        """A new one, which is on the disk once its first change is complete."""
        store = Store(folder)
        if store.exists() and not replace:
            raise RetrievalError(f"{folder} holds an index already: open it, or replace it")
        if folder.exists() and not folder.is_dir():
            raise RetrievalError(f"{folder} is a file: an index is a folder")
        if folder.is_dir() and not store.is_own():
            raise RetrievalError(f"{folder} holds other files: choose a folder that is new or empty for the index")
        return cls(store, Snapshot(Manifest(about), []), fresh=True)

    @property
    def where(self) -> str:
        """The folder."""
        return str(self._store.folder)

    @property
    def about(self) -> About:
        """What it is."""
        return self._snapshot.manifest.about

    def __len__(self) -> int:
        return self._snapshot.manifest.count

    def check(self, model: str) -> None:
        """Refuse another model."""
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
        """Similarities, segments and rows, each (Q, k'), and the segments meant; rows are -1 where there is no more."""
        snapshot = self._snapshot
        about = snapshot.manifest.about
        given = checked(vectors, about.dimension, "queries")
        if k < 1:
            raise RetrievalError(f"k must be at least 1, not {k}")
        queries: NDArray[Any] = packed(given) if about.similarity == "hamming" else unit(given)
        similarities = [np.empty((len(queries), 0), np.float32)]
        rows = [np.empty((len(queries), 0), np.int64)]
        numbers = [np.empty((len(queries), 0), np.int64)]
        for number, segment in enumerate(snapshot.segments):
            found = _living(segment, snapshot.structures.get(segment.part.name), about, queries, k)
            similarities.append(found[0])
            rows.append(found[1])
            numbers.append(np.full(found[1].shape, number))
        best = np.concatenate(similarities, 1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(best, order, 1)
        chosen, of = (np.take_along_axis(np.concatenate(parts, 1), order, 1) for parts in (rows, numbers))
        return best, of, chosen, snapshot.segments

    # Looking up

    def __contains__(self, image: str) -> bool:
        keys = hashed([image])
        return any(segment.places([image], keys)[0] >= 0 for segment in self._snapshot.segments)

    def items(self, ids: Sequence[str]) -> list[Item]:
        """What is known of these images."""
        return [Item(segment.ids[row], segment.labels[row]) for segment, row in self._snapshot.locate(ids)]

    def vectors(self, ids: Sequence[str]) -> Floats:
        """Embeddings of these images."""
        snapshot = self._snapshot
        stored = [segment.vectors[row] for segment, row in snapshot.locate(ids)]
        return self._as_vectors(np.stack(stored)) if stored else np.empty((0, self.about.dimension), np.float32)

    def _as_vectors(self, stored: NDArray[Any]) -> Floats:
        if self.about.similarity == "hamming":
            return unpacked(stored, self.about.dimension)
        return np.asarray(stored, np.float32)

    def listed(self) -> Iterator[Item]:
        """Every image."""
        for segment in self._snapshot.segments:
            for row in segment.living().tolist():
                yield Item(segment.ids[row], segment.labels[row])

    def pieces(self) -> Iterator[tuple[list[str], Floats]]:
        """The ids and vectors of every image."""
        for segment in self._snapshot.segments:
            living = segment.living()
            for start in range(0, len(living), ROWS_AT_A_TIME):
                rows = living[start : start + ROWS_AT_A_TIME]
                yield segment.ids.take(rows.tolist()), self._as_vectors(segment.vectors[rows])

    # Changing

    @contextlib.contextmanager
    def change(self) -> Iterator[FaissChange]:
        """Changes that become visible together."""
        with self._store.locked():
            about = self.about
            if not self._fresh:
                self.refresh()
                model_checked(self.where, self.about, about.model)  # another may have replaced it
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
        """One segment; with `kind`, of that kind."""
        with self.change() as change:
            change.compact(kind or self.about.kind)

    def set_threshold(self, threshold: Mapping[str, Any] | None) -> None:
        """Store a threshold with the index."""
        with self.change() as change:
            change.set_threshold(threshold)

    def refresh(self) -> bool:
        """See what other processes have changed."""
        if self._fresh:
            return False
        with self._refreshing:
            if self._store.generation() == self._snapshot.manifest.generation:
                return False
            self._snapshot = _snapshot(self._store, self._snapshot)
            return True

    def close(self) -> None:
        """Let go of the files."""
        self._snapshot = Snapshot(self._snapshot.manifest, [])


def _snapshot(store: Store, before: Snapshot | None) -> Snapshot:
    """The index as it is now. Files of a manifest may be gone before they are opened: then there is a newer one."""
    opened = {} if before is None else {segment.part.name: segment for segment in before.segments}
    built = {} if before is None else before.structures
    missing: tuple[int, FileNotFoundError] | None = None
    for _ in range(ATTEMPTS):
        manifest = store.manifest()
        if missing is not None and missing[0] == manifest.generation:
            raise store.damaged(f"{missing[1].filename} is missing")
        try:
            segments = store.segments(manifest.parts, opened)
            found = {}
            for segment in segments:
                name, kind = segment.part.name, manifest.about.kind
                if kind in segment.part.files:
                    found[name] = built[name] if name in built else _structure(store, segment, kind)
            return Snapshot(manifest, segments, found)
        except FileNotFoundError as error:
            missing = manifest.generation, error
    raise RetrievalError(f"{store.folder} changes faster than it can be read: try again")


def _generation(store: Store) -> int:
    """Of an index that is to be replaced: the new one's follows it, so that readers see that there is another."""
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
            raise FileNotFoundError(2, "removed meanwhile", str(path)) from error
        raise store.damaged(f"{path} is no FAISS index") from error


def _living(segment: Segment, structure: Any, about: About, queries: NDArray[Any], k: int) -> structures.Found:
    """The nearest k of a segment that are alive: more are asked for where dead ones stand before them."""
    total, alive = len(segment), segment.alive
    wanted = min(k, total)
    similarities, rows = _found(segment, structure, about, queries, wanted)
    if alive is None:
        return similarities, rows
    enough = min(k, int(np.count_nonzero(alive)))
    best = np.full((len(queries), enough), -np.inf, np.float32)
    chosen = np.full((len(queries), enough), -1, np.int64)
    left = np.arange(len(queries))
    while True:
        there = (rows >= 0) & alive[rows]
        done = (there.sum(1) >= enough) | (wanted == total)
        order = np.argsort(~there[done], axis=1, kind="stable")[:, :enough]  # the living first, in their order
        kept = np.take_along_axis(there[done], order, 1)
        best[left[done]] = np.where(kept, np.take_along_axis(similarities[done], order, 1), -np.inf)
        chosen[left[done]] = np.where(kept, np.take_along_axis(rows[done], order, 1), -1)
        left = left[~done]
        if not len(left):
            return best, chosen
        wanted = min(total, 4 * wanted)
        similarities, rows = _found(segment, structure, about, queries[left], wanted)


def _found(segment: Segment, structure: Any, about: About, queries: NDArray[Any], k: int) -> structures.Found:
    if about.similarity == "hamming":
        return structures.find_codes(segment.vectors, queries, k, about.dimension)
    if structure is None:
        return structures.find_exactly(segment.vectors, queries, k)
    return structures.find(about.kind, structure, segment.vectors, queries, k)
