"""`search`: which images of an index are nearest to a picture."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.index import Hit, Index, RetrievalError, open_index

CALIBRATED = "calibrated"
FOLDER = "index"  # in a run


@dataclass(frozen=True)
class Result:
    """What a query found: its path, the name of its class where the index knows the picture, and the hits."""

    query: str
    label: str
    hits: list[Hit]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"query": self.query, "label": self.label, "hits": [hit.to_dict() for hit in self.hits]}


def index_of(run: str | os.PathLike[str], index: str | os.PathLike[str] | None = None) -> str:
    """Where the index is: as given, or in the run."""
    return os.fspath(Path(run) / FOLDER if index is None else index)


def threshold_value(index: Index, wished: str | float | None) -> float | None:
    """A threshold as a number: one is given, or "calibrated" takes the one that was stored with the index.

    Raises RetrievalError where there is none.
    """
    if wished is None or isinstance(wished, (int, float)):
        return None if wished is None else float(wished)
    if wished != CALIBRATED:
        try:
            return float(wished)
        except ValueError:
            raise RetrievalError(f'a threshold is "{CALIBRATED}" or a number such as 0.6, not {wished!r}') from None
    stored = index.about.threshold
    if stored is None:
        raise RetrievalError(
            f"{index.where} has no calibrated threshold: its run had no validation images to find one. "
            "Give a number, such as 0.6, or find one on the run's data: nearfar index RUN --far 0.001"
        )
    return float(stored["threshold"])


def search(
    index: Index,
    encoder: Encoder,
    images: Sequence[str | os.PathLike[str]],
    *,
    k: int = 10,
    threshold: str | float | None = None,
) -> list[Result]:
    """What is nearest to each image.

    Args:
        index: of the encoder's model; another's is refused.
        images: paths of pictures. One that cannot be read is an error.
        k: how many to find.
        threshold: leave out what is less similar: a number, or "calibrated".
    """
    index.check(encoder.fingerprint)
    least = threshold_value(index, threshold)
    names = [str(Path(image).absolute()) for image in images]
    found = index.search(encoder.embed(names), k, threshold=least)
    labels = [index.items([name])[0].label if name in index else "" for name in names]
    return [Result(*row) for row in zip(names, labels, found, strict=True)]


def open_for(encoder: Encoder, where: str | os.PathLike[str]) -> Index:
    """The index of this model; another's is refused."""
    index = open_index(where)
    try:
        index.check(encoder.fingerprint)
    except RetrievalError:
        index.close()
        raise
    return index
