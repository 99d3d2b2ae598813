"""Labels: every form that is taken, and true hints for the others.

(N,) or (N, 1)  integers            class ids, any numbers; with class vectors 0 to C - 1
(N, L)          booleans, or 0, 1   multi-hot: samples that share a label are positive pairs
(N, C)          floating point      soft: probabilities of the classes, for the softmax family
ignore_index    (-1)                a class id: the sample is left out
"""

from typing import Any

import torch
from torch import Tensor

from nearfar.errors import InputError, InputTypeError

SOFT_TOLERANCE = 0.02  # of the sum of soft labels, which may be bfloat16
FEW_LABELS = 128  # up to this number, the smallest and the largest are found on the host


def squeezed(labels: Any) -> Any:
    """Class ids (n, 1) as (n,); other labels as they are."""
    integers = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.dtype == torch.bool)
    return labels[:, 0] if integers and labels.shape[1:] == (1,) else labels


def is_soft(labels: Tensor | None) -> bool:
    """Whether they are probabilities of classes, by their type and shape."""
    return isinstance(labels, Tensor) and labels.ndim == 2 and labels.shape[1] > 1 and labels.is_floating_point()


def check_soft_labels(labels: Tensor, shape: tuple[int, int]) -> None:
    """Raise `InputError` unless they are the probabilities of the classes (N, C) of every sample."""
    if labels.shape != shape:
        raise InputError(f"soft labels must be {shape}, (samples, num_classes), not {tuple(labels.shape)}")
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
    numbers = labels.ndim == 2 and labels.dtype != torch.bool and not torch.compiler.is_compiling()
    if numbers and bool(((labels != 0) & (labels != 1)).any()):
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


def kept(labels: Tensor | None, n: int, ignore_index: int) -> Tensor | None:
    """The indices of the labels that count; None if all do, or if they are not class ids of n samples."""
    if not isinstance(labels, Tensor) or labels.shape != (n,) or labels.dtype == torch.bool:
        return None
    counts = labels != ignore_index
    if torch.compiler.is_compiling():  # a graph has the same number of samples for all values
        torch._assert_async(counts.all(), "in a graph that is compiled as a whole no sample can be left out")
        return None
    return None if bool(counts.all()) else counts.nonzero()[:, 0]
