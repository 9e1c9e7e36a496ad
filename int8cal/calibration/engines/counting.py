"""Counting all taps of a sample at once, on all cores, while no inference runs.

A tap is counted by one thread at a time and tables only add, so what is counted cannot depend on the threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from int8cal.calibration.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.graph.taps import Tap

# Below this many values, waking a thread takes longer than counting.
_WORTH_A_THREAD = 100_000
# A tap's tables take some hundred KiB, and those of all taps more than the cache. Several samples share the cost of
# fetching them, as far as their values may wait in memory.
_GROUP_BYTES = 64_000_000
_LARGEST_GROUP = 16


@dataclass(frozen=True)
class Tapped:
    """One tap's values of one sample, and how many channels lie side by side in them (see Collector.add)."""

    values: npt.NDArray[Any]
    block: int


class Counting:
    """The collectors of all taps."""

    def __init__(self, taps: Sequence[Tap], threads: int) -> None:
        """Prepare empty tables.

        Args:
            taps: What will be counted.
            threads: How many threads count, this one among them; at least 1.
        """
        self._collectors = {tap.tensor: Collector(tap) for tap in taps}
        self._threads = max(1, min(threads, len(taps)))
        self._pool = ThreadPoolExecutor(self._threads - 1, "int8cal-count") if self._threads > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def add(self, group: Sequence[tuple[str, Mapping[str, Tapped]]]) -> None:
        """Count some samples; each tap counts all of them in turn, while its tables are in the cache.

        Args:
            group: Per sample its name for messages, and every tap's values.

        Raises:
            StatisticsError: A value is NaN or infinite, or channels are not as planned.
        """
        first = group[0][1]
        # the largest first, and whoever is free takes the next: no table is touched by two threads at once
        waiting = iter(sorted(first, key=lambda name: -first[name].values.size))

        def count() -> None:
            for name in waiting:
                for where, tapped in group:
                    each = tapped[name]
                    self._collectors[name].add(each.values, where, each.block)

        running = []
        if self._pool is not None and _values(first) * len(group) >= _WORTH_A_THREAD:
            running = [self._pool.submit(count) for _ in range(self._threads - 1)]
        try:
            count()
        finally:
            failed = [future.exception() for future in running]  # the values stay alive until nobody reads them
        for error in failed:
            if error is not None:
                raise error

    def take(self) -> dict[str, TensorStatistics]:
        """Return what was counted, per tap, and give the tables up one by one."""
        names = list(self._collectors)

        def result(name: str) -> TensorStatistics:
            return self._collectors.pop(name).result()

        results = self._pool.map(result, names) if self._pool is not None else map(result, names)
        return dict(zip(names, results, strict=True))


def group_size(tapped: Mapping[str, Tapped]) -> int:
    """Return how many samples to count together, from the values of one: as many as fit into some memory."""
    return int(min(max(_GROUP_BYTES // max(4 * _values(tapped), 1), 1), _LARGEST_GROUP))


def _values(tapped: Mapping[str, Tapped]) -> int:
    return sum(each.values.size for each in tapped.values())
