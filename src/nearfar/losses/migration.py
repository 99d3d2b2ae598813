"""State saved by pytorch-metric-learning (PML), converted to the names and shapes of nearfar.

Plain `load_state_dict` calls these functions, for every loss and wrapper. PML's names:

    W, fc          (dimension, classes): class weights, transposed to (classes, dimension)
    proxies        (classes, dimension): class weights
    weight         of P2SGradLoss: (dimension, classes), transposed if its shape shows it. A square one is loaded as it
                   is: transpose one that PML saved (`state["weight"] = state["weight"].t()`).
    losses.0.…     the parts of its MultipleLosses, which nearfar names by their class
    embedding_memory, label_memory
                   of its CrossBatchMemory, which does not save how far the queue is filled

PML does not save the boundary of a MarginLoss that is not learned, nor the histogram of DynamicSoftMarginLoss, and its
SphereFaceLoss and LargeMarginSoftmaxLoss count no iterations: the loss keeps its own.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from nearfar.losses.loss import Loss

TRANSPOSED = {"W": True, "fc": True, "proxies": False}  # PML's names of class weights: whether classes are columns
NOT_SAVED = ("beta", "histogram", "iteration")  # buffers that PML does not save, or does not have


def adopt_loss(loss: "Loss", state: dict[str, Any], prefix: str, errors: list[str]) -> None:
    """Rename and transpose, in place, what PML saved of a loss; state of nearfar stays as it is."""
    from nearfar.losses.catalogue.faces import P2SGradLoss  # which imports this module

    from_pml = not any(key.startswith(prefix) for key in state)  # PML saves nothing of a loss without parameters
    key = f"{prefix}weight"
    if loss.weight is not None and key not in state:
        for name, transposed in TRANSPOSED.items():
            weight = state.pop(prefix + name, None)
            if weight is not None:
                state[key] = weight.t().contiguous() if transposed and weight.ndim == 2 else weight
                from_pml = True
                break
    elif isinstance(loss, P2SGradLoss) and loss.weight is not None:
        weight = state[key]
        if weight.shape == loss.weight.shape[::-1] and weight.shape != loss.weight.shape:
            state[key] = weight.t().contiguous()
    if from_pml:
        for name in NOT_SAVED:
            if name in loss._buffers:
                state.setdefault(prefix + name, loss._buffers[name])
    beta = state.get(f"{prefix}beta")
    if beta is not None and beta.numel() > 1 and getattr(loss, "beta", beta).ndim == 0:  # torch would take the first
        errors.append(f"{prefix}beta has a boundary for each of {len(beta)} classes: give the loss num_classes")


def adopt_memory(state: dict[str, Any], prefix: str) -> None:
    """Add how far a queue that PML saved is filled, from its slots that are zero. The oldest entry of a full queue is
    unknown: the first one is taken for it.
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
