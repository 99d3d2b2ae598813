"""An index in Milvus: an embedded file (Milvus Lite) or a server.

    milvus:./gallery.db             Milvus Lite; one process at a time can open it
    milvus:http://host:19530        a server, with the token in the environment variable MILVUS_TOKEN, if it needs one
    milvus:http://host:19530#birds  the collection "birds" instead of "nearfar"

A collection has a row for each image: `key` (63 bits of a hash of its id, for upserts), `image` (the id), `label`,
`state` and `vector`. The collection NAME_about has the description of the index. Codes are stored as vectors of -1 and
1 over sqrt(bits), whose inner product is the same similarity, because Milvus Lite has no binary vectors.

Every batch is visible as soon as it has been sent. An interrupted change can be repeated: unchanged images are not sent
again.
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
    milvus_errors,
    read_about,
    split,
    write_about,
)
from nearfar.retrieval.texts import hashed
from nearfar.retrieval.vectors import checked, model_checked, packed, unit, unpacked

BATCH_BYTES = 2**22  # size of the vectors sent at a time
ROWS_AT_A_TIME = 1000
BETWEEN_BATCHES = 20.0  # the most seconds of work that an interruption may lose
MOST = 16_384  # largest k of Milvus
EFFORT = 96  # candidates of HNSW


class MilvusIndex:
    """An index in Milvus; see `nearfar.retrieval.index.Index`."""

    def __init__(self, address: str, client: Any, about: About):
        self.where = f"{MILVUS}{address}"
        self._address, self._client, self.about = address, client, about
        self._name = split(address)[1]

    @classmethod
    def exists(cls, address: str) -> bool:
        """Whether the collection exists."""
        uri, name = split(address)
        if is_file(uri) and not Path(uri).exists():
            return False
        client = connected(uri)
        try:
            with milvus_errors(address):
                return bool(client.has_collection(name))
        finally:
            close(client, uri)

    @classmethod
    def open(cls, address: str) -> "MilvusIndex":
        """Open an existing index."""
        uri, name = split(address)
        if is_file(uri) and not Path(uri).exists():
            raise MissingFileError(f"there is no index {uri}: make one with nearfar index RUN --index {MILVUS}{uri}")
        client = connected(uri)
        try:
            with milvus_errors(address):
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
        """Make a new index."""
        uri, name = split(address)
        if about.kind not in STRUCTURES:
            raise RetrievalError(f"an index in Milvus must be {' or '.join(STRUCTURES)}, not {about.kind}")
        client = connected(uri)
        try:
            with milvus_errors(address):
                if client.has_collection(name):
                    if not replace:
                        raise RetrievalError(f"{MILVUS}{address} already has an index: open it, or replace it")
                    client.drop_collection(name)
                write_about(client, name, about)  # first, because a collection without it cannot be opened
                create(client, name, about)
        except BaseException:
            close(client, uri)
            raise
        return cls(address, client, about)

    def __len__(self) -> int:
        with milvus_errors(self._address):
            rows = self._client.query(self._name, output_fields=["count(*)"], consistency_level="Strong")
            return int(rows[0]["count(*)"])

    @property
    def batch(self) -> int:
        """Rows sent or fetched at a time."""
        return max(1, min(ROWS_AT_A_TIME, BATCH_BYTES // (4 * self.about.dimension)))

    def check(self, model: str) -> None:
        """Raise `WrongModelError` unless the index belongs to this model."""
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
            with milvus_errors(self._address):
                batch = self._client.search(
                    self._name,
                    data=queries[start : start + step],
                    limit=k,
                    anns_field="vector",
                    output_fields=["image", "label"],
                    search_params={"params": {"ef": max(EFFORT, 2 * k)} if self.about.kind == "hnsw" else {}},
                    consistency_level="Strong",
                )
            result += [[_hit(entry) for entry in hits] for hits in batch]
        if threshold is None:
            return result
        return [[hit for hit in hits if hit.similarity >= threshold] for hits in result]

    # Lookup

    def _rows(self, ids: Sequence[str], fields: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The rows of existing images, by id."""
        existing: dict[str, dict[str, Any]] = {}
        keys = _keys(ids)
        for start in range(0, len(keys), ROWS_AT_A_TIME):
            with milvus_errors(self._address):
                rows = self._client.get(
                    self._name,
                    ids=keys[start : start + ROWS_AT_A_TIME],
                    output_fields=["image", *fields],
                    consistency_level="Strong",
                )
            existing |= {row["image"]: row for row in rows}
        return existing

    def _all(self, ids: Sequence[str], fields: Sequence[str]) -> list[dict[str, Any]]:
        rows = self._rows(ids, fields)
        for name in ids:
            if name not in rows:
                raise UnknownNameError(f"there is no image {name} in the index")
        return [rows[name] for name in ids]

    def __contains__(self, image: str) -> bool:
        return image in self._rows([image], ["label"])

    def items(self, ids: Sequence[str]) -> list[Item]:
        """The items of some images."""
        return [Item(row["image"], row["label"]) for row in self._all(ids, ["label"])]

    def vectors(self, ids: Sequence[str]) -> Floats:
        """The embeddings of some images."""
        rows = [row["vector"] for row in self._all(ids, ["vector"])]
        return np.array(rows, np.float32).reshape(len(rows), self.about.dimension)

    def listed(self) -> Iterator[Item]:
        """Yield the items of all images."""
        for rows in self._scan(["label"], ROWS_AT_A_TIME):
            yield from (Item(row["image"], row["label"]) for row in rows)

    def pieces(self) -> Iterator[tuple[list[str], Floats]]:
        """Yield the ids and vectors of all images."""
        for rows in self._scan(["vector"], self.batch):
            yield [row["image"] for row in rows], np.array([row["vector"] for row in rows], np.float32)

    def _scan(self, fields: Sequence[str], size: int) -> Iterator[list[dict[str, Any]]]:
        with milvus_errors(self._address):
            iterator = self._client.query_iterator(
                self._name, batch_size=size, output_fields=["image", *fields], consistency_level="Strong"
            )
        try:
            while True:
                with milvus_errors(self._address):
                    rows = iterator.next()
                if not rows:
                    return
                yield list(rows)
        finally:
            iterator.close()

    # Changing

    @contextlib.contextmanager
    def change(self) -> Iterator["MilvusChange"]:
        """Yield a change, whose batches are visible at once."""
        change = MilvusChange(self)
        yield change
        change.send()
        with milvus_errors(self._address):
            self._client.flush(self._name)

    def set_threshold(self, threshold: Mapping[str, Any] | None) -> None:
        """Store a threshold with the index."""
        about = replace(self.about, threshold=threshold)
        with milvus_errors(self._address):
            write_about(self._client, self._name, about)
        self.about = about

    def compact(self, kind: Kind | None = None) -> None:
        """Let Milvus merge its segments; `kind` changes the kind of the index."""
        with milvus_errors(self._address):
            if kind is not None and kind != self.about.kind:
                about = replace(self.about, kind=kind)
                if kind not in STRUCTURES:
                    raise RetrievalError(f"an index in Milvus must be {' or '.join(STRUCTURES)}, not {kind}")
                self._client.release_collection(self._name)
                self._client.drop_index(self._name, "vector")
                self._client.create_index(self._name, index_params(self._client, kind))
                self._client.load_collection(self._name)
                write_about(self._client, self._name, about)
                self.about = about
            elif not is_file(split(self._address)[0]):  # Milvus Lite merges by itself
                self._client.compact(self._name)

    def refresh(self) -> bool:
        """Read the description again. The rows in Milvus are always current."""
        with milvus_errors(self._address):
            about = read_about(self._client, self._address, self._name)
        changed, self.about = about != self.about, about
        return changed

    def close(self) -> None:
        """Close the connection, and for the whole process a Milvus Lite file."""
        close(self._client, split(self._address)[0])


class MilvusChange:
    """Changes of an index in Milvus; see `nearfar.retrieval.index.Change`."""

    def __init__(self, index: MilvusIndex):
        self._index = index
        self._waiting: dict[int, dict[str, Any]] = {}  # by key
        self._last_sent = time.monotonic()

    def put(
        self,
        ids: Sequence[str],
        vectors: Floats,
        labels: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
    ) -> None:
        """Add images, or replace existing ones."""
        index = self._index
        labels, states = labels or [""] * len(ids), states or [""] * len(ids)
        array = checked(vectors, index.about.dimension, "vectors")
        if not len(ids) == len(array) == len(labels) == len(states):
            raise RetrievalError(f"there must be a vector, a label and a state for each of the {len(ids)} ids")
        if len(set(ids)) < len(ids):
            raise RetrievalError("the ids of one call of put must be distinct")
        for texts, longest in ((ids, LONGEST_ID), (labels, LONGEST_LABEL), (states, LONGEST_STATE)):
            _check_texts(texts, longest)
        for row in zip(_keys(ids), ids, labels, states, _prepared(array, index.about), strict=True):
            self._waiting[row[0]] = dict(zip(("key", "image", "label", "state", "vector"), row, strict=True))
            if len(self._waiting) >= index.batch:
                self.send()
        if time.monotonic() - self._last_sent > BETWEEN_BATCHES:
            self.send()

    def send(self) -> None:
        """Send the waiting rows."""
        if self._waiting:
            with milvus_errors(self._index._address):
                self._index._client.upsert(self._index._name, list(self._waiting.values()))
        self._waiting, self._last_sent = {}, time.monotonic()

    def remove(self, ids: Sequence[str]) -> int:
        """Remove images. Returns the number of those that existed."""
        self.send()
        existing = list(self._index._rows(list(dict.fromkeys(ids)), ["label"]))
        keys = _keys(existing)
        for start in range(0, len(keys), ROWS_AT_A_TIME):
            with milvus_errors(self._index._address):
                self._index._client.delete(self._index._name, ids=keys[start : start + ROWS_AT_A_TIME])
        return len(existing)

    def known(self, ids: Sequence[str], states: Sequence[str], labels: Sequence[str]) -> NDArray[np.bool_]:
        """(N,) whether each image exists with this state and label."""
        self.send()
        rows = self._index._rows(ids, ["label", "state"])
        existing = [rows.get(name) for name in ids]
        same = [
            row is not None and state != "" and row["state"] == state and row["label"] == label
            for row, state, label in zip(existing, states, labels, strict=True)
        ]
        return np.array(same, np.bool_)


def _hit(entry: Any) -> Hit:
    return Hit(entry["entity"]["image"], entry["entity"]["label"], float(entry["distance"]))


def _prepared(vectors: Floats, about: About) -> Floats:
    return unpacked(packed(vectors), about.dimension) if about.similarity == "hamming" else unit(vectors)


def _keys(ids: Sequence[str]) -> list[int]:
    keys: list[int] = (hashed(ids) >> np.uint64(1)).astype(np.int64).tolist()
    return keys


def _check_texts(texts: Sequence[str], longest: int) -> None:
    for text in texts:
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError:
            raise RetrievalError(f"{text!r} is not UTF-8, which Milvus needs: rename the file") from None
        if size > longest:
            raise RetrievalError(f"{text[:60]!r}... has {size} bytes, but Milvus allows {longest}: use a shorter path")
