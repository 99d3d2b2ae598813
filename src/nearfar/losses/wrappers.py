"""Losses of losses: a memory of past batches, nested dimensions, two views of a batch, and weighted sums.

They compose: `CircleLoss() + 0.5 * CrossBatchMemory(MatryoshkaLoss(CircleLoss(), [32, 128]), 128)` is a loss.

Shapes: N samples, D dimensions, M columns (what the queue holds).
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearfar.errors import InputError, InputTypeError
from nearfar.losses import inputs, migration, mined
from nearfar.losses.loss import Loss, Summand
from nearfar.losses.mined import IndicesTuple

if TYPE_CHECKING:
    from nearfar.losses.distributed.ranks import Ranks


class SumLoss(Summand):
    """A weighted sum of losses, which `0.5 * a + b` makes.

        L = sum_k weight_k L_k

    Sums within sums are one flat sum. Every part is a submodule, so that `parameters()` and `state_dict()` hold all
    of theirs. Parts are called by their class, and numbered when that repeats: CircleLoss, CircleLoss_2.

    Args:
        losses: the parts L_k; all are called with the same arguments.
        weights: one number each, not negative; all 1 unless given.

    Example:
        >>> import torch
        >>> from nearfar.losses import CircleLoss, CosFaceLoss
        >>> loss = 0.5 * CircleLoss() + CosFaceLoss(num_classes=2, embedding_size=4)
        >>> loss.weights
        {'CircleLoss': 0.5, 'CosFaceLoss': 1.0}
        >>> x, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> parts = loss.parts(x, labels)
        >>> bool(loss(x, labels) == 0.5 * parts["CircleLoss"] + parts["CosFaceLoss"])
        True
    """

    def __init__(self, losses: Iterable[nn.Module], weights: Iterable[float] | None = None):
        super().__init__()
        losses = list(losses)
        if not losses:
            raise InputError("a sum needs at least one loss")
        self.losses = nn.ModuleDict()
        self.weights: dict[str, float] = {}
        for loss, weight in zip(losses, _checked_weights(weights, len(losses), "losses"), strict=True):
            if isinstance(loss, SumLoss):
                for name, part in loss.losses.items():
                    self._add_part(part, weight * loss.weights[name])
            else:
                self._add_part(loss, weight)

    def _add_part(self, loss: nn.Module, weight: float) -> None:
        kind = type(loss).__name__
        if not isinstance(loss, nn.Module):
            raise InputTypeError(f"losses can be added to losses alone, not to {kind}")
        alike = sum(type(part).__name__ == kind for part in self.losses.values())
        name = f"{kind}_{alike + 1}" if alike else kind
        self.losses[name] = loss
        self.weights[name] = weight

    def parts(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The value of every part, without its weight; differentiable, so it can stand for the call of the loss."""
        return {name: loss(*args, **kwargs) for name, loss in self.losses.items()}

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the parts take."""
        parts = self.parts(*args, **kwargs)
        shapes = {name: tuple(value.shape) for name, value in parts.items()}
        if len(set(shapes.values())) > 1:
            raise InputError(f"the parts of the sum have different shapes, {shapes}: give them one reduction")
        return _weighted_sum(parts.values(), self.weights.values())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        migration.adopt_sum(list(self.losses), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"weights={self.weights}"


class MatryoshkaLoss(Summand):
    """A loss of the first d dimensions, for several d at once, so that embeddings can be cut short after training.

        L = sum_d weight_d loss(x[:, :d])

    Class-level losses compare with `weight[:, :d]` of the same class weights (the paper's weight-tied form, MRL-E). A
    loss that counts its training steps counts one per call, however many dimensions there are.

    Args:
        loss: any loss, or a sum of them.
        dims: the dimensions d, each once; list D itself too, if whole embeddings will be used.
        weights: one number per d, not negative; all 1 as in the paper unless given.

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
        if _holds(loss, CrossBatchMemory):
            raise InputError("a memory keeps whole embeddings: CrossBatchMemory(MatryoshkaLoss(...)) is the order")
        dims = [operator.index(dim) for dim in dims]
        if not dims or min(dims) < 1 or len(set(dims)) < len(dims):
            raise InputError(f"dims must be different numbers of dimensions, at least 1, not {dims}")
        for name, weight in _class_weights(loss).items():
            if weight.shape[-1] < max(dims):
                raise InputError(f"dims go up to {max(dims)}, but {name} of the loss has {weight.shape[-1]} dimensions")
        self.loss = loss
        self.weights = dict(zip(dims, _checked_weights(weights, len(dims), "dims"), strict=True))

    def parts(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[int, Tensor]:
        """The loss of every d, without its weight; differentiable, so it can stand for the call of the loss."""
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
        return _weighted_sum(parts.values(), self.weights.values())

    def extra_repr(self) -> str:
        return f"weights={self.weights}"


class CrossBatchMemory(Summand):
    """A pair-level loss of the batch against a queue of past embeddings (XBM).

        the batch enters the queue, the oldest entries leave
        L = loss(batch against the queue)        a sample with its own copy in the queue is no pair

    The queue's entries are constants: gradients reach the embeddings as rows alone, as in the paper's Algorithm 1.
    Its code adds the loss within the batch, in which they are columns too: `loss + CrossBatchMemory(loss, D)`. Begin
    with the memory when the embeddings move slowly (the paper: after 1000 iterations).

    The queue moves when a training step is taken: in training mode, with gradients enabled. In evaluation or under
    no_grad the value is the same, and the queue is left as it was. The whole queue is in the state_dict; it is kept in
    the module's dtype and on its device (`.to(...)`). The columns are the queue itself, not a copy: with
    reduction="none", which looks at them again, call backward before the next step (torch raises otherwise).

    Args:
        loss: a pair-level loss, or a wrapper or sum of them.
        embedding_size: D.
        memory_size: how many embeddings the queue holds, at least a batch.
        miner: `miner(embeddings, labels, memory, memory_labels)` says which pairs or triplets count, as an
            `indices_tuple` of the batch and the queue; without it, all pairs do. What has a sample for the positive of
            its own copy is left out.

    Example:
        >>> import torch
        >>> from nearfar.losses import ContrastiveLoss
        >>> loss = CrossBatchMemory(ContrastiveLoss(), embedding_size=4, memory_size=6)
        >>> for _ in range(2):
        ...     loss(torch.randn(4, 4, requires_grad=True), torch.tensor([5, 5, 7, 7])).backward()
        >>> loss.label_memory
        tensor([7, 7, 7, 7, 5, 5])

    References: X. Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020, arXiv:1912.06798.
    """

    ranks: "Ranks | None" = None  # that share the batch, and have one and the same queue; `distribute` gives them

    embedding_memory: Tensor  # (memory_size, D)
    label_memory: Tensor  # (memory_size,)
    num_enqueued: Tensor  # how many have ever entered; modulo memory_size, the slot that the next one takes

    def __init__(
        self,
        loss: nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: Callable[[Tensor, Tensor, Tensor, Tensor], IndicesTuple] | None = None,
    ):
        super().__init__()
        if embedding_size < 1 or memory_size < 1:
            raise InputError(f"embedding_size and memory_size must be positive, not {embedding_size} and {memory_size}")
        _check_pair_level(loss, "CrossBatchMemory")
        self.loss, self.miner = loss, miner
        self.embedding_size, self.memory_size = embedding_size, memory_size
        self.register_buffer("embedding_memory", torch.zeros(memory_size, embedding_size))
        self.register_buffer("label_memory", torch.zeros(memory_size, dtype=torch.long))
        self.register_buffer("num_enqueued", torch.zeros((), dtype=torch.long))

    def reset_queue(self) -> None:
        """Empty the queue."""
        for buffer in (self.embedding_memory, self.label_memory, self.num_enqueued):
            buffer.zero_()

    @torch.no_grad()
    def enqueue(self, embeddings: Tensor, labels: Tensor) -> None:
        """Put embeddings (n, D) of classes `labels` (n,) into the queue, without a loss."""
        self._check(embeddings, labels)
        slots = self._next_slots(len(embeddings))
        self.embedding_memory.index_copy_(0, slots, embeddings.to(self.embedding_memory.dtype))
        self.label_memory.index_copy_(0, slots, labels.long())
        self.num_enqueued += len(embeddings)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: IndicesTuple | None = None,
        enqueue_mask: Tensor | None = None,
        *,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        """
        Args:
            embeddings: (N, D).
            labels: class ids (N,).
            indices_tuple: pairs or triplets of the batch, which count besides those that the `miner` finds, the second
                samples as their copies in the queue. Without a miner, they are among those that count anyway.
            enqueue_mask: (N,) boolean: these samples enter the queue, and only the others are compared with it (as
                MoCo has keys and queries). Without it, all do both.
            sample_weight: (N,), of the samples in the mean.
        """
        self._check(embeddings, labels)
        given = None
        if indices_tuple is not None:
            if enqueue_mask is not None:
                raise InputError("indices_tuple is of a batch that enters the queue as a whole: not with enqueue_mask")
            given = mined.checked(indices_tuple, len(labels), len(labels), embeddings.device)
        entering, entering_labels = embeddings.detach().to(self.embedding_memory.dtype), labels.long()
        if enqueue_mask is not None:
            if enqueue_mask.dtype != torch.bool or enqueue_mask.shape != labels.shape:
                raise InputError(
                    f"enqueue_mask must be a boolean mask of shape ({len(labels)},), "
                    f"not {enqueue_mask.dtype} {tuple(enqueue_mask.shape)}"
                )
            entering, entering_labels = entering[enqueue_mask], entering_labels[enqueue_mask]
            embeddings, labels = embeddings[~enqueue_mask], labels[~enqueue_mask]
            sample_weight = None if sample_weight is None else sample_weight[~enqueue_mask]
        rows, own = len(labels), slice(0, len(entering))
        if self.ranks is not None:
            counts = self.ranks.counts(len(entering), entering.device)
            own = slice(sum(counts[: self.ranks.rank]), sum(counts[: self.ranks.rank + 1]))
            entering, entering_labels = (self.ranks.collected(t, counts) for t in (entering, entering_labels))
            rows = sum(self.ranks.counts(len(labels), labels.device))
        slots = self._next_slots(len(entering))
        filled = min(self.memory_size, int(self.num_enqueued) + len(entering))
        if self.training and torch.is_grad_enabled():
            self.enqueue(entering, entering_labels)
            memory, memory_labels = self.embedding_memory[:filled], self.label_memory[:filled]
        else:
            memory = self.embedding_memory[:filled].index_copy(0, slots, entering)
            memory_labels = self.label_memory[:filled].index_copy(0, slots, entering_labels)
        copies = None if enqueue_mask is not None else slots[own]
        pairs: dict[str, Any]
        if self.miner is not None:
            with torch.no_grad():
                found = self.miner(embeddings, labels, memory, memory_labels)
            found = mined.checked(found, len(labels), filled, embeddings.device)
            pairs = {"labels": labels, "indices_tuple": _with_copies(found, given, copies)}
        elif copies is None or not rows:  # no row has a copy of itself in the queue
            pairs = {"labels": labels, "ref_labels": memory_labels}
        else:
            alike = labels[:, None] == memory_labels
            pairs = {"positives": alike.scatter(1, copies[:, None], False), "negatives": ~alike}
        value: Tensor = self.loss(embeddings, **pairs, ref_emb=memory, sample_weight=sample_weight)
        return value

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        migration.adopt_memory(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _check(self, embeddings: Tensor, labels: Tensor) -> None:
        finite = any(isinstance(module, Loss) and module.check_finite for module in self.loss.modules())
        inputs.check_embeddings(embeddings, self.embedding_size, finite=finite)  # before they are in the queue
        inputs.check_labels(labels, len(embeddings))
        if labels.ndim != 1:
            raise InputError(
                f"the memory keeps one class id per sample: labels must be (N,), not {tuple(labels.shape)}"
            )

    def _next_slots(self, n: int) -> Tensor:
        """Where the next n embeddings go."""
        if n > self.memory_size:
            raise InputError(f"a batch of {n} does not fit into memory_size={self.memory_size}: raise memory_size")
        return (self.num_enqueued + torch.arange(n, device=self.num_enqueued.device)) % self.memory_size

    def extra_repr(self) -> str:
        return f"embedding_size={self.embedding_size}, memory_size={self.memory_size}"


def _with_copies(
    found: tuple[Tensor, ...], given: tuple[Tensor, ...] | None, copies: Tensor | None
) -> tuple[Tensor, ...]:
    """What a miner found in the queue, without the samples' own copies (N,) as their positives; and what is given of
    the batch, at these copies.
    """
    if copies is not None:
        anchors, positives = found[:2]
        other = positives != copies[anchors]
        whole = 3 if len(found) == 3 else 2  # of a triplet nothing is left, of pairs the negatives are
        found = tuple(part[other] for part in found[:whole]) + found[whole:]
        if given is not None:
            if len(given) != len(found):
                raise InputError("miner= and indices_tuple must both be triplets, or both pairs")
            names = mined.NAMES[len(given)]
            given = tuple(part if name == "anchors" else copies[part] for part, name in zip(given, names, strict=True))
            found = tuple(torch.cat(parts) for parts in zip(found, given, strict=True))
    return found


class SelfSupervisedLoss(Summand):
    """A pair-level loss of two views of the same samples, without labels.

        row i of one view is positive with row i of the other; all else is negative

    Args:
        loss: a pair-level loss, or a wrapper or sum of them.
        symmetric: compare all 2N rows with each other, as SimCLR does; else the rows of `embeddings` with those of
            `ref_emb` alone.

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

    ranks: "Ranks | None" = None  # that share the batch; `distribute` gives them

    def __init__(self, loss: nn.Module, symmetric: bool = True):
        super().__init__()
        _check_pair_level(loss, "SelfSupervisedLoss")
        if _holds(loss, CrossBatchMemory):
            raise InputError("a sample's number says nothing in later batches: a memory needs labels")
        self.loss = loss
        self.symmetric = symmetric

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
            number += sum(self.ranks.counts(len(number), number.device)[: self.ranks.rank])
        if self.symmetric:
            return self.loss(torch.cat([embeddings, ref_emb]), torch.cat([number, number]))  # type: ignore[no-any-return]
        return self.loss(embeddings, number, ref_emb=ref_emb, ref_labels=number)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"symmetric={self.symmetric}"


def _checked_weights(weights: Iterable[float] | None, n: int, of: str) -> list[float]:
    """As floats, finite and not negative; all 1 unless given."""
    if weights is None:
        return [1.0] * n
    weights = list(weights)
    if len(weights) != n:
        raise InputError(f"{len(weights)} weights for {n} {of}: there must be one each")
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, Real):
            raise InputTypeError(f"a loss is multiplied by a number, not by {type(weight).__name__}")
        if not 0 <= weight < math.inf:
            raise InputError(f"a loss is multiplied by a finite number, not negative, and {weight} is not")
    return [float(weight) for weight in weights]


def _weighted_sum(values: Iterable[Tensor], weights: Iterable[float]) -> Tensor:
    first, *others = (weight * value for value, weight in zip(values, weights, strict=True))
    return sum(others, first)


def _holds(loss: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in loss.modules())


def _class_weights(loss: nn.Module) -> dict[str, nn.Parameter]:
    """The class weights of a loss and of the losses within it, by their parameters' names."""
    return {
        f"{name}.weight".lstrip("."): module.weight
        for name, module in loss.named_modules()
        if isinstance(module, Loss) and module.weight is not None
    }


def _check_pair_level(loss: nn.Module, wrapper: str) -> None:
    for module in loss.modules():
        if isinstance(module, Loss) and module.weight is not None:
            raise InputError(
                f"{type(module).__name__} with num_classes compares with its own class weights: "
                f"{wrapper} goes with pair-level losses"
            )
