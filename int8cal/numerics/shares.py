"""How much of several things there is room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def fair_share(sizes: Sequence[int], room: int) -> int:
    """Return the size that each may have so that all together take the room: those below it keep theirs."""
    left, waiting = room, len(sizes)
    for size in sorted(sizes):
        if size * waiting > left:
            return max(left // waiting, 1)
        left, waiting = left - size, waiting - 1
    return max(sizes, default=1)
