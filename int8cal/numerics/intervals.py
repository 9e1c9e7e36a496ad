"""95 % confidence intervals in closed form: of proportions, SQNRs, means, shares and quantiles over samples, of times.

No resampling: the same figures give the same interval, in whatever order the samples came.
"""

from __future__ import annotations

import functools
import math
import statistics
from typing import TYPE_CHECKING

import numpy as np

from int8cal.numerics.metrics import sqnr_db

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from int8cal.numerics import Float64


_TAIL = 0.025
_DECIBEL = 10.0 / math.log(10.0)
_EXACT_FREEDOM = 200  # above, the expansion differs from the exact quantile by less than 1e-7


# From so many samples on, only counts within so many standard deviations are looked at: 1e-32 is left of the others.
_MANY, _SPREADS = 20_000, 12.0
# Two-sided 95 % quantile of the normal distribution.
Z95 = 1.959963984540054


@functools.lru_cache(maxsize=1024)
def student_t95(freedom: int, tail: float = _TAIL) -> float:
    """95 % quantile of Student's t distribution, two-sided.

    Args:
        freedom: Degrees of freedom, >= 1.
        tail: Beyond the quantile at one end; 0.05 for the one-sided 95 %.

    Returns:
        12.706 for 1, towards 1.960 for many.

    Raises:
        ValueError: freedom is below 1.

    Numerics: Abramowitz and Stegun 26.7.3 and 26.7.4 (finite sums for whole degrees of freedom), inverted by bisection;
    for more than 200 their expansion 26.7.5.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom are {freedom}, expected 1 or more")
    if freedom > _EXACT_FREEDOM:
        x = statistics.NormalDist().inv_cdf(1 - tail)
        first = (x**3 + x) / 4
        second = (5 * x**5 + 16 * x**3 + 3 * x) / 96
        return x + first / freedom + second / freedom**2
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if _within(middle, freedom) > 1 - 2 * tail else (middle, high)
    return math.tan(high) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Probability that |t| is at most tan(angle) * sqrt(freedom)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, cosine if freedom > 1 else 0.0) if odd else (1.0, 1.0)
    for step in range(2 + odd, freedom - 1, 2):
        term *= (step - 1) / step * cosine * cosine
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def proportion_interval(hits: int, samples: int) -> tuple[float, float]:
    """Exact interval of a proportion.

    Args:
        hits: Samples that count, 0 <= hits <= samples.
        samples: All samples, >= 1.

    Returns:
        (low, high) as fractions in [0, 1], low <= hits / samples <= high.

    Raises:
        ValueError: The counts cannot be.

    Numerics: Clopper and Pearson (1934), by bisection of the binomial tail. Approximate intervals are shorter, but some
    of them cover less than 95 % near 1, where the agreement of an int8 model is; this one covers at least 95 % always.
    """
    if samples < 1 or not 0 <= hits <= samples:
        raise ValueError(f"counts cannot be: {hits} of {samples}")
    return 1.0 - _upper(samples - hits, samples), _upper(hits, samples)


def _upper(hits: int, samples: int) -> float:
    """Largest p for which so few hits, or fewer, are still as likely as 2.5 %."""
    if hits == samples:
        return 1.0
    logs = np.log(np.arange(1, hits + 1))
    ways = np.concatenate(([0.0], np.cumsum(np.log(np.arange(samples, samples - hits, -1.0)) - logs)))
    counts = np.arange(hits + 1)
    low, high = hits / samples, 1.0
    for _ in range(60):
        p = (low + high) / 2
        exponents = ways + counts * math.log(p) + (samples - counts) * math.log1p(-p) if p < 1.0 else ways - np.inf
        low, high = (p, high) if float(np.exp(exponents).sum()) > _TAIL else (low, p)
    return high


def sqnr_interval(
    signal: float, noise: float, products: tuple[float, float, float], samples: int
) -> tuple[float, float] | None:
    """Interval of the SQNR of one output: what another choice of as many samples could have given.

    Args:
        signal, noise: Sums over samples of each one's sum of x^2 and of (x - y)^2, in any unit.
        products: Sums over samples of the products of these: signal^2, signal * noise, noise^2.
        samples: How many, >= 0.

    Returns:
        (low, high) in dB, around 10 log10(signal / noise); that of an exact output is no wider than a point. None for
        fewer than two samples, or without signal.

    Numerics: The SQNR is a ratio of two sums, so its standard error is that of a ratio estimator by linearization
    (Cochran, Sampling Techniques, 6.4; Särndal, Swensson and Wretman 5.5): a sample moves 10 log10(S / N) by
    10 / ln 10 (s / S - n / N). Student's t with samples - 1 degrees of freedom. In simulations with log-normal energies
    it covers 95 % for 20 samples of similar noise (sigma 0.3), 91 % for 20 and 94 % for 200 with noise of sigma 0.8; a
    percentile bootstrap over samples covered less in each case. With few samples of very unequal noise no interval can
    know what was not seen.
    """
    centre = sqnr_db(signal, noise)
    if samples < 2 or centre is None or not math.isfinite(centre):
        return None
    if noise == 0.0:
        return centre, centre
    # the moves s / S - n / N of the samples, squared and summed; their sum is 0
    of_signal, of_both, of_noise = products
    squares = of_signal / signal / signal - 2.0 * (of_both / signal / noise) + of_noise / noise / noise
    margin = _DECIBEL * student_t95(samples - 1) * math.sqrt(max(squares, 0.0) * samples / (samples - 1))
    return centre - margin, centre + margin


def ratio_of_sums_interval(
    tops: Collection[float], bottoms: Collection[float], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float] | None:
    """Interval of sum(tops) / sum(bottoms) over samples: of a share or a score that each sample has more or less of.

    Args:
        tops, bottoms: One of each per sample, as many; bottoms >= 0. Bottoms of 1 make it the mean of the tops.
        bounds: The least and the largest value that there can be; the interval ends there.

    Returns:
        (low, high) around the ratio; None for fewer than two samples with a bottom above 0.

    Numerics: Ratio estimator by linearization (Cochran, Sampling Techniques, 6.4): a sample moves the ratio R by
    (top - R bottom) / sum(bottoms). Student's t with samples - 1 degrees of freedom; for a mean it is the textbook's.
    """
    total = math.fsum(bottoms)
    samples = sum(each > 0.0 for each in bottoms)
    if samples < 2:
        return None
    ratio = math.fsum(tops) / total
    squares = math.fsum((top - ratio * bottom) ** 2 for top, bottom in zip(tops, bottoms, strict=True))
    margin = student_t95(samples - 1) * math.sqrt(squares * samples / (samples - 1)) / total
    return min(max(bounds[0], ratio - margin), ratio), max(min(bounds[1], ratio + margin), ratio)


def quantile_interval(ordered: Sequence[float] | Float64, fraction: float) -> tuple[float, float] | None:
    """Exact interval of a quantile, between two of the samples.

    Args:
        ordered: One figure per sample, ascending.
        fraction: Of the samples that lie below, 0 < fraction < 1.

    Returns:
        (low, high); None where there are too few samples for both ends: 72 are enough for 5 %.

    Numerics: The number of samples below the quantile is binomial, whatever the distribution (Conover, Practical
    Nonparametric Statistics, 3.2).
    """
    n = len(ordered)
    if not n:
        return None
    first, chances = _chances(n, fraction)
    low = first + int(np.searchsorted(chances, _TAIL, side="right"))  # as many counts are too few together
    high = first + int(np.searchsorted(chances, 1.0 - _TAIL)) + 1
    return (float(ordered[low - 1]), float(ordered[high - 1])) if low >= 1 and high <= n else None


def _chances(samples: int, fraction: float) -> tuple[int, Float64]:
    """Return the chances that so many samples at most are below a quantile, from a first count on.

    All counts from 0 on; of very many samples those beyond which nothing is left that float64 could add.
    """
    if samples <= _MANY:
        logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, samples + 1)))))
        first, below, ways = 0, np.arange(samples + 1), logs[samples] - logs - logs[::-1]
    else:
        middle, reach = samples * fraction, _SPREADS * math.sqrt(samples * fraction * (1.0 - fraction))
        first = max(int(middle - reach), 0)
        below = np.arange(first, min(int(middle + reach), samples) + 1)
        every = math.lgamma(samples + 1)
        ways = np.array([every - math.lgamma(k + 1) - math.lgamma(samples - k + 1) for k in below.tolist()])
    terms = ways + below * math.log(fraction) + (samples - below) * math.log1p(-fraction)
    return first, np.exp(terms).cumsum()


def ratio_interval(first: Sequence[float], second: Sequence[float], point: float) -> tuple[float, float] | None:
    """Interval of a ratio of times that were measured side by side, round by round.

    Args:
        first, second: One time per round, all > 0, of equal number.
        point: The ratio that is reported, > 0; always inside the interval.

    Returns:
        (low, high) of first / second, both > 0; None for fewer than two rounds.

    Numerics: Student's t on the logarithms of the rounds' ratios: what slows a machine down for a round slows both, and
    drops out of their ratio. It tells the noise of this measurement, not what another machine would give.
    """
    rounds = len(first)
    if rounds < 2:
        return None
    logs = [math.log(x / y) for x, y in zip(first, second, strict=True)]
    margin = student_t95(rounds - 1) * statistics.stdev(logs) / math.sqrt(rounds)
    centre = statistics.fmean(logs)
    return min(math.exp(centre - margin), point), max(math.exp(centre + margin), point)


def difference_interval(
    first: float, first_ci95: tuple[float, float] | None, second: float, second_ci95: tuple[float, float] | None
) -> tuple[float, float] | None:
    """Interval of the difference of two figures of which each has one.

    Args:
        first, second: The figures.
        first_ci95, second_ci95: Their 95 % intervals.

    Returns:
        (low, high) around first - second; None where one has no interval.

    Numerics: Zou and Donner (2008), the method of variance estimates recovery, Newcombe's (1998) square-and-add: each
    end takes the margins that matter there, so that lopsided intervals stay lopsided. For independent figures; of two
    that vary together it is wider than it has to be.
    """
    if first_ci95 is None or second_ci95 is None:
        return None
    difference = first - second
    low = difference - math.hypot(first - first_ci95[0], second_ci95[1] - second)
    return low, difference + math.hypot(first_ci95[1] - first, second - second_ci95[0])


def paired_interval(only_first: int, only_second: int, samples: int) -> tuple[float, float]:
    """Score interval for the difference of two paired proportions.

    Args:
        only_first, only_second: Discordant pairs, each >= 0, together <= samples.
        samples: All pairs, >= 1.

    Returns:
        (low, high) of p_first - p_second as fractions in [-1, 1], low <= (only_first - only_second) / samples <= high.

    Raises:
        ValueError: The counts cannot be.

    Numerics: Tango (1998), inverted by bisection. A quantized classifier disagrees with its FP32 model on few samples,
    often on none, and there a bootstrap or a Wald interval shrinks to nothing: it claims certainty after 20 samples.
    The score interval inverts a test, so that it keeps its coverage with few discordant pairs (Agresti and Min 2005),
    and with none it is z^2 / (samples + z^2) on either side. It is exact arithmetic: no seed, no resampling noise.
    """
    if samples < 1 or only_first < 0 or only_second < 0 or only_first + only_second > samples:
        raise ValueError(f"counts cannot be: {only_first} and {only_second} discordant of {samples} pairs")
    low = _least_difference(only_first, only_second, samples)
    return low, -_least_difference(only_second, only_first, samples)


def _least_difference(b: int, c: int, n: int) -> float:
    """Smallest difference that the score test does not reject."""
    low, high = -1.0, (b - c) / n
    for _ in range(100):
        delta = (low + high) / 2
        # maximum likelihood of the second discordant probability when the difference is fixed at delta
        linear = (2 * n - b + c) * delta - b - c
        root = math.sqrt(max(linear * linear + 8 * n * c * delta * (1 - delta), 0.0))
        q21 = (root - linear) / (4 * n)
        deviation = math.sqrt(max(n * (2 * q21 + delta * (1 - delta)), 0.0))
        if b - c - n * delta > Z95 * deviation:
            low = delta
        else:
            high = delta
    return high
