"""The mutable side of statistics: tables that count activations while the samples stream by."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from int8cal.calibration.statistics import ChannelStatistics, TensorStatistics, Widths
from int8cal.errors import StatisticsError
from int8cal.numerics import Array, Float32, Int64, exactsum, kernels
from int8cal.numerics.loglinear import BINS, COARSE_BINS, add_counts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.graph.taps import Tap

_LARGEST_COUNT = (1 << 32) - 1  # of the tables' counters
_NOTHING = np.zeros(0, np.int64)
_UNITS = 2.0**149  # float32 values are whole multiples of 1 / _UNITS
# Below this many values, waking a thread takes longer than counting.
_WORTH_A_THREAD = 100_000
# A tap's tables take some hundred KiB, and those of all taps more than the cache. Several samples share the cost of
# fetching them, as far as their values may wait in memory.
_GROUP_BYTES = 64_000_000
_LARGEST_GROUP = 16


class Collector:
    """Counts the values of one tap.

    The histogram table spans every float32 (2**19 counters), but only the octaves that occur are ever touched, and the
    operating system backs only touched pages: some hundred KiB per tensor, and no range has to be known or guessed.
    """

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        channels = tap.channels
        self._fine = _Counters(1, kernels.FINE_SIZE, 1, BINS)
        packs = kernels.packs(channels) if tap.equalizable else 0
        self._coarse = _Counters(packs, kernels.COARSE_ROWS, kernels.PACK, COARSE_BINS)
        self._low = np.full(max(channels, 1), kernels.NEVER_LOW, np.int32)
        self._high = np.full(max(channels, 1), kernels.NEVER_HIGH, np.int32)
        self._smallest = kernels.ALL_ZERO  # magnitude that is not zero, as bits
        self._sums = exactsum.zeros(channels)
        self._squares = exactsum.zeros(channels if tap.equalizable else 0)
        self._count = 0  # values per channel
        self._in_tables = 0  # values counted since the tables were emptied
        self._uncarried = 0
        self._own_low, self._own_high = self._low.copy(), self._high.copy()  # of one sample
        self._widths = Widths()

    def add(self, values: Array, where: str, block: int = 1) -> None:
        """Count one sample's values.

        Args:
            values: float32, any shape; axis 0 is the batch.
            where: The sample, for messages.
            block: Channels that lie side by side in memory, where the runtime's blocked layout came out: shape
                (N, C, ...) then stands over memory of (N, C / block, ..., block).

        Raises:
            StatisticsError: a value is NaN or infinite, the channels are not those of the weights, or there are 2**32
                values or more.
        """
        if values.size == 0:
            return
        values = _by_channel(np.ascontiguousarray(values, np.float32), self._tap, block)
        if values.size > _LARGEST_COUNT:
            raise StatisticsError(
                f"tensor {self._tap.tensor!r} has {values.size} values for one sample, of which {_LARGEST_COUNT} can "
                "be counted",
                where=where,
                do="leave what reads it in float with --exclude",
                tensor=self._tap.tensor,
                sample=where,
            )
        if self._in_tables + values.size > _LARGEST_COUNT:
            self._fine.move_out(self._span())
            self._coarse.move_out(self._span())
            self._in_tables = 0
        low, high = self._own_low, self._own_high
        low[:], high[:] = kernels.NEVER_LOW, kernels.NEVER_HIGH
        lowest, highest, smallest = kernels.observe(
            values, self._fine.table, self._coarse.table, low, high, self._sums, self._squares
        )
        if not kernels.are_finite(lowest, highest):
            raise nonfinite(f"tensor {self._tap.tensor!r}", values, where, tensor=self._tap.tensor)
        np.minimum(self._low, low, out=self._low)
        np.maximum(self._high, high, out=self._high)
        self._add_width(lowest, highest)
        self._smallest = min(self._smallest, smallest)
        self._in_tables += values.size
        if self._tap.channels:
            self._uncarried += 1
            if self._uncarried >= 1 << 28:  # limbs hold 2**30 additions without carrying
                self._sums, self._squares = exactsum.canonical(self._sums), exactsum.canonical(self._squares)
                self._uncarried = 0
            self._count += values.size // self._tap.channels

    def _add_width(self, lowest: int, highest: int) -> None:
        """Note how wide a range with 0 in it one sample needs."""
        low, high = kernels.key_values(np.array([lowest, highest], np.int32)).tolist()
        width = int(max(high, 0.0) * _UNITS) - int(min(low, 0.0) * _UNITS)
        self._widths += Widths(1, width, width * width)

    def result(self) -> TensorStatistics:
        """Return what was counted so far."""
        bins, counts, zeros = self._fine.sparse(self._span())
        low, high = kernels.key_values(self._low), kernels.key_values(self._high)
        if not counts.size and not zeros:
            low[:], high[:] = np.inf, -np.inf
        return TensorStatistics(
            bins,
            counts,
            zeros,
            float(low.min()),
            float(high.max()),
            self._by_channel(low, high) if self._tap.channels else None,
            self._widths,
        )

    def _by_channel(self, low: Float32, high: Float32) -> ChannelStatistics:
        bins, counts, _ = self._coarse.sparse(self._span())
        return ChannelStatistics(
            low, high, self._count, exactsum.canonical(self._sums), exactsum.canonical(self._squares), bins, counts
        )

    def _span(self) -> tuple[int, int]:
        """Return the bit patterns of the smallest and the largest magnitude, zeros apart."""
        extremes = np.array([kernels.key_values(self._low).min(), kernels.key_values(self._high).max()], np.float32)
        return self._smallest, int((extremes.view(np.uint32) & 0x7FFFFFFF).max())


@dataclass(frozen=True)
class TapValues:
    """One tap's values of one sample, and how many channels lie side by side in them (see Collector.add)."""

    values: Array
    block: int


class Collectors:
    """The collectors of all taps, which count on all cores while no inference runs.

    A tap is counted by one thread at a time and tables only add, so what is counted cannot depend on the threads.
    """

    def __init__(self, taps: Sequence[Tap], threads: int) -> None:
        """Prepare empty tables.

        Args:
            taps: What will be counted.
            threads: How many threads count, this one among them; at least 1.
        """
        self._collectors = {tap.tensor: Collector(tap) for tap in taps}
        self._threads = max(1, min(threads, len(taps)))
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        """Start the threads; without them the caller's alone counts."""
        self._pool = ThreadPoolExecutor(self._threads - 1, "int8cal-count") if self._threads > 1 else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def add(self, group: Sequence[tuple[str, Mapping[str, TapValues]]]) -> None:
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


def group_size(tapped: Mapping[str, TapValues]) -> int:
    """Return how many samples to count together, from the values of one: as many as fit into some memory."""
    return int(min(max(_GROUP_BYTES // max(4 * _values(tapped), 1), 1), _LARGEST_GROUP))


def nonfinite(what: str, values: Array, sample: str, **fields: str) -> StatisticsError:
    """Make the error of a tensor that holds NaN or infinity for a sample; fields as errors have them."""
    return StatisticsError(
        f"{what} holds {'NaN' if np.isnan(values).any() else 'infinity'}",
        where=sample,
        do="check the FP32 model on this sample, or leave the sample out",
        sample=sample,
        **fields,
    )


def _values(tapped: Mapping[str, TapValues]) -> int:
    return sum(each.values.size for each in tapped.values())


class _Counters:
    """A table of 32-bit counters, half the memory traffic of 64-bit ones, that is moved out before one could wrap.

    Its layout is [packs][rows][lanes]; channel is pack * lanes + lane. The first `bins` rows are those of a log-linear
    histogram, the rest count zeros.
    """

    def __init__(self, packs: int, rows: int, lanes: int, bins: int) -> None:
        self._shape, self._bins = (packs, rows, lanes), bins
        size = packs * rows * lanes
        self.table = kernels.untouched_zeros((size,), np.uint32) if size else np.zeros(0, np.uint32)
        self._moved, self._moved_zeros = (_NOTHING, _NOTHING), 0

    def move_out(self, span: tuple[int, int]) -> None:
        """Empty the table; its counts are kept."""
        bins, counts, self._moved_zeros = self.sparse(span)
        self._moved = (bins, counts)
        self.table[:] = 0

    def sparse(self, span: tuple[int, int]) -> tuple[Int64, Int64, int]:
        """Return all counts so far.

        Args:
            span: Bit patterns of the smallest and the largest magnitude that can be in the table: pages outside were
                never touched, and looking at them would cost more than the rest.

        Returns:
            channel * bins + bin, ascending, and counts, int64 (N,); then the zeros.
        """
        table = self.table.reshape(self._shape)
        shift = 32 - int(self._bins).bit_length() + 1
        first, last = (bits >> shift for bits in span)
        found = kernels.gather(table, self._bins, (first, last))
        zeros = int(table[:, self._bins :].sum(dtype=np.int64)) + self._moved_zeros
        return *(add_counts(self._moved, found) if self._moved[0].size else found), zeros


def _by_channel(values: Float32, tap: Tap, block: int) -> Float32:
    """View values as (outer, groups, inner, block), see numerics.kernels."""
    if not tap.channels:
        return values.reshape(1, 1, -1, 1)
    axis = tap.channel_axis % values.ndim if tap.channel_axis is not None else 0
    if values.shape[axis] != tap.channels:
        raise StatisticsError(
            f"tensor {tap.tensor!r} has {values.shape[axis]} channels on axis {axis}, the weights {tap.channels}",
            do="check the model with onnx.checker.check_model(full_check=True)",
            tensor=tap.tensor,
        )
    return values.reshape(math.prod(values.shape[:axis]), tap.channels // block, -1, block)
