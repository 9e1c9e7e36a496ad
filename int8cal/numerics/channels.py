"""Channel by channel: how far two arrays are apart, and which values each of them has. Sums and ranges add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from int8cal.numerics.metrics import sqnr_db

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.numerics import Array, Float64


_CHUNK = 1 << 20  # values that are held in float64 at a time
_LEVELS = 256  # of eight bits


@dataclass(frozen=True, eq=False)
class ChannelSums:
    """Sums and ranges over the values of each channel of a reference x and an approximation y, float64 (channels,).

    Attributes:
        count: Values of one channel.
        signal, noise: Sums of x^2 and (x - y)^2.
        lows, highs: Of x, then of y: (2, channels).
    """

    count: int
    signal: Float64
    noise: Float64
    lows: Float64
    highs: Float64

    def __add__(self, other: ChannelSums) -> ChannelSums:
        return ChannelSums(
            self.count + other.count,
            self.signal + other.signal,
            self.noise + other.noise,
            np.minimum(self.lows, other.lows),
            np.maximum(self.highs, other.highs),
        )

    @property
    def spreads(self) -> Float64:
        """Largest minus smallest value of each channel, of x and of y: (2, channels)."""
        return self.highs - self.lows

    @property
    def worst(self) -> tuple[int, float] | None:
        """The channel of the lowest SQNR, and its decibels; None where none carries noise."""
        ratios = [sqnr_db(*each) for each in zip(self.signal.tolist(), self.noise.tolist(), strict=True)]
        noisy = [(ratio, at) for at, ratio in enumerate(ratios) if ratio is not None and self.noise[at] > 0.0]
        ratio, channel = min(noisy, default=(None, 0))
        return None if ratio is None else (channel, ratio)


def along(axis: int | None, rank: int) -> tuple[int, ...]:
    """Return the shape in which one value per position of an axis multiplies an array of this rank.

    Args:
        axis: Negative counts from the end; None for one value in all.
        rank: Of the array.
    """
    shape = [1] * rank
    if axis is not None:
        shape[axis] = -1
    return tuple(shape)


def channel_sums(x: Array, y: Array, axis: int) -> ChannelSums:
    """Compare two arrays channel by channel.

    Args:
        x: Reference, real and finite, at least one value.
        y: Approximation, same shape.
        axis: Of the channels.

    Returns:
        Of this pair alone; add them over samples.

    Numerics: in float64, some channels at a time, so that a large array is never held twice.
    """
    channels = x.shape[axis]
    result = ChannelSums(
        x.size // channels,
        np.zeros(channels),
        np.zeros(channels),
        np.zeros((2, channels)),
        np.zeros((2, channels)),
    )
    rows = (_by_channel(x, axis), _by_channel(y, axis))
    for (at, first), (_, second) in zip(*rows, strict=True):
        result.signal[at] = np.einsum("ij,ij->i", first, first)
        error = first - second
        result.noise[at] = np.einsum("ij,ij->i", error, error)
        result.lows[:, at] = first.min(axis=1), second.min(axis=1)
        result.highs[:, at] = first.max(axis=1), second.max(axis=1)
    return result


def _by_channel(values: Array, axis: int) -> Iterator[tuple[slice, Float64]]:
    """Yield some channels at a time: which, and their values, (channels, values of each)."""
    moved = np.moveaxis(values, axis, 0)
    step = max(_CHUNK // max(moved[0].size, 1), 1)
    for first in range(0, len(moved), step):
        part = moved[first : first + step]
        yield slice(first, first + len(part)), part.reshape(len(part), -1).astype(np.float64)


class Levels:
    """How many different values an approximation has, and how many eight bits over the reference's range would give.

    Both are counted exactly, with bounded memory: an approximation of more values than eight bits have is one of
    `many`, and nothing is counted any more.
    """

    def __init__(self) -> None:
        self.many = False
        self._found: set[float] = set()  # values of y
        self._codes: set[int] = set()  # x over 2**exponent, rounded down: at most 2 * _LEVELS
        self._exponent: int | None = None
        self._low, self._high = np.inf, -np.inf

    def add(self, x: Array, y: Array) -> None:
        """Count one pair of finite arrays with at least one value each."""
        if self.many:
            return
        flat = y.reshape(-1)
        # a few of very many values tell quickly that there are many levels
        for part in (flat[:: max(flat.size // _CHUNK, 1)][:_CHUNK], flat):
            self._found.update(np.unique(part).tolist())
            if len(self._found) > _LEVELS:
                self.many = True
                self._found.clear()
                self._codes.clear()
                return
        self._low, self._high = min(self._low, float(x.min())), max(self._high, float(x.max()))
        self._count(x)

    def _count(self, x: Array) -> None:
        spread = self._high - self._low
        if spread <= 0.0:
            return
        exponent = int(np.ceil(np.log2(spread / _LEVELS)))
        if self._exponent is not None and exponent > self._exponent:
            self._codes = {code >> (exponent - self._exponent) for code in self._codes}
        self._exponent = exponent
        self._codes.update(np.unique(np.floor(np.ldexp(x.astype(np.float64), -exponent))).astype(np.int64).tolist())

    @property
    def of_approximation(self) -> int:
        """Different values of y; 0 where they are many."""
        return len(self._found)

    @property
    def of_eight_bits(self) -> int:
        """Different values that eight bits would give x, or half as many at the least; 0 where y has many."""
        return len(self._codes)
