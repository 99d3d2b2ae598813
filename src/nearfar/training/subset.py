"""`SubsetStep`: one step over a batch of which only the samples that matter are backpropagated.

Once a network knows most of its classes, most samples of a batch weigh next to nothing in the loss. How much a sample
weighs is known before anything is backpropagated:

    1. embed all candidates without a graph (N, D)
    2. the loss of all embeddings at once, and its gradient at them; the length of a row is the weight of its sample
    3. take a part of the samples by these weights, embed them again with a graph, and send each its row of the
       gradient, times the factor that makes up for what was left out

Every pair of the large batch is compared, and the loss's own parameters, such as class vectors, get their gradients
from all candidates. The network is trained in the memory of the part, and in less time than the whole batch takes: a
forward pass costs about a third of forward and backward.

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
    """A step in place of `loss(model(inputs), labels).backward()`, which backpropagates a part of the batch.

    Dropout draws anew in the second pass. Batch normalisation that trains sees the samples of one pass alone, as in
    data-parallel training; its running statistics are those of the candidates.

    Args:
        model: inputs (n, ...) to embeddings (n, D).
        loss: embeddings (N, D) and labels to a scalar; its own parameters get their gradients from the whole batch.
        select: hard: the samples with the largest weights, times the sum of all weights over the sum of theirs.
            weighted: drawn with a probability in proportion to their weights, divided by it: unbiased. random: drawn
            with equal probabilities, divided by it: unbiased too.
        keep: the part of the batch that is backpropagated, above 0 and below 1.
        chunk: how many samples are embedded at a time; by default as many as are kept.

    Attributes:
        embeddings: of the last step (N, D), without graph.
        kept: the rows that the last step backpropagated (K,).

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
            raise InputError(f"chunk={chunk} must be a number of samples, at least 1")
        self.model, self.loss, self.select, self.keep, self.chunk = model, loss, select, keep, chunk

    def step(self, inputs: Tensor, labels: Tensor, backward: Callable[[Tensor], object] | None = None) -> Tensor:
        """Add the gradients to `.grad`, and give the loss of the whole batch, without graph.

        Args:
            inputs: (N, ...).
            labels: what the loss takes besides the embeddings.
            backward: called with the loss in place of `loss.backward()`; where it scales the loss, all gradients are
                scaled alike.
        """
        count = max(1, round(self.keep * len(inputs)))
        with torch.no_grad():
            leaves = torch.cat([self.model(part) for part in torch.split(inputs, self.chunk or count)])
        torch.clear_autocast_cache()  # an autocast around us would take its weights again, which have no graph
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
        for part, own in zip(torch.split(inputs, size), torch.split(gradient, size), strict=True):
            embeddings = self.model(part)
            if embeddings.requires_grad:  # not if all that is trained is the loss
                torch.autograd.backward(embeddings, own)
        for buffer, value in zip(self.model.buffers(), buffers, strict=True):
            buffer.copy_(value)


def check_keep(keep: float) -> None:
    """Refuse what is no part of a batch."""
    if not 0 < keep < 1:
        raise InputError(f"keep={keep:g} is the part of a batch that is backpropagated: above 0 and below 1")


def chosen(weights: Tensor, select: Select, count: int) -> tuple[Tensor, Tensor]:
    """Rows to take, at most `count` and in order, and the factor of each. Samples without weight are left out.

    Args:
        weights: of all samples (N,), not negative.
    """
    there = weights.nonzero().flatten()
    if select == "hard":
        rows = weights.topk(min(count, len(there))).indices.sort().values
        return rows, (weights.sum() / weights[rows].sum()).expand(len(rows))
    if select == "random":
        probabilities = torch.full_like(weights, min(1.0, count / len(weights)))
    else:
        probabilities = inclusion(weights, count)
    rows = drawn(probabilities)
    rows = rows[weights[rows] > 0]
    return rows, 1 / probabilities[rows]


def inclusion(weights: Tensor, count: int) -> Tensor:
    """Probabilities (N,) in proportion to the weights, at most 1, that add up to `count`, or to how many have weight.

    >>> inclusion(torch.tensor([8.0, 1.0, 1.0, 0.0]), 2)
    tensor([1.0000, 0.5000, 0.5000, 0.0000])
    """
    certain = torch.zeros_like(weights, dtype=torch.bool)
    while True:
        rest = weights.masked_fill(certain, 0)
        found = rest * ((count - certain.sum()) / rest.sum().clamp_min(torch.finfo(rest.dtype).tiny))
        found[certain] = 1
        more = (found > 1) & ~certain
        if not more.any():
            return found
        certain |= more


def drawn(probabilities: Tensor) -> Tensor:
    """Rows in order, each drawn with its probability; of probabilities that add up to a whole number, just so many.

    Systematic sampling: in a random order, the probabilities are laid end to end, and every row is taken in whose part
    a mark falls, of marks at a distance of 1.
    """
    order = torch.randperm(len(probabilities), device=probabilities.device)
    start = torch.rand(1, dtype=torch.float64, device=probabilities.device)
    ends = probabilities[order].double().cumsum(0) + start
    begins = torch.cat([start, ends[:-1]])
    return order[ends.floor() > begins.floor()].sort().values
