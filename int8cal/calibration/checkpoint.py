"""What a run has done so far, in one file beside its output: a run that was killed goes on from there.

The file holds what was counted over some samples of the data, the first ones outside a cluster, and what was scored or
measured since, by names that say of what. A run that goes on reads these samples again, for those to keep and to see
that they are the same, and runs none of them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import zipfile
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.calibration.engines.local import Counted, KeptSamples
from int8cal.calibration.engines.ray import Sums
from int8cal.calibration.engines.schedule import joined_ranges
from int8cal.calibration.statistics_file import read_statistics, statistics_to_bytes
from int8cal.errors import DataError, OutputError, StatisticsError
from int8cal.io.atomic import atomic_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from int8cal.calibration.engines.local import Counting
    from int8cal.calibration.engines.parts import CountWork, PartCounts
    from int8cal.calibration.engines.ray import Cluster
    from int8cal.calibration.engines.schedule import SampleRanges
    from int8cal.calibration.statistics import Statistics
    from int8cal.data.feeds import Feeds
    from int8cal.data.sample import Sample
    from int8cal.numerics import Array
    from int8cal.runtime.batching import Arrays


FORMAT, VERSION = "int8cal/checkpoint", 1
SUFFIX = ".checkpoint"
EVERY_S = 60.0  # between two saved states
LEAST_SHARE = 50  # and so many times as long as saving one took, so that it costs 2 % at most
_STATISTICS = "statistics.npz"
_ANEW = "leave --resume out to begin anew"


class Checkpoint:
    """The state of a run, saved from time to time; what prevents that is a warning, and does not end the run."""

    def __init__(self, path: Path, made_of: Mapping[str, object], every: int | None = None) -> None:
        """Begin without a state.

        Args:
            path: The file; its directory is there when something is saved.
            made_of: What the results depend on besides the data, by name, as JSON has it.
            every: Samples between two saved states; None for one every EVERY_S, 0 for none.
        """
        self._trouble = ""
        self._path, self._made_of, self._every = path, made_of, every
        self._statistics: Statistics | None = None
        self._packed = b""  # the statistics' file
        self._ranges: SampleRanges = ()  # samples that were counted, where they were not the first ones
        self._decided: tuple[int, ...] = ()  # those of them that it was decided on what becomes of padding
        self._seen = KeptSamples(0)
        self._marks: dict[int, int] = {}  # number of samples -> sum of their fingerprints
        self._known: dict[str, Arrays] = {}
        self._in_file = 0
        self._saved, self._cost = time.monotonic(), 0.0

    @property
    def samples(self) -> int:
        """How many samples were counted."""
        return 0 if self._statistics is None else self._statistics.samples

    @property
    def saved(self) -> int:
        """How many of them this run has saved."""
        return self._in_file

    @property
    def warnings(self) -> tuple[str, ...]:
        """Whether it could not be saved the last time."""
        return (f"the checkpoint {self._path} {self._trouble}",) if self._trouble else ()

    def resume(self, changes: Callable[[Mapping[str, object], Mapping[str, object]], tuple[str, ...]]) -> None:
        """Take the state of the file.

        Args:
            changes: Says in words what differs between that which the file is made of, and that which this run is.

        Raises:
            StatisticsError: It is damaged, or of another model, other settings or versions; names what differs.
        """
        header = _header(self._path)
        found = changes(header["made_of"], self._made_of)
        if found:
            what = f"is of another run: {'; '.join(found)}"
            raise StatisticsError(what, where=str(self._path), do=f"give what it was made with, or {_ANEW}")
        try:
            with zipfile.ZipFile(self._path) as archive:
                if header["samples"]:
                    self._packed = archive.read(_STATISTICS)
                    statistics = read_statistics(BytesIO(self._packed), str(self._path))
                    if statistics.samples != header["samples"]:
                        raise ValueError(_STATISTICS)
                    self._statistics = statistics
                    self._ranges = tuple((int(first), int(last)) for first, last in header["ranges"])
                    self._decided = tuple(map(int, header["decided"]))
                self._marks = {int(number): int(total, 16) for number, total in header["marks"].items()}
                for number, (key, names) in enumerate(header["known"].items()):
                    self._known[key] = {name: _array(archive, number, name) for name in names}
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RuntimeError,
            zipfile.BadZipFile,
            EOFError,
        ) as error:
            raise _damaged(self._path) from error

    def count(self, counting: Counting, samples: Iterable[Sample], keep: int) -> Counted:
        """Count samples, those that were counted before not again, and save what was counted on the way.

        Args:
            counting: Counts them.
            samples: All of the data.
            keep: How many samples to keep, as `counting` does.

        Raises:
            StatisticsError: The first samples are not those that were counted; of counting.
            DataError: There was no sample.
        """
        stream = self._passed(samples)
        total: Counted | None = None
        if self._statistics is not None:
            total = Counted(self._statistics, self._skipped(stream, self._statistics, keep))
        while (first := next(stream, None)) is not None:
            counting.extend(self._part(first, stream))
            more = counting.take()
            total = more if total is None else total + more
            self._statistics, self._packed = total.statistics, b""
            self.save_when_due()
        if total is None:
            raise DataError("yields no sample", do="give at least one")
        return total

    def count_in(self, cluster: Cluster, work: CountWork, feeds: Feeds) -> PartCounts:
        """Do as `count` with workers of a cluster, which run parts of the data in any order.

        Raises:
            StatisticsError: The samples that were counted are not those of the data; of counting.
            DataError: Of the data.
        """
        decided = self._decided
        sums: Sums[PartCounts] = Sums(self._is_due, lambda sums, more: self._take(sums, (*decided, *more)))
        with cluster.held():
            if self._statistics is not None:
                self._require_places(feeds)
                for place in decided:  # in this order, as it was then
                    feeds.at([place])
                statistics = self._statistics
                read = cluster.added(replace(work, run=False), feeds, "samples that are counted", self._ranges)
                kept = read.counted.kept
                if (kept.seen, kept.total) != (statistics.samples, statistics.fingerprint):
                    raise self._of_other_data(f"{statistics.samples} samples are not those that were counted")
                sums.add(replace(read, counted=Counted(statistics, kept)), self._ranges)
            return cluster.added_to(sums, work, feeds, "samples")

    def _require_places(self, feeds: Feeds) -> None:
        places = (*self._decided, *(last - 1 for _, last in self._ranges))
        if max(places, default=0) >= (feeds.count or 0):
            raise self._of_other_data(f"sample {max(places) + 1} was counted, and there are {feeds.count}")

    def _of_other_data(self, what: str) -> StatisticsError:
        return StatisticsError(f"is of other data: {what}", where=str(self._path), do=f"give the same data, or {_ANEW}")

    def _is_due(self, samples: int) -> bool:
        return self._is_long_ago() or (bool(self._every) and samples >= (self._every or 0))

    def _take(self, sums: Sums[PartCounts], decided: tuple[int, ...]) -> None:
        """Save what was counted in a cluster so far."""
        if sums.total is None:
            return
        self._statistics, self._packed = sums.total.counted.statistics, b""
        self._ranges, self._decided = joined_ranges(sums.ranges), decided
        self.save()

    def recall(self, key: str) -> Arrays | None:
        """Return what was noted under a name; None where nothing was."""
        return self._known.get(key)

    def note(self, key: str, **arrays: Array) -> None:
        """Note arrays under a name that says what they are of, and save them if the last time is long ago."""
        self._known[key] = arrays
        self.save_when_due()

    def save_when_due(self) -> None:
        """Save the state if the last time is long ago."""
        if self._every or self._is_long_ago():
            self.save()

    def save(self) -> None:
        """Save the state."""
        began = time.monotonic()
        if self._statistics is not None:
            self._packed = self._packed or statistics_to_bytes(self._statistics)
        try:
            with atomic_path(self._path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
                self._write(archive)
            self._trouble, self._in_file = "", self.samples
        except OutputError as error:
            self._trouble = error.what
        self._saved = time.monotonic()
        self._cost = self._saved - began

    def remove(self) -> None:
        """Remove the file: what it is for is done."""
        with contextlib.suppress(OSError):  # none, or no file: there is nothing of a run's to remove
            self._path.unlink()

    def _is_long_ago(self) -> bool:
        return self._every is None and time.monotonic() - self._saved >= max(EVERY_S, LEAST_SHARE * self._cost)

    def _passed(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Pass samples on, whose sums are noted, or held against those that were."""
        for sample in samples:
            self._seen.add(sample)
            number, total = self._seen.seen, self._seen.total
            if number in self._marks:
                self._require_same(self._marks[number], sample.origin)
            elif number & (number - 1) == 0:
                self._marks[number] = total
            yield sample

    def _skipped(self, stream: Iterator[Sample], statistics: Statistics, keep: int) -> KeptSamples:
        """Choose from the samples that were counted those to keep."""
        kept = KeptSamples(keep)
        origin = ""
        for sample in itertools.islice(stream, statistics.samples):
            kept.add(sample)
            origin = sample.origin
        self._require_same(statistics.fingerprint if kept.seen == statistics.samples else -1, origin)
        return kept

    def _require_same(self, total: int, origin: str) -> None:
        if self._seen.total != total:
            number = self._seen.seen
            which = "sample is not the one" if number == 1 else f"{number} samples, up to {origin}, are not those"
            raise self._of_other_data(f"the first {which} that {'was' if number == 1 else 'were'} counted")

    def _part(self, first: Sample, stream: Iterator[Sample]) -> Iterator[Sample]:
        """Pass samples on until the state should be saved."""
        for sample in itertools.chain([first], stream):
            yield sample
            if self._is_long_ago() or (self._every and self._seen.seen % self._every == 0):
                return

    def _write(self, archive: zipfile.ZipFile) -> None:
        header = {
            "format": FORMAT,
            "version": VERSION,
            "made_of": self._made_of,
            "samples": self.samples,
            "ranges": self._ranges,
            "decided": self._decided,
            "marks": {str(number): f"{total:032x}" for number, total in self._marks.items() if number <= self.samples},
            "known": {key: [*arrays] for key, arrays in self._known.items()},
        }
        archive.writestr("header.json", json.dumps(header))
        if self._statistics is not None:
            archive.writestr(_STATISTICS, self._packed)
        for number, arrays in enumerate(self._known.values()):
            for name, array in arrays.items():
                with archive.open(_member(number, name), "w") as file:
                    np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def counted_in(path: Path) -> int:
    """Say how many samples were counted when a checkpoint was saved.

    Raises:
        StatisticsError: It is damaged.
    """
    return int(_header(path)["samples"])


def _header(path: Path) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            header: dict[str, Any] = json.loads(archive.read("header.json"))
        if (header["format"], header["version"]) != (FORMAT, VERSION) or type(header["samples"]) is not int:
            raise ValueError(header["format"])
        if not isinstance(header["made_of"], dict):
            raise TypeError("made_of")
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile, EOFError) as error:
        raise _damaged(path) from error
    return header


def _array(archive: zipfile.ZipFile, number: int, name: str) -> Array:
    with archive.open(_member(number, name)) as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _member(number: int, name: str) -> str:
    return f"known/{number}/{name}.npy"


def _damaged(path: Path) -> StatisticsError:
    return StatisticsError("is no checkpoint that this version can read", where=str(path), do=_ANEW)
