"""The samples of a list of files: which of them are chosen, and reading them, file after file."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.sample import Fitted, Sample
from int8cal.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from int8cal.data.sample import Feed, Part
    from int8cal.numerics import Int64


@dataclass(frozen=True)
class FileStream:
    """The chosen samples of a list of files.

    Attributes:
        name: The source, for messages.
        parts: The files, in order.
        chosen: (file, row) of each sample, ascending: int64 (samples, 2), since there may be millions of them.
        labels: Label of each chosen sample.
        skip_bad: Leave out files that cannot be read, instead of stopping.
        filled: Feeds of inputs that are the same in every sample.
    """

    name: str
    parts: tuple[Part, ...]
    chosen: Int64
    labels: tuple[int, ...] | None
    skip_bad: bool
    filled: Feed

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.chosen)

    def thinned(self, count: int) -> FileStream:
        """Return at most `count` of them, spread evenly."""
        return self.only(np.unique(np.linspace(0, self.count - 1, min(count, self.count)).astype(int)).tolist())

    def only(self, places: Sequence[int]) -> FileStream:
        """Return the samples at these places, ascending, with the files that hold them."""
        chosen = self.chosen[list(places)]
        files, renumbered = np.unique(chosen[:, 0], return_inverse=True)
        return replace(
            self,
            parts=tuple(self.parts[index] for index in files.tolist()),
            chosen=np.stack([renumbered, chosen[:, 1]], axis=1),
            labels=None if self.labels is None else tuple(self.labels[place] for place in places),
        )

    def first_rows(self, count: int, place: float) -> list[Sample]:
        """Read the first rows of a file that holds several, chosen or not; nothing where none does.

        Args:
            count: How many at most.
            place: Of which file, from 0 for the first to 1 for the last.

        Raises:
            DataError: It cannot be read.
        """
        several = [each for each in self.parts if each.rows > 1]
        if not several:
            return []
        part = several[round(place * (len(several) - 1))]
        rows = range(min(count, part.rows))
        every = np.array([[0, row] for row in rows], np.int64)
        return list(replace(self, parts=(part,), chosen=every, labels=None).read([]))

    def sample_name(self, place: int) -> str:
        """Name one of the samples, for messages."""
        index, row = self.chosen[place].tolist()
        name: str = self.parts[index].where(row)
        return name

    def read(self, skipped: list[str]) -> Iterator[Sample]:
        """Load file after file and give the chosen samples; append the name of each file left out to `skipped`."""
        return (sample for _, sample in self.numbered(skipped))

    def _files(self) -> list[int]:
        """Return the places at which another file begins, and the number of samples."""
        changes = np.flatnonzero(np.diff(self.chosen[:, 0])) + 1
        return [0, *changes.tolist(), self.count]

    def _rows(self, first: int, last: int) -> Sequence[int]:
        """Return the rows of some samples of one file, as Python's own integers: ascending, so mostly all in a row."""
        start, end = self.chosen[[first, last - 1], 1].tolist()
        if end - start == last - first - 1:
            return range(start, end + 1)
        return array("q", self.chosen[first:last, 1].tobytes())

    def numbered(self, skipped: list[str]) -> Iterator[tuple[int, Sample]]:
        """Give the samples as `read` does, each with its place among the chosen ones."""
        for first, last in itertools.pairwise(self._files()):
            part = self.parts[self.chosen[first, 0]]
            rows = self._rows(first, last)
            feeds = part.read(rows)
            for place, row in enumerate(rows, first):
                label = None if self.labels is None else self.labels[place]
                try:
                    found = next(feeds)
                except DataError as error:
                    if not (self.skip_bad and error.fields.get("unreadable")):
                        raise
                    skipped.append(part.name)
                    break
                feed, fit = (found.feed, found.fit) if isinstance(found, Fitted) else (found, None)
                feed = {**feed, **self.filled} if self.filled else feed
                yield place, Sample(feed, part.where(row), label, fit=fit)
