"""Values that stand for none: what a mask is filled with, such as -infinity or -1e9."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from int8cal.numerics import Array, Bools


# A fill is far from all other values, whatever their unit is: masks are filled with -1e4, float16's -65504, -1e9 or
# float32's lowest, and scores are tens.
LEAST_FILL, TIMES = 1e3, 100.0
# The ends of bfloat16, too, as torch writes it.
ENDS = (*(float(np.finfo(each).max) for each in (np.float16, np.float32, np.float64)), 3.3895313892515355e38)


def fill_of(values: Array) -> float | None:
    """Return the value that fills what is masked, the one that is farthest from zero; None where there is none.

    One that stands there once may be a result like any other, unless it is what masks are filled with.

    Args:
        values: Of any shape, real.
    """
    finite = np.isfinite(values)
    rest = values if finite.all() else values[finite]
    if not rest.size:
        return None
    low, high = float(rest.min()), float(rest.max())
    fill = low if -low > high else high
    if abs(fill) < LEAST_FILL:
        return None
    number = rest.dtype.type(fill)
    others = rest[rest != number]
    if not others.size or abs(fill) <= TIMES * max(abs(float(others.min())), abs(float(others.max()))):
        return None
    if rest.size - others.size == 1 and abs(fill) not in ENDS and not _has_one_digit(number):
        return None
    return fill


def _has_one_digit(number: np.floating[Any]) -> bool:
    """Whether a number is written with one digit and zeros, as -1e4 and -9e15 are."""
    return "." not in np.format_float_scientific(number, trim="-")


def masked_alike(x: Array, y: Array, *, nan: bool = False) -> Bools | None:
    """Tell where two arrays of one shape are masked, by -infinity or a fill: both at the same places.

    Args:
        x, y: Real; integers have no mask. +infinity is none: it comes of what went wrong.
        nan: Whether NaN is a mask, too.

    Returns:
        Of their shape; None where nothing is masked, or not the same.
    """
    if x.dtype.kind != "f" or _are_plain(x):
        return None
    found = None
    for fill in (-math.inf, fill_of(x), math.nan if nan else None):
        if fill is None:
            continue
        filled, other = (np.isnan(each) if math.isnan(fill) else each == x.dtype.type(fill) for each in (x, y))
        if filled.any() and np.array_equal(filled, other):
            found = filled if found is None else found | filled
    return found


def unmasked(x: Array, y: Array) -> tuple[Array, Array]:
    """Return two arrays of one shape without what is masked in both, NaN included: flat where anything is."""
    none = masked_alike(x, y, nan=True)
    return (x, y) if none is None else (x[~none], y[~none])


def counting(values: Array) -> Bools | None:
    """Tell which values of a reference count: not NaN, infinity, or a fill that stands there more than once.

    Returns:
        Of their shape; None where all count.
    """
    if _are_plain(values):
        return None
    counts = np.isfinite(values)
    fill = fill_of(values)
    if fill is not None and np.count_nonzero(filled := values == values.dtype.type(fill)) > 1:
        counts &= ~filled
    return None if counts.all() else counts


def _are_plain(values: Array) -> bool:
    """Whether values are too small for a fill, all of them, and finite: NaN is not less than anything."""
    return not values.size or bool(values.min() > -LEAST_FILL and values.max() < LEAST_FILL)
