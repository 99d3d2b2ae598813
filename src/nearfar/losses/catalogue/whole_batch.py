"""Losses of the batch as a whole: they do not fall into rows, but what they need of the pairs is gathered in strips."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nearfar.errors import InputError
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.plan import SIZES
from nearfar.losses.engine.row_functions import strip_height
from nearfar.losses.engine.vectors import blocks, cut, ordered, unit
from nearfar.losses.loss import Loss

MASKED = 2**24  # pairs looked through together


def in_order(pairs: Pairs, rows: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows and columns as unit vectors in the order of the pairs, differentiable, at least in float32."""

    def prepared(vectors: Tensor, order: Tensor | None) -> Tensor:
        return unit(ordered(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), order))

    x = prepared(rows, pairs.row_order)
    return x, x if columns is None else prepared(columns, pairs.column_order)


@torch.no_grad()
def strips(
    pairs: Pairs, rows: Tensor, columns: Tensor | None, budget: int
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Every similarity once: (rows, cosines (b, M), positive (b, M), negative (b, M)), in strips of bounded size."""
    x, y = in_order(pairs, rows, columns)
    for part in blocks(len(x), strip_height(budget, len(y) * x.element_size(), SIZES)):
        yield part, x[part] @ y.t(), *pairs.masks(part)


def positive_pairs(pairs: Pairs, size: int, above_diagonal: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """The positive pairs as rows i and columns j (P,), in the order of the pairs, about `size` at a time; of those of
    one set with itself only i < j, if asked.
    """
    mask_rows = max(1, MASKED // max(1, int(pairs.columns)))
    for part in blocks(pairs.rows, mask_rows):
        positive = pairs.masks(part)[0]
        i, j = (positive.triu_(part.start + 1) if above_diagonal else positive).nonzero(as_tuple=True)
        i = i + part.start if part.start else i
        for some in blocks(i.shape[0], size):
            yield cut(i, some), cut(j, some)


class WholeBatchLoss(Loss):
    """A loss that is one number for the batch: it has no rows to be given ("none"), added ("sum") or weighed."""

    whole_batch = True

    def __init__(self, **options: Any):
        super().__init__(**options)
        if self.reduction != "mean":
            raise InputError(
                f"{type(self).__name__} is one number for the batch: it has no reduction={self.reduction!r}"
            )

    @property
    def proxies_are_rows(self) -> bool:
        return False

    def check_unweighted(self, sample_weight: Tensor | None) -> None:
        """Refuse weights of the samples."""
        if sample_weight is not None:
            raise InputError(f"{type(self).__name__} is one number for the batch: it takes no sample_weight")
