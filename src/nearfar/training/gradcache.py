"""`GradCache`: one step on a batch whose activations do not fit into memory.

Pair losses do not decompose: the mean loss of eight small batches is not the loss of the large one, which compares
every sample with every other. But their gradients decompose at the embeddings:

    1. embed all chunks without a graph, keeping only the embeddings (N, D)
    2. compute the loss of all embeddings, and its gradient with respect to them
    3. embed each chunk again with a graph, and backpropagate its rows of that gradient

The gradients in `.grad` equal those of the whole batch, at the cost of one more forward pass and the activations of
one chunk.

References: L. Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", RepL4NLP 2021,
arXiv:2101.06983.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearfar.errors import InputError


class GradCache:
    """Equal to this, in the memory of one chunk:

        embeddings = torch.cat([model(part) for part in inputs.split(chunk)])
        loss(embeddings, labels).backward()

    Dropout draws the same masks in both passes, and buffers that a forward pass updates are updated once. Batch
    normalisation must be frozen: with batch statistics, a sample's embedding would depend on its chunk.

    Args:
        model: maps inputs (n, ...) to embeddings (n, D). It must draw random numbers from torch's generators only.
        loss: maps embeddings (N, D) and labels to a scalar; its parameters get their gradients too.
        chunk: number of samples embedded at a time.
        autocast: returns the context in which model and loss are called, such as
            `lambda: torch.autocast("cpu", torch.bfloat16)`.

    Attributes:
        embeddings: the embeddings (N, D) of the last step, detached.

    Example:
        >>> model, loss = nn.Linear(3, 2), lambda x, labels: x.square().sum()
        >>> inputs, labels = torch.randn(5, 3), torch.arange(5)
        >>> value = GradCache(model, loss, chunk=2).step(inputs, labels)
        >>> torch.allclose(model.weight.grad, 2 * model(inputs).T @ inputs, atol=1e-5)
        True
    """

    embeddings: Tensor

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        chunk: int,
        autocast: Callable[[], AbstractContextManager[object]] | None = None,
    ):
        if chunk < 1:
            raise InputError(f"chunk={chunk} must be at least 1 sample")
        self.model, self.loss, self.chunk = model, loss, chunk
        self.autocast = autocast or nullcontext

    def step(self, inputs: Tensor, labels: Tensor, backward: Callable[[Tensor], object] | None = None) -> Tensor:
        """Add the gradients of the batch to `.grad`, and return its loss, detached.

        Args:
            inputs: (N, ...).
            labels: passed to the loss with the embeddings.
            backward: called with the loss in place of `loss.backward()`, such as Lightning's `manual_backward`. If it
                scales the loss, as float16 requires, all gradients have the same factor.
        """
        check_batch_norm(self.model)
        if len(inputs) <= self.chunk:
            with self.autocast():
                embeddings = self.model(inputs)
                loss = self.loss(embeddings, labels)
            self.embeddings = embeddings.detach()
            start_backward(loss, backward)
            return loss.detach()

        chunks = torch.split(inputs, self.chunk)
        before, buffers = _random_states(inputs.device), [buffer.clone() for buffer in self.model.buffers()]
        with torch.no_grad(), self.autocast():
            leaves = torch.cat([self.model(part) for part in chunks])
        # An enclosing autocast may have cached this pass's cast weights, which have no graph. Some versions of torch
        # would reuse them in the second pass.
        torch.clear_autocast_cache()
        self.embeddings = leaves.detach()  # shares the memory
        leaves.requires_grad_()
        with self.autocast():
            loss = self.loss(leaves, labels)
        start_backward(loss, backward)
        if leaves.grad is not None:
            for buffer, value in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(value)
            with _again(before, inputs.device):
                self._send(chunks, leaves.grad)
        return loss.detach()

    def _send(self, chunks: tuple[Tensor, ...], gradient: Tensor) -> None:
        for part, part_gradient in zip(chunks, torch.split(gradient, self.chunk), strict=True):
            with self.autocast():
                embeddings = self.model(part)
            if embeddings.requires_grad:  # false if only the loss is trained
                torch.autograd.backward(embeddings, part_gradient)


def check_batch_norm(model: nn.Module) -> None:
    """Reject a model that would normalise by the statistics of a chunk."""
    names = [
        name or type(module).__name__
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
    ]
    if names:
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise InputError(
            f"the model normalises by the statistics of its batch ({names[0]}{others}), so embedding it in chunks "
            "would not give the gradients of the whole batch: freeze batch normalisation (freeze_batch_norm=True of "
            "the model), or train without chunks"
        )


def start_backward(loss: Tensor, backward: Callable[[Tensor], object] | None) -> None:
    """Backpropagate from the loss to its parameters and the embeddings."""
    if loss.ndim:
        raise InputError(f"the loss has shape {tuple(loss.shape)}, but a step needs a scalar: set a reduction")
    if backward is None:
        torch.autograd.backward(loss)
    else:
        backward(loss)


def _random_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _set_random_states(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


@contextmanager
def _again(states: list[Tensor], device: torch.device) -> Iterator[None]:
    """Repeat the random draws since these states; then restore the generators."""
    now = _random_states(device)
    _set_random_states(states, device)
    try:
        yield
    finally:
        _set_random_states(now, device)
