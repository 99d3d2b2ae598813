"""Embeddings as vectors whose inner products are the similarities, whatever these are."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from nearfar.errors import InputError
from nearfar.evaluation.hamming import Codes
from nearfar.evaluation.inputs import Part, Rows

Similarity = Literal["cosine", "dot", "l2", "hamming"]

PANEL = 2**24  # bytes that are read at a time
LONGEST = 1e18  # whose square is within float32


def parts_of(count: int, step: int) -> Iterator[slice]:
    """0 … count, so many at a time."""
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


class Vectors:
    """Embeddings made such that their inner products are the similarities, float32.

    cosine: of unit length. dot: as they are. hamming: of +1 and −1. l2: x·y − |y|²/2, which orders the gallery as
    −|x − y|² does: queries get two coordinates of 1, gallery items −|y|²/2 split into two float32 numbers, the rounded
    one and the rest.
    """

    def __init__(self, rows: Rows | Codes, similarity: Similarity, *, gallery: bool):
        self.rows, self.similarity, self.gallery = rows, similarity, gallery
        self.dimension = rows.dimension + 2 * (similarity == "l2")
        self.bytes = len(rows) * self.dimension * 4
        self._held: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, part: Part) -> Tensor:
        """Some of them."""
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
        """Parts to read one after the other, whole multiples of some number of items."""
        return parts_of(len(self), max(1, PANEL // (4 * self.dimension) // multiple) * multiple)

    def hold(self) -> None:
        """Keep all of them in memory."""
        held = torch.empty(len(self), self.dimension, device=self.rows.device)
        for piece in self.pieces():
            held[piece] = self.read(piece)
        self._held = held

    def longest(self) -> float:
        """The largest length; where they have not been read, they are, so that bad rows are found before the work."""
        if self._held is not None and self.similarity == "cosine":
            return 1.0
        longest = max(float(Rows.norms(self.read(piece)).max()) for piece in self.pieces())
        if longest > LONGEST:
            raise InputError(
                f'{self.rows.name} have vectors so long that similarity="{self.similarity}" exceeds float32: '
                "divide them by a constant"
            )
        return 1.0 if self.similarity == "cosine" else longest
