"""`SubsetStep`: one step on a batch that backpropagates only the samples that matter.

Once a network knows most of its classes, most samples of a batch contribute next to nothing to the gradient. The weight
of a sample is known before backpropagation:

    1. embed all candidates (N, D) without a graph
    2. compute the loss of all embeddings, and its gradient with respect to them; the norm of a row is the weight of its
       sample
    3. select some samples by these weights, embed them again with a graph, and backpropagate their rows of the
       gradient, times a factor that compensates for the others

The loss compares all pairs of the large batch, and its parameters, such as class vectors, get their gradients from all
candidates. The network needs only the memory of the selected samples, and less time than the whole batch: a forward
pass costs about a third of forward and backward.

References: A. Katharopoulos and F. Fleuret, "Not All Samples Are Created Equal: Deep Learning with Importance
Sampling", ICML 2018, arXiv:1803.00942; A. Jiang et al., "Accelerating Deep Learning by Focusing on the Biggest Losers",
2019, arXiv:1910.00762.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from nearfar.errors import InputError
from nearfar.training.gradcache import start_backward

Select = Literal["hard", "weighted", "random"]


class SubsetStep:
    """A step like `loss(model(inputs), labels).backward()` that backpropagates only some samples of the batch.

    Dropout draws new masks in the second pass. Batch normalisation in training mode uses the samples of each pass
    separately, as in data-parallel training; its running statistics are those of the candidates.

    Args:
        model: maps inputs (n, ...) to embeddings (n, D).
        loss: maps embeddings (N, D) and labels to a scalar; its parameters get their gradients from the whole batch.
        select: hard: the samples with the largest weights, times the sum of all weights over the sum of theirs.
            weighted: drawn with probabilities proportional to their weights, divided by them: unbiased. random: drawn
            with equal probabilities, divided by them: unbiased too.
        keep: the share of the batch to backpropagate, above 0 and below 1.
        chunk: number of samples embedded at a time; by default the number of selected ones.

    Attributes:
        embeddings: the embeddings (N, D) of the last step, detached.
        kept: the rows (K,) that the last step backpropagated.

    Example:
        >>> model, loss = nn.Linear(3, 2), lambda x, labels: x.square().sum()
        >>> inputs, labels = torch.randn(8, 3), torch.arange(8)
        >>> step = SubsetStep(model, loss, "hard", keep=0.25)
        >>> value = step.step(inputs, labels)
        >>> len(step.kept), torch.equal(step.kept, step.embeddings.norm(dim=1).topk(2).indices.sort().values)
        (2, True)
    """

    embeddings: Tensor
    kept: Tensor

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        select: Select = "hard",
        keep: float = 0.25,
        chunk: int | None = None,
    ):
        if select not in get_args(Select):
            raise InputError(f"select must be one of {', '.join(get_args(Select))}, not {select!r}")
        check_keep(keep)
        if chunk is not None and chunk < 1:
            raise InputError(f"chunk={chunk} must be at least 1 sample")
        self.model, self.loss, self.select, self.keep, self.chunk = model, loss, select, keep, chunk

    def step(self, inputs: Tensor, labels: Tensor, backward: Callable[[Tensor], object] | None = None) -> Tensor:
        """Add the gradients to `.grad`, and return the loss of the whole batch, detached.

        Args:
            inputs: (N, ...).
            labels: passed to the loss with the embeddings.
            backward: called with the loss in place of `loss.backward()`; if it scales the loss, all gradients have the
                same factor.
        """
        count = max(1, round(self.keep * len(inputs)))
        with torch.no_grad():
            leaves = torch.cat([self.model(part) for part in torch.split(inputs, self.chunk or count)])
        torch.clear_autocast_cache()  # an enclosing autocast would reuse cast weights, which have no graph
        self.embeddings = leaves.detach()  # shares the memory
        leaves.requires_grad_()
        loss = self.loss(leaves, labels)
        start_backward(loss, backward)
        assert leaves.grad is not None
        self.kept, factors = chosen(leaves.grad.norm(dim=1), self.select, count)
        if len(self.kept):
            self._send(inputs[self.kept], leaves.grad[self.kept] * factors[:, None])
        return loss.detach()

    def _send(self, inputs: Tensor, gradient: Tensor) -> None:
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        size = self.chunk or len(inputs)
        for part, part_gradient in zip(torch.split(inputs, size), torch.split(gradient, size), strict=True):
            embeddings = self.model(part)
            if embeddings.requires_grad:  # false if only the loss is trained
                torch.autograd.backward(embeddings, part_gradient)
        for buffer, value in zip(self.model.buffers(), buffers, strict=True):
            buffer.copy_(value)


def check_keep(keep: float) -> None:
    """Reject a `keep` outside (0, 1)."""
    if not 0 < keep < 1:
        raise InputError(f"keep={keep:g} must be a share of the batch, above 0 and below 1")


def chosen(weights: Tensor, select: Select, count: int) -> tuple[Tensor, Tensor]:
    """Select at most `count` rows, in order, with the factor of each. Samples of weight 0 are left out.

    Args:
        weights: weights (N,) of all samples, not negative.
    """
    candidates = weights.nonzero().flatten()
    if select == "hard":
        rows = weights.topk(min(count, len(candidates))).indices.sort().values
        return rows, (weights.sum() / weights[rows].sum()).expand(len(rows))
    if select == "random":
        probabilities = torch.full_like(weights, min(1.0, count / len(weights)))
    else:
        probabilities = inclusion(weights, count)
    rows = drawn(probabilities)
    rows = rows[weights[rows] > 0]
    return rows, 1 / probabilities[rows]


def inclusion(weights: Tensor, count: int) -> Tensor:
    """Probabilities (N,) proportional to the weights, at most 1, that sum to `count` or the number of positive weights.

    >>> inclusion(torch.tensor([8.0, 1.0, 1.0, 0.0]), 2)
    tensor([1.0000, 0.5000, 0.5000, 0.0000])
    """
    certain = torch.zeros_like(weights, dtype=torch.bool)
    while True:
        rest = weights.masked_fill(certain, 0)
        probabilities = rest * ((count - certain.sum()) / rest.sum().clamp_min(torch.finfo(rest.dtype).tiny))
        probabilities[certain] = 1
        more = (probabilities > 1) & ~certain
        if not more.any():
            return probabilities
        certain |= more


def drawn(probabilities: Tensor) -> Tensor:
    """Draw rows, each with its probability; the number of rows is exactly the sum of the probabilities if it is whole.

    Systematic sampling: the probabilities are laid end to end in a random order, and a row is drawn if one of the
    marks, which are at distance 1, falls into its interval.
    """
    order = torch.randperm(len(probabilities), device=probabilities.device)
    start = torch.rand(1, dtype=torch.float64, device=probabilities.device)
    ends = probabilities[order].double().cumsum(0) + start
    begins = torch.cat([start, ends[:-1]])
    return order[ends.floor() > begins.floor()].sort().values
