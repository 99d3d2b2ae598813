"""Changes of an index in a folder: written aside, and made to count together.

What is put gathers in memory, goes to the disk as a segment every now and then, and is named in pending.json: a build
of hours that is interrupted finds there, the next time, what it has embedded already.
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

SPILL_BYTES = 2**25  # of vectors held in memory
SPILL_SECONDS = 20.0  # of work that an interruption may cost
BLOCK = 4096  # rows prepared at a time
MOST_SEGMENTS = 8  # beside those with a structure; more are merged,
KEPT_SEGMENTS = 4  # but for the largest ones


class Held(NamedTuple):
    """Rows in memory, as they will be written."""

    ids: Sequence[str]
    vectors: NDArray[Any]
    labels: Sequence[str]
    states: NDArray[np.uint8]


class FaissChange:
    """Changes that are made together; see `nearfar.retrieval.index.Change`."""

    def __init__(self, store: Store, manifest: Manifest, segments: Sequence[Segment]):
        self._store, self._manifest = store, manifest
        self._segments = list(segments)  # those of the manifest first, then new ones
        self._alive = {segment.part.name: segment.alive for segment in segments}
        self._spilled: list[Part] = []
        self._held: list[Held] = []
        self._held_ids: set[str] = set()
        self._since = time.monotonic()
        self._compact = self._looked = False
        self._of = f"{manifest.about.model} {manifest.about.similarity} {manifest.about.dimension}"
        of, parts = store.pending()
        self._left_parts = parts if of == self._of else ()
        self._left = _readable(store, self._left_parts)

    @property
    def _about(self) -> About:
        return self._manifest.about

    # What is asked for

    def put(
        self,
        ids: Sequence[str],
        vectors: Floats,
        labels: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
    ) -> None:
        """Add images, or replace those that are there."""
        labels, states = labels or [""] * len(ids), states or [""] * len(ids)
        given = checked(vectors, self._about.dimension, "vectors")
        if not len(ids) == len(given) == len(labels) == len(states):
            raise RetrievalError(
                f"there must be a vector, a label and a state for each id: {len(given)}, {len(labels)} and "
                f"{len(states)} for {len(ids)}"
            )
        if len(set(ids)) < len(ids):
            raise RetrievalError("ids must differ from each other within one call of put")
        digests = packed_states(states)
        blocks = (self._prepared(given[start : start + BLOCK]) for start in range(0, len(given), BLOCK))
        if given.nbytes >= SPILL_BYTES:
            self._spill()
            self._add(ids, labels, digests, blocks)
        else:
            self._hold(Held(list(ids), np.concatenate([*blocks, self._none]), list(labels), digests))

    def remove(self, ids: Sequence[str]) -> int:
        """Take images out; how many were there."""
        if not self._held_ids.isdisjoint(ids):
            self._spill()
        different = list(dict.fromkeys(ids))
        return self._bury(different, hashed(different))

    def known(self, ids: Sequence[str], states: Sequence[str], labels: Sequence[str]) -> NDArray[np.bool_]:
        """Which of these need not be put."""
        self._looked = True
        digests, keys = packed_states(states), hashed(ids)
        result = np.zeros(len(ids), np.bool_)
        for segment in [*self._segments, *self._left]:
            left = segment not in self._segments
            places = self._places(segment, ids, keys)
            same = (places >= 0) & ~result
            same[same] = (segment.states[places[same]] == digests[same]).all(1) & digests[same].any(1)
            result |= same
            numbers = np.flatnonzero(same).tolist()
            moved = [number for number in numbers if left or segment.labels[int(places[number])] != labels[number]]
            if moved:
                vectors = np.asarray(segment.vectors[places[moved]])
                self._hold(Held([ids[n] for n in moved], vectors, [labels[n] for n in moved], digests[moved]))
        return result

    def set_threshold(self, threshold: Mapping[str, Any] | None) -> None:
        """Store a threshold with the index."""
        self._manifest = replace(self._manifest, about=replace(self._about, threshold=threshold))

    def compact(self, kind: Kind) -> None:
        """When the change is complete, be one segment of this kind."""
        self._manifest = replace(self._manifest, about=replace(self._about, kind=kind))
        self._compact = True

    # How it is done

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
        if not self._held_ids.isdisjoint(held.ids):  # a segment has every id once
            self._spill()
        self._held.append(held)
        self._held_ids.update(held.ids)
        full = len(self._held_ids) * self._width * self._dtype.itemsize >= SPILL_BYTES
        if full or time.monotonic() - self._since > SPILL_SECONDS:
            self._spill()

    def _spill(self) -> None:
        """Put what is held in memory on the disk."""
        held, self._held, self._held_ids = self._held, [], set()
        if held:
            ids, labels = ([word for part in held for word in part[column]] for column in (0, 2))
            self._add(ids, labels, np.concatenate([part.states for part in held]), (part.vectors for part in held))
        self._since = time.monotonic()

    def _add(
        self, ids: Sequence[str], labels: Sequence[str], states: NDArray[np.uint8], blocks: Iterable[NDArray[Any]]
    ) -> None:
        """A new segment, whose images are gone from those before."""
        if not ids:
            return
        keys = hashed(ids)
        part = self._store.write_segment(Rows(ids, keys, labels, states, blocks, self._width, self._dtype))
        self._bury(ids, keys)
        self._spilled.append(part)
        self._store.write_pending(self._of, [*self._left_parts, *self._spilled])
        self._segments.append(self._store.segments([part])[0])
        self._alive[part.name] = None

    def _places(self, segment: Segment, ids: Sequence[str], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """As `Segment.places`, without what this change has taken out."""
        places = segment.places(ids, keys)
        alive = self._alive.get(segment.part.name)
        return places if alive is None else np.where((places >= 0) & alive[places], places, -1)

    def _bury(self, ids: Sequence[str], keys: NDArray[np.uint64]) -> int:
        """Take rows out of the segments; how many there were."""
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
        """Make everything count."""
        self._spill()
        generation = self._manifest.generation + 1
        living = [segment for segment in self._segments if self._count(segment)]
        build = self._to_build(living)
        parts: list[Part] = []
        for group in self._grouped(living, self._compact or build):
            if len(group) > 1 or self._compact or build or self._mostly_dead(group[0]):
                parts.append(self._merged(group, self._compact or build))
            else:
                parts.append(self._as_it_is(group[0], generation))
        self._store.commit(replace(self._manifest, parts=tuple(parts), generation=generation))
        # It counts now. What cannot be cleared away costs room, and the next change clears it away.
        with contextlib.suppress(OSError):
            # What a build has left that nobody has looked at stays: that build may still go on.
            self._store.write_pending(self._of, () if self._looked else self._left_parts)
            self._store.sweep(parts)

    def _as_it_is(self, segment: Segment, generation: int) -> Part:
        alive = self._alive[segment.part.name]
        if alive is None or (segment.alive is not None and np.array_equal(alive, segment.alive)):
            return segment.part
        return self._store.write_dead(segment.part, alive, generation)

    def close(self) -> None:
        """Let go of files; what is pending stays for the next time."""
        self._segments, self._left, self._held, self._held_ids = [], [], [], set()

    # Which segments become one

    def _count(self, segment: Segment) -> int:
        alive = self._alive[segment.part.name]
        return len(segment) if alive is None else int(np.count_nonzero(alive))

    def _mostly_dead(self, segment: Segment) -> bool:
        return self._count(segment) < len(segment) / 2

    def _built(self, segment: Segment) -> bool:
        return self._about.kind in segment.part.files

    def _grouped(self, living: Sequence[Segment], together: bool) -> list[Sequence[Segment]]:
        """The segments, those together that are to be one."""
        if together:
            return [living] if living else []
        heavy = [segment for segment in living if self._built(segment)]
        light = sorted((s for s in living if not self._built(s)), key=self._count, reverse=True)
        if len(light) > MOST_SEGMENTS:
            return [*([segment] for segment in heavy + light[:KEPT_SEGMENTS]), light[KEPT_SEGMENTS:]]
        return [[segment] for segment in heavy + light]

    def _to_build(self, living: Sequence[Segment]) -> bool:
        """Whether it is time for a structure: more rows are without one than with one, or most of its own are gone."""
        if self._about.kind == "exact":
            return False
        total = sum(map(self._count, living))
        built = [segment for segment in living if self._built(segment)]
        few = total > 2 * sum(map(self._count, built))
        return (few and total >= structures.SMALLEST[self._about.kind]) or any(map(self._mostly_dead, built))

    def _merged(self, group: Sequence[Segment], build: bool) -> Part:
        """One segment of the living rows of several; with a structure, if it is to have one and is large enough."""
        rows = [(segment, self._rows(segment)) for segment in group]
        ids = [name for segment, own in rows for name in segment.ids.take(own.tolist())]
        labels = [name for segment, own in rows for name in segment.labels.take(own.tolist())]
        states = np.concatenate([segment.states[own] for segment, own in rows])

        def blocks() -> Iterator[NDArray[Any]]:
            for segment, own in rows:
                for start in range(0, len(own), BLOCK):
                    yield segment.vectors[own[start : start + BLOCK]]

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
    """What an interrupted change has left, where it can still be read."""
    try:
        return store.segments(parts)
    except (RetrievalError, OSError):
        return []
