"""Outputs that repeat what the model reads, as reconstructions do: nobody asks which of their values is the largest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from int8cal.numerics import Array


_LEAST = 16  # values; fewer are alike by chance
# Of the squared spread of an input's values, the squared error of an output that repeats it. Autoencoders have 0.03 to
# 0.14; the blurred mask of bright things in a picture, which looks like the picture, has 0.3 and more.
_MOST_ERROR = 0.2


def repeats(value: Array, inputs: Iterable[Array]) -> bool:
    """Tell whether an output is nearly one of the inputs.

    Args:
        value: Of one sample, the batch axis included.
        inputs: What the model read for it.

    Returns:
        False for what a threshold has made nearly two values of, such as the mask of a scanned page, and for a copy of
        flags, such as one-hot tokens: there a decision is asked for.
    """
    if value.size < _LEAST:
        return False
    for read in inputs:
        if read.dtype.kind != "f" or read.shape != value.shape or not np.isfinite(read).all():
            continue
        x = read.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            error, spread = np.square(value - x).sum(), np.square(x - x.mean()).sum()
        if error < _MOST_ERROR * spread and 2 * _between(value) > _between(read) > 0.0:
            return True
    return False


def _between(value: Array) -> float:
    """Return the share of values further than a tenth of the span from the least and from the largest."""
    low, high = float(value.min()), float(value.max())
    margin = (high - low) / 10
    return float(((value > low + margin) & (value < high - margin)).mean())
