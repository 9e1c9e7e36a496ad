"""OpenVINO's FakeQuantize: its formula, and the way from its four ends to scale and zero point and back.

FakeQuantize is QuantizeLinear and DequantizeLinear in one exactly where -input_low / scale is an integer. Ranges that
do not satisfy this are nudged until they do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from int8cal.errors import NonFiniteError
from int8cal.numerics.affine import S8, U8, Affine, QType, positive_scale

# Ends stored as float32 miss the integer by up to 255 * 2**-23 steps; a nudge below this is the storage, not a change.
STORED = 2.0**-12


@dataclass(frozen=True)
class FakeQuantize:
    """The attributes of the operation, in real units; a range [low, high] in `levels` equal steps and back.

    Numerics: the code counted from `input_low` is rounded half to even. QuantizeLinear rounds before it adds the zero
    point, so where that is odd, values midway between two codes go to the other one.
    """

    input_low: float
    input_high: float
    output_low: float
    output_high: float
    levels: int

    @property
    def scale(self) -> float:
        """Width of an input step."""
        return (self.input_high - self.input_low) / (self.levels - 1)


@dataclass(frozen=True)
class Nudged:
    """An affine that was made of a range.

    Attributes:
        affine: With an integer zero point.
        before, after: The range that was given, and that of the codes now: (low, high).
    """

    affine: Affine
    before: tuple[float, float]
    after: tuple[float, float]

    @property
    def moved(self) -> float:
        """How far the range's ends moved at most, in steps of the affine."""
        ends = zip(self.before, self.after, strict=True)
        return max(abs(after - before) for before, after in ends) / self.affine.scale

    @property
    def changed(self) -> bool:
        """Whether the ends moved by more than storing them as float32 moves them."""
        return self.moved > STORED


def fakequantize_of(affine: Affine) -> FakeQuantize:
    """Return the FakeQuantize that does what QuantizeLinear and DequantizeLinear do with an affine: 256 levels.

    For int8 the lowest is -128: int8cal chooses ranges without it, but runtimes saturate there.
    """
    lowest = -128 if affine.dtype.qmin < 0 else 0
    low, high = (affine.scale * (code - affine.zero_point) for code in (lowest, lowest + 255))
    return FakeQuantize(low, high, low, high, 256)


def fakequantize_of_weights(scale: float, dtype: QType) -> FakeQuantize:
    """Return the FakeQuantize of symmetric weights, whose codes never leave [qmin, qmax]: 255 levels, 128 for S7."""
    low, high = scale * dtype.qmin, scale * dtype.qmax
    return FakeQuantize(low, high, low, high, dtype.levels)


def affine_of(operation: FakeQuantize, *, signed: bool = False) -> Nudged:
    """Return scale and zero point of a FakeQuantize whose output range is its input range.

    Args:
        operation: With 256 or 255 levels.
        signed: Whether 256 levels are int8, with a zero point 128 lower, rather than uint8. 255 levels are int8 where
            the range is symmetric, and else uint8, which has one more code above.

    Returns:
        The affine. A symmetric range of 256 levels is widened to low = -(128/127) * high, any other zero point is
        rounded half to even, and a range without 0 is widened to hold it first.

    Raises:
        NonFiniteError: An end is NaN or infinite, or the range is empty.
        ValueError: Another number of levels, or an output range that is not the input range: no pair of Q and DQ.
    """
    low, high = before = operation.input_low, operation.input_high
    ends = (low, high, operation.output_low, operation.output_high)
    if not all(math.isfinite(end) for end in ends) or low >= high:
        raise NonFiniteError(f"range [{low!r}, {high!r}] is not finite and ordered", low=low, high=high)
    if operation.levels not in (255, 256):
        raise ValueError(f"levels is {operation.levels}, expected 255 or 256")
    tolerance = STORED * operation.scale
    if max(abs(low - operation.output_low), abs(high - operation.output_high)) > tolerance:
        raise ValueError("its output range is not its input range")
    symmetric = abs(low + high) <= tolerance
    if symmetric:
        scale = positive_scale(high / 127)
        if operation.levels == 255:
            return Nudged(Affine(scale, 0, S8), before, (-127 * scale, 127 * scale))
        zero_point = 128
    else:
        low, high = min(low, 0.0), max(high, 0.0)
        scale = positive_scale((high - low) / (operation.levels - 1))
        zero_point = int(np.clip(np.rint(-low / scale), 0, 255))
    after = (scale * -zero_point, scale * (255 - zero_point))
    # a zero point of -128 would not be one of int8cal's codes
    if signed and zero_point:
        return Nudged(Affine(scale, zero_point - 128, S8), before, after)
    return Nudged(Affine(scale, zero_point, U8), before, after)
