"""The mutable side of statistics: tables that count activations while the samples stream by."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.calibration.statistics import ChannelStatistics, TensorStatistics
from int8cal.errors import StatisticsError
from int8cal.numerics import exactsum, kernels
from int8cal.numerics.loglinear import BINS
from int8cal.numerics.rescaled import add_counts
from int8cal.numerics.sparse_memory import untouched_zeros

if TYPE_CHECKING:
    from int8cal.graph.taps import Tap

_LARGEST_COUNT = (1 << 32) - 1  # of the tables' counters
_NOTHING = np.zeros(0, np.int64)
Int64 = npt.NDArray[np.int64]


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
        self._coarse = _Counters(packs, kernels.COARSE_ROWS, kernels.PACK, kernels.COARSE_BINS)
        self._low = np.full(max(channels, 1), kernels.NEVER_LOW, np.int32)
        self._high = np.full(max(channels, 1), kernels.NEVER_HIGH, np.int32)
        self._smallest = kernels.ALL_ZERO  # magnitude that is not zero, as bits
        self._sums = exactsum.zeros(channels)
        self._squares = exactsum.zeros(channels if tap.equalizable else 0)
        self._count = 0  # values per channel
        self._in_tables = 0  # values counted since the tables were emptied
        self._uncarried = 0

    def add(self, values: npt.NDArray[Any], where: str, block: int = 1) -> None:
        """Count one sample's values.

        Args:
            values: float32, any shape; axis 0 is the batch.
            where: The sample, for messages.
            block: Channels that lie side by side in memory, where the runtime's blocked layout came out: shape
                (N, C, ...) then stands over memory of (N, C / block, ..., block).

        Raises:
            StatisticsError: a value is NaN or infinite, or the channels are not those of the weights.
        """
        if values.size == 0:
            return
        values = _by_channel(np.ascontiguousarray(values, np.float32), self._tap, block)
        if self._in_tables + values.size > _LARGEST_COUNT:
            self._fine.move_out(self._span())
            self._coarse.move_out(self._span())
            self._in_tables = 0
        lowest, highest, smallest = kernels.observe(
            values, self._fine.table, self._coarse.table, self._low, self._high, self._sums, self._squares
        )
        if not kernels.are_finite(lowest, highest):
            kind = "NaN" if np.isnan(values).any() else "infinity"
            raise StatisticsError(
                f"tensor {self._tap.tensor!r} holds {kind}",
                where=where,
                do="check the FP32 model on this sample, or leave the sample out",
                tensor=self._tap.tensor,
                sample=where,
            )
        self._smallest = min(self._smallest, smallest)
        self._in_tables += values.size
        if self._tap.channels:
            self._uncarried += 1
            if self._uncarried >= 1 << 28:  # limbs hold 2**31 additions without carrying
                self._sums, self._squares = exactsum.canonical(self._sums), exactsum.canonical(self._squares)
                self._uncarried = 0
            self._count += values.size // self._tap.channels

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
        )

    def _by_channel(self, low: npt.NDArray[np.float32], high: npt.NDArray[np.float32]) -> ChannelStatistics:
        bins, counts, _ = self._coarse.sparse(self._span())
        return ChannelStatistics(
            low, high, self._count, exactsum.canonical(self._sums), exactsum.canonical(self._squares), bins, counts
        )

    def _span(self) -> tuple[int, int]:
        """Return the bit patterns of the smallest and the largest magnitude, zeros apart."""
        extremes = np.array([kernels.key_values(self._low).min(), kernels.key_values(self._high).max()], np.float32)
        return self._smallest, int((extremes.view(np.uint32) & 0x7FFFFFFF).max())


class _Counters:
    """A table of 32-bit counters, half the memory traffic of 64-bit ones, that is moved out before one could wrap.

    Its layout is [packs][rows][lanes]; channel is pack * lanes + lane. The first `bins` rows are those of a log-linear
    histogram, the rest count zeros.
    """

    def __init__(self, packs: int, rows: int, lanes: int, bins: int) -> None:
        self._shape, self._bins = (packs, rows, lanes), bins
        size = packs * rows * lanes
        self.table = untouched_zeros((size,), np.uint32) if size else np.zeros(0, np.uint32)
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


def _by_channel(values: npt.NDArray[np.float32], tap: Tap, block: int) -> npt.NDArray[np.float32]:
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
