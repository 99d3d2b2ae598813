"""What is refused before training begins: settings with which it would run, and learn nothing or measure nothing."""

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

BATCHES_LOOKED_AT = 100
Labels = Sequence[Any] | npt.NDArray[Any]


def check_parameters(loss: nn.Module, *optimisers: Optimizer) -> None:
    """Refuse a loss with a parameter that no optimiser moves: it would stay as it was drawn, without a word."""
    moved = {id(p) for optimiser in optimisers for group in optimiser.param_groups for p in group["params"]}
    still = {name: p for name, p in loss.named_parameters() if p.requires_grad and id(p) not in moved}
    if still:
        described = ", ".join(f"{name} {tuple(p.shape)}" for name, p in still.items())
        verb = "is" if len(still) == 1 else "are"
        raise InputError(
            f"of {type(loss).__name__}, {described} {verb} in no optimiser and would never be learned: give it "
            "loss.parameters() too, as nearfar.training.optimisers.parameter_groups does, or call "
            "requires_grad_(False) on what is not to be learned"
        )


def check_metric(metric: str, ks: Sequence[int]) -> None:
    """Refuse a metric that would not be measured."""
    known = names(None, ks)
    if metric not in known:
        raise InputError(
            f"the best epoch cannot be chosen by {metric!r}, which is not measured: {suggestion(metric, known)}"
        )


def check_batches(sampler: BatchSampler, labels: Labels, loss: nn.Module) -> None:
    """Refuse batches that the loss cannot learn from.

    Args:
        sampler: makes the batches, of rows; the loss sees those of all ranks together.
        labels: the class of every row, as the loss will get it (N,); rows with -1 belong to none.
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
    """Refuse a test on classes that were trained on, where unseen classes are to be tested: it would flatter the model.

    Args:
        train_labels, test_labels: ids or names of classes, in one numbering; -1 stands for none.
    """
    train, test = np.unique(np.asarray(train_labels)), np.unique(np.asarray(test_labels))
    shared = np.intersect1d(train, test)
    if shared.dtype.kind in "iu":
        shared = shared[shared != -1]
    if len(shared):
        raise InputError(
            f"{len(shared):,} classes are both trained on and tested ({_some(shared)}), so the test would not be of "
            "unseen classes: split the data by class (data.split=classes), or, if the classes to search for are the "
            "known ones, by image (data.split=images)"
        )


def _check_views(loss: nn.Module) -> None:
    for part in loss.modules():
        if isinstance(part, TwoTowerLoss | SelfSupervisedLoss):
            name = type(part).__name__
            raise InputError(
                f"{name} compares two views of every sample (an image and its caption, or two crops), and has no place "
                "for class labels: with labelled images use NTXentLoss or SupConLoss, or call "
                f"{name} in a loop of your own"
            )


def _check_class_ids(sampler: BatchSampler, ids: npt.NDArray[Any], loss: nn.Module) -> None:
    known = ids[ids != -1]
    if not len(known):
        raise InputError("no row has a class: there is nothing to learn from")
    if len(known) < len(ids) and isinstance(sampler, PlainSampler):  # the others leave them out
        raise InputError(
            f"{len(ids) - len(known):,} rows have no class, and a plain sampler draws them too: leave them out of the "
            "table, or use another sampler"
        )
    classes = len(np.unique(known))
    if classes < 2:
        raise InputError(
            "all rows are of one class: there is nothing to tell it from. A folder of images needs a folder per class"
        )
    for part in loss.modules():
        owned = _classes_of(part)
        if owned is not None and not 0 <= known.min() <= known.max() < owned:
            few = "" if classes > owned else f"; there are {classes:,}, which may be numbered from 0 on"
            raise InputError(
                f"class ids go from {known.min()} to {known.max()}, but {type(part).__name__} has "
                f"num_classes={owned}, which is for ids from 0 to {owned - 1}{few}"
            )


def _classes_of(part: nn.Module) -> int | None:
    """How many classes a loss owns vectors of, if it does."""
    if isinstance(part, CenterLoss):
        return len(part.centers)
    if isinstance(part, Loss) and part.weight is not None:
        return len(part.weight) // part.vectors_per_class
    return None


def comparing_samples(loss: nn.Module) -> Iterator[Loss]:
    """The losses that find their positives in the batch; those with a memory find them there."""
    if isinstance(loss, CrossBatchMemory):
        return
    if isinstance(loss, Loss) and not loss.class_level:
        yield loss
    for part in loss.children():
        yield from comparing_samples(part)


def _check_pairs(sampler: BatchSampler, ids: npt.NDArray[Any], name: str) -> None:
    """Two different rows of a class in some batch, and two classes."""
    if np.unique(ids[ids != -1], return_counts=True)[1].max() < 2:
        raise InputError(
            f"every class has one image alone, so no two images belong together and {name} has no positive pairs: it "
            "needs classes of two images or more"
        )
    if isinstance(sampler, PKSampler | HierarchicalSampler) and sampler.k < 2:
        raise InputError(
            f"k={sampler.k} image of each class in a batch makes no positive pairs, which {name} needs: use k=2 or "
            "more, or a loss that compares with class weights or proxies, such as ProxyAnchorLoss"
        )
    positives, negatives = _pairs_drawn(sampler, ids)
    if not negatives:
        raise InputError(
            f"batches of {sampler.batch_size} hold one class alone, so there are no negative pairs, which {name} "
            "needs: draw two classes or more into each (p=2 or more, or a larger batch)"
        )
    if not positives:
        raise InputError(
            f"batches of {sampler.batch_size} from {len(np.unique(ids)):,} classes hold no two images of one class, "
            f"so there are no positive pairs, which {name} needs: draw several images of each class (the sampler pk), "
            "or use a loss that compares with class weights or proxies, such as ProxyAnchorLoss"
        )


def _pairs_drawn(sampler: BatchSampler, ids: npt.NDArray[Any]) -> tuple[bool, bool]:
    """Whether the batches have positive pairs, of two different rows, and negative ones."""
    if isinstance(sampler, PKSampler):  # known without drawing, which takes long where classes are many
        return sampler.k > 1, sampler.p * sampler.world_size > 1
    positives = negatives = False
    for ranks in sampler.batches(sampler.epoch)[:BATCHES_LOOKED_AT]:
        counts = np.unique(ids[np.unique(np.concatenate(ranks))], return_counts=True)[1]
        positives |= bool(counts.max() > 1)
        negatives |= len(counts) > 1
        if positives and negatives:
            break
    return positives, negatives


def _some(values: npt.NDArray[Any]) -> str:
    return ", ".join(map(str, values[:3])) + (", ..." if len(values) > 3 else "")
