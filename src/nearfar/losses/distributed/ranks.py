"""`Ranks`: the processes that share a batch, and their messages.

A value that every rank returns is differentiated as the sum of all ranks' values, as autograd through collectives
does: `gathered` returns the gradient of a row, summed over all ranks, to the rank that the row came from. Averaged
over N ranks, as DistributedDataParallel does, that is the gradient of the one value.

Shapes: n rows of this rank, B of all; N ranks.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nearfar.errors import InputError
from nearfar.losses.engine.vectors import at_least_float32

if dist.is_available():  # newer versions of torch have them under another name
    _all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    _reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


Transform = Callable[[Tensor], Tensor]


class Ranks:
    """A group of processes; one process by itself where torch.distributed is not initialised.

    Args:
        group: of torch.distributed; None is all processes.
    """

    def __init__(self, group: "dist.ProcessGroup | None" = None):
        connected = dist.is_available() and dist.is_initialized()
        self.group = group
        self.rank = dist.get_rank(group) if connected else 0
        self.size = dist.get_world_size(group) if connected else 1
        if self.rank < 0:
            raise InputError("this process is not in the group that the loss is distributed over")

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ranks":
        return self  # a connection is not copied

    def sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over all ranks."""
        return self._reduced(values, "SUM")

    def max(self, values: Tensor) -> Tensor:
        """The elementwise maximum over all ranks."""
        return self._reduced(values, "MAX")

    def min(self, values: Tensor) -> Tensor:
        """The elementwise minimum over all ranks."""
        return self._reduced(values, "MIN")

    def _reduced(self, values: Tensor, operation: str) -> Tensor:
        if self.size == 1:
            return values
        result = values.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(result, getattr(dist.ReduceOp, operation), self.group)
        return result

    def first_ranks(self, values: Tensor) -> Tensor:
        """The values of the first rank."""
        if self.size == 1:
            return values
        result = values.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(result, 0 if self.group is None else dist.get_global_rank(self.group, 0), self.group)
        return result

    def counts(self, n: int, device: torch.device) -> list[int]:
        """The numbers n of all ranks."""
        if self.size == 1:
            return [n]
        result = torch.empty(self.size, dtype=torch.long, device=device)
        _all_gather(result, torch.tensor([n], device=device), group=self.group)
        return result.tolist()

    def own(self, counts: list[int]) -> slice:
        """Where this rank's rows are among those of all ranks, of which each has a number."""
        first = sum(counts[: self.rank])
        return slice(first, first + counts[self.rank])

    def collected(self, rows: Tensor, counts: list[int]) -> Tensor:
        """The rows (n, ...) of all ranks, in the order of the ranks, without a gradient."""
        if self.size == 1:
            return rows
        if rows.dtype == torch.bool:
            return self.collected(rows.to(torch.uint8), counts).bool()
        padded = _padded(rows.detach(), max(counts))
        result = padded.new_empty(self.size, *padded.shape)
        _all_gather(result.view(-1, *padded.shape[1:]), padded, group=self.group)
        return _unpadded(result, counts)

    def scattered_sum(self, rows: Tensor, counts: list[int]) -> Tensor:
        """This rank's rows (n, ...) of (B, ...), summed over all ranks: the adjoint of `collected`."""
        if self.size == 1:
            return rows
        most = max(counts)
        whole = rows.contiguous()
        if any(count != most for count in counts):
            whole = torch.cat([_padded(part, most) for part in torch.split(rows, counts)])
        result = whole.new_empty(most, *whole.shape[1:])
        _reduce_scatter(result, whole, group=self.group)
        return result[: counts[self.rank]]

    def exchanged(self, parts: list[Tensor], counts: list[int]) -> Tensor:
        """Send every rank its part (n, ...); return the parts that all ranks, with n rows each, have for this one."""
        if self.size == 1:
            return parts[0]
        part = parts[self.rank]
        shapes = [(count, *part.shape[1:]) for count in counts]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        sent = torch.cat([part.reshape(-1) for part in parts]).to(torch.uint8)
        result = sent.new_empty(sum(sizes))
        dist.all_to_all_single(result, sent, sizes, [part.numel() for part in parts], group=self.group)
        return result.view(sum(counts), *part.shape[1:]).to(part.dtype)


def _padded(rows: Tensor, n: int) -> Tensor:
    """The rows, and zeros up to n rows."""
    if len(rows) == n:
        return rows.contiguous()
    return torch.cat([rows, rows.new_zeros(n - len(rows), *rows.shape[1:])])


def _unpadded(parts: Tensor, counts: list[int]) -> Tensor:
    if all(count == parts.shape[1] for count in counts):
        return parts.view(-1, *parts.shape[2:])
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


class _Linear(torch.autograd.Function):
    """A linear function of a tensor, differentiated by its adjoint."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, function: Transform, adjoint: Transform) -> Tensor:
        ctx.adjoint = adjoint
        return function(tensor)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.adjoint(upstream), None, None


def _linear(tensor: Tensor, function: Transform, adjoint: Transform) -> Tensor:
    result: Tensor = _Linear.apply(tensor, function, adjoint)  # type: ignore[no-untyped-call]
    return result


def gathered(
    rows: Tensor, ranks: Ranks, counts: list[int], alike: bool = False, sent: torch.dtype | None = None
) -> Tensor:
    """The rows (n, D) of all ranks, (B, D), differentiable, and at least in float32.

    Args:
        alike: every rank computes the same with them, so that its gradient is the same too, and no message is needed.
        sent: the type they are sent in, if that is narrower.
    """
    if ranks.size == 1:
        return rows
    narrow, dtype = sent or rows.dtype, at_least_float32(rows)
    return _linear(
        rows.to(dtype),
        lambda rows: ranks.collected(rows.to(narrow), counts).to(dtype),
        lambda g: g[ranks.own(counts)] * ranks.size if alike else ranks.scattered_sum(g, counts),
    )


def total(part: Tensor, ranks: Ranks, factor: int) -> Tensor:
    """The sum of all ranks' parts, with which all ranks compute the same; differentiable.

    Args:
        factor: multiplies the gradient: N, as N values depend on this part; 1, where the part's gradient is complete.
    """
    return part if ranks.size == 1 else _linear(part, ranks.sum, lambda g: g * factor)


def own_rows(rows: Tensor, ranks: Ranks, counts: list[int]) -> Tensor:
    """This rank's rows (n,) of rows that all ranks have, (B,); differentiated as the mean over ranks of what each
    computes from its rows.
    """
    if ranks.size == 1:
        return rows
    return _linear(
        rows, lambda rows: rows[ranks.own(counts)].clone(), lambda g: ranks.collected(g, counts) / ranks.size
    )


def weighed_gradient(tensor: Tensor, factor: float) -> Tensor:
    """The same tensor, with its gradient multiplied by the factor."""
    return tensor if factor == 1 else _linear(tensor, lambda tensor: tensor.view_as(tensor), lambda g: g * factor)
