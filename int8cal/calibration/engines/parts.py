"""What is done with a part of the data in a process of its own, and what that leaves behind: results that add."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from int8cal.calibration.collector import variation_of
from int8cal.calibration.engines.local import Collected, Counted, Counting, KeptSamples
from int8cal.data.checks import SampleWatch
from int8cal.data.feeds import read_ahead
from int8cal.data.trimming import UndecidedError
from int8cal.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from int8cal.data.feeds import Feeds
    from int8cal.data.file_stream import FileStream
    from int8cal.data.pixels import Pixels
    from int8cal.data.sample import Sample
    from int8cal.graph.signature import Signature
    from int8cal.graph.taps import Tap
    from int8cal.protos import PackedModel

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class DataPart:
    """Samples that lie side by side in the data.

    Attributes:
        first: Place of the first one.
        stream: Reads them.
        trim: Takes their padding off.
    """

    first: int
    stream: FileStream
    trim: Callable[[Sample], Sample]

    def read(self, skipped: list[str]) -> Iterator[tuple[int, Sample]]:
        """Give the samples, each with its place in the data; append the name of each file left out to `skipped`.

        Raises:
            UndecidedError: Padding of which nobody has decided what becomes of it.
        """
        for index, stored in self.stream.numbered(skipped):
            try:
                yield self.first + index, self.trim(stored)
            except UndecidedError as error:
                error.place = self.first + index
                raise


class Work(Protocol[T_co]):
    """What is done with every part; can be pickled."""

    def open(self, threads: int) -> Callable[[DataPart], T_co]:
        """Get ready, once in a process: returns what is called with every part.

        Args:
            threads: Of the runtime.
        """


@dataclass(frozen=True)
class PartCounts:
    """What the pass over calibration data leaves behind; adds, whatever the order.

    Attributes:
        counted: Statistics of every tap, and which samples to keep.
        watch: Has looked at the samples.
        skipped: Files that could not be read, each behind a number that is in the order of the files.
    """

    counted: Counted
    watch: SampleWatch
    skipped: tuple[tuple[int, str], ...] = ()

    def __add__(self, other: PartCounts) -> PartCounts:
        return PartCounts(
            self.counted + other.counted, self.watch + other.watch, tuple(sorted((*self.skipped, *other.skipped)))
        )

    def collected(self, feeds: Feeds) -> Collected:
        """Return what the pass has collected; the samples to keep are read again.

        Raises:
            DataError: There was no sample, or one has changed meanwhile.
        """
        statistics, kept = self.counted.statistics, self.counted.kept
        feeds.passed([name for _, name in self.skipped], statistics.padding, statistics.samples)
        samples = feeds.at([place for (place,) in kept.positions()])
        for sample, mark in zip(samples, kept.marks(), strict=True):
            if sample.fingerprint != mark:
                raise DataError("changed while it was in use", where=sample.origin, do="run again")
        return Collected(statistics, tuple(samples), variation=variation_of(self.counted.widths.values()))


@dataclass(frozen=True)
class CountWork:
    """Counts every tap over parts of the data.

    Attributes:
        model, signature, taps, model_sha256, keep: As for `local.collect`.
        pixels: What raw pixels stand for, where the samples must be made of such; None for anything.
        ahead: Samples that are read while others run.
    """

    model: PackedModel
    signature: Signature
    taps: tuple[Tap, ...]
    model_sha256: str
    keep: int
    pixels: Pixels | None
    ahead: int

    def open(self, threads: int) -> Callable[[DataPart], PartCounts]:
        """Open the model; see `Work`."""
        counting = Counting(
            self.model.model(), self.signature, self.taps, model_sha256=self.model_sha256, threads=threads, hold=True
        )

        def count(part: DataPart) -> PartCounts:
            watch = SampleWatch("calibration", self.signature, part.first)
            kept, skipped = KeptSamples(self.keep, hold=False), list[str]()

            def samples() -> Iterator[Sample]:
                for place, sample in part.read(skipped):
                    if self.pixels is not None:
                        self.pixels.codes(sample.feed[self.pixels.input], sample.origin)
                    watch.add(sample)
                    kept.add(sample, (place,))
                    yield sample

            try:
                counting.extend(read_ahead(samples(), self.ahead))
            finally:  # what was counted before an error does not count for the next part
                counted = counting.take()
            counted = replace(counted, kept=kept)
            return PartCounts(counted, watch, tuple(enumerate(skipped, part.first)))

        return count
