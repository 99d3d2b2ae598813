"""What the system is told about the engine's memory, and what of it is kept from step to step. Without either, all is
the same, later.
"""

import contextlib
import functools
import math
import mmap
import sys

import torch
from torch import Tensor

LARGE = 2**24  # bytes


KEPT = 2  # blocks: a step has its gradient, and what the engine keeps between two passes
UNSEEN = 2  # references to memory that no tensor has: a variable, and the argument of who counts them


class Spare:
    """Large blocks of memory that are lent, and lent again once nobody sees what they were lent for.

    The gradient of a large W is needed in every step, and dropped before the next. Handed back to the system and taken
    anew, 200 MB take 20 ms in huge pages, 60 ms in others, and 300 ms where the system is a virtual machine that had
    passed them on (docs/LOG.md). Kept, they do not add to the most that training needs, which is reached while they are
    in use.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, mmap.mmap] = {}  # by size, the last used last

    def __reduce__(self) -> tuple[type["Spare"], tuple[()]]:
        return Spare, ()  # a copy has nothing to lend

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor, as `like.new_empty(shape)` gives it."""
        size = math.prod(shape) * like.element_size()
        if size < LARGE or like.device.type != "cpu" or sys.platform != "linux":
            return like.new_empty(shape)
        memory = self._blocks.pop(size, None)
        if memory is None or sys.getrefcount(memory) > UNSEEN:
            memory = _pages(size)
        self._blocks[size] = memory
        if len(self._blocks) > KEPT:
            del self._blocks[next(iter(self._blocks))]
        return torch.frombuffer(memory, dtype=like.dtype).view(shape)

    def give_up(self) -> None:
        """Keep nothing."""
        self._blocks.clear()

    @property
    def nbytes(self) -> int:
        """What is kept, lent or not."""
        return sum(self._blocks)


def _pages(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


@functools.cache  # the C library remembers
def keep_freed_memory() -> None:
    """Have the C library keep the memory that tiles free for the next: glibc hands back what is larger than any mapped
    block freed so far (up to this size), and fresh pages for every temporary would cost more than the passes over it.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)
