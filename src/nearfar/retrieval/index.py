"""What every index can do, whichever engine keeps it; and how one is opened or made.

    index = open_index("runs/birds/index")                  # a folder: FAISS
    index = open_index("milvus:./gallery.db")               # Milvus Lite, embedded
    index = open_index("milvus:http://host:19530")          # Milvus, beyond one machine

    index.check(encoder.fingerprint)                        # another model's index is refused
    for hit in index.search(vectors, k=10, threshold=0.6)[0]:
        print(hit.similarity, hit.label, hit.id)

    with index.change() as change:                          # all of it, or nothing (in Milvus, batch by batch)
        change.put(ids, vectors, labels)
        change.remove(["photos/old.jpg"])

An image is known by its id, a text: the path of its file, or DATA#ROW where images are not kept as files. Putting an id
that is there already replaces its vector and its label.
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
    """Something is wrong with an index; the message says what, and what to do."""


class WrongModelError(RetrievalError):
    """An index holds the embeddings of another model."""


class DamagedIndexError(RetrievalError):
    """The files of an index are not what was written."""


class BusyIndexError(RetrievalError):
    """Another process is changing the index."""


@dataclass(frozen=True)
class About:
    """What an index is.

    Attributes:
        kind: "exact", or by which approximate structure it finds: "hnsw" or "ivfpq".
        similarity: "cosine"; or "hamming" for the signs of the embeddings, packed to bits: 1 - 2 distance / bits, which
            is the cosine of the codes.
        dimension: of the embeddings; for codes, their bits.
        model: the fingerprint of the model whose embeddings it holds.
        run: where that model is, for messages.
        threshold: from which similarity on two images count as the same, as `nearfar.evaluation.Threshold.to_dict`
            writes it; None if there is none.
    """

    kind: Kind
    similarity: Similarity
    dimension: int
    model: str
    run: str = ""
    threshold: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RetrievalError(f"there is no kind of index {self.kind!r}: there are {', '.join(KINDS)}")
        if self.similarity not in ("cosine", "hamming"):
            raise RetrievalError(f'similarity is "cosine" or "hamming", not {self.similarity!r}')
        if self.similarity == "hamming" and self.kind != "exact":
            raise RetrievalError(
                f"an index of binary codes is exact, not {self.kind}: codes are compared fast as they are"
            )
        if self.dimension < 1:
            raise RetrievalError(f"the dimension must be at least 1, not {self.dimension}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "About":
        """From what `to_dict` gave."""
        return cls(**values)


@dataclass(frozen=True)
class Item:
    """An image of an index: its id, and the name of its class ("" if it has none)."""

    id: str
    label: str


@dataclass(frozen=True)
class Hit:
    """An image that was found, and how similar it is: 1 for the same, about 0 for any other."""

    id: str
    label: str
    similarity: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Change(Protocol):
    """What `Index.change` gives: changes that are made together."""

    def put(
        self,
        ids: Sequence[str],
        vectors: Floats,
        labels: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
    ) -> None:
        """Add images, or replace those that are there.

        Args:
            ids: (N,), each once.
            vectors: (N, dimension) embeddings, as the model gives them; no NaN.
            labels: names of classes; "" where there is none.
            states: what tells an image from an earlier state of itself, such as `nearfar.imaging.identity` gives; see
                `known`.
        """

    def remove(self, ids: Sequence[str]) -> int:
        """Take images out; how many were there."""

    def known(self, ids: Sequence[str], states: Sequence[str], labels: Sequence[str]) -> NDArray[np.bool_]:
        """Which of these need not be put: they are there in this state and with this label, in the index or in what a
        change that was interrupted has left behind, from which they are taken over.
        """


class Index(Protocol):
    """Embeddings of images, to be searched. Safe to search from several threads."""

    @property
    def where(self) -> str:
        """What `open_index` opens it by."""

    @property
    def about(self) -> About:
        """What it is."""

    def __len__(self) -> int:
        """How many images there are."""

    def check(self, model: str) -> None:
        """Raise `WrongModelError` unless the index belongs to the model of this fingerprint."""

    def search(self, vectors: Floats, k: int = 10, *, threshold: float | None = None) -> list[list[Hit]]:
        """The nearest images of every query, the most similar first; fewer where the index holds fewer.

        Args:
            vectors: (Q, dimension) embeddings, as the model gives them.
            k: how many.
            threshold: leave out what is less similar.
        """

    def items(self, ids: Sequence[str]) -> list[Item]:
        """What is known of these images; an id that is not there is a KeyError."""

    def vectors(self, ids: Sequence[str]) -> Floats:
        """(N, dimension) embeddings of these images, of length 1; of codes, their signs. An id that is not there is a
        KeyError.
        """

    def __contains__(self, image: str) -> bool:
        """Whether there is an image of this id."""

    def listed(self) -> Iterator[Item]:
        """Every image, in no particular order."""

    def pieces(self) -> Iterator[tuple[list[str], Floats]]:
        """The ids and vectors of every image, some thousands at a time."""

    def change(self) -> AbstractContextManager[Change]:
        """Changes that become visible together when the block ends; an exception inside it leaves the index as it was.
        Only one process changes an index at a time: another is told so (`BusyIndexError`).

        In Milvus every batch counts as soon as it has been sent; a change that was interrupted is made again.
        """

    def compact(self, kind: Kind | None = None) -> None:
        """Put what many changes have left in pieces into one, without what was removed; with `kind`, become that kind.
        An approximate structure is built anew.
        """

    def set_threshold(self, threshold: Mapping[str, Any] | None) -> None:
        """Store a threshold with the index; see `About`."""

    def refresh(self) -> bool:
        """See what other processes have changed since the index was opened; whether there was anything."""

    def close(self) -> None:
        """Let go of files and connections."""


def open_index(where: str | os.PathLike[str]) -> Index:
    """An index that exists.

    Args:
        where: a folder, or "milvus:ADDRESS", ADDRESS being a file (`./gallery.db`, Milvus Lite) or a server
            (`http://host:19530`), with a collection's name after # if it is not "nearfar".
    """
    address = _milvus_address(where)
    if address is not None:
        from nearfar.retrieval.milvus_index import MilvusIndex

        return MilvusIndex.open(address)
    from nearfar.retrieval.faiss_index import FaissIndex

    return FaissIndex.open(Path(where))


def make_index(where: str | os.PathLike[str], about: About, *, replace: bool = False) -> Index:
    """A new index, without images. One that is there already is an error.

    Args:
        where: as of `open_index`.
        about: what it is to be.
        replace: take the place of one that is there. In a folder, that stays as it is until the first change of the new
            one is complete; in Milvus, it is gone at once.
    """
    address = _milvus_address(where)
    if address is not None:
        from nearfar.retrieval.milvus_index import MilvusIndex

        return MilvusIndex.make(address, about, replace=replace)
    from nearfar.retrieval.faiss_index import FaissIndex

    return FaissIndex.make(Path(where), about, replace=replace)


def index_exists(where: str | os.PathLike[str]) -> bool:
    """Whether there is an index, whole or damaged."""
    address = _milvus_address(where)
    if address is not None:
        from nearfar.retrieval.milvus_index import MilvusIndex

        return MilvusIndex.exists(address)
    from nearfar.retrieval.store import Store

    return Store(Path(where)).exists()


def _milvus_address(where: str | os.PathLike[str]) -> str | None:
    words = os.fspath(where)
    return words[len(MILVUS) :] if words.startswith(MILVUS) else None
