"""A pair-level loss of two views."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nearfar.errors import InputError
from nearfar.losses import inputs
from nearfar.losses.cross_batch_memory import CrossBatchMemory, check_pair_level, contains
from nearfar.losses.sums import Summand

if TYPE_CHECKING:
    from nearfar.losses.distributed.ranks import Ranks


class SelfSupervisedLoss(Summand):
    """A pair-level loss of two views of the same samples, without labels.

        row i of one view is positive with row i of the other; all else is negative

    Args:
        loss: a pair-level loss, or a wrapper or sum of them.
        symmetric: compare all 2N rows with each other, as SimCLR does; otherwise only the rows of `embeddings` with
            those of `ref_emb`.

    Example:
        >>> import torch
        >>> from nearfar.losses import NTXentLoss
        >>> loss = SelfSupervisedLoss(NTXentLoss(temperature=0.5))
        >>> views = torch.eye(3), torch.eye(3)
        >>> round(loss(*views).item(), 4)  # log(1 + 4 exp(-2))
        0.4327

    References: T. Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020,
    arXiv:2002.05709, Algorithm 1.
    """

    loss: nn.Module
    symmetric: bool = True

    def create_state(self) -> None:
        self.ranks: Ranks | None = None  # that share the batch; `distribute` sets them

    def set_up(self) -> None:
        check_pair_level(self.loss, "SelfSupervisedLoss")
        if contains(self.loss, CrossBatchMemory):
            raise InputError("sample numbers mean nothing in later batches: a memory needs labels")

    def forward(self, embeddings: Tensor, ref_emb: Tensor) -> Tensor:
        """
        Args:
            embeddings, ref_emb: (N, D), the two views.
        """
        inputs.check_embeddings(embeddings, None)
        inputs.check_embeddings(ref_emb, None, "ref_emb")
        if embeddings.shape != ref_emb.shape:
            raise InputError(
                f"the views must have one shape, not {tuple(embeddings.shape)} and {tuple(ref_emb.shape)}: "
                "row i of both is the same sample"
            )
        number = torch.arange(len(embeddings), device=embeddings.device)
        if self.ranks is not None:
            number += self.ranks.own(self.ranks.counts(len(number), number.device)).start
        if self.symmetric:
            return self.loss(torch.cat([embeddings, ref_emb]), torch.cat([number, number]))  # type: ignore[no-any-return]
        return self.loss(embeddings, number, ref_emb=ref_emb, ref_labels=number)  # type: ignore[no-any-return]
