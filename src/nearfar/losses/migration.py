"""State that pytorch-metric-learning (PML) saved, under the names and in the shapes that it has here.

Plain `load_state_dict` calls these, for every loss and wrapper. What the names say:

    W, fc          (dimension, classes): class weights, turned to (classes, dimension)
    proxies        (classes, dimension): class weights
    weight         of P2SGradLoss: (dimension, classes), turned if the shape shows it. A square one may be of either
                   kind and is taken as it is: turn one that PML saved (`state["weight"] = state["weight"].t()`).
    losses.0.…     the parts of its MultipleLosses, which here are called by their class
    embedding_memory, label_memory
                   of its CrossBatchMemory, which does not save how far the queue is filled

PML does not save the boundary of a MarginLoss that is not learned, nor the histogram of DynamicSoftMarginLoss, and its
SphereFaceLoss and LargeMarginSoftmaxLoss count no iterations: they stay as they are.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from nearfar.losses.loss import Loss

TURNED = {"W": True, "fc": True, "proxies": False}  # PML's names of class weights: whether classes are columns
NOT_SAVED = ("beta", "histogram", "iteration")  # buffers here that PML keeps elsewhere, or does not have


def adopt_loss(loss: "Loss", state: dict[str, Any], prefix: str, errors: list[str]) -> None:
    """Rename and turn, in place, what PML saved of a loss; our own state stays as it is."""
    from nearfar.losses.catalogue.faces import P2SGradLoss  # which is made of what calls this

    theirs = not any(key.startswith(prefix) for key in state)  # nothing is what it saves of a loss without parameters
    own = f"{prefix}weight"
    if loss.weight is not None and own not in state:
        for name, turned in TURNED.items():
            weight = state.pop(prefix + name, None)
            if weight is not None:
                state[own] = weight.t().contiguous() if turned and weight.ndim == 2 else weight
                theirs = True
                break
    elif isinstance(loss, P2SGradLoss) and loss.weight is not None:
        weight = state[own]
        if weight.shape == loss.weight.shape[::-1] and weight.shape != loss.weight.shape:
            state[own] = weight.t().contiguous()
    if theirs:
        for name in NOT_SAVED:
            if name in loss._buffers:
                state.setdefault(prefix + name, loss._buffers[name])
    beta = state.get(f"{prefix}beta")
    if beta is not None and beta.numel() > 1 and getattr(loss, "beta", beta).ndim == 0:  # torch would take the first
        errors.append(f"{prefix}beta has a boundary for each of {len(beta)} classes: give the loss num_classes")


def adopt_memory(state: dict[str, Any], prefix: str) -> None:
    """Find how far a queue that PML saved is filled, in slots that were zero. Which entry of a full one is the oldest
    nobody knows: the first is taken for it.
    """
    memory: Tensor | None = state.get(f"{prefix}embedding_memory")
    if memory is not None:
        filled = (memory != 0).any(1).nonzero()
        number = filled[-1, 0] + 1 if len(filled) else torch.zeros((), dtype=torch.long)
        state.setdefault(f"{prefix}num_enqueued", number)


def adopt_sum(parts: list[str], state: dict[str, Any], prefix: str) -> None:
    """Rename, in place, the parts of a sum, which PML numbers."""
    for key in [key for key in state if key.startswith(f"{prefix}losses.")]:
        number, _, rest = key[len(f"{prefix}losses.") :].partition(".")
        if number.isdecimal() and int(number) < len(parts):
            state[f"{prefix}losses.{parts[int(number)]}.{rest}"] = state.pop(key)
