"""An index in a folder against a dictionary: whatever is done to it, in whichever order, it holds what the dictionary
holds. `NEARFAR_LONG=1` tries hundreds of orders.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nearfar.retrieval import change as changing
from nearfar.retrieval import structures
from nearfar.retrieval.index import About, Index, RetrievalError, WrongModelError, index_exists, make_index, open_index

LONG = bool(os.environ.get("NEARFAR_LONG"))
DIMENSION = 5  # of codes, not a whole byte
IDS = [f"photos/{number}.jpg" for number in range(10)] + ["", "a b", "фото\n.jpg"]
# Small enough that a few images are spilled to the disk, merged, and built into a graph; so few are found exactly by it.
SMALL = [(changing, "SPILL_BYTES", 60), (changing, "MOST_SEGMENTS", 3), (changing, "KEPT_SEGMENTS", 1),
         (structures, "SMALLEST", {"hnsw": 6, "ivfpq": 10**9})]  # fmt: skip


class Kept(NamedTuple):
    """An image of the dictionary; its vector is a function of its name and version alone."""

    version: int
    label: str


def vector(name: str, version: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(f"{version} {name}".encode()).digest()[:8], "little")
    return np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)


def similarity(query: np.ndarray, other: np.ndarray, kind: str) -> float:
    if kind == "hamming":
        return 1 - 2 * sum((a > 0) != (b > 0) for a, b in zip(query, other, strict=True)) / DIMENSION
    return float(query @ other / (np.linalg.norm(query) * np.linalg.norm(other)))


images = st.dictionaries(
    st.sampled_from(IDS), st.builds(Kept, st.integers(0, 2), st.sampled_from(["cat", "dog", ""])), max_size=6
)
removed = st.lists(st.sampled_from([*IDS, "nowhere"]), max_size=5)
changes = st.lists(st.one_of(images, removed), min_size=1, max_size=4)


class AbandonedError(Exception):
    """What ends a change that is not to count."""


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module, name, value in SMALL:
            self.patch.setattr(module, name, value)
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "index"
        self.kept: dict[str, Kept] = {}
        self.threshold: dict[str, float] | None = None
        self.seen: tuple[Index, dict[str, Kept]] | None = None  # a reader, and what there was when it opened

    @initialize(kind=st.sampled_from(["exact", "hnsw"]), codes=st.booleans(), first=images)
    def make(self, kind: str, codes: bool, first: dict[str, Kept]) -> None:
        self.similarity, self.model = ("hamming", "m0") if codes else ("cosine", "m0")
        self.kind = "exact" if codes else kind
        assert not index_exists(self.folder)
        self.index = make_index(self.folder, self._about())
        self._make_changes(self.index, [first])

    def _about(self) -> About:
        return About(self.kind, self.similarity, DIMENSION, self.model)  # type: ignore[arg-type]

    def teardown(self) -> None:
        self.patch.undo()
        if hasattr(self, "index"):
            self.index.close()
        if self.seen is not None:
            self.seen[0].close()
        self.temporary.cleanup()

    # What is done

    def _make_changes(self, index: Index, steps: list[Any], end: type[Exception] | None = None) -> None:
        """To the index; and to the dictionary, unless the change is abandoned."""
        kept = dict(self.kept)
        with index.change() as change:
            for step in steps:
                if isinstance(step, list):
                    there = [name for name in dict.fromkeys(step) if kept.pop(name, None) is not None]
                    assert change.remove(step) == len(there)
                elif step:
                    kept |= step
                    self._put(change, step)
            if end is not None:
                raise end
        self.kept = kept

    def _put(self, change: Any, step: dict[str, Kept]) -> None:
        vectors = np.stack([vector(name, image.version) for name, image in step.items()])
        labels, states = [i.label for i in step.values()], [f"v{i.version}" for i in step.values()]
        change.put(list(step), vectors, labels, states)

    @rule(steps=changes)
    def change(self, steps: list[Any]) -> None:
        self._make_changes(self.index, steps)

    @rule(steps=changes)
    def abandoned(self, steps: list[Any]) -> None:
        with pytest.raises(AbandonedError):
            self._make_changes(self.index, steps, AbandonedError)

    @rule(wanted=images, steps=changes)
    def bad_vectors(self, wanted: dict[str, Kept], steps: list[Any]) -> None:
        with pytest.raises(RetrievalError, match="NaN or infinite"), self.index.change() as change:  # noqa: PT012
            if wanted:
                self._put(change, wanted)
            change.put(["bad"], np.full((1, DIMENSION), np.nan, np.float32))

    @rule(wanted=images)
    def synchronise(self, wanted: dict[str, Kept]) -> None:
        """As a build does: what is known, there or in what an abandoned change has left, is not put again."""
        names = list(wanted)
        with self.index.change() as change:
            known = change.known(names, [f"v{i.version}" for i in wanted.values()], [i.label for i in wanted.values()])
            for name, found in zip(names, known, strict=True):
                assert found or self.kept.get(name, Kept(-1, "")).version != wanted[name].version
            rest = {name: wanted[name] for name, found in zip(names, known, strict=True) if not found}
            if rest:
                self._put(change, rest)
        self.kept = self.kept | wanted

    @rule(steps=changes)
    def change_elsewhere(self, steps: list[Any]) -> None:
        """By another process: seen once it is looked for."""
        before = self.kept
        other = open_index(self.folder)
        self._make_changes(other, steps)
        other.close()
        assert len(self.index) == len(before)
        assert self.index.refresh() and not self.index.refresh()

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = open_index(self.folder)

    @rule(kind=st.sampled_from(["exact", "hnsw"]))
    def compact(self, kind: str) -> None:
        if self.similarity == "hamming" and kind != "exact":
            with pytest.raises(RetrievalError, match="binary codes must be exact"):
                self.index.compact("hnsw")
            return
        self.index.compact(kind)  # type: ignore[arg-type]
        self.kind = kind

    @rule(value=st.none() | st.floats(-1, 1))
    def set_threshold(self, value: float | None) -> None:
        self.threshold = None if value is None else {"threshold": value}
        self.index.set_threshold(self.threshold)

    @rule(number=st.integers(1, 3), first=images, steps=changes)
    def replace(self, number: int, first: dict[str, Kept], steps: list[Any]) -> None:
        """By another model's index: the old one is there until the first change of the new one is complete; who has it
        open may search it, and not change it.
        """
        self.model = f"{self.model}.{number}"
        new = make_index(self.folder, self._about(), replace=True)
        before, self.kept = self.kept, {}
        with pytest.raises(AbandonedError):
            self._make_changes(new, steps, AbandonedError)
        assert {item.id for item in open_index(self.folder).listed()} == set(before)
        self._make_changes(new, [first])
        with pytest.raises(WrongModelError, match="another model"):
            open_index(self.folder).check("m0")
        assert len(self.index) == len(before)
        with pytest.raises(WrongModelError, match="another model"), self.index.change():
            raise AssertionError("it is another's")
        self.index.close()
        self.index, self.threshold = new, None

    @rule()
    def begin_reading(self) -> None:
        if self.seen is not None:
            self.seen[0].close()
        self.seen = open_index(self.folder), dict(self.kept)

    # What must be so

    @invariant()
    @precondition(lambda self: hasattr(self, "index"))
    def holds_what_the_dictionary_holds(self) -> None:
        self._check(self.index, self.kept)
        again = open_index(self.folder)
        self._check(again, self.kept)
        again.check(self.model)
        assert again.about.threshold == self.index.about.threshold == self.threshold
        again.close()
        if self.seen is not None:  # whatever has become of its files meanwhile
            self._check(*self.seen)

    def _check(self, index: Index, kept: dict[str, Kept]) -> None:
        assert len(index) == len(kept)
        assert sorted((item.id, item.label) for item in index.listed()) == sorted((n, i.label) for n, i in kept.items())
        assert [name in index for name in IDS] == [name in kept for name in IDS]
        stored = index.vectors(list(kept))
        vectors = {name: vector(name, image.version) for name, image in kept.items()}
        for row, own in zip(stored, vectors.values(), strict=True):
            assert similarity(row, own, self.similarity) == pytest.approx(1, abs=1e-6)
        queries = [vector("query", number) for number in range(2)]
        for k in (1, 4, 20):
            for query, hits in zip(queries, index.search(np.stack(queries), k), strict=True):
                best = sorted((similarity(query, own, self.similarity) for own in vectors.values()), reverse=True)[:k]
                assert [hit.similarity for hit in hits] == pytest.approx(best, abs=1e-5)
                for hit in hits:
                    assert hit.label == kept[hit.id].label
                    assert hit.similarity == pytest.approx(
                        similarity(query, vectors[hit.id], self.similarity), abs=1e-5
                    )
                assert len({hit.id for hit in hits}) == len(hits)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(
    max_examples=300 if LONG else 12,
    stateful_step_count=25 if LONG else 12,
    derandomize=not LONG,
    database=None,
)
