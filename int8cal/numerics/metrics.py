"""How far one array is from another, and how far two classifiers are apart: sums that add up over samples.

Every accumulator is a frozen value with `+`, so that samples, shards and outputs are merged the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.numerics.compiled import compiled

if TYPE_CHECKING:
    from int8cal.numerics import Array, Float64

# The SQNR of what equals its reference, in any unit: finite, so that a gate such as sqnr_db>=20 passes on it.
EXACT_DB = 320.0
# The most that anything else has, so that the two are told apart.
CLOSEST_DB = 310.0

# Values of larger magnitude than 2**128, or all smaller than 2**-128, as only float64 has them, are scaled before they
# are squared, so that neither squares nor products of squares leave float64.
_PLAIN_EXPONENTS = 128


def sqnr_db(signal: float, noise: float) -> float | None:
    """Signal-to-quantization-noise ratio.

    Args:
        signal, noise: Sums of x^2 and of (x - y)^2, in one unit, whatever it is.

    Returns:
        10 log10(signal / noise) in dB, at most CLOSEST_DB; EXACT_DB without noise; None without signal.
    """
    if signal == 0.0:
        return None
    if noise == 0.0:
        return EXACT_DB
    return min(10.0 * (math.log10(signal) - math.log10(noise)), CLOSEST_DB)


@dataclass(frozen=True)
class ErrorSums:
    """Sums over the elements of a reference x and an approximation y, in float64.

    Attributes:
        count: Elements seen.
        signal: Sum of x^2.
        energy: Sum of y^2.
        noise: Sum of (x - y)^2.
        dot: Sum of x * y.
        max_abs: Largest |x - y|.
        exponent: The four sums are those of x and y over 2**exponent; 0 unless float64 could not hold their squares.
    """

    count: int = 0
    signal: float = 0.0
    energy: float = 0.0
    noise: float = 0.0
    dot: float = 0.0
    max_abs: float = 0.0
    exponent: int = 0

    def __add__(self, other: ErrorSums) -> ErrorSums:
        # sums of zeros have no unit of their own
        exponent = max((each.exponent for each in (self, other) if each.signal or each.energy), default=0)
        first, second = self._over(exponent), other._over(exponent)
        signal, energy, noise, dot = (a + b for a, b in zip(first, second, strict=True))
        largest = max(self.max_abs, other.max_abs)
        return ErrorSums(self.count + other.count, signal, energy, noise, dot, largest, exponent)

    def _over(self, exponent: int) -> tuple[float, ...]:
        """Return the four sums in another unit."""
        shift = 2 * (self.exponent - exponent)
        return tuple(math.ldexp(each, shift) for each in (self.signal, self.energy, self.noise, self.dot))

    @property
    def exact(self) -> bool:
        """Whether x and y are equal and not all zero."""
        return self.signal > 0.0 and self.max_abs == 0.0

    @property
    def sqnr_db(self) -> float | None:
        """Signal-to-quantization-noise ratio in dB, see `sqnr_db`; None when x is all zero."""
        if self.noise == 0.0 and self.max_abs > 0.0 and self.signal > 0.0:
            return CLOSEST_DB  # the squares of its errors are too small for float64
        return sqnr_db(self.signal, self.noise)

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between x and y, in [-1, 1]; None when either is all zero."""
        if self.signal == 0.0 or self.energy == 0.0:
            return None
        return max(-1.0, min(1.0, self.dot / (math.sqrt(self.signal) * math.sqrt(self.energy))))


def error_sums(x: Array, y: Array) -> ErrorSums:
    """Compare two arrays.

    Args:
        x: Reference, any shape, real and finite.
        y: Approximation, same shape as x.

    Returns:
        The sums of this pair alone; add them over samples.

    Raises:
        ValueError: The shapes differ.

    Numerics: float64 values beyond float32's range are divided by a power of two, which is exact, so that a model whose
    unit is 1e-200 has the decibels of the same model in another unit.
    """
    if x.shape != y.shape:
        raise ValueError(f"shapes differ: {x.shape} and {y.shape}")
    first, second = _operand(x), _operand(y)
    exponent = _exponent(first, second)
    if exponent:
        first, second = np.ldexp(first, -exponent), np.ldexp(second, -exponent)
    sums = np.zeros(5)
    _error_sums(first, second, sums)
    signal, energy, noise, dot, max_abs = sums.tolist()
    if exponent:
        with np.errstate(over="ignore"):
            max_abs = float(np.ldexp(max_abs, exponent))
    return ErrorSums(int(x.size), signal, energy, noise, dot, max_abs, exponent)


def _exponent(x: Array, y: Array) -> int:
    """Return the exponent of the largest magnitude where squares may leave float64, else 0."""
    if not x.size or x.dtype == y.dtype == np.float32:
        return 0
    largest = max(float(np.abs(each).max()) for each in (x, y))
    exponent = math.frexp(largest)[1]
    return exponent if abs(exponent) > _PLAIN_EXPONENTS else 0


def _operand(x: Array) -> Array:
    # two compiled versions per side are enough: float32 as it comes, everything else by way of float64
    return np.ascontiguousarray(x if x.dtype == np.float32 else x.astype(np.float64)).reshape(-1)


def _error_loop(x: Any, y: Any, sums: Any) -> None:
    # one pass, no float64 copy of a large tensor, and no BLAS threads that fight with the runtime's
    signal = energy = noise = dot = largest = 0.0
    for i in range(x.size):
        a = np.float64(x[i])
        b = np.float64(y[i])
        error = a - b
        signal += a * a
        energy += b * b
        noise += error * error
        dot += a * b
        largest = max(largest, abs(error))
    sums[0] = signal
    sums[1] = energy
    sums[2] = noise
    sums[3] = dot
    sums[4] = largest


def _error_twin(x: Array, y: Array, sums: Float64) -> None:
    """Write signal, energy, noise, dot and the largest error; values are added one by one."""
    a, b = x.astype(np.float64, copy=False), y.astype(np.float64, copy=False)
    error = a - b
    if error.size:
        sums[:4] = [np.cumsum(one * other)[-1] for one, other in ((a, a), (b, b), (error, error), (a, b))]
        sums[4] = np.abs(error).max()


_error_sums = compiled(_error_loop, _error_twin, value_s=50e-9)


@dataclass(frozen=True)
class SampleSums:
    """ErrorSums over samples, with what the interval of their SQNR needs; `+` takes those of one more sample.

    Attributes:
        total: Over all samples.
        samples: How many were added.
        products: Sums over samples of signal^2, signal * noise and noise^2, in the unit of `total` to the fourth.
    """

    total: ErrorSums = ErrorSums()
    samples: int = 0
    products: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __add__(self, sample: ErrorSums) -> SampleSums:
        total = self.total + sample
        shift = 4 * (self.total.exponent - total.exponent)
        own = 2 * (sample.exponent - total.exponent)
        signal, noise = math.ldexp(sample.signal, own), math.ldexp(sample.noise, own)
        new = (signal * signal, signal * noise, noise * noise)
        products = [math.ldexp(old, shift) + more for old, more in zip(self.products, new, strict=True)]
        return SampleSums(total, self.samples + 1, (products[0], products[1], products[2]))


def rank_of(scores: Array, label: int) -> int:
    """Place of one class in the order of the scores; 0 is the best.

    Args:
        scores: Class scores, shape (classes,), finite.
        label: Class index, 0 <= label < classes.

    Returns:
        Number of classes placed before `label`. Equal scores keep index order, as argmax does: quantized scores often
        tie, and counting ties as hits would flatter the int8 model.
    """
    own = scores[label]
    return int(np.count_nonzero(scores > own) + np.count_nonzero(scores[:label] == own))


@dataclass(frozen=True)
class PairedCounts:
    """Hits of two classifiers on the same samples: both, only the first, only the second, neither."""

    both: int = 0
    only_first: int = 0
    only_second: int = 0
    neither: int = 0

    def __add__(self, other: PairedCounts) -> PairedCounts:
        return PairedCounts(
            self.both + other.both,
            self.only_first + other.only_first,
            self.only_second + other.only_second,
            self.neither + other.neither,
        )

    @property
    def samples(self) -> int:
        """Samples counted."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def first(self) -> float:
        """Hit rate of the first classifier, a fraction; at least one sample must have been counted."""
        return (self.both + self.only_first) / self.samples

    @property
    def second(self) -> float:
        """Hit rate of the second classifier, a fraction; at least one sample must have been counted."""
        return (self.both + self.only_second) / self.samples

    @property
    def drop(self) -> float:
        """Hit rate of the first minus that of the second, a fraction in [-1, 1]."""
        return (self.only_first - self.only_second) / self.samples


def paired_counts(first: bool, second: bool) -> PairedCounts:
    """Count one sample: whether each classifier hit it."""
    return PairedCounts(
        both=int(first and second),
        only_first=int(first and not second),
        only_second=int(second and not first),
        neither=int(not first and not second),
    )
