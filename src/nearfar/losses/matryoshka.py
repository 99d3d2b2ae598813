"""A loss of nested dimensions."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from nearfar.errors import InputError
from nearfar.losses import inputs
from nearfar.losses.cross_batch_memory import CrossBatchMemory, contains
from nearfar.losses.loss import Loss
from nearfar.losses.mined import IndicesTuple
from nearfar.losses.sums import Summand, checked_weights, weighted_sum


class MatryoshkaLoss(Summand):
    """A loss of the first d dimensions, for several d at once, so that embeddings can be cut short after training.

        L = sum_d weight_d loss(x[:, :d])

    Class-level losses compare with `weight[:, :d]` of the same class weights (the paper's weight-tied form, MRL-E). A
    loss that counts its training steps counts one per call, however many dimensions there are.

    Args:
        loss: any loss, or a sum of them.
        dims: the dimensions d, each once; list D itself too, if whole embeddings will be used.
        weights: one number per d, not negative; all 1 by default, as in the paper.

    Example:
        >>> import torch
        >>> from nearfar.losses import CosFaceLoss
        >>> loss = MatryoshkaLoss(CosFaceLoss(num_classes=2, embedding_size=4), dims=[2, 4])
        >>> value = loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> sorted(loss.parts(torch.eye(4), torch.tensor([0, 0, 1, 1])))
        [2, 4]

    References: A. Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, arXiv:2205.13147, Eq. 1.
    """

    def __init__(self, loss: nn.Module, dims: Sequence[int], weights: Sequence[float] | None = None):
        super().__init__()
        if contains(loss, CrossBatchMemory):
            raise InputError("a memory keeps whole embeddings: write CrossBatchMemory(MatryoshkaLoss(...))")
        dims = [operator.index(dim) for dim in dims]
        if not dims or min(dims) < 1 or len(set(dims)) < len(dims):
            raise InputError(f"dims must be different numbers of dimensions, at least 1, not {dims}")
        for name, weight in _class_weights(loss).items():
            if weight.shape[-1] < max(dims):
                raise InputError(f"dims go up to {max(dims)}, but {name} of the loss has {weight.shape[-1]} dimensions")
        self.loss = loss
        self._weights = checked_weights(weights, dims, "dims")

    @property
    def weights(self) -> dict[int, float]:
        """The weights by the numbers of dimensions; may be assigned, a list too."""
        return self._weights

    @weights.setter
    def weights(self, weights: Iterable[float] | Mapping[int, float]) -> None:
        self._weights = checked_weights(weights, list(self._weights), "dims")

    def parts(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[int, Tensor]:
        """The loss of every d, without its weight; differentiable, so it can replace the call of the loss."""
        class_weights = _class_weights(self.loss)
        inputs.check_embeddings(embeddings, None)
        for weight in class_weights.values():
            inputs.check_embeddings(embeddings, weight.shape[-1])
        dims = list(self.weights)
        if embeddings.shape[1] < max(dims):
            raise InputError(f"embeddings have {embeddings.shape[1]} dimensions, but dims go up to {max(dims)}")
        parts = {}
        for dim in dims:
            replaced: dict[str, Tensor] = {name: weight[..., :dim] for name, weight in class_weights.items()}
            if dim != dims[-1]:  # every d sees the loss's state as it is, and the last one changes it
                replaced |= {name: buffer.clone() for name, buffer in self.loss.named_buffers()}
            cut = embeddings[:, :dim], labels, indices_tuple, None if ref_emb is None else ref_emb[:, :dim], ref_labels
            parts[dim] = functional_call(self.loss, replaced, cut, kwargs)
        return parts

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """
        Args:
            embeddings: (N, D).
            ref_emb: (M, D), cut short like the embeddings.
            labels, indices_tuple, ref_labels, kwargs: what the loss takes besides.
        """
        parts = self.parts(embeddings, labels, indices_tuple, ref_emb, ref_labels, **kwargs)
        return weighted_sum(parts.values(), self.weights.values())

    def extra_repr(self) -> str:
        return f"weights={self.weights}"


def _class_weights(loss: nn.Module) -> dict[str, nn.Parameter]:
    """The class weights of a loss and of the losses within it, by their parameters' names."""
    return {
        f"{name}.weight".lstrip("."): module.weight
        for name, module in loss.named_modules()
        if isinstance(module, Loss) and module.weight is not None
    }
