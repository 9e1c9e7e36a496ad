"""One sample and its share of the data fingerprint; the file it comes from, and the error for one that is broken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import xxhash

from int8cal.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from int8cal.data.padding import Padding, Positions
    from int8cal.numerics import Array

    Feed = dict[str, Array]


# How text or sound was made to fit: "cut" where what lies beyond the sample is in no other one, "end" where that is the
# end of a sound and less than a sample, "padded" where a sound was filled up.
Fit = Literal["cut", "end", "padded"]


@dataclass(frozen=True, eq=False)
class Fitted:
    """The feed of a sample of text or sound, and how it was made to fit; None where it did by itself."""

    feed: Feed
    fit: Fit | None


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample, ready for the model.

    Attributes:
        feed: Input name -> array in the model's dtype; leading dimension 1 where the model has a batch axis.
        origin: Where it came from, for messages: "calib/0007.npz[3]", "photos/cat/1.png", "mine.data:feeds[12]".
        label: Class index >= 0, or None.
        padding: What padding it had, per mask; see data.padding.
        positions: Those that are no padding, where they could not be trimmed; see data.padding.
        mark: Fingerprint of the sample as it was stored, where the feed is without its padding.
        fit: How it was made to fit the model.
    """

    feed: Feed
    origin: str
    label: int | None = None
    padding: tuple[Padding, ...] = ()
    positions: Positions | None = None
    mark: int | None = None
    fit: Fit | None = None

    @cached_property
    def fingerprint(self) -> int:
        """Hash of the feed, the origin and label aside; see `fingerprint_of`. Taken once: a feed is not written to."""
        return fingerprint_of(self.feed)

    def without_feed(self) -> Sample:
        """Return the sample without its feed, whose fingerprint it keeps."""
        bare = replace(self, feed={})
        bare.__dict__["fingerprint"] = self.fingerprint  # where the property keeps it
        return bare


class Part(Protocol):
    """One file (or one test data set) of a source; how many samples it holds is known without loading it."""

    @property
    def name(self) -> str:
        """The file as the user would write it."""

    @property
    def rows(self) -> int:
        """How many samples it holds."""

    @property
    def labels(self) -> tuple[object, ...] | None:
        """One label per sample when the file itself carries them: class indices, or as a column has them."""

    def where(self, row: int) -> str:
        """Name a sample, for messages."""

    def read(self, rows: Sequence[int]) -> Iterator[Feed | Fitted]:
        """Load the file once and give the feeds of these rows, in this order."""


def row_name(name: str, row: int, rows: int) -> str:
    """Name one sample of a file: the file alone when it holds one sample, "file[row]" otherwise."""
    return name if rows == 1 else f"{name}[{row}]"


def unreadable(name: str, what: str) -> DataError:
    """Build the error for a broken file; the field `unreadable` is what --skip-bad looks for."""
    reason = what.strip().rstrip(".") or "it is cut off or not what its name says"
    do = "repair or remove it, or leave such files out with --skip-bad"
    return DataError(f"cannot be read: {reason}", where=name, do=do, unreadable=True)


def fingerprint_of(feed: Mapping[str, Array]) -> int:
    """Hash a feed; the fingerprint of a set of samples is the sum modulo 2**128, whatever the order or the files.

    Args:
        feed: Names, dtypes, shapes and bytes count.

    Returns:
        Integer in [0, 2**128): XXH3-128 over the inputs in the order of their names.
    """
    digest = xxhash.xxh3_128()
    for name in sorted(feed):
        array = np.ascontiguousarray(feed[name])
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        # lengths and separators keep ("ab", "c") and ("a", "bc") apart
        digest.update(f"{len(name)}:{name}|{array.dtype.name}|{feed[name].shape}|".encode())
        if array.dtype.hasobject:  # whose own bytes are where the texts happen to lie
            for text in map(str, array.flat):
                digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
            continue
        digest.update(array.reshape(-1).view(np.uint8).data if array.dtype.kind in "fiub" else array.tobytes())
    return int.from_bytes(digest.digest(), "big")
