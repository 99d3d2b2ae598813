"""Converts embeddings to vectors whose inner products are the similarities."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from nearfar.errors import InputError
from nearfar.evaluation.hamming import Codes
from nearfar.evaluation.inputs import Part, Rows

Similarity = Literal["cosine", "dot", "l2", "hamming"]

PANEL = 2**24  # bytes read at a time
LONGEST = 1e18  # largest norm, whose square is within float32


def parts_of(count: int, step: int) -> Iterator[slice]:
    """Consecutive slices of 0 … count with `step` items each."""
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


class Vectors:
    """Embeddings as float32 vectors whose inner products are the similarities.

    cosine: vectors of unit length. dot: the embeddings. hamming: vectors of +1 and −1. l2: the similarity is
    x·y − |y|²/2, which orders the gallery like −|x − y|². Queries get two more coordinates of 1, and gallery items get
    −|y|²/2, split into a float32 number and its rounding error.
    """

    def __init__(self, rows: Rows | Codes, similarity: Similarity, *, gallery: bool):
        self.rows, self.similarity, self.gallery = rows, similarity, gallery
        self.dimension = rows.dimension + 2 * (similarity == "l2")
        self.bytes = len(rows) * self.dimension * 4
        self._held: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, part: Part) -> Tensor:
        """The vectors of some rows."""
        if self._held is not None:
            return self._held[part if isinstance(part, slice) else torch.from_numpy(part).to(self._held.device)]
        if isinstance(self.rows, Rows) and self.similarity == "cosine":
            return self.rows.normalized(part)
        x = self.rows.float32(part)
        if self.similarity != "l2":
            return x
        if not self.gallery:
            return pad(x, (0, 2), value=1.0)
        half = -x.double().square().sum(1) / 2
        rounded = half.float()
        return torch.cat([x, rounded[:, None], (half - rounded.double()).float()[:, None]], 1)

    def pieces(self, multiple: int = 1) -> Iterator[slice]:
        """Consecutive ranges of rows for reading, whose sizes are multiples of `multiple`."""
        return parts_of(len(self), max(1, PANEL // (4 * self.dimension) // multiple) * multiple)

    def hold(self) -> None:
        """Hold all vectors in memory."""
        held = torch.empty(len(self), self.dimension, device=self.rows.device)
        for piece in self.pieces():
            held[piece] = self.read(piece)
        self._held = held

    def longest(self) -> float:
        """The largest norm. Reads all vectors, so that invalid rows are found before the search."""
        if self._held is not None and self.similarity == "cosine":
            return 1.0
        longest = max(float(Rows.norms(self.read(piece)).max()) for piece in self.pieces())
        if longest > LONGEST:
            raise InputError(
                f'{self.rows.name} have such large norms that similarity="{self.similarity}" exceeds float32: '
                "divide them by a constant"
            )
        return 1.0 if self.similarity == "cosine" else longest
