"""Parts of sentences that messages and reports share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def has_plain_digits(number: str) -> bool:
    """Tell whether a number is written as JSON has it: Python reads 1_0 and digits of all scripts, too."""
    return number.isascii() and "_" not in number


def counted(number: int, singular: str, plural: str = "") -> str:
    """Write a number with its noun; the plural ends with an s where none is given."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def quoted(names: Iterable[str]) -> str:
    """List names, each in quotation marks."""
    return ", ".join(f'"{name}"' for name in names)


def some(names: Iterable[str], most: int) -> str:
    """List so many names, and count the others: "a, b and 3 more"."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")
