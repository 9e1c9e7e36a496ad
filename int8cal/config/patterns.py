"""Where a pattern of quantization.exclude or include was given, for the message that it matches nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from int8cal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATTERN_KEYS = ("quantization.exclude", "quantization.include")


@contextmanager
def placed_patterns(place: Callable[[str], str | None]) -> Iterator[None]:
    """Let the error of a pattern that matches no node begin with where the pattern stands.

    Args:
        place: Says it for a key path; None for the option of the command line, which the error names by itself.
    """
    try:
        yield
    except UsageError as error:
        key = f"quantization.{error.where.removeprefix('--')}"
        where = place(key) if key in PATTERN_KEYS and "pattern" in error.fields else None
        if where is None:
            raise
        raise UsageError(error.what, do=error.do, where=where, **error.fields) from error
