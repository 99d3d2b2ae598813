"""Threads that each work on a tile of their own.

Counting in a tile is many short operations. Were each of them divided among the cores, the cores would mostly wait for
one another, and for ever so long on a machine that is busy with something else too.
"""

import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

Task = Callable[[Tensor], None]


class Workers:
    """As many threads as torch has, each of one core and with memory of its own."""

    def __init__(self, pool: ThreadPoolExecutor | None, memory: list[Tensor]):
        self._pool = pool
        self._memory: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        for part in memory:
            self._memory.put(part)

    def run(self, tasks: Iterable[Task]) -> None:
        """All tasks, in any order; each is given memory to overwrite."""
        for _ in map(self._one, tasks) if self._pool is None else self._pool.map(self._one, tasks):
            pass

    def _one(self, task: Task) -> None:
        memory = self._memory.get()
        try:
            task(memory)
        finally:
            self._memory.put(memory)


@contextmanager
def workers(numbers: int, device: torch.device) -> Iterator[Workers]:
    """Workers with so many numbers of memory each. On a GPU, which shares out its own work, there is one."""
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    memory = [torch.empty(numbers, device=device) for _ in range(threads)]
    if threads == 1:
        yield Workers(None, memory)
        return
    torch.set_num_threads(1)  # which threads that start from now on inherit
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield Workers(pool, memory)
    finally:
        torch.set_num_threads(threads)
