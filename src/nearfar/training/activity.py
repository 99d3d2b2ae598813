"""Which pairs or samples of a batch have a gradient.

A loss that depends only on the similarities s_ij of its samples has the gradient Σ_j H_ij x_j at x_i, where
H_ij = ∂L/∂s_ij + ∂L/∂s_ji. To read off H for any loss, every x_i gets an extra dimension, which holds a very small part
of its length. Only x_j is non-zero in extra dimension j, so the gradient at x_i in that dimension is H_ij times that
small length.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearfar.errors import InputError
from nearfar.losses import Loss, SumLoss
from nearfar.losses.catalogue.towers import TwoTowerLoss

OWN_LENGTH = 1e-4  # share of a vector's length in its extra dimension; changes similarities by a factor of 1e-8
ACTIVE = 1e-3  # share of the strongest gradient
NOTHING = 1e-12  # gradients below are rounding errors
MOST_PAIRED = 1024  # samples; pairs of more take seconds, so only gradients by sample are computed


@dataclass(frozen=True)
class Activity:
    """Loss, gradient norm and active shares of a batch. A share is None where it does not apply.

    A pair is active if the gradient by its similarity exceeds 0.001 of the strongest of its kind; a sample, if the
    gradient at its embedding does.
    """

    loss: float
    gradient_norm: float  # over all embeddings
    positives: float | None  # share of the positive pairs that are active
    negatives: float | None
    samples: float | None  # share of the samples with a gradient


def activity(x: Tensor, labels: Tensor, loss: nn.Module) -> Activity:
    """Compute the activity of embeddings (N, D). The loss's state and the random generators do not change."""
    if any(isinstance(part, TwoTowerLoss) for part in loss.modules()):
        raise InputError(f"{type(loss).__name__} compares two towers: it needs two batches, not embeddings and labels")
    with _undisturbed(loss, x.device):
        leaf = x.clone().requires_grad_()
        value = loss(leaf, labels)
        value = value.sum() if value.ndim else value
        gradient = torch.autograd.grad(value, leaf)[0].double()
        positives = negatives = None
        if _compares_only_samples(loss) and len(x) <= MOST_PAIRED:
            positives, negatives = _active_pairs(x, labels, loss)
    return Activity(
        loss=float(value.detach()),
        gradient_norm=float(gradient.norm()),
        positives=positives,
        negatives=negatives,
        samples=_share_active(gradient.norm(dim=1)),
    )


def _compares_only_samples(loss: nn.Module) -> bool:
    """Whether the loss depends only on the similarities within the batch."""
    if isinstance(loss, SumLoss):
        return all(map(_compares_only_samples, loss.losses.values()))
    return isinstance(loss, Loss) and not loss.class_level and loss.only_products


def _active_pairs(x: Tensor, labels: Tensor, loss: nn.Module) -> tuple[float | None, float | None]:
    wide = x.double()
    n, dimension = wide.shape
    norms = wide.norm(dim=1)
    lifted = torch.cat([wide * math.sqrt(1 - OWN_LENGTH**2), torch.diag(norms * OWN_LENGTH)], 1).requires_grad_()
    value = loss(lifted, labels)
    gradient = torch.autograd.grad(value.sum() if value.ndim else value, lifted)[0][:, dimension:]
    by_cosine = (gradient * norms[:, None]).abs() / OWN_LENGTH
    once = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
    alike = share_a_label(labels, slice(None))
    return _share_active(by_cosine[once & alike]), _share_active(by_cosine[once & ~alike])


def _share_active(gradient: Tensor) -> float | None:
    if not len(gradient):
        return None
    most = float(gradient.max())
    return float((gradient > ACTIVE * most).double().mean()) if most > NOTHING else 0.0


@contextlib.contextmanager
def _undisturbed(loss: nn.Module, device: torch.device) -> Iterator[None]:
    """Keep the loss's memories, centres and counters and the random generators unchanged, and silence warnings."""
    modes = {module: module.training for module in loss.modules()}
    loss.eval()
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.enable_grad(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def share_a_label(labels: Tensor, rows: slice) -> Tensor:
    """Mask (b, N) of the pairs that share a label."""
    if labels.ndim == 1:
        return labels[rows, None] == labels
    tags = (labels != 0).double()
    return tags[rows] @ tags.T > 0
