"""Figures that samples have one by one: kept as they come, and summed up with an interval over samples at the end."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from int8cal.numerics.intervals import proportion_interval, quantile_interval, ratio_of_sums_interval

if TYPE_CHECKING:
    from collections.abc import Iterator

# What an interval is, behind how its figure was measured.
EXACT = "interval exact, of a proportion of samples"
STUDENT = "interval by Student's t over samples"
QUANTILE = "interval exact, between two samples"

LOW = 5  # per cent


@dataclass(frozen=True)
class SampleFigure:
    """A figure over samples.

    Attributes:
        name: As gates have it.
        value: None where it could not be computed; `why` says why.
        ci95: Its 95 % interval over the choice of samples; None where `why_ci95` says why.
        samples: Those that it is over.
        how: How it was measured, with what its interval is.
    """

    name: str
    value: float | None
    ci95: tuple[float, float] | None
    samples: int
    how: str
    why: str = ""
    why_ci95: str = ""


class Alike(Collection[float]):
    """Numbers that come one by one, mostly all the same, which are held as one until another comes."""

    def __init__(self) -> None:
        self._value, self._count = 0.0, 0
        self._different: array[float] | None = None

    def take(self, value: float) -> None:
        """Take the next one."""
        if self._different is None and self._count and value != self._value:
            self._different = array("d", [self._value]) * self._count
        if self._different is not None:
            self._different.append(value)
        self._value, self._count = value, self._count + 1

    def __len__(self) -> int:
        return self._count

    def __contains__(self, value: object) -> bool:
        return any(each == value for each in self)

    def __iter__(self) -> Iterator[float]:
        return itertools.repeat(self._value, self._count) if self._different is None else iter(self._different)


class Shares:
    """A top and a bottom of each sample; the figure is the ratio of their sums: a mean where the bottoms are 1."""

    def __init__(self) -> None:
        self._tops, self._bottoms = array("d"), Alike()

    def add(self, top: float, bottom: float = 1.0) -> None:
        """Count a sample; one with a bottom of 0 has nothing that the figure is about."""
        if bottom > 0.0:
            self._tops.append(top)
            self._bottoms.take(bottom)

    def __len__(self) -> int:
        return len(self._tops)

    def figure(self, name: str, how: str, none: str, bounds: tuple[float, float] = (0.0, 1.0)) -> SampleFigure:
        """Sum up.

        Args:
            name: Of the figure.
            how: It was measured.
            none: Why there is no figure, if no sample counts.
            bounds: Its least and largest value; a share is between 0 and 1, and has an exact interval where each
                sample counts as a whole or not at all: where none failed, Student's t would be certain after two.
        """
        samples = len(self)
        if not samples:
            return SampleFigure(name, None, None, 0, how, why=none)
        value = math.fsum(self._tops) / math.fsum(self._bottoms)
        value = min(max(value, bounds[0]), bounds[1])
        hits = self._whole() if bounds == (0.0, 1.0) else None
        if hits is not None:
            low, high = proportion_interval(hits, samples)
            return SampleFigure(name, value, (min(low, value), max(high, value)), samples, f"{how}; {EXACT}")
        interval = ratio_of_sums_interval(self._tops, self._bottoms, bounds)
        why = "" if interval else "one sample gives no interval"
        return SampleFigure(name, value, interval, samples, f"{how}; {STUDENT}", why_ci95=why)

    def _whole(self) -> int | None:
        """Count the samples that count as a whole, if the others do not count at all and all weigh the same."""
        whole = sum(top == bottom for top, bottom in zip(self._tops, self._bottoms, strict=True))
        parts = any(0.0 < top < bottom for top, bottom in zip(self._tops, self._bottoms, strict=True))
        alike = whole in (0, len(self)) or min(self._bottoms) == max(self._bottoms)
        return whole if alike and not parts else None


def low_percentile(values: array[float], name: str, how: str, none: str) -> SampleFigure:
    """Return the largest value that no more than `LOW` per cent of the samples are below: one of the samples'."""
    if not values:
        return SampleFigure(name, None, None, 0, how, why=none)
    ordered = np.sort(np.frombuffer(values))  # a list of a million numbers takes four times as much
    interval = quantile_interval(ordered, LOW / 100)
    value = float(ordered[max(math.ceil(LOW * len(ordered) / 100) - 1, 0)])
    why = "" if interval else f"{len(ordered)} samples are too few for both ends of an interval"
    return SampleFigure(name, value, interval, len(ordered), f"{how}; {QUANTILE}", why_ci95=why)
