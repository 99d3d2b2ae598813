"""Ranks with their parts of a batch, against one process with the whole of it.

The oracle is the loss itself, in one process.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from nearfar.losses.distributed import distribute

SIZE = 6
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}
# Samples of every rank: uneven, and one rank has none.
COUNTS = {2: [7, 4], 3: [5, 0, 6], 4: [4, 1, 3, 3]}
# Classes, which every number of ranks has unevenly; four ranks have 2, 2, 1 and 0 of the fewest.
CLASSES = {2: 7, 3: 8, 4: 5}


def batch(seed: int = 0) -> tuple[Tensor, Tensor, list[int]]:
    """Embeddings and labels of all ranks, and how many every rank has of them."""
    counts = COUNTS[dist.get_world_size()]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(counts), SIZE, generator=generator, dtype=torch.float64)
    labels = torch.tensor([4, 0, 0, 1, 0, 2, 1, 3, 0, 4, 0])
    return x, labels[torch.randperm(len(labels), generator=generator)], counts


def own(rows: Any, counts: list[int]) -> Any:
    return None if rows is None else rows.split(counts)[dist.get_rank()].clone()


def mean_over_ranks(gradient: Tensor) -> Tensor:
    """What DistributedDataParallel does."""
    total = gradient.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def part(whole: Tensor, like: DTensor) -> Tensor:
    """What this rank has of a plain tensor, as a sharded one has it."""
    size = -(-len(like) // dist.get_world_size())
    return whole.reshape(like.shape)[dist.get_rank() * size :][:size]


def same(actual: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(actual, expected, **TOLERANCE, msg=lambda text: f"{what}: {text}")


def compare(plain: nn.Module, shared: nn.Module) -> None:
    """Gradients of the parameters, and the buffers, which steps change."""
    expected = dict(plain.named_parameters())
    assert expected.keys() == dict(shared.named_parameters()).keys()
    for name, parameter in shared.named_parameters():
        wanted, gradient = expected[name].grad, parameter.grad
        if wanted is None:
            wanted = torch.zeros_like(expected[name])
        if isinstance(parameter, DTensor):
            assert isinstance(gradient, DTensor)
            same(gradient.to_local(), part(wanted, parameter), name)
        else:
            same(mean_over_ranks(torch.zeros_like(wanted) if gradient is None else gradient), wanted, name)
    buffers = dict(shared.named_buffers())
    for name, buffer in plain.named_buffers():
        held = buffers[name]
        if isinstance(held, DTensor):
            same(held.to_local(), part(buffer, held), name)
        else:
            same(held, buffer, name)


def equal(
    make: Callable[[], nn.Module],
    arguments: dict[str, Tensor] | None = None,
    *,
    sharded: bool = False,
    steps: int = 1,
    towers: bool = False,
    **given: Any,
) -> None:
    """Ranks with their part of a batch, against one process with the whole of it."""
    plain, shared = make(), distribute(make(), sharded=sharded)
    world = dist.get_world_size()
    for step in range(steps):
        x, labels, counts = batch(step)
        columns = {"b": batch(100 + step)[0]} if towers else {"labels": labels}
        columns |= {name: value for name, value in (arguments or {}).items() if value is not None}
        if columns.get("positives") is not None:
            columns.pop("labels")
        tensors = {"x": x, **columns}
        learned = {name: t.is_floating_point() and name != "sample_weight" for name, t in tensors.items()}
        whole = {name: t.clone().requires_grad_(learned[name]) for name, t in tensors.items()}
        here = {name: own(t, counts).requires_grad_(learned[name]) for name, t in tensors.items()}
        values = []
        for loss, tensors in ((plain, whole), (shared, here)):
            loss.zero_grad()
            torch.manual_seed(step)
            if loss is shared and dist.get_rank():
                torch.manual_seed(1000 + dist.get_rank())  # the first rank's numbers count
            rest = dict(tensors)
            value = loss(rest.pop("x"), *([rest.pop("b")] if towers else []), **rest, **given)
            values.append(value)
        expected, value = values
        if value.ndim:  # one of each row: as a function of them all, whose mean over ranks is taken
            weight = torch.linspace(1, 2, len(expected), dtype=torch.float64)
            if len(value) == counts[dist.get_rank()] and len(expected) == len(x):
                same(value, own(expected, counts), "values")
                expected, value = expected @ weight / world, value @ own(weight, counts)
            else:
                raise AssertionError(f"{len(value)} values")
        else:
            same(value, expected, "value")
        expected.backward()
        value.backward()
        for name, tensor in here.items():
            if tensor.requires_grad:
                wanted, gradient = whole[name].grad, tensor.grad
                assert wanted is not None and gradient is not None
                same(gradient / world, own(wanted, counts), f"gradient of {name}")
        compare(plain, shared)


def in_double(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        torch.manual_seed(5)
        return make().double()

    return made
