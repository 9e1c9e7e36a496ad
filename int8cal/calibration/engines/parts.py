"""What is done with a part of the data in a process of its own, and what that leaves behind: results that add."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from onnx import ModelProto

from int8cal.calibration.body_samples import feed_bodies
from int8cal.calibration.engines.local import Collected, Counted, Counting, KeptSamples
from int8cal.data.checks import SampleWatch
from int8cal.data.trimming import UndecidedError
from int8cal.errors import DataError
from int8cal.protos import PackedModel
from int8cal.threads import read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from int8cal.calibration.body_samples import BodyRuns
    from int8cal.data.feeds import Feeds
    from int8cal.data.file_stream import FileStream
    from int8cal.data.pixels import Pixels
    from int8cal.data.sample import Sample
    from int8cal.graph.bodies import Body
    from int8cal.graph.prepare import Prepared
    from int8cal.graph.signature import Signature
    from int8cal.graph.taps import Tap

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

    def __len__(self) -> int:
        return self.stream.count

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


@dataclass(frozen=True)
class Numbered:
    """Things to do that no data is read for; a part of them is a range of their numbers.

    Attributes:
        name: What they are, for messages.
        names: Of each.
    """

    name: str
    names: Sequence[str]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.names)


Part_contra = TypeVar("Part_contra", contravariant=True)


class Work(Protocol[Part_contra, T_co]):
    """What is done with every part, of the data or of numbered things; can be pickled."""

    def open(self, threads: int) -> Callable[[Part_contra], T_co]:
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
        return Collected(statistics, tuple(samples))


@dataclass(frozen=True)
class CountWork:
    """Counts every tap over parts of the data.

    Attributes:
        model, signature, taps, model_sha256, keep: As for `local.collect`.
        pixels: What raw pixels stand for, where the samples must be made of such; None for anything.
        ahead: Samples that are read while others run.
        run: Whether samples are run; else they are only read, for all but the statistics, which are then of none.
    """

    model: PackedModel
    signature: Signature
    taps: tuple[Tap, ...]
    model_sha256: str
    keep: int
    pixels: Pixels | None
    ahead: int
    run: bool = True

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
                stream = read_ahead(samples(), self.ahead)
                if self.run:
                    counting.extend(stream)
                else:
                    deque(stream, maxlen=0)
            finally:  # what was counted before an error does not count for the next part
                counted = counting.take()
            counted = replace(counted, kept=kept)
            return PartCounts(counted, watch, tuple(enumerate(skipped, part.first)))

        return count


@dataclass(frozen=True)
class BodyCounts:
    """What was counted in bodies of If, Loop and Scan, by path; adds, whatever the order."""

    counted: Mapping[str, Counted]

    def __add__(self, other: BodyCounts) -> BodyCounts:
        return BodyCounts({path: each + other.counted[path] for path, each in self.counted.items()})


@dataclass(frozen=True)
class BodyWork:
    """Runs bodies on what parts of the calibration data give them, and counts every tap.

    Attributes:
        model, signature, model_sha256, keep: As for `CountWork`, of the main graph.
        bodies: At any depth, each without its model, which stands beside it, and its taps.
    """

    model: PackedModel
    signature: Signature
    model_sha256: str
    keep: int
    bodies: tuple[tuple[Body, PackedModel, tuple[Tap, ...]], ...]

    @staticmethod
    def of(prepared: Prepared, bodies: Iterable[tuple[Body, tuple[Tap, ...]]], keep: int) -> BodyWork:
        """Say what is done with bodies of a model, each with its taps."""
        packed = ((replace(body, model=ModelProto()), PackedModel.of(body.model), taps) for body, taps in bodies)
        return BodyWork(PackedModel.of(prepared.model), prepared.signature, prepared.sha256, keep, tuple(packed))

    def open(self, threads: int) -> Callable[[DataPart], BodyCounts]:
        """Open the models; see `Work`."""
        model, bodies = self.model.model(), [replace(body, model=packed.model()) for body, packed, _ in self.bodies]
        countings = {
            body.path: Counting(
                body.model,
                body.signature,
                taps,
                model_sha256=self.model_sha256,
                threads=threads,
                keep=self.keep,
                hold=True,
            )
            for body, (_, _, taps) in zip(bodies, self.bodies, strict=True)
        }

        def take(runs: BodyRuns) -> None:
            countings[runs.body.path].extend(runs)

        def count(part: DataPart) -> BodyCounts:
            samples = (sample for _, sample in part.read([]))
            try:
                feed_bodies(model, self.signature, samples, bodies, take, threads=threads)
            finally:  # what was counted before an error does not count for the next part
                counted = {path: counting.take() for path, counting in countings.items()}
            kept = {path: each.kept.behind(part.first) for path, each in counted.items()}
            return BodyCounts({path: replace(each, kept=kept[path]) for path, each in counted.items()})

        return count
