"""What the system is told about the engine's memory. Advice only: without it everything is the same, later."""

import contextlib
import ctypes
import functools
import sys

import torch
from torch import Tensor

LARGE = 2**24  # bytes
HUGE_PAGE = 2**21
_MADV_HUGEPAGE = 14  # of Linux's sys/mman.h


def in_huge_pages(memory: Tensor) -> Tensor:
    """The same tensor, its memory not yet written to: large blocks of it in huge pages, where Linux has them.

    The gradient of a large W is fresh memory in every step. In pages of 4 KB, handing out and taking back 200 MB takes
    75 ms on the machine of docs/benchmarks.md; in pages of 2 MB, 20 ms.
    """
    if memory.nbytes >= LARGE and memory.device.type == "cpu" and sys.platform == "linux":
        first = -(-memory.data_ptr() // HUGE_PAGE) * HUGE_PAGE
        last = (memory.data_ptr() + memory.nbytes) // HUGE_PAGE * HUGE_PAGE
        with contextlib.suppress(OSError, AttributeError):
            _c_library().madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_HUGEPAGE)
    return memory


@functools.cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache  # the C library remembers
def keep_freed_memory() -> None:
    """Have the C library keep the memory that tiles free for the next: glibc hands back what is larger than any mapped
    block freed so far (up to this size), and fresh pages for every temporary would cost more than the passes over it.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)
