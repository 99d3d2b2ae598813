"""Ranks as threads of one process: what the engine asks of ranks, exchanged in memory, for tests that make many worlds."""

import operator
import threading
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class _World:
    """What the ranks of a world share."""

    def __init__(self, size: int):
        self.barrier = threading.Barrier(size)
        self.messages: list[Any] = [None] * size


class RankThread:
    """One rank, with the interface of `nearfar.losses.distributed.ranks.Ranks` that reductions and weights use."""

    def __init__(self, world: _World, rank: int, size: int):
        self._world, self.rank, self.size = world, rank, size

    def sum(self, values: Tensor) -> Tensor:
        return self._reduced(values, operator.add)

    def max(self, values: Tensor) -> Tensor:
        return self._reduced(values, torch.maximum)

    def min(self, values: Tensor) -> Tensor:
        return self._reduced(values, torch.minimum)

    def _reduced(self, values: Tensor, how: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        self._world.messages[self.rank] = values.detach().clone()
        self._world.barrier.wait()
        shapes = {message.shape for message in self._world.messages}
        assert len(shapes) == 1, f"ranks exchange different things: {shapes}"
        result = reduce(how, self._world.messages)
        self._world.barrier.wait()
        return result


def on_ranks(size: int, run: Callable[[RankThread], Result]) -> list[Result]:
    """`run` on every rank of a world at the same time, and what each returns."""
    world = _World(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = run(RankThread(world, rank, size))
        except BaseException as error:
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            world.barrier.abort()  # what one does not send, the others wait for

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
