"""Large tables of zeros of which only the touched pages cost memory."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def untouched_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros in memory that the operating system backs page by page, when a page is first written.

    numpy.zeros does not do: for 4 MiB and more it asks for huge pages, and one counter then costs 2 MiB.

    Args:
        shape: Of the array.
        dtype: Of its elements.

    Returns:
        A writable array; its memory is given back when the array goes.
    """
    size = max(math.prod(shape) * np.dtype(dtype).itemsize, 1)
    # shared memory would back even a page that is only read
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    memory = mmap.mmap(-1, size, **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, count=math.prod(shape)).reshape(shape)
