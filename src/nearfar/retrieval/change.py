"""Changes of an index in a folder, which become visible together.

New rows are collected in memory, regularly written to the disk as a segment, and listed in pending.json, so that an
interrupted build can continue with what it has embedded.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nearfar.retrieval import structures
from nearfar.retrieval.index import About, Floats, Kind, RetrievalError
from nearfar.retrieval.store import Manifest, Part, Rows, Segment, Store, packed_states
from nearfar.retrieval.texts import hashed
from nearfar.retrieval.vectors import checked, packed, unit

SPILL_BYTES = 2**25  # size of the vectors held in memory
SPILL_SECONDS = 20.0  # the most work that an interruption may lose
BLOCK = 4096  # rows prepared at a time
MOST_SEGMENTS = 8  # without an approximate structure; more are merged,
KEPT_SEGMENTS = 4  # except the largest ones


class Held(NamedTuple):
    """Rows in memory, in the format in which they are written."""

    ids: Sequence[str]
    vectors: NDArray[Any]
    labels: Sequence[str]
    states: NDArray[np.uint8]


class FaissChange:
    """Changes of an index in a folder; see `nearfar.retrieval.index.Change`."""

    def __init__(self, store: Store, manifest: Manifest, segments: Sequence[Segment]):
        self._store, self._manifest = store, manifest
        self._segments = list(segments)  # of the manifest, then new ones
        self._alive = {segment.part.name: segment.alive for segment in segments}
        self._spilled: list[Part] = []
        self._held: list[Held] = []
        self._held_ids: set[str] = set()
        self._last_spill = time.monotonic()
        self._compact = self._resumed = False
        self._of = f"{manifest.about.model} {manifest.about.similarity} {manifest.about.dimension}"
        of, parts = store.pending()
        self._pending_parts = parts if of == self._of else ()
        self._pending = _readable(store, self._pending_parts)

    @property
    def _about(self) -> About:
        return self._manifest.about

    # The interface

    def put(
        self,
        ids: Sequence[str],
        vectors: Floats,
        labels: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
    ) -> None:
        """Add images, or replace existing ones."""
        labels, states = labels or [""] * len(ids), states or [""] * len(ids)
        array = checked(vectors, self._about.dimension, "vectors")
        if not len(ids) == len(array) == len(labels) == len(states):
            raise RetrievalError(
                f"there must be a vector, a label and a state for each id: {len(array)}, {len(labels)} and "
                f"{len(states)} for {len(ids)}"
            )
        if len(set(ids)) < len(ids):
            raise RetrievalError("the ids of one call of put must be distinct")
        digests = packed_states(states)
        blocks = (self._prepared(array[start : start + BLOCK]) for start in range(0, len(array), BLOCK))
        if array.nbytes >= SPILL_BYTES:
            self._spill()
            self._add(ids, labels, digests, blocks)
        else:
            self._hold(Held(list(ids), np.concatenate([*blocks, self._none]), list(labels), digests))

    def remove(self, ids: Sequence[str]) -> int:
        """Remove images. Returns the number of those that existed."""
        if not self._held_ids.isdisjoint(ids):
            self._spill()
        unique = list(dict.fromkeys(ids))
        return self._delete(unique, hashed(unique))

    def known(self, ids: Sequence[str], states: Sequence[str], labels: Sequence[str]) -> NDArray[np.bool_]:
        """(N,) whether each image is unchanged and need not be put."""
        self._resumed = True
        digests, keys = packed_states(states), hashed(ids)
        result = np.zeros(len(ids), np.bool_)
        for segment in [*self._segments, *self._pending]:
            pending = segment not in self._segments
            places = self._places(segment, ids, keys)
            same = (places >= 0) & ~result
            same[same] = (segment.states[places[same]] == digests[same]).all(1) & digests[same].any(1)
            result |= same
            numbers = np.flatnonzero(same).tolist()
            moved = [number for number in numbers if pending or segment.labels[int(places[number])] != labels[number]]
            if moved:
                vectors = np.asarray(segment.vectors[places[moved]])
                self._hold(Held([ids[n] for n in moved], vectors, [labels[n] for n in moved], digests[moved]))
        return result

    def set_threshold(self, threshold: Mapping[str, Any] | None) -> None:
        """Store a threshold with the index."""
        self._manifest = replace(self._manifest, about=replace(self._about, threshold=threshold))

    def compact(self, kind: Kind) -> None:
        """Merge all segments into one of this kind when the change is complete."""
        self._manifest = replace(self._manifest, about=replace(self._about, kind=kind))
        self._compact = True

    # Implementation

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self._about.similarity == "hamming" else np.float32)

    @property
    def _width(self) -> int:
        return -(-self._about.dimension // 8) if self._about.similarity == "hamming" else self._about.dimension

    def _prepared(self, vectors: Floats) -> NDArray[Any]:
        return packed(vectors) if self._about.similarity == "hamming" else unit(vectors)

    @property
    def _none(self) -> NDArray[Any]:
        return np.empty((0, self._width), self._dtype)

    def _hold(self, held: Held) -> None:
        if not self._held_ids.isdisjoint(held.ids):  # ids in a segment are distinct
            self._spill()
        self._held.append(held)
        self._held_ids.update(held.ids)
        full = len(self._held_ids) * self._width * self._dtype.itemsize >= SPILL_BYTES
        if full or time.monotonic() - self._last_spill > SPILL_SECONDS:
            self._spill()

    def _spill(self) -> None:
        """Write the rows in memory to the disk."""
        held, self._held, self._held_ids = self._held, [], set()
        if held:
            ids, labels = ([text for part in held for text in part[column]] for column in (0, 2))
            self._add(ids, labels, np.concatenate([part.states for part in held]), (part.vectors for part in held))
        self._last_spill = time.monotonic()

    def _add(
        self, ids: Sequence[str], labels: Sequence[str], states: NDArray[np.uint8], blocks: Iterable[NDArray[Any]]
    ) -> None:
        """Write a new segment and delete its images from earlier ones."""
        if not ids:
            return
        keys = hashed(ids)
        part = self._store.write_segment(Rows(ids, keys, labels, states, blocks, self._width, self._dtype))
        self._delete(ids, keys)
        self._spilled.append(part)
        self._store.write_pending(self._of, [*self._pending_parts, *self._spilled])
        self._segments.append(self._store.segments([part])[0])
        self._alive[part.name] = None

    def _places(self, segment: Segment, ids: Sequence[str], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """As `Segment.places`, without the rows that this change has deleted."""
        places = segment.places(ids, keys)
        alive = self._alive.get(segment.part.name)
        return places if alive is None else np.where((places >= 0) & alive[places], places, -1)

    def _delete(self, ids: Sequence[str], keys: NDArray[np.uint64]) -> int:
        """Mark the rows of images as deleted. Returns their number."""
        count = 0
        for segment in self._segments:
            places = self._places(segment, ids, keys)
            places = places[places >= 0]
            if len(places):
                alive = self._alive[segment.part.name]
                alive = np.ones(len(segment), np.bool_) if alive is None else alive.copy()
                alive[places] = False
                self._alive[segment.part.name] = alive
                count += len(places)
        return count

    def finish(self) -> None:
        """Commit the change."""
        self._spill()
        generation = self._manifest.generation + 1
        living = [segment for segment in self._segments if self._count(segment)]
        build = self._to_build(living)
        parts: list[Part] = []
        for group in self._grouped(living, self._compact or build):
            if len(group) > 1 or self._compact or build or self._mostly_dead(group[0]):
                parts.append(self._merged(group, self._compact or build))
            else:
                parts.append(self._unmerged(group[0], generation))
        self._store.commit(replace(self._manifest, parts=tuple(parts), generation=generation))
        # The change is committed. Files that cannot be removed now are removed by the next change.
        with contextlib.suppress(OSError):
            # Pending segments of an interrupted build that this change has not resumed are kept for it.
            self._store.write_pending(self._of, () if self._resumed else self._pending_parts)
            self._store.sweep(parts)

    def _unmerged(self, segment: Segment, generation: int) -> Part:
        alive = self._alive[segment.part.name]
        if alive is None or (segment.alive is not None and np.array_equal(alive, segment.alive)):
            return segment.part
        return self._store.write_dead(segment.part, alive, generation)

    def close(self) -> None:
        """Close files. Pending segments are kept for the next change."""
        self._segments, self._pending, self._held, self._held_ids = [], [], [], set()

    # Merging of segments

    def _count(self, segment: Segment) -> int:
        alive = self._alive[segment.part.name]
        return len(segment) if alive is None else int(np.count_nonzero(alive))

    def _mostly_dead(self, segment: Segment) -> bool:
        return self._count(segment) < len(segment) / 2

    def _built(self, segment: Segment) -> bool:
        return self._about.kind in segment.part.files

    def _grouped(self, living: Sequence[Segment], together: bool) -> list[Sequence[Segment]]:
        """Groups of segments, each of which is merged into one."""
        if together:
            return [living] if living else []
        heavy = [segment for segment in living if self._built(segment)]
        light = sorted((s for s in living if not self._built(s)), key=self._count, reverse=True)
        if len(light) > MOST_SEGMENTS:
            return [*([segment] for segment in heavy + light[:KEPT_SEGMENTS]), light[KEPT_SEGMENTS:]]
        return [[segment] for segment in heavy + light]

    def _to_build(self, living: Sequence[Segment]) -> bool:
        """Whether to build a structure: most rows are outside of the existing ones, or one has mostly deleted rows."""
        if self._about.kind == "exact":
            return False
        total = sum(map(self._count, living))
        built = [segment for segment in living if self._built(segment)]
        few = total > 2 * sum(map(self._count, built))
        return (few and total >= structures.SMALLEST[self._about.kind]) or any(map(self._mostly_dead, built))

    def _merged(self, group: Sequence[Segment], build: bool) -> Part:
        """Merge segments without their deleted rows, with a structure if `build` is set and there are enough rows."""
        living = [(segment, self._rows(segment)) for segment in group]
        ids = [name for segment, rows in living for name in segment.ids.take(rows.tolist())]
        labels = [name for segment, rows in living for name in segment.labels.take(rows.tolist())]
        states = np.concatenate([segment.states[rows] for segment, rows in living])

        def blocks() -> Iterator[NDArray[Any]]:
            for segment, rows in living:
                for start in range(0, len(rows), BLOCK):
                    yield segment.vectors[rows[start : start + BLOCK]]

        part = self._store.write_segment(Rows(ids, hashed(ids), labels, states, blocks(), self._width, self._dtype))
        kind = self._about.kind
        if build and kind != "exact" and len(ids) >= structures.SMALLEST[kind]:
            structures.build(kind, self._store.segments([part])[0].vectors, part.path(self._store.folder, kind))
            part = self._store.with_sizes(part, kind)
        return part

    def _rows(self, segment: Segment) -> NDArray[np.int64]:
        alive = self._alive[segment.part.name]
        return np.arange(len(segment)) if alive is None else np.flatnonzero(alive)


def _readable(store: Store, parts: Sequence[Part]) -> list[Segment]:
    """The segments of an interrupted change, or none if they cannot be read."""
    try:
        return store.segments(parts)
    except (RetrievalError, OSError):
        return []
