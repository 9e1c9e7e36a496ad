"""What one pass over the data leaves behind: exact counts per tensor, that add.

Everything here is an integer or an extreme, so `a + b` gives the same bits as one run over both, in any order.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.padding import tally
from int8cal.data.preprocessing import differing
from int8cal.data.shards import together
from int8cal.errors import StatisticsError
from int8cal.numerics import Float32, Float64, Int64, exactsum
from int8cal.numerics.loglinear import Histogram, add_counts, histogram, moved

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.data.padding import Padding
    from int8cal.data.shards import Shard


FINGERPRINT_MODULUS = 1 << 128


@dataclass(frozen=True)
class ChannelStatistics:
    """Per-channel figures of a tensor that a layer reads.

    Attributes:
        low, high: Extremes, float32 (C,).
        count: Values per channel.
        total, square: Exact sums of x and x*x as canonical limbs, int64 (C, LIMBS); see numerics.exactsum. square is
            empty where the tensor cannot be equalized: nothing else asks for it.
        bins, counts: Coarse log-linear histogram, 16 bins per octave, sparse, int64 (N,); the flat index is
            channel * 8192 + bin. Empty where the tensor cannot be equalized.
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
        """Mean of the squares per channel, float64 (C,); empty where square is."""
        return exactsum.value(self.square) / max(self.count, 1)

    def __add__(self, other: ChannelStatistics) -> ChannelStatistics:
        if self.low.shape != other.low.shape:
            raise StatisticsError(
                f"{len(self.low)} channels and {len(other.low)} channels do not add",
                do="calibrate every shard with the same FP32 file",
            )
        if self.square.shape != other.square.shape:
            raise StatisticsError(
                "one side has sums of squares, the other has not",
                do="calibrate every shard with one version, and the same --include and --exclude",
            )
        bins, counts = add_counts((self.bins, self.counts), (other.bins, other.counts))
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
class Widths:
    """How wide the ranges are that single samples need of one tensor; adds exactly, in any order.

    Attributes:
        samples: How many.
        total, squares: Sums of the widths and of their squares, in units of 2**-149 and 2**-298: multiples of the
            smallest float32.
    """

    samples: int = 0
    total: int = 0
    squares: int = 0

    def __add__(self, other: Widths) -> Widths:
        return Widths(self.samples + other.samples, self.total + other.total, self.squares + other.squares)

    @property
    def variation(self) -> float | None:
        """Their standard deviation, relative to their mean; None below two samples, or without any width."""
        count, total = self.samples, self.total
        if count < 2 or not total:
            return None
        return math.sqrt(count * (count * self.squares - total * total) / ((count - 1) * total * total))

    @property
    def uncertainty(self) -> float | None:
        """Twice the standard error of their mean, relative to it; None as for `variation`.

        Drawing 2 to 32 samples many times from eight real sets, the widths of the sets' ranges differ by 0.6 to 1.5 of
        that (one standard deviation, and the median over tensors); it falls with the root of their number.
        """
        found = self.variation
        return None if found is None else 2.0 * found / math.sqrt(self.samples)


@dataclass(frozen=True)
class TensorStatistics:
    """Counts of one tensor.

    Attributes:
        bins, counts: Sparse log-linear histogram, int64 (N,), bins ascending; see numerics.loglinear.
        zeros: Exact zeros.
        minimum, maximum: Exact extremes; +inf and -inf while nothing was counted.
        channels: Per-channel figures, None where no layer reads the tensor.
        widths: Of the ranges of single samples, before channels were rescaled; of none where nobody counted them.
    """

    bins: Int64
    counts: Int64
    zeros: int
    minimum: float
    maximum: float
    channels: ChannelStatistics | None = None
    widths: Widths = field(default_factory=Widths)

    @property
    def count(self) -> int:
        """Number of values seen."""
        return int(self.counts.sum()) + self.zeros

    @property
    def histogram(self) -> Histogram:
        """The tensor's values for the threshold methods; an unseen tensor is a single zero."""
        if self.count == 0:
            return histogram(self.bins, self.counts, 1, (0.0, 0.0))
        return histogram(self.bins, self.counts, self.zeros, (self.minimum, self.maximum))

    def equalized(self, exponents: Float64 | Int64) -> TensorStatistics:
        """Return the statistics of the tensor whose channel c is multiplied by 2**exponents[c].

        A whole exponent shifts a log-linear histogram by octaves, so extremes, means and the per-channel histogram are
        exact then, and the tensor's own histogram is so up to the coarser bins of the per-channel one. With any other
        exponent a bin's values are taken as spread evenly, here too; extremes and means are exact up to rounding.

        Args:
            exponents: (C,), whole or multiples of 1 / 16.

        Raises:
            StatisticsError: the tensor has no per-channel histogram.
        """
        channels = self.channels
        if channels is None or not self.by_channel:
            raise StatisticsError("the statistics hold no per-channel histogram", do="calibrate again")
        factor = np.exp2(np.asarray(exponents, np.float64))
        low, high = channels.low * factor, channels.high * factor
        fine, coarse = moved(channels.bins, channels.counts, np.asarray(exponents, np.float64))
        whole = np.rint(exponents).astype(np.int64)
        if (whole == exponents).all():
            total, square = (
                exactsum.scaled_sums(channels.total, whole),
                exactsum.scaled_sums(channels.square, 2 * whole),
            )
        else:
            total, square = exactsum.zeros(len(factor)), exactsum.zeros(len(factor))
            exactsum.add(total, exactsum.value(channels.total) * factor)
            exactsum.add(square, exactsum.value(channels.square) * factor**2)
            total, square = exactsum.canonical(total), exactsum.canonical(square)
        return TensorStatistics(
            *fine,
            self.zeros,
            float(low.min()),
            float(high.max()),
            ChannelStatistics(low.astype(np.float32), high.astype(np.float32), channels.count, total, square, *coarse),
            self.widths,
        )

    @property
    def has_widths(self) -> bool:
        """Whether the ranges of single samples were counted; those of some alone would say nothing of all."""
        return self.widths.samples > 0 or not self.count

    @property
    def by_channel(self) -> bool:
        """Whether the per-channel histogram holds every value, as it does where the channels may be rescaled."""
        return self.channels is not None and int(self.channels.counts.sum()) == int(self.counts.sum())

    def has_all_of(self, other: TensorStatistics) -> bool:
        """Tell whether all values of another tensor's statistics are among these."""
        if other.zeros > self.zeros or not np.isin(other.bins, self.bins, assume_unique=True).all():
            return False
        here = self.counts[np.searchsorted(self.bins, other.bins)]
        return bool((other.counts <= here).all()) and self.minimum <= other.minimum and other.maximum <= self.maximum

    def __add__(self, other: TensorStatistics) -> TensorStatistics:
        if (self.channels is None) != (other.channels is None):
            raise StatisticsError(
                "one side has per-channel figures, the other has not", do="calibrate both with one version"
            )
        if self.channels is not None and len(self.counts) and len(other.counts) and self.by_channel != other.by_channel:
            raise StatisticsError(
                "one side has a per-channel histogram, the other has not",
                do="calibrate every shard with the same --include and --exclude",
            )
        bins, counts = add_counts((self.bins, self.counts), (other.bins, other.counts))
        channels = self.channels + other.channels if self.channels is not None and other.channels is not None else None
        return TensorStatistics(
            bins,
            counts,
            self.zeros + other.zeros,
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            channels,
            self.widths + other.widths if self.has_widths and other.has_widths else Widths(),
        )


@dataclass(frozen=True, repr=False)
class Statistics:
    """Statistics of all planned tensors of one model over one set of samples.

    Attributes:
        model_sha256: Hash of the FP32 model file.
        fingerprint: Sum of the samples' fingerprints modulo 2**128: the data, whatever its order.
        samples: Number of samples.
        tensors: Tensor name -> counts, in graph order.
        padding: What padding the samples had, and whether it was counted; none where no sample had any.
        bodies: Statistics of bodies of If, Loop and Scan by path (see `graph.bodies`), whose samples are their runs;
            one that was never run is missing.
        shards: The parts of the data that they are of; none for all of it.
        preprocess: How samples became inputs, as `data.preprocessing.noted` has it; None where nobody noted it.
        divided: What the shards are parts of, as `Feeds.divided` has it; "" where nobody noted it.
    """

    model_sha256: str
    fingerprint: int
    samples: int
    tensors: dict[str, TensorStatistics]
    padding: tuple[Padding, ...] = ()
    bodies: Mapping[str, Statistics] = field(default_factory=dict)
    shards: frozenset[Shard] = frozenset()
    preprocess: Mapping[str, object] | None = None
    divided: str = ""

    def __repr__(self) -> str:
        return f"Statistics(samples={self.samples}, tensors={len(self.tensors)}, model={self.model_sha256[:12]})"

    @property
    def elements(self) -> dict[str, float]:
        """Values per sample of every tensor."""
        return {name: each.count / max(self.samples, 1) for name, each in self.tensors.items()}

    @property
    def uncertainty(self) -> float | None:
        """How uncertain ranges of these samples are: the median over tensors, see `Widths`; None where none has it."""
        known = [found for each in self.tensors.values() if (found := each.widths.uncertainty) is not None]
        return statistics.median(known) if known else None

    def save(self, path: str | Path) -> None:
        """Write a .stats.npz, atomically; see calibration.statistics_file."""
        from int8cal.calibration.statistics_file import save_statistics

        save_statistics(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> Statistics:
        """Read a .stats.npz.

        Raises:
            StatisticsError: The file is missing or damaged.
        """
        from int8cal.calibration.statistics_file import load_statistics

        return load_statistics(Path(path))

    def __add__(self, other: Statistics) -> Statistics:
        """Merge two shards: bit-identical to one run over all their samples.

        Raises:
            StatisticsError: the shards are of different models or planned tensors, treat padding or samples
                differently, or are parts of different sets of samples; names both.
        """
        if not isinstance(other, Statistics):
            return NotImplemented
        if self.model_sha256 != other.model_sha256:
            raise StatisticsError(
                f"shards of different models do not add ({self.model_sha256[:12]} and {other.model_sha256[:12]})",
                do="calibrate every shard with the same FP32 file",
            )
        noted = None not in (self.preprocess, other.preprocess)
        told = differing(self.preprocess or {}, other.preprocess or {}) if noted else ""
        if told:
            raise StatisticsError(
                f"shards with different preprocessing do not add ({told})",
                do="preprocess the samples of every shard alike",
            )
        _require_one_set(self, other)
        total = self._added(other)
        bodies = {
            path: first if second is None else second if first is None else first._added(second)  # noqa: SLF001
            for path in sorted(self.bodies.keys() | other.bodies.keys())
            for first, second in [(self.bodies.get(path), other.bodies.get(path))]
        }
        shards = together(self.shards, other.shards)
        return replace(
            total,
            bodies={path: each for path, each in bodies.items() if each is not None},
            shards=shards,
            preprocess=self.preprocess if noted else None,
            divided=self.divided if shards and self.divided == other.divided else "",
        )

    def holds(self, other: Statistics) -> bool:
        """Tell whether all values of other statistics are among these, as of samples that were counted here too."""
        return self.tensors.keys() == other.tensors.keys() and all(
            value.has_all_of(other.tensors[name]) for name, value in self.tensors.items()
        )

    def _added(self, other: Statistics) -> Statistics:
        """Add the statistics of one graph, without those of the bodies inside it."""
        if self.tensors.keys() != other.tensors.keys():
            odd = min(self.tensors.keys() ^ other.tensors.keys())
            raise StatisticsError(
                f"shards with different tensors do not add ({odd!r} is in only one of them)",
                do="calibrate every shard with the same --include and --exclude",
                tensor=odd,
            )
        return Statistics(
            self.model_sha256,
            (self.fingerprint + other.fingerprint) % FINGERPRINT_MODULUS,
            self.samples + other.samples,
            {name: _add_tensors(name, value, other.tensors[name]) for name, value in self.tensors.items()},
            tally((*self.padding, *other.padding)),
        )


def _require_one_set(first: Statistics, second: Statistics) -> None:
    """Refuse to add parts of different sets of samples.

    Raises:
        StatisticsError: Both note what they are parts of, and it differs.
    """
    if first.divided and second.divided and first.divided != second.divided:
        raise StatisticsError(
            "shards of different sets of samples do not add (other files, --samples or --seed)",
            do="count every shard with the same ones; of several sets, merge the shards of each by themselves first",
        )


def _add_tensors(name: str, first: TensorStatistics, second: TensorStatistics) -> TensorStatistics:
    try:
        return first + second
    except StatisticsError as error:
        raise StatisticsError(error.what, where=f"tensor {name!r}", do=error.do, tensor=name) from error
