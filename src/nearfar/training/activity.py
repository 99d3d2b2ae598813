"""What a loss gets out of a batch: which pairs, or samples, have a gradient.

How active pairs are found. A loss that sees its samples through their similarities s_ij alone has the gradient
Σ_j H_ij x_j at x_i, where H_ij = ∂L/∂s_ij + ∂L/∂s_ji. Every x_i is given a dimension of its own, in which it has a very
small part of its length. Then x_j is the only other sample with anything in dimension j, and there the gradient at x_i
is H_ij times that part: to be read off, whatever the loss.
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

OWN_LENGTH = 1e-4  # of a vector, in its own dimension: similarities change by 1e-8 of themselves
ACTIVE = 1e-3  # of the strongest gradient
NOTHING = 1e-12  # a gradient that is rounding alone
MOST_PAIRED = 1024  # samples; beyond, which would take seconds, gradients are looked at by sample


@dataclass(frozen=True)
class Activity:
    """What the loss gets out of the batch. A share is None where it does not apply.

    A pair (a sample) is active if the loss's gradient by its similarity (at its embedding) is more than 0.001 of the
    strongest of its kind.
    """

    loss: float
    gradient_norm: float  # of all embeddings together
    positives: float | None  # share of the positive pairs that are active
    negatives: float | None
    samples: float | None  # share of the samples with a gradient


def activity(x: Tensor, labels: Tensor, loss: nn.Module) -> Activity:
    """What the loss gets out of embeddings (N, D); it stays as it was, and so do the random generators."""
    if any(isinstance(part, TwoTowerLoss) for part in loss.modules()):
        raise InputError(f"{type(loss).__name__} is of two towers: a batch of embeddings and labels says nothing of it")
    with _undisturbed(loss, x.device):
        leaf = x.clone().requires_grad_()
        value = loss(leaf, labels)
        value = value.sum() if value.ndim else value
        gradient = torch.autograd.grad(value, leaf)[0].double()
        positives = negatives = None
        if _compares_samples_alone(loss) and len(x) <= MOST_PAIRED:
            positives, negatives = _active_pairs(x, labels, loss)
    return Activity(
        loss=float(value.detach()),
        gradient_norm=float(gradient.norm()),
        positives=positives,
        negatives=negatives,
        samples=_share_active(gradient.norm(dim=1)),
    )


def _compares_samples_alone(loss: nn.Module) -> bool:
    """Whether it is a function of the similarities within the batch, and of nothing else."""
    if isinstance(loss, SumLoss):
        return all(map(_compares_samples_alone, loss.losses.values()))
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
    """The loss in evaluation, so that memories, centres and counters stay; what it draws is not drawn; quiet."""
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
    """(b, N): which pairs share a label."""
    if labels.ndim == 1:
        return labels[rows, None] == labels
    tags = (labels != 0).double()
    return tags[rows] @ tags.T > 0
