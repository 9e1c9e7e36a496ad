"""Where loops become machine code: numba, compiled once per installation and cached, or plain Python without it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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

    function: Callable[..., Any] = numba.njit(loop, cache=True, nogil=True, fastmath=False, error_model="numpy")
    return function
