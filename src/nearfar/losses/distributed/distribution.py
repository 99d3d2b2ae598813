"""`Distribution`: how one loss is evaluated by several ranks.

    by rows      row-local losses of samples: the rows are the rank's own samples, the columns those of all ranks. Only
                 embeddings, their gradients, and sums over rows pass between ranks.
    whole        other losses of samples (histograms, lifted structure, VICReg), and miners' lists: every rank evaluates
                 the whole batch, with the work of one process, in the same bounded memory.
    by classes   losses of classes: every rank has all samples and its part of the classes, as columns, whose
                 statistics are merged over ranks, or, for Proxy-Anchor, as rows.

In all three, gradients return to the rank that a sample came from.

Shapes: n samples of this rank, B of all; C classes, M of this rank.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearfar.losses import inputs, mined
from nearfar.losses.distributed.ranks import Ranks, gathered, own_rows, total, weighed_gradient
from nearfar.losses.distributed.sampling import drawn
from nearfar.losses.distributed.sharing import Shard, Spread, local_part
from nearfar.losses.engine.pairs import ClassPairs, Pairs
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.vectors import wide
from nearfar.losses.inputs import Batch
from nearfar.losses.labels import check_class_ids, check_multi_hot
from nearfar.losses.loss import Loss

if TYPE_CHECKING:
    from nearfar.losses.catalogue.towers import TwoTowerLoss


class Distribution:
    """
    Args:
        ranks: the processes that share the batch.
        sample_rate: the probability that a class of which the batch has no sample takes part in a training step.
        seed: of the draw of these classes.
        shared_references: `ref_emb` is the same on all ranks (a memory), and not every rank's part of it.
    """

    def __init__(self, ranks: Ranks, sample_rate: float = 1.0, seed: int = 0, *, shared_references: bool = False):
        self.ranks, self.sample_rate, self.seed = ranks, sample_rate, seed
        self.shared_references = shared_references

    def evaluate(self, loss: Loss, batch: Batch) -> Tensor:
        """The loss of all ranks' batches, the same value on every rank; `batch` is this rank's. With reduction "none",
        the values of this rank's rows.
        """
        counts = self.ranks.counts(len(batch.embeddings), batch.embeddings.device)
        if loss.class_level:
            loss.check_pairs(batch)
            if self._needs_all_classes(loss):
                return self._rows(loss, loss.pairs_of(batch), batch, counts)
            return self._by_classes(loss, batch, counts)
        columns = counts if batch.ref_emb is None else self._reference_counts(batch.ref_emb)
        loss.check_pairs(batch, sum(columns))
        if loss.row_local and batch.indices_tuple is None:
            return self._rows(loss, *self._samples_here(loss, batch, counts, columns), counts)
        value = loss.of_batch(self._batch_of_all(batch, counts, columns, alike=True))
        return own_rows(value, self.ranks, counts) if loss.reduction == "none" else value

    def evaluate_towers(self, loss: "TwoTowerLoss", a: Tensor, b: Tensor, sample_weight: Tensor | None) -> Tensor:
        """The same for two towers."""
        counts = self.ranks.counts(len(a), a.device)
        whole = not loss.row_local or sum(counts) == 0
        all_a, all_b = (gathered(tower, self.ranks, counts, alike=whole) for tower in (a, b))
        if whole:
            value = loss.of_towers(all_a, all_b, self._collected(sample_weight, counts))
            return own_rows(value, self.ranks, counts) if loss.reduction == "none" else value
        rows = self.ranks.own(counts)
        pairs = ClassPairs.to_classes(torch.arange(rows.start, rows.stop, device=a.device), len(all_a))
        pairs.spread = Spread(self.ranks, "rows", counts=counts)
        value = loss.of_rows((a, b), (all_a, all_b), pairs, sample_weight)
        return value if loss.reduction == "none" else total(value, self.ranks, self.ranks.size)

    def by_classes(self, loss: Loss) -> bool:
        """Whether every rank computes with its part of the loss's class vectors."""
        return loss.weight is not None and not self._needs_all_classes(loss)

    @staticmethod
    def _needs_all_classes(loss: Loss) -> bool:
        """Whether the loss needs a row's similarities to all classes at once, as strip functions do."""
        return loss.weight is not None and not loss.proxies_are_rows and not isinstance(loss.spec(), LossSpec)

    # By rows

    def _rows(self, loss: Loss, pairs: Pairs, batch: Batch, counts: list[int]) -> Tensor:
        """The loss of this rank's rows, added up over ranks."""
        pairs.spread = Spread(self.ranks, "rows", counts=counts)
        value = loss.of_pairs(pairs, batch)
        return value if loss.reduction == "none" else total(value, self.ranks, self.ranks.size)

    def _samples_here(self, loss: Loss, batch: Batch, counts: list[int], columns: list[int]) -> tuple[Pairs, Batch]:
        """This rank's samples × all samples, or all references: their pairs, and the batch with these as `ref_emb`."""
        if batch.ref_emb is None:
            rows = self.ranks.own(counts)
            x = wide(batch.embeddings)  # as rows and as columns: both gradients meet in float32
            all_x = gathered(x, self.ranks, counts, sent=batch.embeddings.dtype)
            if batch.positives is not None:
                pairs: Pairs = inputs.mask_pairs(batch.positives, batch.negatives, diagonal=rows.start)
            else:
                pairs = inputs.sample_pairs(self._collected(batch.labels, counts), None, rows)
            return pairs, batch._replace(embeddings=x, ref_emb=all_x)
        batch = self._with_all_references(batch, columns, alike=False)
        return loss.pairs_of(batch), batch

    def _reference_counts(self, ref_emb: Tensor) -> list[int]:
        """How many references every rank contributes."""
        if self.shared_references:
            return [len(ref_emb)]
        return self.ranks.counts(len(ref_emb), ref_emb.device)

    # The batch of all ranks

    def _collected(self, rows: Any, counts: list[int]) -> Any:
        return None if rows is None else self.ranks.collected(rows, counts)

    def _with_all_references(self, batch: Batch, columns: list[int], alike: bool) -> Batch:
        if batch.ref_emb is None or self.shared_references:
            return batch
        ref_emb = gathered(batch.ref_emb, self.ranks, columns, alike)
        return batch._replace(ref_emb=ref_emb, ref_labels=self._collected(batch.ref_labels, columns))

    def _batch_of_all(self, batch: Batch, counts: list[int], columns: list[int], alike: bool) -> Batch:
        """The batch of all ranks. `alike`: every rank computes the same with it."""
        batch = self._with_all_references(batch, columns, alike)
        names = "labels", "positives", "negatives", "sample_weight"
        collected: dict[str, Any] = {name: self._collected(getattr(batch, name), counts) for name in names}
        indices = self._all_indices(batch, counts, columns)
        embeddings = gathered(batch.embeddings, self.ranks, counts, alike)
        return batch._replace(embeddings=embeddings, indices_tuple=indices, **collected)

    def _all_indices(self, batch: Batch, counts: list[int], columns: list[int]) -> tuple[Tensor, ...] | None:
        """The tuples of all ranks' miners, each about its own batch, as indices into the batch of all."""
        if batch.indices_tuple is None:
            return None
        device, rows = batch.embeddings.device, self.ranks.own(counts)
        same = batch.ref_emb is not None and self.shared_references
        references = slice(0, columns[0]) if same else self.ranks.own(columns)
        indices = mined.checked(batch.indices_tuple, rows.stop - rows.start, references.stop - references.start, device)
        result = []
        for name, index in zip(mined.NAMES[len(indices)], indices, strict=True):
            shifted = index + (rows if name == "anchors" else references).start
            result.append(self.ranks.collected(shifted, self.ranks.counts(len(index), device)))
        return tuple(result)

    # By classes

    def _by_classes(self, loss: Loss, batch: Batch, counts: list[int]) -> Tensor:
        if batch.labels is not None and batch.labels.ndim == 2:
            check_multi_hot(batch.labels, loss.num_classes)
            batch = batch._replace(labels=None, positives=torch.ne(batch.labels, 0))
        masks = [self._of_classes_here(mask, loss, counts) for mask in (batch.positives, batch.negatives)]
        batch = self._batch_of_all(batch._replace(positives=None, negatives=None), counts, counts, alike=False)
        value = loss.of_batch(batch._replace(positives=masks[0], negatives=masks[1]))
        if self._samples_classes(loss):
            loss.sampling_step += 1
        if not loss.proxies_are_rows:
            return own_rows(value, self.ranks, counts) if loss.reduction == "none" else value
        if loss.reduction == "none":  # the mean over ranks of what each computes from its classes' values
            return weighed_gradient(value, 1 / self.ranks.size)
        return total(value, self.ranks, factor=1)

    def _of_classes_here(self, mask: Tensor | None, loss: Loss, counts: list[int]) -> Tensor | None:
        """The mask (B, M) of all samples and this rank's classes, from every rank's (n, C)."""
        if mask is None:
            return None
        ranges = Shard(self.ranks, loss.num_classes).ranges
        return self.ranks.exchanged([mask[:, classes] for classes in ranges], counts)

    def _samples_classes(self, loss: Loss) -> bool:
        return self.sample_rate < 1 and self.by_classes(loss) and loss.training and torch.is_grad_enabled()

    def class_pairs(self, loss: Loss, batch: Batch) -> Pairs:
        """The pairs of all samples × this rank's classes, or of this rank's classes × all samples."""
        shard = Shard(self.ranks, loss.num_classes)
        if batch.labels is not None:
            check_class_ids(batch.labels, loss.num_classes)
        loss.sampled = None
        if self._samples_classes(loss):
            loss.sampled = self._chosen(loss, shard, batch)
            shard = replace(shard, chosen=loss.sampled)
        pairs = self._mask_pairs(loss, shard, batch) if batch.labels is None else self._pairs(loss, shard, batch.labels)
        if not loss.proxies_are_rows:
            pairs.spread = Spread(self.ranks, "columns", shard)
        elif shard.chosen is None:
            pairs.spread = Spread(self.ranks, "rows", shard)
        else:  # a drawn class represents 1 / rate classes of those that might have been drawn
            weight = torch.where(pairs.positives > 0, 1.0, 1 / self.sample_rate)
            pairs.spread = Spread(self.ranks, "rows", shard, weight, total=loss.num_classes)
        return pairs

    def _chosen(self, loss: Loss, shard: Shard, batch: Batch) -> Tensor:
        """Which of this rank's classes take part: those of the batch's samples, and those that are drawn."""
        step = int(loss.sampling_step)
        taking_part = drawn(shard.first, shard.stop, self.sample_rate, self.seed, step, batch.embeddings.device)
        if batch.labels is not None:
            taking_part[batch.labels[shard.held(batch.labels)] - shard.first] = True
        else:
            assert batch.positives is not None
            taking_part |= batch.positives.any(0)
        return taking_part.nonzero()[:, 0]

    def _pairs(self, loss: Loss, shard: Shard, labels: Tensor) -> ClassPairs:
        labels = labels.long()
        if loss.proxies_are_rows:
            classes = torch.arange(shard.first, shard.stop, device=labels.device)
            return ClassPairs.to_references(classes if shard.chosen is None else classes[shard.chosen], labels)
        held, column, number = shard.held(labels), labels - shard.first, shard.stop - shard.first
        columns = shard.classes
        if shard.chosen is not None:
            column, number = torch.searchsorted(shard.chosen, column), len(shard.chosen)
            columns = int(self.ranks.sum(torch.tensor(number, device=labels.device)))
        column = torch.where(held, column, 0)
        pairs = ClassPairs(column, column + held.long(), number)
        pairs.positives, pairs.negatives = torch.ones_like(labels), torch.full_like(labels, columns - 1)
        return pairs

    def _mask_pairs(self, loss: Loss, shard: Shard, batch: Batch) -> Pairs:
        positives, negatives = batch.positives, batch.negatives
        assert positives is not None
        if shard.chosen is not None:
            positives = positives[:, shard.chosen]
            negatives = None if negatives is None else negatives[:, shard.chosen]
        pairs = inputs.mask_pairs(positives, negatives, transpose=loss.proxies_are_rows)
        if not loss.proxies_are_rows:
            pairs.positives, pairs.negatives = self.ranks.sum(torch.stack([pairs.positives, pairs.negatives]))
        return pairs

    def held(self, table: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """This rank's part of a table by classes, each label's position there (n,), and which labels it has (n,)."""
        part = local_part(table)
        if part is None:
            return table, labels, torch.ones_like(labels, dtype=torch.bool)
        shard = Shard(self.ranks, len(table))
        held = shard.held(labels)
        return part, torch.where(held, labels - shard.first, 0), held

    def with_own_class(self, table: Tensor, labels: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """See `Loss.with_own_class`; every rank computes the values of the samples whose classes it has."""
        if local_part(table) is None:
            return function(table[labels])
        part, index, held = self.held(table, labels)
        vectors = part[index] if len(part) else part.new_zeros(len(labels), part.shape[1])
        return total(torch.where(held, function(vectors), 0), self.ranks, self.ranks.size)

    def uniform(self, pairs: Pairs, like: Tensor) -> Tensor:
        """See `Loss.uniform`: the first rank's numbers for the rows of all ranks, of which these are this rank's."""
        counts = None if pairs.spread is None else pairs.spread.counts
        n = pairs.rows if counts is None else sum(counts)
        numbers = self.ranks.first_ranks(torch.rand(n, dtype=like.dtype, device=like.device))
        return numbers if counts is None else torch.split(numbers, counts)[self.ranks.rank]
