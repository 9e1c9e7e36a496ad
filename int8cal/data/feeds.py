"""The samples of a source, streamed one at a time."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from int8cal.data.checks import Finding
from int8cal.data.file_stream import FileStream
from int8cal.data.padding import tally
from int8cal.data.trimming import Trimmer
from int8cal.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from int8cal.data.callables import CallStream
    from int8cal.data.labels import Labels, NoClasses
    from int8cal.data.padding import Padding
    from int8cal.data.sample import Sample
    from int8cal.graph.signature import Signature
    from int8cal.preprocess import Preprocess


class Feeds:
    """The samples of a source; every `iter` is a new pass in the same order, with one file in memory at a time.

    Attributes:
        name: The source, for messages.
        count: Number of samples, files that skip_bad may still leave out included; None when only a pass can tell.
        labelled: Whether samples carry labels.
        labels: Those of files, known before any is read; None without, and of a function.
        no_classes: Folders that were not taken for labels, though nobody said that they are none.
        images: Whether the samples are images.
        prepared: Whether they are made of images, text or sound, and not arrays.
        preprocess: How they become feeds; None for pixel values as they are, and for arrays as they are.
        signature: What they were opened for; `whole` where each file is one sample.
        skipped: Files left out by skip_bad, those of the last pass included.
        made: How samples were made of arrays that hold several, in a line.
        padding: What padding the samples of the last pass had.
        mixed: That rows are taken for samples which the model does not keep apart, where that was found.
        divided: What a shard is a part of, as a hash of the list of all chosen samples; "" where it is no shard.
    """

    def __init__(
        self,
        stream: FileStream | CallStream,
        signature: Signature,
        *,
        labelled: bool,
        labels: Labels | None = None,
        no_classes: NoClasses | None = None,
        images: bool = False,
        prepared: bool = False,
        preprocess: Preprocess | None = None,
        skipped: tuple[str, ...] = (),
        made: tuple[str, ...] = (),
        divided: str = "",
        trim: Callable[[Sample], Sample] | None,
    ) -> None:
        self.count, self.labelled, self.labels, self.no_classes = stream.count, labelled, labels, no_classes
        self.images, self.prepared, self.preprocess, self.name = images, prepared, preprocess, stream.name
        self.skipped, self.made = list(skipped), made
        self.padding: tuple[Padding, ...] = ()
        self.signature, self.mixed, self.divided = signature, tuple[Finding, ...](), divided
        self._stream, self._skipped_at_open, self._trim = stream, skipped, trim or _as_it_is

    def spread(self, count: int) -> list[Sample]:
        """Read at most `count` samples, spread over all files; of a function the first ones."""
        stream = self._stream
        if isinstance(stream, FileStream):
            stream = stream.thinned(count)
        samples = itertools.islice(stream.read([]), count)
        return [self._trim(sample) for sample in samples]

    def neighbours(self, count: int, place: float = 0.0) -> list[Sample]:
        """Read the first rows of an array that was cut into several samples; nothing where none was.

        They are the same ones whatever part of the samples is chosen.

        Args:
            count: How many at most.
            place: Of which array, from 0 for the first to 1 for the last; of a function one of the first ones.

        Raises:
            DataError: They cannot be read.
        """
        rows = [] if self.prepared else self._stream.first_rows(count, place)
        return [self._trim(row) for row in rows]

    @property
    def files(self) -> FileStream | None:
        """The samples as files, which other processes can be sent; None where a function gives them."""
        return self._stream if isinstance(self._stream, FileStream) else None

    def sent_trim(self) -> Callable[[Sample], Sample]:
        """Return what takes the padding off samples in another process, see `Trimmer.sent`."""
        return self._trim.sent() if isinstance(self._trim, Trimmer) else _as_it_is

    def at(self, places: Sequence[int]) -> list[Sample]:
        """Read the samples at some places of the files, in this order.

        Raises:
            DataError: One cannot be read.
        """
        if self.files is None:
            raise TypeError(self.name)
        if not places:
            return []
        order = sorted(places)
        read = dict(zip(order, self.files.only(order).read([]), strict=True))
        return [self._trim(read[place]) for place in places]

    def passed(self, skipped: Iterable[str], padding: tuple[Padding, ...], samples: int) -> None:
        """Note what a pass over the files elsewhere found, as one here does.

        Args:
            skipped: Files that could not be read, in the order of the files.
            padding: What padding there was.
            samples: Their number.

        Raises:
            DataError: There were none.
        """
        self.skipped, self.padding = [*self._skipped_at_open, *skipped], padding
        if not samples:
            raise all_skipped(self.name, self.skipped)

    def __iter__(self) -> Iterator[Sample]:
        skipped = list(self._skipped_at_open)
        self.skipped, self.padding = skipped, ()
        empty = True
        for stored in self._stream.read(skipped):
            empty = False
            sample = self._trim(stored)
            if sample.padding:
                self.padding = tally((*self.padding, *sample.padding))
            yield sample
        if empty:
            raise all_skipped(self._stream.name, skipped)


def _as_it_is(sample: Sample) -> Sample:
    return sample


def all_skipped(name: str, skipped: list[str]) -> DataError:
    """Say that a source gives no sample, since no file of it can be read, where that is why."""
    return DataError(
        f"none of {len(skipped)} files can be read, the first is {skipped[0]}" if skipped else "holds no sample",
        where=name,
        do="check the files; --skip-bad leaves out single bad ones, not all",
    )
