"""The interface of search indexes, and functions to open and make them.

    index = open_index("runs/birds/index")                  # a folder: FAISS
    index = open_index("milvus:./gallery.db")               # Milvus Lite, embedded
    index = open_index("milvus:http://host:19530")          # Milvus, beyond one machine

    index.check(encoder.fingerprint)                        # raises WrongModelError for another model
    for hit in index.search(vectors, k=10, threshold=0.6)[0]:
        print(hit.similarity, hit.label, hit.id)

    with index.change() as change:                          # atomic (in Milvus, in batches)
        change.put(ids, vectors, labels)
        change.remove(["photos/old.jpg"])

The id of an image is the path of its file, or DATA#ROW if images are not separate files. Putting an existing id
replaces its vector and its label.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import NearfarError

Floats = NDArray[np.float32]
Kind = Literal["exact", "hnsw", "ivfpq"]
Similarity = Literal["cosine", "hamming"]
KINDS: tuple[Kind, ...] = ("exact", "hnsw", "ivfpq")
MILVUS = "milvus:"


class RetrievalError(NearfarError, ValueError):
    """An error with an index. The message says what is wrong and what to do."""


class WrongModelError(RetrievalError):
    """The index has embeddings of another model."""


class DamagedIndexError(RetrievalError):
    """The files of the index are damaged."""


class BusyIndexError(RetrievalError):
    """Another process is changing the index."""


@dataclass(frozen=True)
class About:
    """The description of an index.

    Attributes:
        kind: "exact", or an approximate structure: "hnsw" or "ivfpq".
        similarity: "cosine"; or "hamming" for packed signs of the embeddings, with 1 - 2 distance / bits, which is the
            cosine of the codes.
        dimension: dimension of the embeddings; number of bits for codes.
        model: fingerprint of the model.
        run: location of the model, for messages.
        threshold: the similarity from which two images count as the same, in the format of
            `nearfar.evaluation.Threshold.to_dict`; None if there is none.
    """

    kind: Kind
    similarity: Similarity
    dimension: int
    model: str
    run: str = ""
    threshold: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RetrievalError(f"there is no kind of index {self.kind!r}: the kinds are {', '.join(KINDS)}")
        if self.similarity not in ("cosine", "hamming"):
            raise RetrievalError(f'similarity must be "cosine" or "hamming", not {self.similarity!r}')
        if self.similarity == "hamming" and self.kind != "exact":
            raise RetrievalError(
                f"an index of binary codes must be exact, not {self.kind}: exact search of codes is fast"
            )
        if self.dimension < 1:
            raise RetrievalError(f"the dimension must be at least 1, not {self.dimension}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "About":
        """The inverse of `to_dict`."""
        return cls(**values)


@dataclass(frozen=True)
class Item:
    """An image of an index: its id, and the name of its class ("" if it has none)."""

    id: str
    label: str


@dataclass(frozen=True)
class Hit:
    """A search result: an image and its similarity, 1 for the same image and about 0 for unrelated ones."""

    id: str
    label: str
    similarity: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Change(Protocol):
    """Changes of an index that become visible together; see `Index.change`."""

    def put(
        self,
        ids: Sequence[str],
        vectors: Floats,
        labels: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
    ) -> None:
        """Add images, or replace existing ones.

        Args:
            ids: (N,) distinct ids.
            vectors: (N, dimension) embeddings of the model, without NaN.
            labels: names of classes; "" for none.
            states: strings that change with the image, such as `nearfar.imaging.identity`; see `known`.
        """

    def remove(self, ids: Sequence[str]) -> int:
        """Remove images. Returns the number of those that existed."""

    def known(self, ids: Sequence[str], states: Sequence[str], labels: Sequence[str]) -> NDArray[np.bool_]:
        """(N,) whether each image is unchanged, with this state and label, and need not be put. It may be in the index
        or in the pending part of an interrupted change, which is then taken over.
        """


class Index(Protocol):
    """A search index of embeddings. Searching is thread-safe."""

    @property
    def where(self) -> str:
        """The location for `open_index`."""

    @property
    def about(self) -> About:
        """The description of the index."""

    def __len__(self) -> int:
        """The number of images."""

    def check(self, model: str) -> None:
        """Raise `WrongModelError` unless the index belongs to the model of this fingerprint."""

    def search(self, vectors: Floats, k: int = 10, *, threshold: float | None = None) -> list[list[Hit]]:
        """The nearest images of every query, by descending similarity; fewer than k if the index has fewer.

        Args:
            vectors: (Q, dimension) embeddings of the model.
            k: the number of images.
            threshold: the least similarity.
        """

    def items(self, ids: Sequence[str]) -> list[Item]:
        """The items of some images. Raises KeyError for an unknown id."""

    def vectors(self, ids: Sequence[str]) -> Floats:
        """(N, dimension) unit vectors of some images; for codes, of their signs. Raises KeyError for an unknown id."""

    def __contains__(self, image: str) -> bool:
        """Whether there is an image with this id."""

    def listed(self) -> Iterator[Item]:
        """Yield the items of all images, in any order."""

    def pieces(self) -> Iterator[tuple[list[str], Floats]]:
        """Yield the ids and vectors of all images, some thousands at a time."""

    def change(self) -> AbstractContextManager[Change]:
        """Changes that become visible when the block ends. An exception in the block discards them.

        Only one process can change an index at a time; others get a `BusyIndexError`. In Milvus, every batch is visible
        as soon as it has been sent, and an interrupted change is repeated.
        """

    def compact(self, kind: Kind | None = None) -> None:
        """Merge the segments of many changes into one, without removed images, and rebuild the approximate structure.
        `kind` changes the kind of the index.
        """

    def set_threshold(self, threshold: Mapping[str, Any] | None) -> None:
        """Store a threshold with the index; see `About`."""

    def refresh(self) -> bool:
        """Read the changes of other processes. Returns whether there are any."""

    def close(self) -> None:
        """Close files and connections."""


def open_index(where: str | os.PathLike[str]) -> Index:
    """Open an existing index.

    Args:
        where: a folder, or "milvus:ADDRESS". ADDRESS is a file (`./gallery.db`, Milvus Lite) or a server
            (`http://host:19530`), optionally with the name of the collection after # (default "nearfar").
    """
    address = _milvus_address(where)
    if address is not None:
        from nearfar.retrieval.milvus_index import MilvusIndex

        return MilvusIndex.open(address)
    from nearfar.retrieval.faiss_index import FaissIndex

    return FaissIndex.open(Path(where))


def make_index(where: str | os.PathLike[str], about: About, *, replace: bool = False) -> Index:
    """Make a new, empty index. Raises an error if there is one, unless `replace` is set.

    Args:
        where: as for `open_index`.
        about: the description of the index.
        replace: replace an existing index. In a folder, it remains until the first change of the new one is complete;
            in Milvus, it is deleted at once.
    """
    address = _milvus_address(where)
    if address is not None:
        from nearfar.retrieval.milvus_index import MilvusIndex

        return MilvusIndex.make(address, about, replace=replace)
    from nearfar.retrieval.faiss_index import FaissIndex

    return FaissIndex.make(Path(where), about, replace=replace)


def index_exists(where: str | os.PathLike[str]) -> bool:
    """Whether there is an index, possibly damaged."""
    address = _milvus_address(where)
    if address is not None:
        from nearfar.retrieval.milvus_index import MilvusIndex

        return MilvusIndex.exists(address)
    from nearfar.retrieval.store import Store

    return Store(Path(where)).exists()


def _milvus_address(where: str | os.PathLike[str]) -> str | None:
    location = os.fspath(where)
    return location[len(MILVUS) :] if location.startswith(MILVUS) else None
