"""Where loops become machine code: numba, compiled once per installation and cached.

Without numba (a platform without it, or NUMBA_DISABLE_JIT) loops run as they are, in plain Python. That is enough for
those over bins, limbs and counters; those over every activation or weight have a numpy twin of the same bits, which
stands in there and is what tests hold the loop against.

A loop takes 0.3 to 2.5 s to compile, more than a small model in all. So where nothing is cached yet, twins serve until
they have had some work, or until a few processes made do with them: then the loop pays.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import warnings
from importlib.util import find_spec
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Any

from int8cal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy", "no_cfunc_wrapper": True}

# What twins may take in one process before the loop is compiled, in seconds of all calls of one loop: what each took,
# or was estimated to take; and in how many processes, which is noted in the cache's directory.
PATIENCE_S = 1.0
PROCESSES = 4
_ASKING = threading.Lock()


@functools.cache
def _numba() -> Any:
    """Import numba.

    Returns:
        The module; None where it is absent or switched off.

    Raises:
        UsageError: A variable NUMBA_... has a value that numba cannot work with.
    """
    if find_spec("numba") is None:
        return None
    try:
        with warnings.catch_warnings():
            # numba prints a traceback for a variable that it cannot read, and goes on without it
            warnings.filterwarnings("error", message="Environment variable", category=RuntimeWarning)
            import numba
    except Exception as error:
        given = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("NUMBA_")]
        if not given:
            raise
        raise UsageError(
            f"numba cannot start with {', '.join(given)} ({str(error).splitlines()[0].rstrip('.')})",
            where="environment",
            do="correct or unset such variables",
        ) from error
    config: Any = numba.config
    return None if config.DISABLE_JIT else numba


def compiled(
    loop: Callable[..., Any], twin: Callable[..., Any] | None = None, *, value_s: float = math.inf
) -> Callable[..., Any]:
    """Compile a loop over arrays.

    Args:
        loop: A function that numba can compile without objects.
        twin: What stands in for it where nothing is compiled; the loop itself by default.
        value_s: Seconds that the twin takes at least per value of the first array; it serves where these are few.

    Returns:
        The compiled function. fastmath stays off: it would reorder sums and drop NaN checks.
    """
    numba = _numba()
    if numba is None:
        return twin or loop
    try:
        function: Callable[..., Any] = numba.njit(loop, cache=True, **_OPTIONS)
    except RuntimeError:  # no directory to keep a cache in
        function = numba.njit(loop, **_OPTIONS)

    left_s: float | None = None
    name = f"{loop.__module__.rpartition('.')[2]}.{loop.__qualname__}"  # as its cache files begin

    def call(*arguments: Any) -> Any:
        nonlocal function, left_s
        if twin is not None and math.isfinite(value_s):
            if left_s is None:
                with _ASKING:  # threads of one process count as one
                    if left_s is None:
                        left_s = PATIENCE_S if PATIENCE_S and _may_wait(function, name) else 0.0
            estimated = value_s * arguments[0].size
            if left_s > estimated:
                started = thread_time()
                result = twin(*arguments)
                # of small arrays calls cost more than their values do
                left_s -= max(thread_time() - started, estimated)
                return result
            left_s = 0.0
        try:
            return function(*arguments)
        except Exception:  # noqa: BLE001 - unpickling a damaged file raises nearly anything, the loops raise nothing
            # a damaged cache file, or one of another numba: compile for this process alone
            function = numba.njit(loop, **_OPTIONS)
            return function(*arguments)

    return call


def _may_wait(function: Any, name: str) -> bool:
    """Tell whether a loop (module.function) is not cached yet, and count the processes that ask."""
    place = function.stats.cache_path
    if place is None:
        return True
    folder = Path(place)
    if any(folder.glob(f"{name}-*.nbi")):
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.waited").open("ab") as waited:
            waited.write(b".")
            return waited.tell() <= PROCESSES
    except OSError:
        return True


def part(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that compiled loops of the same file call; it is compiled with each of them."""
    numba = _numba()
    if numba is None:
        return loop
    function: Callable[..., Any] = numba.njit(loop, **_OPTIONS)
    return function


def make_prefetch() -> Callable[..., None]:
    """Make the function prefetch(array, index) for compiled loops: load a cache line without waiting for it.

    The index may lie outside the array: nothing is read then. Where nothing is compiled nothing happens.
    """
    if _numba() is None:
        return lambda array, index: None  # noqa: ARG005 - the signature of the compiled one
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic
    from numba.np.arrayobj import make_array

    def prefetch(typing: Any, array: Any, index: Any) -> Any:  # noqa: ARG001 - numba's protocol
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array_of: Any = make_array
            data = array_of(signature.args[0])(context, builder, arguments[0]).data
            address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
            number = ir.IntType(32)
            function = builder.module.declare_intrinsic(
                "llvm.prefetch",
                [address.type],
                ir.FunctionType(ir.VoidType(), [address.type, number, number, number]),
            )
            builder.call(function, [address, number(0), number(3), number(1)])  # to read, keep near, data
            return context.get_dummy_value()

        return types.void(array, index), generate

    made: Callable[..., None] = intrinsic(prefetch)
    return made
