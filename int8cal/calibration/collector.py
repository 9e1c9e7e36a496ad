"""The mutable side of statistics: tables that count activations while the samples stream by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.calibration.statistics import ChannelStatistics, TensorStatistics, add_counts
from int8cal.errors import StatisticsError
from int8cal.numerics import exactsum, kernels
from int8cal.numerics.loglinear import BINS
from int8cal.numerics.sparse_memory import untouched_zeros

if TYPE_CHECKING:
    from int8cal.graph.taps import Tap

_LARGEST_COUNT = (1 << 32) - 1  # of the channels' tables


class Collector:
    """Counts the values of one tap.

    The histogram table spans every float32 (2**19 counters), but only the octaves that occur are ever touched, and the
    operating system backs only touched pages: some hundred KiB per tensor, and no range has to be known or guessed.
    """

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._table = untouched_zeros((BINS,), np.int64)
        self._tally = np.zeros(kernels.TALLY, np.int64)
        self._minimum, self._maximum = np.inf, -np.inf
        self._channels = _ChannelCollector(tap.channels, coarse=tap.equalizable) if tap.channels else None

    def add(self, values: npt.NDArray[Any], where: str) -> None:
        """Count one sample's values.

        Args:
            values: float32, any shape; axis 0 is the batch.
            where: The sample, for messages.

        Raises:
            StatisticsError: a value is NaN or infinite, or the channels are not those of the weights.
        """
        if values.size == 0:
            return
        values = np.ascontiguousarray(values, np.float32)
        kernels.count_values(values.reshape(-1).view(np.uint32), self._table, self._tally)
        if self._tally[kernels.NANS :].any():
            kind = "NaN" if self._tally[kernels.NANS] else "infinity"
            raise StatisticsError(
                f"tensor {self._tap.tensor!r} holds {kind}",
                where=where,
                do="check the FP32 model on this sample, or leave the sample out",
                tensor=self._tap.tensor,
                sample=where,
            )
        self._minimum = min(self._minimum, float(values.min()))
        self._maximum = max(self._maximum, float(values.max()))
        if self._channels is not None:
            self._channels.add(_by_channel(values, self._tap))

    def result(self) -> TensorStatistics:
        """Return what was counted so far."""
        bins = np.flatnonzero(self._table)
        return TensorStatistics(
            bins.astype(np.int64),
            self._table[bins],
            int(self._tally[kernels.ZEROS]),
            self._minimum + 0.0,  # -0.0 becomes +0.0: which zero came first must not show
            self._maximum + 0.0,
            self._channels.result() if self._channels is not None else None,
        )


class _ChannelCollector:
    def __init__(self, channels: int, *, coarse: bool) -> None:
        self._low = np.full(channels, np.inf, np.float32)
        self._high = np.full(channels, -np.inf, np.float32)
        self._sum, self._square = np.zeros(channels), np.zeros(channels)  # of one sample
        self._sums, self._squares = exactsum.zeros(channels), exactsum.zeros(channels)
        self._table = untouched_zeros((channels, kernels.COARSE_BINS), np.uint32) if coarse else None
        self._spilled = (np.zeros(0, np.int64), np.zeros(0, np.int64))  # sparse counts that were moved out of the table
        self._count = 0
        self._in_table = 0  # values per channel since then
        self._uncarried = 0

    def add(self, values: npt.NDArray[np.float32]) -> None:
        kernels.channel_rows(values, self._low, self._high, self._sum, self._square)
        exactsum.add(self._sums, self._sum)
        exactsum.add(self._squares, self._square)
        self._uncarried += 1
        if self._uncarried >= 1 << 28:  # limbs hold 2**31 additions without carrying
            self._sums, self._squares = exactsum.canonical(self._sums), exactsum.canonical(self._squares)
            self._uncarried = 0
        each = values.shape[0] * values.shape[2]
        if self._table is not None:
            if self._in_table + each > _LARGEST_COUNT:
                self._spilled = self._sparse()
                self._table[:] = 0
                self._in_table = 0
            kernels.count_channels(values.view(np.uint32), self._table)
            self._in_table += each
        self._count += each

    def _sparse(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        flat = self._table.reshape(-1) if self._table is not None else np.zeros(0, np.uint32)
        bins = np.flatnonzero(flat).astype(np.int64)
        return add_counts(self._spilled, (bins, flat[bins].astype(np.int64)))

    def result(self) -> ChannelStatistics:
        bins, counts = self._sparse()
        return ChannelStatistics(
            self._low.copy(),
            self._high.copy(),
            self._count,
            exactsum.canonical(self._sums),
            exactsum.canonical(self._squares),
            bins,
            counts,
        )


def _by_channel(values: npt.NDArray[np.float32], tap: Tap) -> npt.NDArray[np.float32]:
    """View values as (outer, channels, inner)."""
    axis = tap.channel_axis % values.ndim if tap.channel_axis is not None else 0
    if values.shape[axis] != tap.channels:
        raise StatisticsError(
            f"tensor {tap.tensor!r} has {values.shape[axis]} channels on axis {axis}, the weights {tap.channels}",
            do="check the model with onnx.checker.check_model(full_check=True)",
            tensor=tap.tensor,
        )
    outer = int(np.prod(values.shape[:axis], dtype=np.int64))
    return values.reshape(outer, tap.channels, -1)
