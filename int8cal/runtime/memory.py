"""Freed memory, which the C library keeps: what large models leave behind goes back to the system."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def give_back() -> None:
    """Return what was freed to the system, where the C library is glibc; elsewhere do nothing.

    glibc keeps freed blocks that lie between others in use, in an arena per thread: hundreds of MB once a session of a
    large model is closed, while the next one takes memory anew.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, macOS; Windows takes no None
        return None
