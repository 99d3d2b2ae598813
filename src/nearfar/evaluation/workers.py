"""Threads that each process a tile with a single core.

Counting in a tile consists of many short operations. Dividing each of them among the cores would make the cores wait
for each other most of the time, especially on a busy machine.
"""

import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

Task = Callable[[Tensor], None]


class Workers:
    """As many threads as torch uses, each with one core and a memory buffer."""

    def __init__(self, pool: ThreadPoolExecutor | None, memory: list[Tensor]):
        self._pool = pool
        self._memory: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        for part in memory:
            self._memory.put(part)

    def run(self, tasks: Iterable[Task]) -> None:
        """Run all tasks in any order. Each gets a buffer to overwrite."""
        for _ in map(self._run_one, tasks) if self._pool is None else self._pool.map(self._run_one, tasks):
            pass

    def _run_one(self, task: Task) -> None:
        memory = self._memory.get()
        try:
            task(memory)
        finally:
            self._memory.put(memory)


@contextmanager
def workers(numbers: int, device: torch.device) -> Iterator[Workers]:
    """Yield workers with a buffer of `numbers` float32 numbers each. On a GPU there is only one."""
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    memory = [torch.empty(numbers, device=device) for _ in range(threads)]
    if threads == 1:
        yield Workers(None, memory)
        return
    torch.set_num_threads(1)  # inherited by new threads
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield Workers(pool, memory)
    finally:
        torch.set_num_threads(threads)
