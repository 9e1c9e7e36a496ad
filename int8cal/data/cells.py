"""Cells of a table are text: which of it spells numbers, and what it is worth for an input."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.data.sample import unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.graph.signature import TensorSpec

# Python reads more than this as a number, such as 1_000
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DIGITS = 20  # of the largest integers that an input takes; more are read as float64
# What tables hold in place of a number
_MISSING = frozenset({"", "na", "n/a", "<na>", "nan", "-nan", "null", "none", "?", "inf", "+inf", "-inf"})
_TRUTHS = {"0": False, "1": True, "false": False, "true": True}


def is_numeral(text: str) -> bool:
    """Whether a cell spells a number, or is empty or says that one is missing."""
    return _NUMBER.fullmatch(text.strip()) is not None or text.strip().lower() in _MISSING


def is_data(cells: Sequence[str]) -> bool:
    """Whether the first line of a file holds numbers, and no names of columns.

    The names 0, 1, 2, … are those that pandas writes of a table without names.
    """
    given = [cell.strip() for cell in cells]
    if not all(map(is_numeral, given)) or given == [str(place) for place in range(len(given))]:
        return False
    return any(map(_NUMBER.fullmatch, given))


def number(text: str, spec: TensorSpec, column: str, where: str) -> float:
    """Read a cell for an input of numbers.

    Args:
        text: The cell, not empty.
        spec: The input; one of integers takes whole numbers only, in any spelling, such as 3.0.
        column: Its column, for messages.
        where: The sample, for messages.

    Returns:
        The number as float64 has it, for an input of integers as an integer.

    Raises:
        DataError: It is missing, is no number, or none that the input's dtype holds.
    """
    word, kind = text.strip(), spec.dtype.kind
    if kind == "b" and word.lower() in _TRUTHS:
        return _TRUTHS[word.lower()]
    value = float(word) if _NUMBER.fullmatch(word) else math.nan
    if not math.isfinite(value):
        raise unreadable(where, f'column "{column}" holds {_shown(text)}, expected a number')
    if kind == "f":
        return value
    if kind in "iu" and value.is_integer():
        whole = int(word) if _WHOLE.fullmatch(word) and len(word) <= _DIGITS else int(value)
        limits: np.iinfo[Any] = np.iinfo(spec.dtype.str)
        if limits.min <= whole <= limits.max:
            return whole
    raise unreadable(where, f'column "{column}" holds {_shown(text)}, input "{spec.name}" takes {spec.dtype.name}')


def _shown(text: str) -> str:
    return f'"{text[:40]}…"' if len(text) > 40 else f'"{text}"'
