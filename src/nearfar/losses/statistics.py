"""Statistics of a step, for `loss.last`: what was compared, and what its gradient does.

Shapes: N rows, M columns of pairs; K vectors of a class.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.vectors import blocks, ordered, unit, wide

if TYPE_CHECKING:
    from nearfar.losses.loss import Loss

COMPARED = 2**22  # similarities looked at together


class Statistics:
    """Numbers of one step as tensors, so that nobody waits for the device before they are read.

    Attributes:
        values: by their names; see `Loss.last`.
    """

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    @torch.no_grad()
    def add_similarities(self, pairs: Pairs, rows: Tensor, columns: Tensor, vectors_per_class: int = 1) -> None:
        """The mean cosines of the positive and the negative pairs; with several vectors a class, of the nearest."""
        x = ordered(unit(wide(rows)), pairs.row_order)
        y = unit(wide(columns))
        y = ordered(y, pairs.column_order).to(x.dtype)
        sums, numbers = x.new_zeros(2), x.new_zeros(2)
        k = vectors_per_class
        rows_are_classes = len(x) == k * pairs.rows and k > 1
        for part in blocks(pairs.rows, COMPARED // max(1, len(y))):
            if rows_are_classes:
                s = (x[part.start * k : part.stop * k] @ y.t()).view(-1, k, len(y)).amax(1)
            else:
                s = (x[part] @ y.t()).view(part.stop - part.start, -1, k).amax(2)
            masks = torch.stack(pairs.masks(part))
            sums += (s * masks).sum((1, 2))
            numbers += masks.sum((1, 2))
        self.values["s_p"], self.values["s_n"] = sums / numbers

    @torch.no_grad()
    def add_pairs(self, slopes: Tensor) -> None:
        """Count the pairs that this part of the gradient by the similarities pulls together, and pushes apart."""
        for name, active in (("pulled", slopes < 0), ("pushed", slopes > 0)):
            number = active.sum()
            self.values[name] = self.values.get(name, torch.zeros_like(number)) + number

    @torch.no_grad()
    def add_gradient(self, gradient: Tensor) -> None:
        """The gradient by the embeddings, when it comes."""
        norms = torch.linalg.vector_norm(wide(gradient), dim=1)
        self.values["active_rows"], self.values["gradient_norm"] = (norms > 0).sum(), norms.mean()


def watched(embeddings: Tensor, statistics: Statistics) -> Tensor:
    """The embeddings, whose gradient by this loss will be looked at."""
    if embeddings.requires_grad and torch.is_grad_enabled():
        embeddings = embeddings.view_as(embeddings)
        embeddings.register_hook(statistics.add_gradient)  # type: ignore[no-untyped-call]
    return embeddings


def compared(loss: "Loss", pairs: Pairs, embeddings: Tensor, references: Tensor | None) -> tuple[Tensor, Tensor]:
    """The rows and the columns of the pairs."""
    columns = embeddings if references is None else references
    if loss.weighted and loss.weight is not None:
        shard = None if pairs.spread is None else pairs.spread.shard
        columns = loss.weight if shard is None else shard.part(loss.weight, loss.vectors_per_class)
    return (columns, embeddings) if loss.proxies_are_rows else (embeddings, columns)
