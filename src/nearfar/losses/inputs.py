"""What callers hand to a loss, checked and turned into pairs. Every error says what is wrong and what to do."""

import torch
from torch import Tensor

from nearfar.errors import InputError, InputTypeError
from nearfar.losses.engine.pairs import ClassPairs, MaskFunction, MaskPairs, Pairs

MASK_BLOCK = 2**22  # pairs counted at a time
FEW_LABELS = 128  # up to so many are looked at one by one


def check_embeddings(embeddings: Tensor, size: int | None, name: str = "embeddings", finite: bool = False) -> None:
    """(N, D), floating point; of the dimension `size` if that is known; without NaN or infinity if `finite`."""
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


def check_labels(labels: Tensor, n: int, name: str = "labels", of: str = "embeddings") -> None:
    """Class ids (n,) or multi-hot (n, L), integers or booleans."""
    if not isinstance(labels, Tensor):
        raise InputTypeError(
            f"{name} must be a torch.Tensor, not {type(labels).__name__}: torch.as_tensor({name}) makes one"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise InputTypeError(
            f"{name} are {labels.dtype}: give class ids as integers ({name}.long()), "
            f"or multi-hot labels as booleans ({name}.bool())"
        )
    if labels.ndim not in (1, 2):
        raise InputError(f"{name} must be class ids (N,) or multi-hot (N, L), not {tuple(labels.shape)}")
    if labels.shape[0] != n:
        raise InputError(f"{len(labels)} {name} for {n} {of}: there must be one each")
    if labels.ndim == 1 and labels.dtype == torch.bool:
        raise InputTypeError(f"{name} are boolean: give class ids as integers ({name}.long())")


def check_sample_weight(weight: Tensor, n: int) -> None:
    """(n,), not negative."""
    if not isinstance(weight, Tensor) or weight.shape != (n,):
        shape = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise InputError(f"sample_weight must be a tensor of shape ({n},), not {shape}")
    if weight.numel() and not bool((weight >= 0).all()):
        raise InputError("sample_weight must not be negative or NaN")


def check_class_ids(labels: Tensor, classes: int) -> None:
    """Between 0 and classes - 1."""
    if labels.numel():
        if labels.numel() <= FEW_LABELS:
            ids = labels.tolist()
            low, high = min(ids), max(ids)
        else:
            low, high = map(int, torch.aminmax(labels))
        if low < 0 or high >= classes:
            raise InputError(
                f"labels run from {low} to {high}, but num_classes={classes} takes 0 to {classes - 1}: "
                "number the training classes from 0, or raise num_classes"
            )


def check_multi_hot(labels: Tensor, classes: int) -> None:
    """A column for every class."""
    if labels.shape[1] != classes:
        raise InputError(f"multi-hot labels have {labels.shape[1]} columns, but num_classes={classes}")


def sample_pairs(labels: Tensor, ref_labels: Tensor | None, part: slice | None = None) -> Pairs:
    """Samples × samples, or samples × references, from class ids or multi-hot labels.

    Args:
        part: the rows are these samples, instead of all; without `ref_labels`.
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

    own = None if ref_labels is not None else 0 if part is None else part.start
    return _mask_pairs(shares_a_label, len(left), len(right), own)


def class_pairs(labels: Tensor, classes: int, proxies_are_rows: bool) -> Pairs:
    """Samples × classes, or classes × samples, from class ids or multi-hot labels."""
    if labels.ndim == 2:
        check_multi_hot(labels, classes)
        return mask_pairs(labels != 0, None, transpose=proxies_are_rows)
    labels = labels.long()
    check_class_ids(labels, classes)
    return ClassPairs.of_classes(labels, classes) if proxies_are_rows else ClassPairs.to_classes(labels, classes)


def mask_pairs(
    positives: Tensor, negatives: Tensor | None, own: int | None = None, transpose: bool = False
) -> MaskPairs:
    """From boolean masks (samples × columns). Without `negatives`, whatever is not positive is negative.

    Args:
        own: the rows are samples among the columns, from this one on: each is no pair with itself.
    """
    if negatives is not None and bool((positives & negatives).any()):
        raise InputError("some pairs are in both positives and negatives")
    if transpose:
        positives, negatives = positives.t(), None if negatives is None else negatives.t()

    def cut(rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        positive = positives[rows, columns]
        return positive, ~positive if negatives is None else negatives[rows, columns]

    return _mask_pairs(cut, len(positives), positives.shape[1], own)


def check_masks(positives: Tensor, negatives: Tensor | None, shape: tuple[int, int]) -> None:
    """Boolean, (samples, columns)."""
    for name, mask in (("positives", positives), ("negatives", negatives)):
        if mask is not None and (mask.dtype != torch.bool or mask.shape != shape):
            raise InputError(
                f"{name} must be a boolean mask of shape {shape} (samples × columns), "
                f"not {mask.dtype} {tuple(mask.shape)}"
            )


def _mask_pairs(mask: MaskFunction, rows: int, columns: int, own: int | None) -> MaskPairs:
    def without_self(i: slice, j: slice) -> tuple[Tensor, Tensor]:
        positive, negative = mask(i, j)
        if own is not None and i.start + own < j.stop and j.start < i.stop + own:
            index = torch.arange(max(i.stop + own, j.stop), device=positive.device)
            other = index[i.start + own : i.stop + own, None] != index[j]
            return positive & other, negative & other
        return positive, negative

    return MaskPairs(without_self, rows, columns, block=max(1, MASK_BLOCK // max(1, columns)))
