"""`search`: searches an index with images."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.index import Hit, Index, RetrievalError, open_index

CALIBRATED = "calibrated"
FOLDER = "index"  # in the folder of a run


@dataclass(frozen=True)
class Result:
    """The result of a query: its path, its class if the index has the image (else ""), and the hits."""

    query: str
    label: str
    hits: list[Hit]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {"query": self.query, "label": self.label, "hits": [hit.to_dict() for hit in self.hits]}


def index_of(run: str | os.PathLike[str], index: str | os.PathLike[str] | None = None) -> str:
    """The location of an index; by default in the folder of the run."""
    return os.fspath(Path(run) / FOLDER if index is None else index)


def threshold_value(index: Index, wished: str | float | None) -> float | None:
    """The value of a threshold: a number, or "calibrated" for the one stored with the index.

    Raises RetrievalError if the index has none.
    """
    if wished is None or isinstance(wished, (int, float)):
        return None if wished is None else float(wished)
    if wished != CALIBRATED:
        try:
            return float(wished)
        except ValueError:
            raise RetrievalError(
                f'a threshold must be "{CALIBRATED}" or a number such as 0.6, not {wished!r}'
            ) from None
    stored = index.about.threshold
    if stored is None:
        raise RetrievalError(
            f"{index.where} has no calibrated threshold, because its run had no validation images. "
            "Give a number such as 0.6, or calibrate on the run's data: nearfar index RUN --far 0.001"
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
    """Search for the nearest images of each query.

    Args:
        index: an index of the encoder's model.
        encoder: the model.
        images: paths of the queries. A broken image raises an error.
        k: the number of hits.
        threshold: the least similarity: a number, or "calibrated".
    """
    index.check(encoder.fingerprint)
    least = threshold_value(index, threshold)
    names = [str(Path(image).absolute()) for image in images]
    hits = index.search(encoder.embed(names), k, threshold=least)
    labels = [index.items([name])[0].label if name in index else "" for name in names]
    return [Result(*row) for row in zip(names, labels, hits, strict=True)]


def open_for(encoder: Encoder, where: str | os.PathLike[str]) -> Index:
    """Open an index of this model. Raises `WrongModelError` if it belongs to another one."""
    index = open_index(where)
    try:
        index.check(encoder.fingerprint)
    except RetrievalError:
        index.close()
        raise
    return index
