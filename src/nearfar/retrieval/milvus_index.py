"""An index in Milvus: embedded (Milvus Lite, a file) or a server; the same interface as one in a folder.

    milvus:./gallery.db             Milvus Lite; one process at a time has it open
    milvus:http://host:19530        a server; the environment's MILVUS_TOKEN is its token, if it wants one
    milvus:http://host:19530#birds  another collection than "nearfar"

A collection has a row for each image: `key` (63 bits of a hash of its id, so that an upsert repeats nothing), `image`
(the id), `label`, `state` and `vector`. What the index is stands in a collection beside it, NAME_about. Codes are kept
as vectors of -1 and 1 over sqrt(bits), whose inner product is the same similarity: Milvus Lite has no binary vectors.

Every batch counts as soon as it has been sent. A change that is interrupted is simply made again: what is there already
is not sent twice.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import MissingFileError, UnknownNameError
from nearfar.retrieval.index import MILVUS, About, Floats, Hit, Item, Kind, RetrievalError
from nearfar.retrieval.milvus_client import (
    LONGEST_ID,
    LONGEST_LABEL,
    LONGEST_STATE,
    STRUCTURES,
    close,
    connected,
    create,
    index_params,
    is_file,
    read_about,
    split,
    told,
    write_about,
)
from nearfar.retrieval.texts import hashed
from nearfar.retrieval.vectors import checked, model_checked, packed, unit, unpacked

BATCH_BYTES = 2**22  # of vectors sent at a time
ROWS_AT_A_TIME = 1000
BETWEEN_BATCHES = 20.0  # seconds of work that an interruption may cost
MOST = 16_384  # neighbours that Milvus gives at a time
EFFORT = 96  # candidates that HNSW looks at


class MilvusIndex:
    """An index in Milvus; see `nearfar.retrieval.index.Index` for what it can do."""

    def __init__(self, address: str, client: Any, about: About):
        self.where = f"{MILVUS}{address}"
        self._address, self._client, self.about = address, client, about
        self._name = split(address)[1]

    @classmethod
    def exists(cls, address: str) -> bool:
        """Whether there is one."""
        uri, name = split(address)
        if is_file(uri) and not Path(uri).exists():
            return False
        client = connected(uri)
        try:
            with told(address):
                return bool(client.has_collection(name))
        finally:
            close(client, uri)

    @classmethod
    def open(cls, address: str) -> "MilvusIndex":
        """One that exists."""
        uri, name = split(address)
        if is_file(uri) and not Path(uri).exists():
            raise MissingFileError(f"{uri}: there is no index here; nearfar index RUN --index {MILVUS}{uri} makes one")
        client = connected(uri)
        try:
            with told(address):
                if not client.has_collection(name):
                    raise RetrievalError(f"{MILVUS}{address}: there is no collection {name!r}")
                about = read_about(client, address, name)
                client.load_collection(name)
        except BaseException:
            close(client, uri)
            raise
        return cls(address, client, about)

    @classmethod
    def make(cls, address: str, about: About, *, replace: bool = False) -> "MilvusIndex":
        """A new one."""
        uri, name = split(address)
        if about.kind not in STRUCTURES:
            raise RetrievalError(f"in Milvus an index is {' or '.join(STRUCTURES)}, not {about.kind}")
        client = connected(uri)
        try:
            with told(address):
                if client.has_collection(name):
                    if not replace:
                        raise RetrievalError(f"{MILVUS}{address} holds an index already: open it, or replace it")
                    client.drop_collection(name)
                write_about(client, name, about)  # first: a collection without it would belong to nobody
                create(client, name, about)
        except BaseException:
            close(client, uri)
            raise
        return cls(address, client, about)

    def __len__(self) -> int:
        with told(self._address):
            found = self._client.query(self._name, output_fields=["count(*)"], consistency_level="Strong")
            return int(found[0]["count(*)"])

    @property
    def batch(self) -> int:
        """Rows sent or fetched at a time."""
        return max(1, min(ROWS_AT_A_TIME, BATCH_BYTES // (4 * self.about.dimension)))

    def check(self, model: str) -> None:
        """Refuse another model."""
        model_checked(self.where, self.about, model)

    # Searching

    def search(self, vectors: Floats, k: int = 10, *, threshold: float | None = None) -> list[list[Hit]]:
        """The nearest images of every query."""
        if not 1 <= k <= MOST:
            raise RetrievalError(f"k must be from 1 to {MOST:,} in Milvus, not {k}")
        queries = _prepared(checked(vectors, self.about.dimension, "queries"), self.about)
        result: list[list[Hit]] = []
        step = max(1, BATCH_BYTES // (4 * self.about.dimension))
        for start in range(0, len(queries), step):
            with told(self._address):
                found = self._client.search(
                    self._name,
                    data=queries[start : start + step],
                    limit=k,
                    anns_field="vector",
                    output_fields=["image", "label"],
                    search_params={"params": {"ef": max(EFFORT, 2 * k)} if self.about.kind == "hnsw" else {}},
                    consistency_level="Strong",
                )
            result += [[_hit(entry) for entry in hits] for hits in found]
        if threshold is None:
            return result
        return [[hit for hit in hits if hit.similarity >= threshold] for hits in result]

    # Looking up

    def _rows(self, ids: Sequence[str], fields: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What is stored of those of these images that are there, by id."""
        found: dict[str, dict[str, Any]] = {}
        keys = _keys(ids)
        for start in range(0, len(keys), ROWS_AT_A_TIME):
            with told(self._address):
                rows = self._client.get(
                    self._name,
                    ids=keys[start : start + ROWS_AT_A_TIME],
                    output_fields=["image", *fields],
                    consistency_level="Strong",
                )
            found |= {row["image"]: row for row in rows}
        return found

    def _all(self, ids: Sequence[str], fields: Sequence[str]) -> list[dict[str, Any]]:
        found = self._rows(ids, fields)
        for name in ids:
            if name not in found:
                raise UnknownNameError(f"there is no image {name} in the index")
        return [found[name] for name in ids]

    def __contains__(self, image: str) -> bool:
        return image in self._rows([image], ["label"])

    def items(self, ids: Sequence[str]) -> list[Item]:
        """What is known of these images."""
        return [Item(row["image"], row["label"]) for row in self._all(ids, ["label"])]

    def vectors(self, ids: Sequence[str]) -> Floats:
        """Embeddings of these images."""
        rows = [row["vector"] for row in self._all(ids, ["vector"])]
        return np.array(rows, np.float32).reshape(len(rows), self.about.dimension)

    def listed(self) -> Iterator[Item]:
        """Every image."""
        for rows in self._scan(["label"], ROWS_AT_A_TIME):
            yield from (Item(row["image"], row["label"]) for row in rows)

    def pieces(self) -> Iterator[tuple[list[str], Floats]]:
        """The ids and vectors of every image."""
        for rows in self._scan(["vector"], self.batch):
            yield [row["image"] for row in rows], np.array([row["vector"] for row in rows], np.float32)

    def _scan(self, fields: Sequence[str], size: int) -> Iterator[list[dict[str, Any]]]:
        with told(self._address):
            iterator = self._client.query_iterator(
                self._name, batch_size=size, output_fields=["image", *fields], consistency_level="Strong"
            )
        try:
            while True:
                with told(self._address):
                    rows = iterator.next()
                if not rows:
                    return
                yield list(rows)
        finally:
            iterator.close()

    # Changing

    @contextlib.contextmanager
    def change(self) -> Iterator["MilvusChange"]:
        """Changes, of which every batch counts at once."""
        change = MilvusChange(self)
        yield change
        change.send()
        with told(self._address):
            self._client.flush(self._name)

    def set_threshold(self, threshold: Mapping[str, Any] | None) -> None:
        """Store a threshold with the index."""
        about = replace(self.about, threshold=threshold)
        with told(self._address):
            write_about(self._client, self._name, about)
        self.about = about

    def compact(self, kind: Kind | None = None) -> None:
        """Let Milvus merge its segments; with `kind`, become that kind."""
        with told(self._address):
            if kind is not None and kind != self.about.kind:
                about = replace(self.about, kind=kind)
                if kind not in STRUCTURES:
                    raise RetrievalError(f"in Milvus an index is {' or '.join(STRUCTURES)}, not {kind}")
                self._client.release_collection(self._name)
                self._client.drop_index(self._name, "vector")
                self._client.create_index(self._name, index_params(self._client, kind))
                self._client.load_collection(self._name)
                write_about(self._client, self._name, about)
                self.about = about
            elif not is_file(split(self._address)[0]):  # Milvus Lite does so by itself
                self._client.compact(self._name)

    def refresh(self) -> bool:
        """Milvus always shows what is there; what the index is may have changed."""
        with told(self._address):
            about = read_about(self._client, self._address, self._name)
        changed, self.about = about != self.about, about
        return changed

    def close(self) -> None:
        """Let go of the connection; of a file too, for the whole process."""
        close(self._client, split(self._address)[0])


class MilvusChange:
    """Changes of an index in Milvus; see `nearfar.retrieval.index.Change`."""

    def __init__(self, index: MilvusIndex):
        self._index = index
        self._waiting: dict[int, dict[str, Any]] = {}  # by key
        self._since = time.monotonic()

    def put(
        self,
        ids: Sequence[str],
        vectors: Floats,
        labels: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
    ) -> None:
        """Add images, or replace those that are there."""
        index = self._index
        labels, states = labels or [""] * len(ids), states or [""] * len(ids)
        given = checked(vectors, index.about.dimension, "vectors")
        if not len(ids) == len(given) == len(labels) == len(states):
            raise RetrievalError(f"there must be a vector, a label and a state for each of the {len(ids)} ids")
        if len(set(ids)) < len(ids):
            raise RetrievalError("ids must differ from each other within one call of put")
        for words, longest in ((ids, LONGEST_ID), (labels, LONGEST_LABEL), (states, LONGEST_STATE)):
            _check_texts(words, longest)
        for row in zip(_keys(ids), ids, labels, states, _prepared(given, index.about), strict=True):
            self._waiting[row[0]] = dict(zip(("key", "image", "label", "state", "vector"), row, strict=True))
            if len(self._waiting) >= index.batch:
                self.send()
        if time.monotonic() - self._since > BETWEEN_BATCHES:
            self.send()

    def send(self) -> None:
        """Send what waits for a batch to be full."""
        if self._waiting:
            with told(self._index._address):
                self._index._client.upsert(self._index._name, list(self._waiting.values()))
        self._waiting, self._since = {}, time.monotonic()

    def remove(self, ids: Sequence[str]) -> int:
        """Take images out; how many were there."""
        self.send()
        there = list(self._index._rows(list(dict.fromkeys(ids)), ["label"]))
        keys = _keys(there)
        for start in range(0, len(keys), ROWS_AT_A_TIME):
            with told(self._index._address):
                self._index._client.delete(self._index._name, ids=keys[start : start + ROWS_AT_A_TIME])
        return len(there)

    def known(self, ids: Sequence[str], states: Sequence[str], labels: Sequence[str]) -> NDArray[np.bool_]:
        """Which of these are there in this state, with this label."""
        self.send()
        found = self._index._rows(ids, ["label", "state"])
        here = [found.get(name) for name in ids]
        same = [
            row is not None and state != "" and row["state"] == state and row["label"] == label
            for row, state, label in zip(here, states, labels, strict=True)
        ]
        return np.array(same, np.bool_)


def _hit(entry: Any) -> Hit:
    return Hit(entry["entity"]["image"], entry["entity"]["label"], float(entry["distance"]))


def _prepared(vectors: Floats, about: About) -> Floats:
    return unpacked(packed(vectors), about.dimension) if about.similarity == "hamming" else unit(vectors)


def _keys(ids: Sequence[str]) -> list[int]:
    keys: list[int] = (hashed(ids) >> np.uint64(1)).astype(np.int64).tolist()
    return keys


def _check_texts(words: Sequence[str], longest: int) -> None:
    for word in words:
        try:
            size = len(word.encode("utf-8"))
        except UnicodeEncodeError:
            raise RetrievalError(f"{word!r} is no UTF-8, which Milvus needs: rename the file") from None
        if size > longest:
            raise RetrievalError(f"{word[:60]!r}... has {size} bytes, Milvus keeps {longest}: use a shorter path")
