"""Memory settings of the C library for training on a CPU."""

import contextlib
import ctypes
import sys
from collections.abc import Iterator

# Options of glibc's malloc.h with their default values.
_M_TRIM_THRESHOLD, _TRIM_THRESHOLD = -1, 128 * 1024
_M_MMAP_MAX, _MMAP_MAX = -4, 65536


@contextlib.contextmanager
def freed_memory_kept(device_type: str) -> Iterator[None]:
    """Make the C library keep memory that a step frees for the next step.

    By default, glibc requests every large block from the system again, in pages of 4 KB that must be zeroed. For the
    activations of 90 images in EfficientNet-Lite0, this takes 1.8 of a step's 4.1 seconds on two cores. In exchange,
    the process holds its peak memory until the end: there 4.0 GB instead of 3.0 GB.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_option is None or device_type != "cpu":
        yield
        return
    set_option(_M_MMAP_MAX, 0)
    set_option(_M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        set_option(_M_MMAP_MAX, _MMAP_MAX)
        set_option(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)
        ctypes.CDLL(None).malloc_trim(0)
