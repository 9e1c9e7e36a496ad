"""Where loops become machine code: numba, compiled once per installation and cached.

Without numba (a platform without it, or NUMBA_DISABLE_JIT) loops run as they are, in plain Python. That is enough for
those over bins, limbs and counters; those over every activation or weight have a numpy twin of the same bits, which
stands in there and is what tests hold the loop against.
"""

from __future__ import annotations

import functools
import os
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from int8cal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy"}


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


def compiled(loop: Callable[..., Any], twin: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Compile a loop over arrays.

    Args:
        loop: A function that numba can compile without objects.
        twin: What stands in for it where nothing is compiled; the loop itself by default.

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

    def call(*arguments: Any) -> Any:
        nonlocal function
        try:
            return function(*arguments)
        except Exception:  # noqa: BLE001 - unpickling a damaged file raises nearly anything, the loops raise nothing
            # a damaged cache file, or one of another numba: compile for this process alone
            function = numba.njit(loop, **_OPTIONS)
            return function(*arguments)

    return call


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
