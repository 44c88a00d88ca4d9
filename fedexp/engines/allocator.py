"""Settings of the C library's memory allocator."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_LARGEST = 2**31 - 1
_ONE_GIB = 2**30


def keep_freed_memory() -> None:
    """Keep freed memory in the process instead of returning it to the system.

    A training step on the CPU frees its activations, and the next one allocates as much again. By
    default glibc returns them in between, and every step has page faults for all of it. Without
    that, conv2cifar trains in 0.8 of the time. Does nothing if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _LARGEST)
        mallopt(_M_MMAP_THRESHOLD, _ONE_GIB)
