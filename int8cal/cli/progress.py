"""Progress bars on stderr, with rate and remaining time; none when nobody would see them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


class Progress:
    """Wraps an iterable in a progress bar.

    Args:
        quiet: Show nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.shown = not quiet and sys.stderr.isatty()

    def __call__(self, iterable: Iterable[T], total: int | None, label: str) -> Iterable[T]:
        """Pass the items on and draw a bar meanwhile.

        Args:
            iterable: What is worked through.
            total: Number of items; None when it is not known.
            label: What the work is called, one word.

        Returns:
            The same items in the same order.
        """
        if not self.shown:
            return iterable
        from tqdm import tqdm

        return tqdm(iterable, desc=label, total=total, file=sys.stderr, dynamic_ncols=True, leave=False)
