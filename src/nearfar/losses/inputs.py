"""What callers hand to a loss, checked and turned into pairs. Every error says what is wrong and what to do."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from nearfar.errors import InputError, InputTypeError
from nearfar.losses import mined
from nearfar.losses.engine.pairs import ClassPairs, MaskFunction, MaskPairs, Pairs, WholePairs, over_all_rows
from nearfar.losses.engine.spec import Average
from nearfar.losses.engine.vectors import wide
from nearfar.losses.mined import IndicesTuple

if TYPE_CHECKING:
    from nearfar.losses.loss import Loss

MASK_BLOCK = 2**22  # pairs counted at a time
SOFT_TOLERANCE = 0.02  # of the sum of soft labels, which may be bfloat16
FEW_LABELS = 128  # up to this number, the smallest and the largest are found on the host


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
    if loss.takes_soft_labels and loss.weighted and _is_soft(labels):
        assert labels is not None
        check_soft_labels(batch, loss.num_classes)
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
    if ref_emb is not None and (kept := _kept(ref_labels, len(ref_emb), ignore_index)) is not None:
        assert ref_labels is not None
        batch = batch._replace(ref_emb=ref_emb[kept], ref_labels=ref_labels[kept])
    samples = _kept(batch.labels, len(batch.embeddings), ignore_index)
    return (batch, None) if samples is None else (batch.selected(samples), samples)


def traced(batch: Batch, loss: "Loss") -> tuple[Pairs, Batch]:
    """The pairs of a batch by operations that a compiler can trace, without a look at any value; samples to be ignored
    have no pairs, and the weight 0.
    """
    labels, n = squeezed(batch.labels), len(batch.embeddings)
    if batch.indices_tuple is not None or _is_soft(labels):
        raise InputError("in a graph that is compiled, labels are class ids or multi-hot, or masks are given")
    columns = labels if batch.ref_emb is None else squeezed(batch.ref_labels)
    if batch.positives is not None:
        positive = batch.positives
        negative = ~positive if batch.negatives is None else batch.negatives
    else:
        counts = [_counts(ids, loss.ignore_index) for ids in (labels, columns)]
        if loss.weighted:
            positive = (
                labels != 0
                if labels.ndim == 2
                else labels[:, None] == torch.arange(loss.num_classes, device=labels.device)
            )
            counts[1] = torch.ones_like(positive[0])
        elif labels.ndim == 2:
            positive = (labels != 0).float() @ (columns != 0).float().t() > 0
        else:
            positive = labels[:, None] == columns
        both = counts[0][:, None] & counts[1]
        positive, negative = positive & both, ~positive & both
        weight = counts[0].to(torch.float32) if batch.sample_weight is None else batch.sample_weight * counts[0]
        if loss.ignore_index is not None and not loss.whole_batch and labels.ndim == 1:
            batch = batch._replace(sample_weight=weight)
    if not loss.weighted and batch.ref_emb is None:
        other = ~torch.eye(n, dtype=torch.bool, device=positive.device)
        positive, negative = positive & other, negative & other
    if loss.proxies_are_rows:
        positive, negative = positive.t(), negative.t()
    return WholePairs(positive, negative), batch._replace(labels=labels)


def _counts(labels: Tensor, ignore_index: int | None) -> Tensor:
    """(n,) which labels are not to be ignored."""
    if labels.ndim == 2 or ignore_index is None:
        return torch.ones_like(labels if labels.ndim == 1 else labels[:, 0], dtype=torch.bool)
    return labels != ignore_index


def _kept(labels: Tensor | None, n: int, ignore_index: int) -> Tensor | None:
    """The indices of the labels that count; None if all do, or if they are not class ids of n samples."""
    if not isinstance(labels, Tensor) or labels.shape != (n,) or labels.dtype == torch.bool:
        return None
    counts = labels != ignore_index
    return None if bool(counts.all()) else counts.nonzero()[:, 0]


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


def squeezed(labels: Any) -> Any:
    """Class ids (n, 1) as (n,); other labels as they are."""
    integers = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.dtype == torch.bool)
    return labels[:, 0] if integers and labels.shape[1:] == (1,) else labels


def _is_soft(labels: Tensor | None) -> bool:
    return isinstance(labels, Tensor) and labels.ndim == 2 and labels.shape[1] > 1 and labels.is_floating_point()


def check_soft_labels(batch: Batch, classes: int) -> None:
    """Raise `InputError` unless they are the probabilities of the classes (N, C) of every sample."""
    labels, n = batch.labels, len(batch.embeddings)
    assert labels is not None
    if labels.shape != (n, classes):
        raise InputError(f"soft labels must be ({n}, {classes}), (samples, num_classes), not {tuple(labels.shape)}")
    if batch.indices_tuple is not None:
        raise InputError("indices_tuple goes with class ids: leave it out, or give labels.argmax(1)")
    total = labels.detach().sum(1, dtype=torch.float32)
    wrong = ((total - 1).abs() > SOFT_TOLERANCE) | ~(labels >= 0).all(1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InputError(
            f"soft labels must be probabilities that add up to 1, but row {row} adds up to {float(total[row]):.4g}. "
            "For samples of several classes give booleans, labels.bool(); for other weights, sample_weight"
        )


def check_labels(labels: Tensor, n: int, name: str = "labels", of: str = "embeddings") -> None:
    """Raise an error unless they are class ids (n,) or multi-hot (n, L), integers or booleans."""
    if not isinstance(labels, Tensor):
        raise InputTypeError(
            f"{name} must be a torch.Tensor, not {type(labels).__name__}: torch.as_tensor({name}) makes one"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise InputTypeError(f"{name} are {labels.dtype}: {_instead_of_numbers(labels, name)}")
    if labels.ndim not in (1, 2):
        raise InputError(f"{name} must be class ids (N,) or multi-hot (N, L), not {tuple(labels.shape)}")
    if labels.shape[0] != n:
        raise InputError(f"{len(labels)} {name} for {n} {of}: there must be one each")
    if labels.ndim == 1 and labels.dtype == torch.bool:
        raise InputTypeError(f"{name} are boolean: give class ids as integers ({name}.long())")
    if labels.ndim == 2 and labels.dtype != torch.bool and bool(((labels != 0) & (labels != 1)).any()):
        raise InputError(
            f"{name} {tuple(labels.shape)} must be multi-hot, of zeros and ones: for class ids give one column"
        )


def _instead_of_numbers(labels: Tensor, name: str) -> str:
    """What to do about labels that are no integers."""
    if labels.ndim < 2 or labels.shape[1] == 1:
        whole = labels.is_floating_point() and bool((labels == labels.round()).all())
        as_integers = f"{name}.long()" if labels.ndim < 2 else f"{name}[:, 0].long()"
        return f"give class ids as integers ({as_integers})" if whole else "give class ids, whole numbers, as integers"
    if bool(((labels == 0) | (labels == 1)).all()):
        return f"give class ids as integers ({name}.argmax(1)), or multi-hot labels as booleans ({name}.bool())"
    return (
        "soft labels go with the softmax family, such as CosFaceLoss. For mixup of class ids a and b call the loss "
        "twice: lam * loss(x, a) + (1 - lam) * loss(x, b)"
    )


def class_ids(labels: Tensor | None, loss: str) -> Tensor:
    """The labels, if every sample has one class; otherwise raise `InputError`."""
    if labels is None or labels.ndim != 1:
        raise InputError(f"{loss} takes the one class of every sample: give class ids (N,) as labels")
    return labels


def check_sample_weight(weight: Tensor | None, n: int, loss: "Loss") -> None:
    """Raise an error unless they are (n,), not negative, and the loss takes them."""
    if weight is None:
        return
    if not isinstance(weight, Tensor) or weight.shape != (n,):
        shape = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise InputError(f"sample_weight must be a tensor of shape ({n},), not {shape}")
    if weight.numel() and not bool((weight >= 0).all()):
        raise InputError("sample_weight must not be negative or NaN")
    check_constant(weight, "sample_weight", loss)
    if loss.whole_batch:
        raise InputError(f"{type(loss).__name__} is one number for the batch: it takes no sample_weight")


def check_constant(tensor: Tensor, name: str, loss: "Loss") -> None:
    """Raise `InputError` if a gradient by it is wanted, which only the dense form has."""
    if tensor.requires_grad and torch.is_grad_enabled() and not loss.dense:
        raise InputError(f"there is no gradient by {name}: detach it, or make the loss with dense=True, which has one")


def check_class_ids(labels: Tensor, classes: int) -> None:
    """Raise `InputError` unless they are between 0 and classes - 1."""
    if labels.numel() and not torch.compiler.is_compiling():
        if labels.numel() <= FEW_LABELS:
            ids = labels.tolist()
            low, high = min(ids), max(ids)
        else:
            low, high = map(int, torch.aminmax(labels))
        if low < 0 or high >= classes:
            raise InputError(
                f"labels run from {low} to {high}, but num_classes={classes} takes 0 to {classes - 1}: "
                "number the training classes from 0, or add classes with loss.extend_classes(n)"
            )


def check_multi_hot(labels: Tensor, classes: int) -> None:
    """Raise `InputError` unless there is a column for every class."""
    if labels.shape[1] != classes:
        raise InputError(f"multi-hot labels have {labels.shape[1]} columns, but num_classes={classes}")


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
    if negatives is not None and bool((positives & negatives).any()):
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
    if pairs.complete and not shared:
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
