"""`Loss`: the module every loss is. It checks what it is given, knows the pairs, owns the class weights, and calls
the engine.
"""

import functools
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from nearfar.errors import InputError, StateError
from nearfar.losses import engine, inputs, migration, mined
from nearfar.losses.engine.maps import Row
from nearfar.losses.engine.memory import Spare
from nearfar.losses.engine.pairs import Pairs, over_all_rows
from nearfar.losses.engine.plan import BUDGET, SIZES, Plan, Sizes
from nearfar.losses.engine.spec import Average, LossSpec, StripSpec
from nearfar.losses.mined import IndicesTuple, TuplePairs

if TYPE_CHECKING:
    from nearfar.losses.distributed.distribution import Distribution
    from nearfar.losses.wrappers import SumLoss

Reduction = Literal["mean", "sum", "none"]
Learned = Literal["classes", "scale", "boundary"]  # kinds of parameters, each with a learning rate of its own
INSIDE = tuple(os.path.dirname(file) + os.sep for file in (__file__, torch.__file__))


def _calls_to_the_user() -> int:
    """How many calls it is from where this is called to whoever called the loss: a warning's stacklevel."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    return level


def eager(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep what is around the loss out of it: torch.compile breaks its graph there, since the engine's loop is its own
    schedule (nothing of the compiler is imported before that), and autocast does not reach its arithmetic.
    """
    outside_the_graph = torch._disable_dynamo(forward)  # type: ignore[attr-defined]

    @functools.wraps(forward)
    def call(self: "Loss", embeddings: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device = embeddings.device.type if isinstance(embeddings, Tensor) else "cpu"
        run = outside_the_graph if torch.compiler.is_compiling() else forward
        if not torch.is_autocast_enabled(device):
            return run(self, embeddings, *args, **kwargs)
        with torch.autocast(device, enabled=False):
            return run(self, embeddings, *args, **kwargs)

    return call


class Summand(nn.Module):
    """What can be weighed and added: `0.5 * a + b` is a `SumLoss`."""

    def __mul__(self, weight: float) -> "SumLoss":
        from nearfar.losses.wrappers import SumLoss  # which is made of this class

        return SumLoss([self], [weight])

    __rmul__ = __mul__

    def __add__(self, other: nn.Module) -> "SumLoss":
        from nearfar.losses.wrappers import SumLoss

        return SumLoss([self, other])

    def __radd__(self, other: Any) -> "Summand":
        from nearfar.losses.wrappers import SumLoss

        if isinstance(other, int) and other == 0:  # where sum() begins
            return self
        return SumLoss([other, self])


class Given(NamedTuple):
    """What a loss is called with; see `Loss.forward`."""

    embeddings: Tensor
    labels: Tensor | None = None
    indices_tuple: IndicesTuple | None = None
    ref_emb: Tensor | None = None
    ref_labels: Tensor | None = None
    positives: Tensor | None = None
    negatives: Tensor | None = None
    sample_weight: Tensor | None = None


class Loss(Summand):
    """A loss of embeddings and labels.

    Args:
        reduction: "mean", "sum", or "none" for one value per row (per sample; per proxy for Proxy-Anchor).
        memory_budget: how many bytes of similarities may be kept between the passes; beyond it they are computed again.
        check_finite: raise if the embeddings hold NaN or infinity (costs a pass over them).
        dense: compute the plain way, with whole matrices and autograd, to compare or to debug.
        sharded: leave the class weights without values, for more classes than fit into one process;
            `nearfar.losses.distributed.distribute` then draws every rank's part of them.

    Class-level losses own `weight` (classes, dimension), and those with a bias `bias` (classes,): give
    `loss.parameters()` to an optimiser.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    logit_scale: nn.Parameter | None  # the logarithm of a learned scale
    # What a loss can, which it declares, and `LossInfo` shows; an instance may say otherwise.
    row_local: bool = False  # a row's loss is a function of that row's similarities only, so ranks may share rows out
    needs_class_ids: bool = False  # every sample has one class: no multi-hot labels, no masks
    takes_references: bool = True  # samples may be compared with `ref_emb`, if not with classes
    whole_batch: bool = False  # it is one number for the batch: no rows, no sample weights
    free_norm: bool = False  # whether it is defined on features of any norm, and not of norm 1 alone
    learned: ClassVar[Mapping[str, Learned]] = {  # of which kind its parameters are, if it has them
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
    num_classes: int = 0  # that have weights
    weighted: bool = False  # whether there are any: what is no parameter is found faster
    vectors_per_class: int = 1
    sizes: Sizes = SIZES  # of the blocks that the engine works in
    distribution: "Distribution | None" = None  # over several processes, which `distribute` gives it
    sampling_step: Tensor  # how many steps have drawn classes, and the classes here that the last one did,
    sampled: Tensor | None = None  # where it says that not all take part

    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
        memory_budget: int = BUDGET,
        check_finite: bool = False,
        dense: bool = False,
        sharded: bool = False,
    ):
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise InputError(f'reduction must be "mean", "sum" or "none", not {reduction!r}')
        if memory_budget < 0:
            raise InputError(f"memory_budget must be a number of bytes, not {memory_budget}")
        self.reduction: Reduction = reduction
        self.memory_budget = int(memory_budget)
        self.check_finite = check_finite
        self.dense = dense
        self.sharded = sharded
        self.spare = Spare()  # memory that every step needs
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        self.register_parameter("logit_scale", None)

    def add_classes(
        self, num_classes: int | None, embedding_size: int | None, *, bias: bool = False, vectors_per_class: int = 1
    ) -> None:
        """Own vectors for every class, normally distributed as He's initialisation has it (fan-out); biases of zero."""
        if num_classes is None or embedding_size is None:
            raise InputError("the class-level form needs both num_classes and embedding_size")
        if num_classes < 1 or embedding_size < 1:
            raise InputError(f"num_classes and embedding_size must be positive, not {num_classes} and {embedding_size}")
        self.weighted, self.num_classes, self.vectors_per_class = True, num_classes, vectors_per_class
        device = torch.device("meta") if self.sharded else None
        vectors = torch.randn(num_classes * vectors_per_class, embedding_size, device=device)
        self.weight = nn.Parameter(vectors * self.initial_scale)
        if bias:
            self.bias = nn.Parameter(torch.zeros(num_classes, device=device))

    def train(self, mode: bool = True) -> Self:
        """As of every module; what is not trained keeps no memory for the next step."""
        if not mode:
            self.spare.give_up()
        return super().train(mode)

    @property
    def initial_scale(self) -> float:
        """The standard deviation of class weights when they are drawn."""
        return float((2 / (self.num_classes * self.vectors_per_class)) ** 0.5)

    def spec(self) -> LossSpec | StripSpec:
        """The setting of the formula that this loss is."""
        raise TypeError(f"{type(self).__name__} does not say which formula it is: define spec()")

    def prepare(self, embeddings: Tensor) -> Tensor:
        """What is done to the embeddings before they are compared; differentiable."""
        return embeddings

    def before_step(self, embeddings: Tensor, labels: Tensor | None) -> None:
        """What a training step changes in the loss itself before its gradient is formed."""

    def penalty(self, embeddings: Tensor, labels: Tensor | None) -> Tensor | None:
        """What is added to every row's loss (N,), besides the formula."""
        return None

    def learn_scale(self, scale: float) -> None:
        """Learn a scale of the similarities, which stays positive, as the parameter `logit_scale` = log(scale)."""
        self.logit_scale = nn.Parameter(torch.tensor(math.log(scale)))

    def scales(self, scale: float) -> tuple[float | Row, float | Row]:
        """The scale and its negative, as linear maps take them: numbers, or, if it is learned, `row_parameters`."""
        return (scale, -scale) if self.logit_scale is None else (Row(0), Row(1))

    def row_parameters(self, pairs: Pairs, embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        """What maps or a strip function take of the rows besides the similarities, (N,) each."""
        if self.logit_scale is None:
            return ()
        scale = self.logit_scale.exp().expand(len(embeddings))
        return scale, -scale

    def column_parameters(self, pairs: Pairs, columns: Tensor) -> tuple[Tensor, ...]:
        """What the positive map takes of the columns, (M,) each."""
        return ()

    def number_by_class(self, name: str, value: float | Tensor, num_classes: int | None) -> None:
        """Keep a number, or one for every class (C,): a buffer, or a parameter if it is given as one."""
        if not isinstance(value, Tensor):
            setattr(self, name, value)
            return
        if num_classes is None or value.shape != (num_classes,) or not value.is_floating_point():
            raise InputError(
                f"{name} by class must be a floating-point tensor of shape (num_classes,), "
                f"not {value.dtype} {tuple(value.shape)} for num_classes={num_classes}"
            )
        if isinstance(value, nn.Parameter):
            setattr(self, name, value)
        else:
            self.register_buffer(name, value.clone())

    def part_here(self, pairs: Pairs, table: Tensor) -> Tensor:
        """Of numbers (C,) by class those of the classes here."""
        shard = None if pairs.spread is None else pairs.spread.shard
        return table if shard is None else shard.part(table)

    def after_step(self) -> None:
        """What it changes once its gradient has been formed."""

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
            labels: class ids (N,), or multi-hot (N, L): positive pairs share a label.
            indices_tuple: what a miner found, triplets (anchors, positives, negatives) or pairs (anchors, positives,
                anchors, negatives), each a tensor of indices; the second ones are into `ref_emb`, if that is given.
                Pair-level losses take these pairs instead of those that the labels make, each once however often it
                is listed (`TripletMarginLoss`: exactly these triplets). Class-level losses weigh the samples by how
                often each is listed, relative to the most listed one.
            ref_emb, ref_labels: another set of columns to compare with, for pair-level losses.
            positives, negatives: instead of labels, boolean masks (N, columns); the pairs in neither are ignored.
                Without `negatives`, all others are.
            sample_weight: (N,) weights of the samples in the mean (of their exponentials, where the rows are proxies).
        """
        embedding_size = self.weight.shape[-1] if self.weighted and self.weight is not None else None
        inputs.check_embeddings(embeddings, embedding_size, finite=self.check_finite)
        if sample_weight is not None:
            inputs.check_sample_weight(sample_weight, len(embeddings))
        given = Given(embeddings, labels, indices_tuple, ref_emb, ref_labels, positives, negatives, sample_weight)
        if self.distribution is not None:
            return self.distribution.evaluate(self, given)
        if self.sharded and self.class_level:
            raise StateError(
                f"{type(self).__name__} was made with sharded=True, and its class weights have no values yet: "
                "call nearfar.losses.distributed.distribute(loss) first"
            )
        self.check_pairs(given)
        return self.of_batch(given)

    def of_batch(self, given: Given) -> Tensor:
        """The loss of a batch that has been checked."""
        if given.indices_tuple is not None and self.class_level:
            given = given._replace(sample_weight=self._mined_weight(given))
        if given.sample_weight is not None and self.proxies_are_rows:
            # A sample of no weight is as if it were not there, whichever proxies it would have been the only positive
            # of.
            there = given.sample_weight > 0
            names = "labels", "positives", "negatives", "sample_weight"
            rest = {name: None if getattr(given, name) is None else getattr(given, name)[there] for name in names}
            given = given._replace(embeddings=given.embeddings[there], **rest)
        return self.of_pairs(self.pairs_of(given), given)

    def of_pairs(self, pairs: Pairs, given: Given) -> Tensor:
        """The loss of these pairs, what a training step changes, and what is added to the rows' losses."""
        training = self.training and torch.is_grad_enabled()
        if training and type(self).before_step is not Loss.before_step:
            with torch.no_grad():
                self.before_step(given.embeddings, given.labels)
        loss = self.over_pairs(pairs, given)
        if training:
            self.after_step()
        return self._with_penalty(loss, pairs, given)

    @property
    def class_level(self) -> bool:
        """Whether samples are compared with vectors of the classes, and not with each other."""
        return self.weighted

    @functools.cached_property
    def proxies_are_rows(self) -> bool:
        """Whether the class vectors are the anchors, and the samples what they are compared with."""
        return self.spec().anchors == "proxies"

    def over_pairs(self, pairs: Pairs, given: Given) -> Tensor:
        """The loss of these pairs of samples with the columns: the class weights, other samples, or (None) themselves.

        The formula does it, unless a loss has more to say than its `spec`.
        """
        spec = self.spec()
        rows, columns = self.prepare(given.embeddings), given.ref_emb
        bias: Tensor | None = None
        if self.weighted:
            columns, bias = self.weight, self.bias
        spread = pairs.spread
        if spread is not None and spread.shard is not None:
            assert self.weight is not None
            columns = spread.shard.part(self.weight, self.vectors_per_class)
            bias = None if bias is None else spread.shard.part(bias)
        row_weight, column_weight = given.sample_weight, None
        if spec.anchors == "proxies":
            assert columns is not None
            rows, columns = columns, rows
            row_weight, column_weight = None if spread is None else spread.weight, given.sample_weight
        mined = isinstance(spec, LossSpec) and spec.mining is not None
        pooled = isinstance(spec, LossSpec) and spec.pool is not None  # which may add a term of the weights alone
        if not self.any_row_counts(pairs, "both" if mined else spec.average) and not pooled:
            return self.zero(rows, columns, shape=(pairs.rows,) if self.reduction == "none" else ())
        return self.evaluate(
            spec,
            pairs,
            rows,
            columns,
            bias,
            *self.row_parameters(pairs, given.embeddings, given.labels),
            column_numbers=() if columns is None else self.column_parameters(pairs, columns),
            row_weight=row_weight,
            column_weight=column_weight,
        )

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
            budget=self.memory_budget,
            spare=self.spare,
            sizes=self.sizes,
            row_parameters=len(parameters),
        )
        run = engine.evaluate_densely if self.dense else engine.evaluate
        return run(plan, rows, columns, bias, *parameters, *column_numbers)

    def with_own_class(self, table: Tensor, labels: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A function (N,) of the vectors (N, D) that a table by classes has for the samples' own, wherever they are."""
        if self.distribution is None:
            return function(table[labels])
        return self.distribution.with_own_class(table, labels, function)

    def uniform(self, pairs: Pairs, like: Tensor) -> Tensor:
        """Random numbers in [0, 1), one for every row of the pairs. Ranks have those that one process with the first
        rank's generator draws for the rows of all.
        """
        counts = None if pairs.spread is None else pairs.spread.counts
        n = pairs.rows if counts is None else sum(counts)
        drawn = torch.rand(n, dtype=like.dtype, device=like.device)
        if self.distribution is None:
            return drawn
        drawn = self.distribution.ranks.first_ranks(drawn)
        return drawn if counts is None else torch.split(drawn, counts)[self.distribution.ranks.rank]

    def zero(self, *tensors: Tensor | None, shape: tuple[int, ...] = ()) -> Tensor:
        """A loss of nothing, which yet can be differentiated by these tensors."""
        given = [t for t in tensors if t is not None]
        return sum((t[:0].sum() for t in given), given[0].new_zeros(shape))

    def listed_pairs(self, indices: tuple[Tensor, ...], rows: int, columns: int, same: bool) -> TuplePairs:
        """What a loss of samples takes from an `indices_tuple`."""
        return TuplePairs(indices, rows, columns, same)

    @staticmethod
    def _mined_weight(given: Given) -> Tensor | None:
        n = len(given.embeddings)
        assert given.indices_tuple is not None
        indices = mined.checked(given.indices_tuple, n, n, given.embeddings.device)
        weight, own = mined.sample_weights(indices, n), given.sample_weight
        return own if weight is None else weight if own is None else own * weight

    def pairs_of(self, given: Given) -> Pairs:
        """Which pairs are positive and negative, from labels, masks or what a miner found."""
        n, classes = given.embeddings.shape[0], self.num_classes
        if self.distribution is not None and self.distribution.by_classes(self):
            return self.distribution.class_pairs(self, given)
        columns = classes if self.weighted else n if given.ref_emb is None else len(given.ref_emb)
        if given.positives is not None:
            own = 0 if not self.weighted and given.ref_emb is None else None
            return inputs.mask_pairs(given.positives, given.negatives, own, transpose=self.proxies_are_rows)
        if given.indices_tuple is not None and not self.class_level:
            indices = mined.checked(given.indices_tuple, n, columns, given.embeddings.device)
            return self.listed_pairs(indices, n, columns, same=given.ref_emb is None)
        assert given.labels is not None
        if self.weighted:
            return inputs.class_pairs(given.labels, classes, self.proxies_are_rows)
        return inputs.sample_pairs(given.labels, given.ref_labels)

    def check_pairs(self, given: Given, columns: int | None = None) -> None:
        """Whether what is given makes pairs, and one kind of them; masks of samples have so many columns, or as many as
        there are samples to compare with.
        """
        n, labels, positives, ref_emb = given.embeddings.shape[0], given.labels, given.positives, given.ref_emb
        mined = given.indices_tuple is not None and not self.class_level
        if mined and positives is not None:
            raise InputError("give either indices_tuple, or positives= (and negatives=) as boolean masks")
        if (labels is None) == (positives is None) and not mined:
            raise InputError("give either labels, or positives= (and negatives=) as boolean masks")
        if self.weighted and ref_emb is not None:
            raise InputError(
                f"{type(self).__name__} with num_classes compares with its own class weights: "
                "ref_emb goes with pair-level losses"
            )
        if ref_emb is not None:
            inputs.check_embeddings(ref_emb, given.embeddings.shape[1], "ref_emb", finite=self.check_finite)
        if positives is not None:
            if columns is None:
                columns = n if ref_emb is None else len(ref_emb)
            inputs.check_masks(positives, given.negatives, (n, self.num_classes if self.weighted else columns))
            return
        if given.negatives is not None:
            raise InputError("negatives= goes with positives=, instead of labels")
        if labels is not None:
            inputs.check_labels(labels, n)
        if mined or self.weighted:
            return
        if (ref_emb is None) != (given.ref_labels is None):
            raise InputError("ref_emb and ref_labels go together")
        if ref_emb is not None and given.ref_labels is not None:
            inputs.check_labels(given.ref_labels, len(ref_emb), "ref_labels", "ref_emb")

    def any_row_counts(self, pairs: Pairs, average: Average) -> bool:
        """Whether this average has anything to be over; a warning if not, which says what the batch lacks."""
        everywhere = pairs.spread is not None and pairs.spread.over == "rows"  # what the other ranks' rows have, too
        if pairs.complete and not everywhere:
            return True
        has_positive, has_negative = pairs.positives > 0, pairs.negatives > 0
        if average == "positive":
            counts, needed = has_positive, "a positive pair"
        elif average in ("both", "pairs"):
            counts, needed = has_positive & has_negative, "both a positive and a negative pair"
        else:
            counts, needed = has_positive | has_negative, "any pair"
        if bool(over_all_rows(pairs, counts.sum()) > 0):
            return True
        if isinstance(pairs, TuplePairs):  # miners may well find nothing
            return False
        if not bool(over_all_rows(pairs, has_positive.sum()) > 0):
            why = "no two samples share a label: draw several samples of each class, as an m-per-class sampler does"
        else:
            why = "all samples share one label: draw several classes into each batch"
        warnings.warn(
            f"{type(self).__name__}: no row of this batch ({len(counts)} rows) has {needed}, "
            f"so the loss and its gradient are zero; {why}.",
            stacklevel=_calls_to_the_user(),
        )
        return False

    def _with_penalty(self, loss: Tensor, pairs: Pairs, given: Given) -> Tensor:
        penalty = self.penalty(given.embeddings, given.labels)
        if penalty is None:
            return loss
        weight = torch.ones_like(penalty) if given.sample_weight is None else given.sample_weight
        if self.reduction == "mean":
            weights = over_all_rows(pairs, weight.sum())
            return loss + (weight * penalty).sum() / weights.clamp_min(torch.finfo(weight.dtype).tiny)
        return loss + (weight * penalty if self.reduction == "none" else (weight * penalty).sum())

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        migration.adopt_loss(self, state_dict, prefix, error_msgs)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
