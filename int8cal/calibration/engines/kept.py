"""What a pass over the data hands on: statistics, and a few samples that do not depend on the data's order."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.calibration.statistics import FINGERPRINT_MODULUS
from int8cal.data.padding import tally
from int8cal.data.sample import fingerprint

if TYPE_CHECKING:
    from int8cal.calibration.statistics import Statistics
    from int8cal.data.padding import Padding
    from int8cal.data.sample import Sample

KEPT_BYTES = 128_000_000
KEPT_ALWAYS = 8


@dataclass(frozen=True)
class Collected:
    """The statistics, and a few samples to judge corrections on: the smallest fingerprints, in their order.

    Attributes:
        remark: What the user should know of the two, "" for nothing.
    """

    statistics: Statistics
    kept: tuple[Sample, ...]
    remark: str = ""


class Smallest:
    """Keeps the samples with the smallest fingerprints, the sum of all fingerprints, and what padding there was.

    At most `size` of them, and no more than fit into KEPT_BYTES beyond the first KEPT_ALWAYS.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, int, Sample]] = []
        self._bytes = 0
        # the smallest fingerprint that had to go for its size: larger ones are not kept either, whatever their order
        self._least_gone: int | None = None
        self.total = 0
        self.seen = 0
        self.padding: tuple[Padding, ...] = ()

    def add(self, sample: Sample) -> None:
        """Take part in the choice."""
        mark = fingerprint(sample)
        self.total = (self.total + (mark if sample.mark is None else sample.mark)) % FINGERPRINT_MODULUS
        self.seen += 1
        if sample.padding:
            self.padding = tally((*self.padding, *sample.padding))
        if not self._size or (self._least_gone is not None and mark >= self._least_gone):
            return
        heapq.heappush(self._heap, (-mark, self.seen, sample))
        self._bytes += _bytes_of(sample)
        while len(self._heap) > self._size or (self._bytes > KEPT_BYTES and len(self._heap) > KEPT_ALWAYS):
            for_size = len(self._heap) <= self._size
            gone, _, largest = heapq.heappop(self._heap)
            self._bytes -= _bytes_of(largest)
            if for_size:
                self._least_gone = -gone

    def samples(self) -> tuple[Sample, ...]:
        """Return the kept samples by fingerprint."""
        return tuple(sample for _, _, sample in sorted(self._heap, key=lambda entry: -entry[0]))


def _bytes_of(sample: Sample) -> int:
    return sum(value.nbytes for value in sample.feed.values())
