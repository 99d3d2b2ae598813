"""Checks before training: reject settings with which it would run, but learn or measure nothing."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn
from torch.optim import Optimizer

from nearfar.data import BatchSampler, Dealt, HierarchicalSampler, PKSampler, PlainSampler
from nearfar.errors import InputError, InputTypeError
from nearfar.evaluation.metrics import names
from nearfar.foundation.suggestions import suggestion
from nearfar.losses import CenterLoss, CrossBatchMemory, Loss, SelfSupervisedLoss
from nearfar.losses.catalogue.towers import TwoTowerLoss

BATCHES_CHECKED = 100
Labels = Sequence[Any] | npt.NDArray[Any]


def check_parameters(loss: nn.Module, *optimisers: Optimizer) -> None:
    """Reject a loss with a parameter that no optimiser updates: it would silently keep its initial value."""
    moved = {id(p) for optimiser in optimisers for group in optimiser.param_groups for p in group["params"]}
    still = {name: p for name, p in loss.named_parameters() if p.requires_grad and id(p) not in moved}
    if still:
        described = ", ".join(f"{name} {tuple(p.shape)}" for name, p in still.items())
        verb = "is" if len(still) == 1 else "are"
        raise InputError(
            f"parameters of {type(loss).__name__}, {described}, {verb} in no optimiser and would never be learned: "
            "add loss.parameters() to one, as nearfar.training.optimisers.parameter_groups does, or call "
            "requires_grad_(False) on those that should stay fixed"
        )


def check_metric(metric: str, ks: Sequence[int]) -> None:
    """Reject a metric that would not be measured."""
    known = names(None, ks)
    if metric not in known:
        raise InputError(
            f"the best epoch cannot be chosen by {metric!r}, which is not measured: {suggestion(metric, known)}"
        )


def check_batches(sampler: BatchSampler, labels: Labels, loss: nn.Module) -> None:
    """Reject batches that the loss cannot learn from.

    Args:
        sampler: draws batches of rows; the loss sees those of all ranks together.
        labels: class ids (N,) as the loss will get them; -1 marks rows without a class.
        loss: a loss, or a sum or wrapper of losses.
    """
    ids = np.asarray(labels)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InputTypeError(f"labels must be class ids (N,), integers, not {ids.dtype} {ids.shape}")
    if isinstance(sampler, Dealt):  # the same batches
        sampler = sampler.original
    _check_views(loss)
    _check_class_ids(sampler, ids, loss)
    pair_losses = [type(part).__name__ for part in comparing_samples(loss)]
    if pair_losses:
        _check_pairs(sampler, ids, pair_losses[0])


def check_classes(train_labels: Labels, test_labels: Labels) -> None:
    """Reject a test of unseen classes that contains training classes: it would flatter the model.

    Args:
        train_labels, test_labels: ids or names of classes, in one numbering; -1 marks rows without a class.
    """
    train, test = np.unique(np.asarray(train_labels)), np.unique(np.asarray(test_labels))
    shared = np.intersect1d(train, test)
    if shared.dtype.kind in "iu":
        shared = shared[shared != -1]
    if len(shared):
        raise InputError(
            f"{len(shared):,} classes are both trained on and tested ({_examples(shared)}), so the test would not be "
            "of unseen classes: split the data by class (data.split=classes) or, to test on known classes, by image "
            "(data.split=images)"
        )


def _check_views(loss: nn.Module) -> None:
    for part in loss.modules():
        if isinstance(part, TwoTowerLoss | SelfSupervisedLoss):
            name = type(part).__name__
            raise InputError(
                f"{name} compares two views of every sample (an image and its caption, or two crops) and takes no "
                f"class labels: with labelled images use NTXentLoss or SupConLoss, or call {name} in a loop of your own"
            )


def _check_class_ids(sampler: BatchSampler, ids: npt.NDArray[Any], loss: nn.Module) -> None:
    known = ids[ids != -1]
    if not len(known):
        raise InputError("no row has a class, so there is nothing to learn from")
    if len(known) < len(ids) and isinstance(sampler, PlainSampler):  # other samplers skip them
        raise InputError(
            f"{len(ids) - len(known):,} rows have no class, and a plain sampler draws them too: leave them out of the "
            "table, or use another sampler"
        )
    classes = len(np.unique(known))
    if classes < 2:
        raise InputError(
            "all rows have the same class: training needs two or more. A folder of images needs one folder per class"
        )
    for part in loss.modules():
        owned = _classes_of(part)
        if owned is not None and not 0 <= known.min() <= known.max() < owned:
            few = "" if classes > owned else f"; number the {classes:,} classes from 0"
            raise InputError(
                f"class ids go from {known.min()} to {known.max()}, but {type(part).__name__} has "
                f"num_classes={owned}, which is for ids from 0 to {owned - 1}{few}"
            )


def _classes_of(part: nn.Module) -> int | None:
    """The number of classes that a loss has vectors for; None if it has none."""
    if isinstance(part, CenterLoss):
        return len(part.centers)
    if isinstance(part, Loss) and part.weight is not None:
        return len(part.weight) // part.vectors_per_class
    return None


def comparing_samples(loss: nn.Module) -> Iterator[Loss]:
    """The losses that need positives in the batch; those with a memory find them in it."""
    if isinstance(loss, CrossBatchMemory):
        return
    if isinstance(loss, Loss) and not loss.class_level:
        yield loss
    for part in loss.children():
        yield from comparing_samples(part)


def _check_pairs(sampler: BatchSampler, ids: npt.NDArray[Any], name: str) -> None:
    """Reject a sampler whose batches lack positive pairs or a second class."""
    if np.unique(ids[ids != -1], return_counts=True)[1].max() < 2:
        raise InputError(
            f"every class has only one image, so there are no positive pairs, which {name} needs: it needs classes of "
            "two images or more"
        )
    if isinstance(sampler, PKSampler | HierarchicalSampler) and sampler.k < 2:
        raise InputError(
            f"k={sampler.k} image of each class in a batch makes no positive pairs, which {name} needs: use k=2 or "
            "more, or a loss that compares with class weights or proxies, such as ProxyAnchorLoss"
        )
    positives, negatives = _pairs_drawn(sampler, ids)
    if not negatives:
        raise InputError(
            f"batches of {sampler.batch_size} hold only one class, so there are no negative pairs, which {name} "
            "needs: draw two classes or more into each (p=2 or more, or a larger batch)"
        )
    if not positives:
        raise InputError(
            f"batches of {sampler.batch_size} from {len(np.unique(ids)):,} classes hold no two images of one class, "
            f"so there are no positive pairs, which {name} needs: draw several images of each class (the sampler pk), "
            "or use a loss that compares with class weights or proxies, such as ProxyAnchorLoss"
        )


def _pairs_drawn(sampler: BatchSampler, ids: npt.NDArray[Any]) -> tuple[bool, bool]:
    """Whether the batches have positive pairs (of two different rows) and negative pairs."""
    if isinstance(sampler, PKSampler):  # known without drawing, which is slow for many classes
        return sampler.k > 1, sampler.p * sampler.world_size > 1
    positives = negatives = False
    for ranks in sampler.batches(sampler.epoch)[:BATCHES_CHECKED]:
        counts = np.unique(ids[np.unique(np.concatenate(ranks))], return_counts=True)[1]
        positives |= bool(counts.max() > 1)
        negatives |= len(counts) > 1
        if positives and negatives:
            break
    return positives, negatives


def _examples(values: npt.NDArray[Any]) -> str:
    return ", ".join(map(str, values[:3])) + (", ..." if len(values) > 3 else "")
