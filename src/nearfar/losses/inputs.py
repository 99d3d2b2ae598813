"""What callers hand to a loss, checked and turned into pairs. Every error says what is wrong and what to do."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from nearfar.errors import InputError, InputTypeError
from nearfar.losses import mined
from nearfar.losses.engine.pairs import ClassPairs, MaskFunction, MaskPairs, Pairs, over_all_rows
from nearfar.losses.engine.spec import Average
from nearfar.losses.engine.vectors import wide
from nearfar.losses.labels import (
    check_class_ids,
    check_labels,
    check_multi_hot,
    check_soft_labels,
    is_soft,
    kept,
    squeezed,
)
from nearfar.losses.mined import IndicesTuple

if TYPE_CHECKING:
    from nearfar.losses.loss import Loss

MASK_BLOCK = 2**22  # pairs counted at a time


class Batch(NamedTuple):
    """What a loss is called with; see `Loss.forward`."""

    embeddings: Tensor
    labels: Tensor | None = None
    indices_tuple: IndicesTuple | None = None
    ref_emb: Tensor | None = None
    ref_labels: Tensor | None = None
    positives: Tensor | None = None
    negatives: Tensor | None = None
    sample_weight: Tensor | None = None

    @property
    def columns(self) -> int:
        """How many samples the batch is compared with."""
        return len(self.embeddings if self.ref_emb is None else self.ref_emb)

    def selected(self, samples: Tensor) -> "Batch":
        """Only these samples, a boolean mask (N,), of a batch for class vectors."""
        names = "embeddings", "labels", "positives", "negatives", "sample_weight"
        values = ((name, getattr(self, name)) for name in names)
        chosen: dict[str, Any] = {name: None if value is None else value[samples] for name, value in values}
        return self._replace(**chosen)

    def with_mined_weights(self) -> "Batch":
        """For class vectors: the samples weighted by how often a miner lists them."""
        n, weight = len(self.embeddings), self.sample_weight
        assert self.indices_tuple is not None
        listed = mined.sample_weights(mined.checked(self.indices_tuple, n, n, self.embeddings.device), n)
        if listed is None:
            return self
        return self._replace(sample_weight=listed if weight is None else weight * listed)


def rows_of(batch: Batch, loss: "Loss") -> tuple[Batch, Tensor | None]:
    """The rows of a batch: its samples, without those whose label is to be ignored; of soft labels a row for each class
    that a sample may have, weighted by its probability. And the sample of each row (rows,); None if they are the same.
    """
    batch = batch._replace(labels=squeezed(batch.labels), ref_labels=squeezed(batch.ref_labels))
    labels, weight = batch.labels, batch.sample_weight
    if loss.takes_soft_labels and loss.weighted and is_soft(labels):
        assert labels is not None
        if batch.indices_tuple is not None:
            raise InputError("indices_tuple goes with class ids: leave it out, or give labels.argmax(1)")
        check_soft_labels(labels, (len(batch.embeddings), loss.num_classes))
        check_constant(labels, "soft labels", loss)
        samples, classes = labels.nonzero(as_tuple=True)
        share = labels[samples, classes]
        share = share if weight is None else share * weight[samples]
        x = wide(batch.embeddings)[samples]
        return batch._replace(embeddings=x, labels=classes, sample_weight=share), samples
    return without_ignored(batch, loss.ignore_index)


def without_ignored(batch: Batch, ignore_index: int | None) -> tuple[Batch, Tensor | None]:
    """The batch without the samples and references that have this label, and which samples remain; None if all do."""
    if ignore_index is None or batch.indices_tuple is not None:  # which indexes all samples
        return batch, None
    ref_emb, ref_labels = batch.ref_emb, batch.ref_labels
    if ref_emb is not None and (columns := kept(ref_labels, len(ref_emb), ignore_index)) is not None:
        assert ref_labels is not None
        batch = batch._replace(ref_emb=ref_emb[columns], ref_labels=ref_labels[columns])
    samples = kept(batch.labels, len(batch.embeddings), ignore_index)
    return (batch, None) if samples is None else (batch.selected(samples), samples)


def of_samples(values: Tensor, samples: Tensor | None, n: int) -> Tensor:
    """The values of n samples from those of their rows (rows,), added up; a single value as it is."""
    if samples is None or values.ndim == 0:
        return values
    return values.new_zeros(n).index_add(0, samples, values)


def check_batch(batch: Batch, loss: "Loss", columns: int | None) -> None:
    """Raise `InputError` unless the batch says in one way which pairs there are; see `Loss.check_pairs`."""
    n, labels, positives, ref_emb = len(batch.embeddings), batch.labels, batch.positives, batch.ref_emb
    check_no_embeddings(batch)
    by_miner = batch.indices_tuple is not None and not loss.class_level
    if by_miner and positives is not None:
        raise InputError("give either indices_tuple, or positives= (and negatives=) as boolean masks")
    if (labels is None) == (positives is None) and not by_miner:
        raise InputError("give either labels, or positives= (and negatives=) as boolean masks")
    if ref_emb is not None:
        name = type(loss).__name__
        if loss.weighted:
            raise InputError(
                f"{name} with num_classes compares with its diagonal class weights: ref_emb goes with pair-level losses"
            )
        if not loss.takes_references:
            raise InputError(f"{name} takes no ref_emb")
        check_embeddings(ref_emb, batch.embeddings.shape[1], "ref_emb", finite=loss.check_finite)
    if positives is not None:
        width = loss.num_classes if loss.weighted else batch.columns if columns is None else columns
        check_masks(positives, batch.negatives, (n, width))
        return
    if batch.negatives is not None:
        raise InputError("negatives= goes with positives=, instead of labels")
    if labels is not None:
        check_labels(labels, n)
    if by_miner or loss.weighted:
        return
    if (ref_emb is None) != (batch.ref_labels is None):
        raise InputError("ref_emb and ref_labels go together")
    if ref_emb is not None and batch.ref_labels is not None:
        check_labels(batch.ref_labels, len(ref_emb), "ref_labels", "ref_emb")


def check_no_embeddings(batch: Batch) -> None:
    """Raise `InputError` for a call with (anchors, positives, negatives) or (a, b, targets), and say how it is done."""
    labels, third = batch.labels, batch.indices_tuple
    if not isinstance(labels, Tensor) or labels.shape != batch.embeddings.shape or not labels.is_floating_point():
        return
    if isinstance(third, Tensor) and third.ndim == 1:
        raise InputError(
            "the second argument is labels, not embeddings. For pairs of rows, of which some match, give the "
            "second ones as ref_emb: i = torch.arange(len(a)); same, other = i[target == 1], i[target == 0]; "
            "loss(a, ref_emb=b, indices_tuple=(same, same, other, other))"
        )
    if isinstance(third, Tensor) or bool((labels < 0).any()):
        raise InputError(
            "the second argument is labels, not embeddings: the samples of one batch are compared with each other. For "
            "triplets of rows make them one batch: i, n = torch.arange(len(anchor)), len(anchor); "
            "loss(torch.cat([anchor, positive, negative]), indices_tuple=(i, i + n, i + 2 * n))"
        )


def check_embeddings(embeddings: Tensor, size: int | None, name: str = "embeddings", finite: bool = False) -> None:
    """Raise an error unless they are floating point (N, D); D is `size`, if given; finite, if `finite`."""
    if not isinstance(embeddings, Tensor):
        raise InputTypeError(f"{name} must be a torch.Tensor, not {type(embeddings).__name__}")
    if embeddings.ndim != 2:
        raise InputError(
            f"{name} must be (batch, dimension), not {tuple(embeddings.shape)}: flatten or pool them first"
        )
    if not embeddings.is_floating_point():
        raise InputTypeError(f"{name} must be floating point, not {embeddings.dtype}")
    if size is not None and embeddings.shape[1] != size:
        raise InputError(f"{name} have {embeddings.shape[1]} dimensions, but the loss was made with {size}")
    if finite:
        bad = (~torch.isfinite(embeddings)).any(1)
        if bad.any():
            raise InputError(
                f"{int(bad.sum())} of {len(bad)} {name} hold NaN or infinity (first: row {int(bad.nonzero()[0])}). "
                "Look at the learning rate, the inputs, and mixed precision's loss scale"
            )


def check_sample_weight(weight: Tensor | None, n: int, loss: "Loss") -> None:
    """Raise an error unless they are (n,), not negative, and the loss takes them."""
    if weight is None:
        return
    if not isinstance(weight, Tensor) or weight.shape != (n,):
        shape = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise InputError(f"sample_weight must be a tensor of shape ({n},), not {shape}")
    if weight.numel() and not torch.compiler.is_compiling() and not bool((weight >= 0).all()):
        raise InputError("sample_weight must not be negative or NaN")
    check_constant(weight, "sample_weight", loss)
    if loss.whole_batch:
        raise InputError(f"{type(loss).__name__} is one number for the batch: it takes no sample_weight")


def check_constant(tensor: Tensor, name: str, loss: "Loss") -> None:
    """Raise `InputError` if a gradient by it is wanted, which only the dense form has."""
    if tensor.requires_grad and torch.is_grad_enabled() and not loss.dense:
        raise InputError(f"there is no gradient by {name}: detach it, or make the loss with dense=True, which has one")


def sample_pairs(labels: Tensor, ref_labels: Tensor | None, part: slice | None = None) -> Pairs:
    """Samples × samples, or samples × references, from class ids or multi-hot labels.

    Args:
        part: take only these samples as rows; without `ref_labels`.
    """
    if labels.ndim == 1:
        if ref_labels is None:
            ids = labels.long()
            return ClassPairs.among_samples(ids) if part is None else ClassPairs.of_part(ids, part)
        if ref_labels.ndim == 1:
            return ClassPairs.to_references(labels.long(), ref_labels.long())
    right = labels if ref_labels is None else ref_labels
    if labels.ndim != right.ndim or labels.shape[1] != right.shape[1]:
        raise InputError(
            f"labels {tuple(labels.shape)} and ref_labels {tuple(right.shape)} must be of one kind and width"
        )
    left, right = (labels if part is None else labels[part], right)
    left, right = (left != 0).float(), (right != 0).float()

    def shares_a_label(rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        positive = left[rows] @ right[columns].t() > 0
        return positive, ~positive

    diagonal = None if ref_labels is not None else 0 if part is None else part.start
    return _mask_pairs(shares_a_label, len(left), len(right), diagonal)


def class_pairs(labels: Tensor, classes: int, proxies_are_rows: bool) -> Pairs:
    """Samples × classes, or classes × samples, from class ids or multi-hot labels."""
    if labels.ndim == 2:
        check_multi_hot(labels, classes)
        return mask_pairs(labels != 0, None, transpose=proxies_are_rows)
    labels = labels.long()
    check_class_ids(labels, classes)
    return ClassPairs.of_classes(labels, classes) if proxies_are_rows else ClassPairs.to_classes(labels, classes)


def mask_pairs(
    positives: Tensor, negatives: Tensor | None, diagonal: int | None = None, transpose: bool = False
) -> MaskPairs:
    """From boolean masks (samples × columns). Without `negatives`, whatever is not positive is negative.

    Args:
        diagonal: the column of the first row's sample, where the rows are consecutive samples among the columns: no
            sample is a pair with itself.
    """
    if negatives is not None and not torch.compiler.is_compiling() and bool((positives & negatives).any()):
        raise InputError("some pairs are in both positives and negatives")
    if transpose:
        positives, negatives = positives.t(), None if negatives is None else negatives.t()

    def cut(rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        positive = positives[rows, columns]
        return positive, ~positive if negatives is None else negatives[rows, columns]

    return _mask_pairs(cut, len(positives), positives.shape[1], diagonal)


def check_masks(positives: Tensor, negatives: Tensor | None, shape: tuple[int, int]) -> None:
    """Raise `InputError` unless they are boolean, (samples, columns)."""
    for name, mask in (("positives", positives), ("negatives", negatives)):
        if mask is not None and (mask.dtype != torch.bool or mask.shape != shape):
            raise InputError(
                f"{name} must be a boolean mask of shape {shape} (samples × columns), "
                f"not {mask.dtype} {tuple(mask.shape)}"
            )


def _mask_pairs(mask: MaskFunction, rows: int, columns: int, diagonal: int | None) -> MaskPairs:
    def without_self(i: slice, j: slice) -> tuple[Tensor, Tensor]:
        positive, negative = mask(i, j)
        if diagonal is not None and i.start + diagonal < j.stop and j.start < i.stop + diagonal:
            index = torch.arange(max(i.stop + diagonal, j.stop), device=positive.device)
            other = index[i.start + diagonal : i.stop + diagonal, None] != index[j]
            return positive & other, negative & other
        return positive, negative

    return MaskPairs(without_self, rows, columns, block=max(1, MASK_BLOCK // max(1, columns)))


def lacking(pairs: Pairs, average: Average) -> str | None:
    """What a batch lacks of which no row counts in this average, and what to do; None if some row counts."""
    shared = pairs.spread is not None and pairs.spread.over == "rows"  # other ranks have other rows
    if torch.compiler.is_compiling() or (pairs.complete and not shared):  # in a graph no value is known
        return None
    has_positive, has_negative = pairs.positives > 0, pairs.negatives > 0
    if average == "positive":
        counts, needed = has_positive, "a positive pair"
    elif average in ("both", "pairs"):
        counts, needed = has_positive & has_negative, "both a positive and a negative pair"
    else:
        counts, needed = has_positive | has_negative, "any pair"
    if bool(over_all_rows(pairs, counts.sum()) > 0):
        return None
    if bool(over_all_rows(pairs, has_positive.sum()) > 0):
        why = "all samples share one label: draw several classes into each batch"
    else:
        why = "no two samples share a label: draw several samples of each class, as an m-per-class sampler does"
    return f"no row of this batch ({len(counts)} rows) has {needed}, so the loss and its gradient are zero; {why}."
