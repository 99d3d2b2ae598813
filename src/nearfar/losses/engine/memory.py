"""Optional allocator hints, and memory that is reused from step to step. Results are identical without them, only
slower.
"""

import contextlib
import functools
import math
import mmap
import sys

import torch
from torch import Tensor

KEPT = 2  # blocks of different sizes
UNUSED = 2  # references to memory that no tensor uses: a variable, and the argument of getrefcount


class Spare:
    """Large blocks of memory for tensors, reused once no tensor refers to them any more.

    The gradient of a large W is needed in every step, and dropped before the next. Returning 200 MB to the system and
    allocating them again takes 20 ms in huge pages, 60 ms in others, and 300 ms on a virtual machine that had returned
    them in turn (docs/LOG.md). Keeping them does not raise the peak of training, reached while they are in use.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, mmap.mmap] = {}  # by size, the last used last

    def __reduce__(self) -> tuple[type["Spare"], tuple[()]]:
        return Spare, ()  # a copy begins without blocks

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor, as `like.new_empty(shape)` gives it."""
        size = math.prod(shape) * like.element_size()
        if like.device.type != "cpu" or sys.platform != "linux":
            return like.new_empty(shape)
        memory = self._blocks.pop(size, None)
        if memory is None or sys.getrefcount(memory) > UNUSED:
            memory = _pages(size)
        self._blocks[size] = memory
        if len(self._blocks) > KEPT:
            del self._blocks[next(iter(self._blocks))]
        return torch.frombuffer(memory, dtype=like.dtype).view(shape)

    def give_up(self) -> None:
        """Free all blocks."""
        self._blocks.clear()

    @property
    def nbytes(self) -> int:
        """The size of all blocks, whether in use or not."""
        return sum(self._blocks)


def _pages(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


@functools.cache  # the C library remembers
def keep_freed_memory() -> None:
    """Make the C library keep the memory that one tile frees for the next.

    glibc returns blocks to the system that are larger than any mapped block freed so far, up to 32 MB, and fresh pages
    for every temporary would cost more than the passes over it. So a block of almost this size is freed once.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)
