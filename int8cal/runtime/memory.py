"""Freed memory, which the C library keeps: what large models leave behind goes back to the system."""

from __future__ import annotations

import ctypes
from functools import cache

# What is freed and less than this is taken again before long, by the next session: a page that was given back comes at
# 5 us, 2 to 10 % of the CPU time of a command on a model of 20 to 350 MB.
KEPT_BYTES = 256_000_000


class _Figures(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = (
        ("others", ctypes.c_size_t * 8),
        ("fordblks", ctypes.c_size_t),  # bytes freed and kept
        ("keepcost", ctypes.c_size_t),
    )


def give_back(least: int = KEPT_BYTES) -> None:
    """Return what was freed to the system, where that is much and the C library is glibc; elsewhere do nothing.

    glibc keeps freed blocks that lie between others in use, in an arena per thread: hundreds of MB once a session of a
    large model is closed, while the next one takes memory anew.

    Args:
        least: Bytes; fewer freed ones stay. glibc before 2.33 does not tell how many there are, and gives back any.
    """
    library = _glibc()
    if library is None:
        return
    freed = _freed(library)
    if freed is None or freed >= least:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        library.malloc_trim.argtypes = [ctypes.c_size_t]
    except (AttributeError, OSError, TypeError):  # musl, macOS; Windows takes no None
        return None
    return library


def _freed(library: ctypes.CDLL) -> int | None:
    """Return how many bytes are freed and kept, in all arenas; None where the library does not tell."""
    try:
        tell = library.mallinfo2
    except AttributeError:
        return None
    tell.restype = _Figures
    return int(tell().fordblks)
