"""All pairs of a batch in bounded memory, for losses that are not sums over rows of the formula."""

from collections.abc import Iterator

import torch
from torch import Tensor

from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.plan import SIZES
from nearfar.losses.engine.row_functions import strip_height
from nearfar.losses.engine.vectors import blocks, ordered, unit, wide

Strip = tuple[slice, Tensor, Tensor, Tensor]  # rows, cosines (b, M), positive (b, M), negative (b, M)
MASKED = 2**24  # pairs whose masks are made together


def in_order(pairs: Pairs, rows: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows and columns as unit vectors in the order of the pairs, differentiable, at least in float32."""
    x = unit(ordered(wide(rows), pairs.row_order))
    return x, x if columns is None else unit(ordered(wide(columns), pairs.column_order))


@torch.no_grad()
def strips(pairs: Pairs, rows: Tensor, columns: Tensor | None, budget: int) -> Iterator[Strip]:
    """Every similarity once, in strips of bounded size."""
    x, y = in_order(pairs, rows, columns)
    for part in blocks(len(x), strip_height(budget, len(y) * x.element_size(), SIZES)):
        yield part, x[part] @ y.t(), *pairs.masks(part)


def positive_pairs(pairs: Pairs, size: int, above_diagonal: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """The positive pairs as rows i and columns j (P,), in the order of the pairs, about `size` at a time.

    Args:
        above_diagonal: only those with i < j, where the columns are the rows.
    """
    mask_rows = max(1, MASKED // max(1, int(pairs.columns)))
    for part in blocks(pairs.rows, mask_rows):
        positive = pairs.masks(part)[0]
        i, j = (positive.triu_(part.start + 1) if above_diagonal else positive).nonzero(as_tuple=True)
        i = i + part.start if part.start else i
        for block in blocks(i.shape[0], size):
            yield i[block], j[block]
