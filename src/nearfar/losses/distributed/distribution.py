"""`Distribution`: how one loss is evaluated by several ranks.

    by rows      a loss of samples whose rows are independent: every rank has its own samples as rows and all ranks' as
                 columns. Sums over rows (how many count, and the like) pass between ranks, nothing else.
    whole        a loss of samples that is not row-local (histograms, lifted structure, VICReg), or of what miners list:
                 every rank evaluates the whole batch. As much work as one process has, in the same bounded memory.
    by classes   a loss of classes: every rank has all samples, and its part of the classes as columns or, for
                 Proxy-Anchor, as rows. Columns: the rows' statistics are merged. Rows: as above.

In all three, gradients go back to the rank that a sample came from.

Shapes: n samples of this rank, B of all; C classes, M of them here.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nearfar.losses import inputs, mined
from nearfar.losses.distributed.ranks import Ranks, gathered, own_rows, total, weighed_gradient, wide
from nearfar.losses.distributed.sampling import drawn
from nearfar.losses.distributed.sharing import Shard, Spread, local_part
from nearfar.losses.engine.pairs import ClassPairs, Pairs
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.loss import Given, Loss

if TYPE_CHECKING:
    from nearfar.losses.catalogue.towers import TwoTowerLoss


class Distribution:
    """
    Args:
        ranks: who shares the batch.
        sample_rate: with which probability a class that no sample of the batch has takes part in a training step.
        seed: of this draw.
        shared_references: `ref_emb` is the same on all ranks (a memory), and not every rank's part of it.
    """

    def __init__(self, ranks: Ranks, sample_rate: float = 1.0, seed: int = 0, *, shared_references: bool = False):
        self.ranks, self.sample_rate, self.seed = ranks, sample_rate, seed
        self.shared_references = shared_references

    def evaluate(self, loss: Loss, given: Given) -> Tensor:
        """The loss of all ranks' batches, of which `given` is this rank's: the same value on all. With reduction
        "none", the values of this rank's rows.
        """
        counts = self.ranks.counts(len(given.embeddings), given.embeddings.device)
        if loss.class_level:
            loss.check_pairs(given)
            return (
                self._of_rows_here(loss, given, counts)
                if self._by_strips(loss)
                else self._of_classes(loss, given, counts)
            )
        columns = counts if given.ref_emb is None else self._reference_counts(given.ref_emb)
        loss.check_pairs(given, sum(columns))
        if loss.row_local and given.indices_tuple is None:
            return self._of_rows_here(loss, given, counts, columns)
        value = loss.of_batch(self._whole(given, counts, columns))
        return own_rows(value, self.ranks, counts) if loss.reduction == "none" else value

    def evaluate_towers(self, loss: "TwoTowerLoss", a: Tensor, b: Tensor, sample_weight: Tensor | None) -> Tensor:
        """The same for two towers."""
        counts = self.ranks.counts(len(a), a.device)
        alike = not loss.row_local or sum(counts) == 0
        all_a, all_b = (gathered(tower, self.ranks, counts, alike) for tower in (a, b))
        if alike:
            value = loss.of_towers(all_a, all_b, self._collected(sample_weight, counts))
            return own_rows(value, self.ranks, counts) if loss.reduction == "none" else value
        row = torch.arange(len(a), device=a.device) + sum(counts[: self.ranks.rank])
        pairs = ClassPairs.to_classes(row, len(all_a))
        pairs.spread = Spread(self.ranks, "rows", counts=counts)
        value = loss.of_rows((a, b), (all_a, all_b), pairs, sample_weight)
        return value if loss.reduction == "none" else total(value, self.ranks, self.ranks.size)

    def by_classes(self, loss: Loss) -> bool:
        """Whether ranks share the class weights of a loss out."""
        return loss.weight is not None and not self._by_strips(loss)

    @staticmethod
    def _by_strips(loss: Loss) -> bool:
        """Whether a row needs all classes at once, as a function of a strip does."""
        return loss.weight is not None and not loss.proxies_are_rows and not isinstance(loss.spec(), LossSpec)

    def _collected(self, rows: Tensor | None, counts: list[int]) -> Tensor | None:
        return None if rows is None else self.ranks.collected(rows, counts)

    def _reference_counts(self, ref_emb: Tensor) -> list[int]:
        """How many columns every rank gives."""
        if self.shared_references:
            return [len(ref_emb)]
        return self.ranks.counts(len(ref_emb), ref_emb.device)

    # Samples

    def _of_rows_here(self, loss: Loss, given: Given, counts: list[int], columns: list[int] | None = None) -> Tensor:
        if columns is None:  # the classes, which are all here
            pairs = loss.pairs_of(given)
        elif given.ref_emb is None:
            first = sum(counts[: self.ranks.rank])
            pairs = self._pairs_of_part(given, slice(first, first + len(given.embeddings)), counts)
            rows = wide(given.embeddings)  # both as rows and as columns, so that their gradients meet in float32
            everyone = gathered(rows, self.ranks, counts, sent=given.embeddings.dtype)
            given = given._replace(embeddings=rows, ref_emb=everyone)
        else:
            if not self.shared_references:
                given = given._replace(
                    ref_emb=gathered(given.ref_emb, self.ranks, columns),
                    ref_labels=self._collected(given.ref_labels, columns),
                )
            pairs = loss.pairs_of(given)
        pairs.spread = Spread(self.ranks, "rows", counts=counts)
        value = loss.of_pairs(pairs, given)
        return value if loss.reduction == "none" else total(value, self.ranks, self.ranks.size)

    def _pairs_of_part(self, given: Given, part: slice, counts: list[int]) -> Pairs:
        """This rank's samples × those of all ranks."""
        if given.positives is not None:
            return inputs.mask_pairs(given.positives, given.negatives, own=part.start)
        assert given.labels is not None
        return inputs.sample_pairs(self.ranks.collected(given.labels, counts), None, part)

    def _whole(self, given: Given, counts: list[int], columns: list[int]) -> Given:
        """The batch of all ranks, which every rank evaluates alike."""
        embeddings = gathered(given.embeddings, self.ranks, counts, alike=True)
        ref_emb, ref_labels = given.ref_emb, given.ref_labels
        if ref_emb is not None and not self.shared_references:
            ref_emb = gathered(ref_emb, self.ranks, columns, alike=True)
            ref_labels = self._collected(ref_labels, columns)
        return Given(
            embeddings,
            self._collected(given.labels, counts),
            self._whole_indices(given, counts, columns),
            ref_emb,
            ref_labels,
            self._collected(given.positives, counts),
            self._collected(given.negatives, counts),
            self._collected(given.sample_weight, counts),
        )

    def _whole_indices(self, given: Given, counts: list[int], columns: list[int]) -> tuple[Tensor, ...] | None:
        """What the miners of all ranks found, each in its own batch, counted in the whole."""
        if given.indices_tuple is None:
            return None
        rank, device = self.ranks.rank, given.embeddings.device
        own = columns[0] if given.ref_emb is not None and self.shared_references else columns[rank]
        indices = mined.checked(given.indices_tuple, counts[rank], own, device)
        offsets = {True: sum(counts[:rank]), False: 0 if len(columns) < len(counts) else sum(columns[:rank])}
        result = []
        for name, index in zip(mined.NAMES[len(indices)], indices, strict=True):
            numbers = self.ranks.counts(len(index), device)
            result.append(self.ranks.collected(index + offsets[name == "anchors"], numbers))
        return tuple(result)

    # Classes

    def _of_classes(self, loss: Loss, given: Given, counts: list[int]) -> Tensor:
        labels, positives, negatives = given.labels, given.positives, given.negatives
        if loss.weight is not None:
            if labels is not None and labels.ndim == 2:
                inputs.check_multi_hot(labels, loss.num_classes)
                positives = torch.ne(labels, 0)
                labels = None
            positives, negatives = (self._of_classes_here(mask, loss, counts) for mask in (positives, negatives))
        else:
            positives, negatives = (self._collected(mask, counts) for mask in (positives, negatives))
        batch = Given(
            gathered(given.embeddings, self.ranks, counts),
            self._collected(labels, counts),
            self._whole_indices(given, counts, counts),
            given.ref_emb,
            given.ref_labels,
            positives,
            negatives,
            self._collected(given.sample_weight, counts),
        )
        value = loss.of_batch(batch)
        if self._samples_classes(loss):
            loss.sampling_step += 1
        if not loss.proxies_are_rows:
            return own_rows(value, self.ranks, counts) if loss.reduction == "none" else value
        if loss.reduction == "none":  # as the mean over ranks of what they make of their classes
            return weighed_gradient(value, 1 / self.ranks.size)
        return total(value, self.ranks, factor=1)

    def _of_classes_here(self, mask: Tensor | None, loss: Loss, counts: list[int]) -> Tensor | None:
        """Of a mask (n, C) of this rank's samples and all classes, that of all samples and the classes here, (B, M)."""
        if mask is None:
            return None
        ranges = Shard(self.ranks, loss.num_classes).ranges
        return self.ranks.exchanged([mask[:, classes] for classes in ranges], counts)

    def _samples_classes(self, loss: Loss) -> bool:
        return self.sample_rate < 1 and self.by_classes(loss) and loss.training and torch.is_grad_enabled()

    def class_pairs(self, loss: Loss, given: Given) -> Pairs:
        """All samples × the classes here, or the classes here × all samples."""
        shard = Shard(self.ranks, loss.num_classes)
        if given.labels is not None:
            inputs.check_class_ids(given.labels, loss.num_classes)
        loss.sampled = None
        if self._samples_classes(loss):
            loss.sampled = self._chosen(loss, shard, given)
            shard = replace(shard, chosen=loss.sampled)
        pairs = self._mask_pairs(loss, shard, given) if given.labels is None else self._pairs(loss, shard, given.labels)
        if not loss.proxies_are_rows:
            pairs.spread = Spread(self.ranks, "columns", shard)
        elif shard.chosen is None:
            pairs.spread = Spread(self.ranks, "rows", shard)
        else:  # a class that was drawn stands for 1 / rate of those that might have been
            weight = torch.where(pairs.positives > 0, 1.0, 1 / self.sample_rate)
            pairs.spread = Spread(self.ranks, "rows", shard, weight, total=loss.num_classes)
        return pairs

    def _chosen(self, loss: Loss, shard: Shard, given: Given) -> Tensor:
        """Of the classes here, those that a sample has, and those that are drawn."""
        step = int(loss.sampling_step)
        kept = drawn(shard.first, shard.stop, self.sample_rate, self.seed, step, given.embeddings.device)
        if given.labels is not None:
            kept[given.labels[shard.held(given.labels)] - shard.first] = True
        else:
            assert given.positives is not None
            kept |= given.positives.any(0)
        return kept.nonzero()[:, 0]

    def _pairs(self, loss: Loss, shard: Shard, labels: Tensor) -> ClassPairs:
        labels = labels.long()
        if loss.proxies_are_rows:
            classes = torch.arange(shard.first, shard.stop, device=labels.device)
            return ClassPairs.to_references(classes if shard.chosen is None else classes[shard.chosen], labels)
        here, column, number = shard.held(labels), labels - shard.first, shard.stop - shard.first
        columns = shard.classes
        if shard.chosen is not None:
            column, number = torch.searchsorted(shard.chosen, column), len(shard.chosen)
            columns = int(self.ranks.sum(torch.tensor(number, device=labels.device)))
        column = torch.where(here, column, 0)
        pairs = ClassPairs(column, column + here.long(), number)
        pairs.positives, pairs.negatives = torch.ones_like(labels), torch.full_like(labels, columns - 1)
        pairs.complete = len(labels) > 0 and columns > 1
        return pairs

    def _mask_pairs(self, loss: Loss, shard: Shard, given: Given) -> Pairs:
        positives, negatives = given.positives, given.negatives
        assert positives is not None
        if shard.chosen is not None:
            positives = positives[:, shard.chosen]
            negatives = None if negatives is None else negatives[:, shard.chosen]
        pairs = inputs.mask_pairs(positives, negatives, transpose=loss.proxies_are_rows)
        if not loss.proxies_are_rows:
            pairs.positives, pairs.negatives = self.ranks.sum(torch.stack([pairs.positives, pairs.negatives]))
            pairs.complete = len(positives) > 0 and bool(((pairs.positives > 0) & (pairs.negatives > 0)).all())
        return pairs

    def held(self, table: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of a table by classes: the part that is here, where the classes `labels` (n,) are in it, and which are."""
        own = local_part(table)
        if own is None:
            return table, labels, torch.ones_like(labels, dtype=torch.bool)
        shard = Shard(self.ranks, len(table))
        here = shard.held(labels)
        return own, torch.where(here, labels - shard.first, 0), here

    def with_own_class(self, table: Tensor, labels: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """See `Loss.with_own_class`; every rank does it for the samples whose classes it has."""
        if local_part(table) is None:
            return function(table[labels])
        own, index, here = self.held(table, labels)
        vectors = own[index] if len(own) else own.new_zeros(len(labels), own.shape[1])
        return total(torch.where(here, function(vectors), 0), self.ranks, self.ranks.size)
