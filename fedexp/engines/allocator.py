"""The C library's allocator, told what training is like."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_LARGEST = 2**31 - 1
_ONE_GIB = 2**30


def keep_freed_memory() -> None:
    """Let freed memory stay with the process instead of going back to the system.

    A training step on the CPU frees its activations and asks for as much again a moment later. By
    default glibc gives them back in between, and every step takes page faults for all of it again;
    kept, conv2cifar trains in 0.8 of the time. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _LARGEST)
        mallopt(_M_MMAP_THRESHOLD, _ONE_GIB)
