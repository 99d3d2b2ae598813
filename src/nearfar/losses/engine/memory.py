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

LARGE = 2**24  # bytes


KEPT = 2  # blocks of different sizes
UNSEEN = 2  # references to memory that no tensor uses: a variable, and the argument of getrefcount


class Spare:
    """Large blocks of memory for tensors, reused once no tensor refers to them any more.

    The gradient of a large W is needed in every step, and dropped before the next. Returned to the system and allocated
    again, 200 MB take 20 ms in huge pages, 60 ms in others, and 300 ms on a virtual machine that had returned them in
    turn (docs/LOG.md). Kept, they do not raise the peak of training, which is reached while they are in use.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, mmap.mmap] = {}  # by size, the last used last

    def __reduce__(self) -> tuple[type["Spare"], tuple[()]]:
        return Spare, ()  # a copy begins with nothing

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
        """Free all blocks."""
        self._blocks.clear()

    @property
    def nbytes(self) -> int:
        """The size of all blocks, in use or not."""
        return sum(self._blocks)


def _pages(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


@functools.cache  # the C library remembers
def keep_freed_memory() -> None:
    """Make the C library keep the memory that one tile frees for the next: glibc returns blocks larger than any mapped
    block freed so far (up to this size) to the system, and fresh pages for every temporary would cost more than the
    passes over it.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)
