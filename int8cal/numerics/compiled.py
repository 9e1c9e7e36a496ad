"""Where loops become machine code: numba, compiled once per installation and cached, or plain Python without it."""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


# what reading a damaged cache file raises; the loops themselves raise none of these
_CACHE_ERRORS = (EOFError, ImportError, OSError, pickle.UnpicklingError, AttributeError, KeyError, IndexError)


def compiled(loop: Callable[..., Any], twin: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Compile a loop over arrays.

    Args:
        loop: A function that numba can compile without objects.
        twin: What stands in for it where numba is absent; the loop itself by default.

    Returns:
        The compiled function. fastmath stays off: it would reorder sums and drop NaN checks.
    """
    if find_spec("numba") is None:  # numba is a dependency; a platform without it runs the twins
        return twin or loop
    import numba

    options: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy"}
    try:
        function: Callable[..., Any] = numba.njit(loop, cache=True, **options)
    except RuntimeError:  # no directory to keep a cache in
        function = numba.njit(loop, **options)

    def call(*arguments: Any) -> Any:
        nonlocal function
        try:
            return function(*arguments)
        except _CACHE_ERRORS:
            # a damaged cache file, or one of another numba: compile for this process alone
            function = numba.njit(loop, **options)
            return function(*arguments)

    return call
