"""Freed memory that is kept: by the C library, and by the arenas of sessions; it goes back to the system."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from collections.abc import Callable

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
    release()
    library = _glibc()
    if library is None:
        return
    freed = _freed(library)
    if freed is None or freed >= least:
        library.malloc_trim(0)


@cache
def shared() -> dict[str, str]:
    """Return the session entries with which sessions take their memory from one arena, see `release`.

    The arena of a session keeps what its largest run took. Of several sessions that run one after the other that is a
    multiple of what they need.
    """
    place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    as_asked = {"arena_extend_strategy": 1}  # no block is larger than what is asked for: else it is twice the last one
    ort.create_and_register_allocator(place, ort.OrtArenaCfg(as_asked))
    return {"session.use_env_allocators": "1"}


def release() -> None:
    """Return what the arena in common does not use; onnxruntime does that behind a run, if told to."""
    if shared.cache_info().currsize:
        _shrink()()


@cache
def _shrink() -> Callable[[], object]:
    """Return a run that ends with giving back."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "nothing", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options, how = ort.SessionOptions(), ort.RunOptions()
    options.intra_op_num_threads = 1
    for key, value in shared().items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    how.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return lambda: session.run(["y"], {"x": np.zeros(1, np.float32)}, how)


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
