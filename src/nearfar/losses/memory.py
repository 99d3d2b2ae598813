"""What the system is told about the engine's memory, and what of it is kept from step to step. Without either, all is
the same, later.
"""

import contextlib
import functools
import mmap
import sys

import torch
from torch import Tensor

LARGE = 2**24  # bytes


class Spare:
    """A large block of memory that is lent for a result, and lent again once nobody sees that any more.

    The gradient of a large W is needed in every step, and dropped before the next. Handed back to the system and taken
    anew, 200 MB take 20 ms in huge pages, 60 ms in others, and 300 ms where the system is a virtual machine that had
    passed them on (docs/LOG.md). Kept, they do not add to the most that training needs: that is reached while the
    gradient exists.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def __reduce__(self) -> tuple[type["Spare"], tuple[()]]:
        return Spare, ()  # a copy has nothing to lend

    def take(self, shape: torch.Size, like: Tensor) -> Tensor:
        """An uninitialised tensor, as `like.new_empty(shape)` gives it."""
        size = shape.numel() * like.element_size()
        if size < LARGE or like.device.type != "cpu" or sys.platform != "linux":
            return like.new_empty(shape)
        if self._memory is None or len(self._memory) != size or sys.getrefcount(self._memory) > UNSEEN:
            self._memory = _pages(size)
        return torch.frombuffer(self._memory, dtype=like.dtype).view(shape)

    def give_up(self) -> None:
        """Keep nothing."""
        self._memory = None


UNSEEN = 2  # references to memory that no tensor has: the attribute, and the argument of who counts them


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
