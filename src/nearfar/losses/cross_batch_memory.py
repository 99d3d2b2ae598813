"""A memory of past batches."""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nearfar.errors import InputError
from nearfar.losses import inputs, migration, mined
from nearfar.losses.inputs import Batch
from nearfar.losses.labels import check_labels, squeezed
from nearfar.losses.loss import Loss
from nearfar.losses.mined import IndicesTuple
from nearfar.losses.settings import PositiveInt
from nearfar.losses.sums import Summand

if TYPE_CHECKING:
    from nearfar.losses.distributed.ranks import Ranks


class CrossBatchMemory(Summand):
    """A pair-level loss of the batch against a queue of past embeddings (XBM).

        the batch enters the queue, the oldest entries leave
        L = loss(batch against the queue)        a sample with its own copy in the queue is no pair

    The queue's entries are constants: gradients reach the embeddings only as rows, as in the paper's Algorithm 1.
    Its code adds the loss within the batch, in which they are columns too: `loss + CrossBatchMemory(loss, D)`. Begin
    with the memory when the embeddings move slowly (the paper: after 1000 iterations).

    The queue moves in training steps: in training mode, with gradients enabled. In evaluation or under no_grad the
    value is the same, and the queue stays as it was. The whole queue is in the state_dict; it is kept in
    the module's dtype and on its device (`.to(...)`). The columns are the queue itself, not a copy: with
    reduction="none", which reads them again, call backward before the next step (torch raises otherwise).

    Args:
        loss: a pair-level loss, or a wrapper or sum of them.
        embedding_size: D.
        memory_size: how many embeddings the queue holds, at least a batch.
        ignore_index: samples with this label neither enter the queue nor are compared with it.
        miner: `miner(embeddings, labels, memory, memory_labels)` says which pairs or triplets count, as an
            `indices_tuple` of the batch and the queue; without it, all pairs do. Pairs of a sample and its own copy
            are left out.

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

    loss: nn.Module
    embedding_size: PositiveInt
    memory_size: PositiveInt = 1024
    miner: Callable[[Tensor, Tensor, Tensor, Tensor], IndicesTuple] | None = None
    _: KW_ONLY
    ignore_index: int | None = -1

    def create_state(self) -> None:
        self.ranks: Ranks | None = None  # that share the batch and have the same queue; `distribute` sets them

    def set_up(self) -> None:
        check_pair_level(self.loss, "CrossBatchMemory")
        self.embedding_memory: Tensor  # (memory_size, D)
        self.label_memory: Tensor  # (memory_size,)
        self.num_enqueued: Tensor  # how many have ever entered; modulo memory_size, the next slot
        self.register_buffer("embedding_memory", torch.zeros(self.memory_size, self.embedding_size))
        self.register_buffer("label_memory", torch.zeros(self.memory_size, dtype=torch.long))
        self.register_buffer("num_enqueued", torch.zeros((), dtype=torch.long))

    def reset_queue(self) -> None:
        """Empty the queue."""
        for buffer in (self.embedding_memory, self.label_memory, self.num_enqueued):
            buffer.zero_()

    @torch.no_grad()
    def enqueue(self, embeddings: Tensor, labels: Tensor) -> None:
        """Put embeddings (n, D) of classes `labels` (n,) into the queue, without a loss."""
        labels = self._checked(embeddings, labels)
        if self.ignore_index is not None:
            embeddings, labels = embeddings[labels != self.ignore_index], labels[labels != self.ignore_index]
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
        labels = self._checked(embeddings, labels)
        if enqueue_mask is not None and (enqueue_mask.dtype != torch.bool or enqueue_mask.shape != labels.shape):
            raise InputError(
                f"enqueue_mask must be a boolean mask of shape ({len(labels)},), "
                f"not {enqueue_mask.dtype} {tuple(enqueue_mask.shape)}"
            )
        batch, kept = inputs.without_ignored(Batch(embeddings, labels, sample_weight=sample_weight), self.ignore_index)
        if kept is not None:
            if indices_tuple is not None:
                raise InputError(f"indices_tuple needs a batch without samples of label {self.ignore_index}")
            compared = torch.ones_like(labels, dtype=torch.bool) if enqueue_mask is None else ~enqueue_mask
            entering_mask = None if enqueue_mask is None else enqueue_mask[kept]
            values = self(batch.embeddings, batch.labels, None, entering_mask, sample_weight=batch.sample_weight)
            samples = (compared.cumsum(0) - 1)[kept][compared[kept]]
            return inputs.of_samples(values, samples, int(compared.sum()))
        listed = None
        if indices_tuple is not None:
            if enqueue_mask is not None:
                raise InputError("indices_tuple needs a batch that enters the queue as a whole: leave enqueue_mask out")
            listed = mined.checked(indices_tuple, len(labels), len(labels), embeddings.device)
        entering, entering_labels = embeddings.detach().to(self.embedding_memory.dtype), labels.long()
        if enqueue_mask is not None:
            entering, entering_labels = entering[enqueue_mask], entering_labels[enqueue_mask]
            embeddings, labels = embeddings[~enqueue_mask], labels[~enqueue_mask]
            sample_weight = None if sample_weight is None else sample_weight[~enqueue_mask]
        rows, from_this_rank = len(labels), slice(0, len(entering))
        if self.ranks is not None:
            counts = self.ranks.counts(len(entering), entering.device)
            from_this_rank = self.ranks.own(counts)
            entering, entering_labels = (self.ranks.collected(t, counts) for t in (entering, entering_labels))
            rows = sum(self.ranks.counts(len(labels), labels.device))
        # A checkpoint (torch.utils.checkpoint) calls again within backward: the batch is in the queue already.
        recomputed = torch._C._current_graph_task_id() != -1 and self._are_last(entering)
        slots = self._next_slots(len(entering), back=len(entering) if recomputed else 0)
        filled = min(self.memory_size, int(self.num_enqueued) + (0 if recomputed else len(entering)))
        if self.training and torch.is_grad_enabled():
            if not recomputed:
                self.enqueue(entering, entering_labels)
            memory, memory_labels = self.embedding_memory[:filled], self.label_memory[:filled]
        else:
            memory = self.embedding_memory[:filled].index_copy(0, slots, entering)
            memory_labels = self.label_memory[:filled].index_copy(0, slots, entering_labels)
        copies = None if enqueue_mask is not None else slots[from_this_rank]
        pairs: dict[str, Any]
        if self.miner is not None:
            with torch.no_grad():
                mined_pairs = self.miner(embeddings, labels, memory, memory_labels)
            mined_pairs = mined.checked(mined_pairs, len(labels), filled, embeddings.device)
            pairs = {"labels": labels, "indices_tuple": _with_copies(mined_pairs, listed, copies)}
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

    def _checked(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The class ids (N,), if they and the embeddings are what the memory takes."""
        finite = any(isinstance(module, Loss) and module.check_finite for module in self.loss.modules())
        inputs.check_embeddings(embeddings, self.embedding_size, finite=finite)  # before they are in the queue
        labels = squeezed(labels)
        check_labels(labels, len(embeddings))
        if labels.ndim != 1:
            raise InputError(
                f"the memory keeps one class id per sample: labels must be (N,), not {tuple(labels.shape)}"
            )
        return labels

    def _are_last(self, embeddings: Tensor) -> bool:
        """Whether these embeddings are the last that have entered the queue."""
        n = len(embeddings)
        return n <= int(self.num_enqueued) and torch.equal(
            self.embedding_memory[self._next_slots(n, back=n)], embeddings
        )

    def _next_slots(self, n: int, back: int = 0) -> Tensor:
        """Where the next n embeddings go; or went, `back` embeddings ago."""
        if n > self.memory_size:
            raise InputError(f"a batch of {n} does not fit into memory_size={self.memory_size}: raise memory_size")
        return (self.num_enqueued - back + torch.arange(n, device=self.num_enqueued.device)) % self.memory_size


def _with_copies(
    mined_pairs: tuple[Tensor, ...], listed: tuple[Tensor, ...] | None, copies: Tensor | None
) -> tuple[Tensor, ...]:
    """The pairs or triplets that a miner listed, without those whose positive is the anchor's own copy in the queue,
    at the slots `copies` (N,); and those `listed` in the batch, with their second samples at these slots.
    """
    if copies is None:
        return mined_pairs
    anchors, positives = mined_pairs[:2]
    other = positives != copies[anchors]
    dropped = 3 if len(mined_pairs) == 3 else 2  # triplets are dropped whole; of pairs the negatives stay
    remaining = tuple(index[other] for index in mined_pairs[:dropped]) + mined_pairs[dropped:]
    if listed is None:
        return remaining
    if len(listed) != len(remaining):
        raise InputError("miner= and indices_tuple must both be triplets, or both pairs")
    names = mined.NAMES[len(listed)]
    at_copies = (index if name == "anchors" else copies[index] for index, name in zip(listed, names, strict=True))
    return tuple(torch.cat(lists) for lists in zip(remaining, at_copies, strict=True))


def contains(loss: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a loss is, or is made of, a module of this kind."""
    return any(isinstance(module, kind) for module in loss.modules())


def check_pair_level(loss: nn.Module, wrapper: str) -> None:
    """Raise `InputError` for a loss with class vectors."""
    for module in loss.modules():
        if isinstance(module, Loss) and module.weight is not None:
            raise InputError(
                f"{type(module).__name__} with num_classes compares with its own class weights: "
                f"{wrapper} goes with pair-level losses"
            )
