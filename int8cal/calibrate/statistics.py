"""What one pass over the data leaves behind: exact counts per tensor, that add.

Everything here is an integer or an extreme, so `a + b` gives the same bits as one run over both, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from int8cal.errors import StatisticsError
from int8cal.numerics import exactsum
from int8cal.numerics.kernels import COARSE_SHIFT
from int8cal.numerics.loglinear import SHIFT, Spectrum, spectrum

if TYPE_CHECKING:
    from collections.abc import Iterable

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

FINGERPRINT_MODULUS = 1 << 128


@dataclass(frozen=True)
class ChannelStatistics:
    """Per-channel figures of a tensor that a layer reads.

    Attributes:
        low, high: Extremes, float32 (C,).
        count: Values per channel.
        total, square: Exact sums of x and x*x as canonical limbs, int64 (C, LIMBS); see numerics.exactsum.
        bins, counts: Coarse log-linear histogram, 16 bins per octave, sparse: flat index channel * 8192 + bin, int64 (N,).
            Empty where the tensor cannot be equalized.
    """

    low: Float32
    high: Float32
    count: int
    total: Int64
    square: Int64
    bins: Int64
    counts: Int64

    @property
    def amax(self) -> Float64:
        """Largest magnitude per channel, float64 (C,)."""
        return np.maximum(np.abs(self.low), np.abs(self.high)).astype(np.float64)

    @property
    def mean(self) -> Float64:
        """Mean per channel, float64 (C,)."""
        return exactsum.value(self.total) / max(self.count, 1)

    @property
    def mean_square(self) -> Float64:
        """Mean of the squares per channel, float64 (C,)."""
        return exactsum.value(self.square) / max(self.count, 1)

    def __add__(self, other: ChannelStatistics) -> ChannelStatistics:
        bins, counts = _merge_sparse((self.bins, self.counts), (other.bins, other.counts))
        return ChannelStatistics(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.count + other.count,
            exactsum.canonical(self.total + other.total),
            exactsum.canonical(self.square + other.square),
            bins,
            counts,
        )


@dataclass(frozen=True)
class TensorStatistics:
    """Counts of one tensor.

    Attributes:
        bins, counts: Sparse log-linear histogram, int64 (N,), bins ascending; see numerics.loglinear.
        zeros: Exact zeros.
        minimum, maximum: Exact extremes; +inf and -inf while nothing was counted.
        channels: Per-channel figures, None where no layer reads the tensor.
    """

    bins: Int64
    counts: Int64
    zeros: int
    minimum: float
    maximum: float
    channels: ChannelStatistics | None = None

    @property
    def count(self) -> int:
        """Number of values seen."""
        return int(self.counts.sum()) + self.zeros

    @property
    def spectrum(self) -> Spectrum:
        """The tensor's values for the threshold methods; an unseen tensor is a single zero."""
        if self.count == 0:
            return spectrum(self.bins, self.counts, 1, (0.0, 0.0))
        return spectrum(self.bins, self.counts, self.zeros, (self.minimum, self.maximum), SHIFT)

    def equalized(self, exponents: npt.NDArray[np.int64]) -> TensorStatistics:
        """Return the statistics of the tensor whose channel c is multiplied by 2**exponents[c].

        Multiplying by a power of two shifts a log-linear histogram by whole octaves, so this is exact up to the coarser
        bins of the per-channel histogram.

        Args:
            exponents: int64 (C,).

        Raises:
            StatisticsError: the tensor has no per-channel histogram.
        """
        channels = self.channels
        if channels is None or (not len(channels.bins) and self.count > self.zeros):
            raise StatisticsError("the statistics hold no per-channel histogram", do="calibrate again")
        per_channel = 1 << (32 - COARSE_SHIFT)
        octave = 1 << (23 - COARSE_SHIFT)
        channel = channels.bins // per_channel
        moved = channels.bins % per_channel + exponents[channel] * octave
        # back to fine bins: a coarse bin's count goes to the fine bin at its centre
        ratio = 1 << (COARSE_SHIFT - SHIFT)
        fine, index = np.unique(moved, return_inverse=True)
        counts = np.bincount(index, weights=channels.counts).astype(np.int64)
        spread_bins = (fine[:, None] * ratio + np.arange(0, ratio, ratio // 8)[None]).reshape(-1)
        spread = np.diff(np.rint(counts[:, None] * np.linspace(0, 1, 9)[None]).astype(np.int64), axis=1).reshape(-1)
        factor = np.exp2(exponents.astype(np.float64))
        low, high = channels.low * factor, channels.high * factor
        keep = spread > 0
        return TensorStatistics(
            spread_bins[keep],
            spread[keep],
            self.zeros,
            float(low.min()),
            float(high.max()),
            replace(channels, low=low.astype(np.float32), high=high.astype(np.float32)),
        )

    def __add__(self, other: TensorStatistics) -> TensorStatistics:
        if (self.channels is None) != (other.channels is None):
            raise StatisticsError(
                "one side has per-channel figures, the other has not", do="calibrate both with one version"
            )
        bins, counts = _merge_sparse((self.bins, self.counts), (other.bins, other.counts))
        channels = self.channels + other.channels if self.channels is not None and other.channels is not None else None
        return TensorStatistics(
            bins,
            counts,
            self.zeros + other.zeros,
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            channels,
        )


@dataclass(frozen=True)
class Statistics:
    """Statistics of all planned tensors of one model over one set of samples.

    Attributes:
        model_sha256: Hash of the FP32 model file.
        fingerprint: Sum of the samples' fingerprints modulo 2**128: the data, whatever its order.
        samples: Number of samples.
        tensors: Tensor name -> counts, in graph order.
    """

    model_sha256: str
    fingerprint: int
    samples: int
    tensors: dict[str, TensorStatistics]

    def __add__(self, other: Statistics) -> Statistics:
        """Merge two shards: bit-identical to one run over all their samples.

        Raises:
            StatisticsError: the shards are of different models or planned tensors; names both.
        """
        if self.model_sha256 != other.model_sha256:
            raise StatisticsError(
                f"shards of different models do not add ({self.model_sha256[:12]} and {other.model_sha256[:12]})",
                do="calibrate every shard with the same FP32 file",
            )
        if self.tensors.keys() != other.tensors.keys():
            odd = sorted(self.tensors.keys() ^ other.tensors.keys())[0]
            raise StatisticsError(
                f"shards with different tensors do not add ({odd!r} is in only one of them)",
                do="calibrate every shard with the same --include and --exclude",
                tensor=odd,
            )
        return Statistics(
            self.model_sha256,
            (self.fingerprint + other.fingerprint) % FINGERPRINT_MODULUS,
            self.samples + other.samples,
            {name: value + other.tensors[name] for name, value in self.tensors.items()},
        )


def merge(shards: Iterable[Statistics]) -> Statistics:
    """Add shards; see Statistics.__add__."""
    iterator = iter(shards)
    total = next(iterator)
    for shard in iterator:
        total = total + shard
    return total


def _merge_sparse(first: tuple[Int64, Int64], second: tuple[Int64, Int64]) -> tuple[Int64, Int64]:
    bins, index = np.unique(np.concatenate([first[0], second[0]]), return_inverse=True)
    counts = np.zeros(len(bins), np.int64)
    np.add.at(counts, index, np.concatenate([first[1], second[1]]))
    return bins, counts
