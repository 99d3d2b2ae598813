"""`Loss`, the module that every loss is: it knows the pairs of a batch, owns the class vectors, calls the engine."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from nearfar.errors import InputError
from nearfar.losses import engine, inputs, migration, mined
from nearfar.losses.calling import eager, warn_caller
from nearfar.losses.classes import WithClasses
from nearfar.losses.engine.memory import Spare
from nearfar.losses.engine.pairs import Pairs, over_all_rows
from nearfar.losses.engine.plan import BUDGET, SIZES, Plan
from nearfar.losses.engine.spec import Average, LossSpec, StripSpec
from nearfar.losses.inputs import Batch
from nearfar.losses.mined import IndicesTuple, TuplePairs
from nearfar.losses.placeholders import with_placeholders
from nearfar.losses.settings import Bytes, PositiveInt
from nearfar.losses.statistics import Statistics, compared, watched

if TYPE_CHECKING:
    from nearfar.losses.distributed.distribution import Distribution

Reduction = Literal["mean", "sum", "none"]
Learned = Literal["classes", "scale", "boundary"]  # kinds of parameters, each with a learning rate of its own


class Loss(WithClasses, common=True):
    """A loss of embeddings and labels.

    Args:
        reduction: "mean", "sum", or "none" for one value per row (per sample; per proxy for Proxy-Anchor).
        memory_budget: how many bytes of similarities may be kept between the passes; beyond it they are computed again.
        keep_statistics: have `last` show statistics of the last step, for another look at all similarities.
        ignore_index: samples with this label are left out, as rows and as columns; None takes it for a class.
        check_finite: raise if the embeddings hold NaN or infinity (costs a pass over them).
        dense: compute the plain way, with whole matrices and autograd, to compare or to debug.
        sharded: see `WithClasses`.

    Class-level losses own `weight` (classes, dimension), and those with a bias `bias` (classes,): give
    `loss.parameters()` to an optimiser.
    """

    _: KW_ONLY
    reduction: Reduction = "mean"
    memory_budget: Bytes = BUDGET
    keep_statistics: bool = False
    ignore_index: int | None = -1
    check_finite: bool = False
    dense: bool = False

    used = (*WithClasses.used, "last")
    # Capabilities, which a loss declares and `LossInfo` shows.
    row_local = False  # a row's loss is a function of that row's similarities only, so ranks may share rows out
    needs_class_ids = False  # every sample has one class: no multi-hot labels, no masks
    takes_soft_labels = False  # with class vectors, labels may be probabilities of the classes
    takes_references = True  # samples may be compared with `ref_emb`, if not with classes
    whole_batch = False  # it is one number for the batch: no other reduction, no sample weights
    free_norm = False  # it is defined on features of any norm, and not only of norm 1
    only_products = True  # it sees samples only through their norms and products, not through single coordinates
    proxies_are_rows = False  # the class vectors are the anchors, and the samples are compared with them
    learned: ClassVar[Mapping[str, Learned]] = {  # the kinds of its parameters, by their names
        "weight": "classes",
        "bias": "classes",
        "scale": "scale",
        "logit_scale": "scale",
        "logit_bias": "boundary",
        "beta": "boundary",
        "base": "boundary",
        "margin": "boundary",
        "m": "boundary",
    }
    sizes = SIZES  # of the blocks that the engine works in

    def create_state(self) -> None:
        super().create_state()
        self._statistics: Statistics | None = None
        self.spare = Spare()  # memory that every step needs
        self.distribution: Distribution | None = None  # over several processes; `distribute` sets it
        self.sampling_step: Tensor  # how many steps have drawn classes, where only some take part
        self.sampled: Tensor | None = None  # the classes of this rank that the last step drew

    def set_up(self, *_: Any, **sizes: Any) -> None:
        """Own class vectors, if `num_classes` and `embedding_size` are settings and are given; learn the scale or the
        temperature, if `learnable` is a setting and is given.
        """
        if self.whole_batch and self.reduction != "mean":
            raise InputError(
                f"{type(self).__name__} is one number for the batch: it has no reduction={self.reduction!r}"
            )
        learnable = sizes.pop("learnable", False)
        if any(size is not None for size in sizes.values()):
            self.add_classes(**sizes)
        if learnable:
            self.learn_scale(vars(self).get("scale") or 1 / vars(self)["temperature"])

    def train(self, mode: bool = True) -> Self:
        """Set the mode; eval() frees the step buffers."""
        if not mode:
            self.spare.give_up()
        return super().train(mode)

    def watched(self, embeddings: Tensor) -> Tensor:
        """The embeddings of a step that begins, of which statistics are kept if they are asked for."""
        if self.keep_statistics or self._statistics is not None:
            self._statistics = Statistics() if self.keep_statistics else None
        if self._statistics is None or not isinstance(embeddings, Tensor):
            return embeddings
        return watched(embeddings, self._statistics)

    @property
    def last(self) -> dict[str, Tensor]:
        """Statistics of the last call on this process, as tensors; none unless `loss.keep_statistics = True` was set.

        `s_p` and `s_n` are the mean cosines of positive and negative pairs. With gradients there is how many pairs of
        rows and columns they pull together (`pulled`) and push apart (`pushed`); after backward also `active_rows`, the
        number of samples whose gradient is not zero, and `gradient_norm`, its mean length.
        """
        return {} if self._statistics is None else self._statistics.values

    # What a loss says of itself

    def row_parameters(self, pairs: Pairs, embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        """The numbers of the rows, (N,) each, that stand for `Row(0)`, `Row(1)` … in the maps; or that a strip function
        takes besides the similarities.
        """
        return ()

    def column_parameters(self, pairs: Pairs, columns: Tensor) -> tuple[Tensor, ...]:
        """The numbers of the columns, (M,) each, that stand for `Column(0)` … in the positive map."""
        return ()

    def penalty(self, embeddings: Tensor, labels: Tensor | None) -> Tensor | None:
        """Terms (N,) that are added to the rows' losses, besides the formula."""
        return None

    def before_step(self, embeddings: Tensor, labels: Tensor | None) -> None:
        """Update the loss's own state in a training step, before the gradient is formed; without autograd."""

    def after_step(self) -> None:
        """Update the loss's own state in a training step, after the gradient has been formed."""

    # The call

    @eager
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        *,
        positives: Tensor | None = None,
        negatives: Tensor | None = None,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        """
        Args:
            embeddings: (N, D).
            labels: class ids (N,) or (N, 1); multi-hot (N, L), of which positive pairs share a label; or, for the
                softmax family, probabilities of the classes (N, C), by which the losses of the classes are weighted.
            indices_tuple: what a miner returns, triplets (anchors, positives, negatives) or pairs (anchors, positives,
                anchors, negatives), each a tensor of indices; positives and negatives index `ref_emb`, if that is
                given. Pair-level losses take these pairs instead of those that the labels make, each once however
                often it is listed (`TripletMarginLoss`: exactly these triplets). Class-level losses weight the samples
                by how often each is listed, relative to the most listed one.
            ref_emb, ref_labels: another set of columns to compare with, for pair-level losses.
            positives, negatives: instead of labels, boolean masks (N, columns); the pairs in neither are ignored.
                Without `negatives`, all others are negative.
            sample_weight: (N,) weights of the samples in the mean (of their exponentials, where the rows are proxies).
        """
        embeddings = self.watched(embeddings)
        embedding_size = self.weight.shape[-1] if self.weighted and self.weight is not None else None
        inputs.check_embeddings(embeddings, embedding_size, finite=self.check_finite)
        inputs.check_sample_weight(sample_weight, len(embeddings), self)
        batch = Batch(embeddings, labels, indices_tuple, ref_emb, ref_labels, positives, negatives, sample_weight)
        batch, samples = inputs.rows_of(batch, self)
        if self.distribution is not None:
            value = self.distribution.evaluate(self, batch)
        else:
            self.check_values()
            self.check_pairs(batch)
            value = self.of_batch(batch)
        return value if self.proxies_are_rows else inputs.of_samples(value, samples, len(embeddings))

    def check_pairs(self, batch: Batch, columns: int | None = None) -> None:
        """Raise `InputError` unless the batch says in one way which pairs there are.

        Args:
            columns: how many columns masks of samples have; by default as many as there are samples to compare with.
        """
        inputs.check_batch(batch, self, columns)

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch that has been checked."""
        if batch.indices_tuple is not None and self.class_level:
            batch = batch.with_mined_weights()
        if batch.sample_weight is not None and self.proxies_are_rows:
            # A sample of weight 0 is left out, although some proxy may have no other positive.
            batch = batch.selected(batch.sample_weight > 0)
        return self.of_pairs(self.pairs_of(batch), batch)

    def pairs_of(self, batch: Batch) -> Pairs:
        """Which pairs are positive and negative, from labels, masks or a miner's lists."""
        if self.distribution is not None and self.distribution.by_classes(self):
            return self.distribution.class_pairs(self, batch)
        if batch.positives is not None:
            same = not self.weighted and batch.ref_emb is None
            first = 0 if same else None
            return inputs.mask_pairs(batch.positives, batch.negatives, first, transpose=self.proxies_are_rows)
        if batch.indices_tuple is not None and not self.class_level:
            n, columns = len(batch.embeddings), batch.columns
            indices = mined.checked(batch.indices_tuple, n, columns, batch.embeddings.device)
            return self.listed_pairs(indices, n, columns, same=batch.ref_emb is None)
        assert batch.labels is not None
        if self.weighted:
            return inputs.class_pairs(batch.labels, self.num_classes, self.proxies_are_rows)
        return inputs.sample_pairs(batch.labels, batch.ref_labels)

    def listed_pairs(self, indices: tuple[Tensor, ...], rows: int, columns: int, same: bool) -> TuplePairs:
        """What a loss of samples takes from an `indices_tuple`."""
        return TuplePairs(indices, rows, columns, same)

    def of_pairs(self, pairs: Pairs, batch: Batch) -> Tensor:
        """The loss of these pairs, with penalties, and the training step's changes of the loss itself."""
        training = self.training and torch.is_grad_enabled()
        if self._statistics is not None:
            rows, columns = compared(self, pairs, batch.embeddings, batch.ref_emb)
            self._statistics.add_similarities(pairs, rows, columns, self.vectors_per_class)
        if training:
            with torch.no_grad():
                self.before_step(batch.embeddings, batch.labels)
        loss = self.over_pairs(pairs, batch)
        if training:
            self.after_step()
        penalty = self.penalty(batch.embeddings, batch.labels)
        return loss if penalty is None else loss + self.reduced(penalty, pairs, batch.sample_weight)

    def reduced(self, terms: Tensor, pairs: Pairs, weight: Tensor | None) -> Tensor:
        """The sum or mean of terms (N,), one for each row of the pairs; or the terms, for reduction "none"."""
        weight = torch.ones_like(terms) if weight is None else weight
        if self.reduction == "none":
            return weight * terms
        total = (weight * terms).sum()
        if self.reduction == "sum":
            return total
        return total / over_all_rows(pairs, weight.sum()).clamp_min(torch.finfo(weight.dtype).tiny)

    def over_pairs(self, pairs: Pairs, batch: Batch) -> Tensor:
        """The loss of these pairs of samples with the columns: the class vectors, other samples, or (None) the same.

        This is the formula that `spec` gives; a loss outside the formula overrides it.
        """
        spec = self.spec()
        rows, columns = self.prepare(batch.embeddings), batch.ref_emb
        bias: Tensor | None = None
        if self.weighted:
            columns, bias = self.weight, self.bias
        spread = pairs.spread
        if spread is not None and spread.shard is not None:
            assert self.weight is not None
            columns = spread.shard.part(self.weight, self.vectors_per_class)
            bias = None if bias is None else spread.shard.part(bias)
        row_weight, column_weight = batch.sample_weight, None
        if spec.anchors == "proxies":
            if columns is None or not self.proxies_are_rows:
                raise InputError(f"{type(self).__name__} has proxies as rows: declare proxies_are_rows = True")
            rows, columns = columns, rows
            row_weight, column_weight = None if spread is None else spread.weight, batch.sample_weight
        formula = spec if isinstance(spec, LossSpec) else None
        average: Average = "both" if formula and formula.mining is not None else spec.average
        pooled = formula is not None and formula.pool is not None  # the class vectors may add a term by themselves
        if not self.any_row_counts(pairs, average) and not pooled:
            return self.zero(rows, columns, shape=(pairs.rows,) if self.reduction == "none" else ())
        by_row = self.row_parameters(pairs, batch.embeddings, batch.labels)
        by_column = () if columns is None else self.column_parameters(pairs, columns)
        if formula:
            spec, shared, by_class = with_placeholders(formula, len(by_row), len(by_column))
            by_row += tuple(number.expand(pairs.rows) for number in shared)
            by_column += tuple(self.part_here(pairs, numbers) for numbers in by_class)
        weights: dict[str, Any] = {"row_weight": row_weight, "column_weight": column_weight}
        return self.evaluate(spec, pairs, rows, columns, bias, *by_row, column_numbers=by_column, **weights)

    def evaluate(
        self,
        spec: LossSpec | StripSpec,
        pairs: Pairs,
        rows: Tensor,
        columns: Tensor | None,
        bias: Tensor | None = None,
        *parameters: Tensor,
        column_numbers: tuple[Tensor, ...] = (),
        row_weight: Tensor | None = None,
        column_weight: Tensor | None = None,
        reduction: Reduction | None = None,
    ) -> Tensor:
        """The formula with these settings, by the engine or the plain way.

        Args:
            parameters: numbers of the rows, (N,) each, which maps or a strip function take.
            column_numbers: numbers of the columns, (M,) each, which the positive map takes.
        """
        if pairs.spread is not None:
            rows, columns, parameters = pairs.spread.weighed(spec.anchors, rows, columns, parameters)
        plan = Plan(
            spec,
            pairs,
            row_weight=row_weight,
            column_weight=column_weight,
            reduction=self.reduction if reduction is None else reduction,
            budget=int(self.memory_budget),
            spare=self.spare,
            sizes=self.sizes,
            row_parameters=len(parameters),
            watch=None if self._statistics is None else self._statistics.add_pairs,
        )
        run = engine.evaluate_densely if self.dense else engine.evaluate
        return run(plan, rows, columns, bias, *parameters, *column_numbers)

    def any_row_counts(self, pairs: Pairs, average: Average) -> bool:
        """Whether this average has any rows; otherwise warn, and say what the batch lacks."""
        lacking = inputs.lacking(pairs, average)
        if lacking is not None and not isinstance(pairs, TuplePairs):  # a miner may well return nothing
            warn_caller(f"{type(self).__name__}: {lacking}")
        return lacking is None

    def zero(self, *tensors: Tensor | None, shape: tuple[int, ...] = ()) -> Tensor:
        """A zero attached to the graph of these tensors."""
        attached = [t for t in tensors if t is not None]
        return sum((t[:0].sum() for t in attached), attached[0].new_zeros(shape))

    # Classes and random numbers, on one process or several

    def part_here(self, pairs: Pairs, table: Tensor) -> Tensor:
        """The numbers of this rank's classes, from those of all classes (C,)."""
        shard = None if pairs.spread is None else pairs.spread.shard
        return table if shard is None else shard.part(table)

    def with_own_class(self, table: Tensor, labels: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The values (N,) of a function of the samples' class vectors (N, D), from a table by classes, whichever rank
        has them.
        """
        if self.distribution is None:
            return function(table[labels])
        return self.distribution.with_own_class(table, labels, function)

    def uniform(self, pairs: Pairs, like: Tensor) -> Tensor:
        """Random numbers in [0, 1), one for every row of the pairs; the same ones on any number of ranks."""
        if self.distribution is None:
            return torch.rand(pairs.rows, dtype=like.dtype, device=like.device)
        return self.distribution.uniform(pairs, like)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        migration.adopt_loss(self, state_dict, prefix, lists[-1])
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *lists)


class ClassLevelLoss(Loss):
    """A loss that compares samples with vectors of the classes."""

    takes_soft_labels = True
    num_classes: InitVar[PositiveInt]
    embedding_size: InitVar[PositiveInt]
