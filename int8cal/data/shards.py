"""Parts of the data that are counted by themselves: every N-th sample, so that all parts are about as large."""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from int8cal.phrases import some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from int8cal.numerics import Int64

T = TypeVar("T")

_NAMED = 20  # shards that are missing
PATTERN = r"^\s*0*([1-9][0-9]*)\s*/\s*0*([1-9][0-9]*)\s*$"


@dataclass(frozen=True, order=True)
class Shard:
    """The K-th of N parts.

    Attributes:
        number: K, from 1 to N.
        of: N.
    """

    number: int
    of: int

    @staticmethod
    def parse(text: str) -> Shard:
        """Read "K/N".

        Raises:
            ValueError: It is no such text, or K is above N.
        """
        found = re.fullmatch(PATTERN, text, re.ASCII)
        shard = None if found is None else Shard(int(found[1]), int(found[2]))
        if shard is None or shard.number > shard.of:
            raise ValueError(text)
        return shard

    @property
    def stem(self) -> str:
        """What its files are called by: as many digits for every part, so that names are in the order of the parts."""
        return f"{self.number:0{len(str(self.of))}}-of-{self.of}"

    @property
    def slice(self) -> slice:
        """Where the part's items are: at K - 1, K - 1 + N, ...; no item is in two parts."""
        return slice(self.number - 1, None, self.of)

    def part(self, items: Iterable[T]) -> Iterator[T]:
        """Give the part's items, in their order."""
        return itertools.islice(items, self.slice.start, None, self.slice.step)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def divided_of(shard: Shard | None, *of: str, rows: Int64 | None = None) -> str:
    """Return a hash of what a shard is a part of, the same wherever the data lies; "" of what is no shard.

    Args:
        shard: The part.
        of: Places of all files, or what else tells one choice of samples from another.
        rows: (file, row) of all chosen samples.
    """
    if shard is None:
        return ""
    digest = hashlib.sha256("\0".join(of).encode("utf-8", "surrogateescape"))
    if rows is not None:
        digest.update(rows.astype("<i8").tobytes())
    return digest.hexdigest()[:32]


def together(first: frozenset[Shard], second: frozenset[Shard]) -> frozenset[Shard]:
    """Say of which parts a sum is: none where it is of all, and where both are not parts of one N."""
    union = first | second
    if not first or not second or len({each.of for each in union}) > 1 or not missing(union):
        return frozenset()
    return union


def missing(shards: frozenset[Shard]) -> tuple[Shard, ...]:
    """Name the parts that are not there, in their order; none where all are."""
    of = max((each.of for each in shards), default=0)
    return tuple(each for number in range(1, of + 1) if (each := Shard(number, of)) not in shards)


def told_missing(shards: frozenset[Shard]) -> str:
    """Say which parts are not there: "2 of 5 shards missing: 3, 5"; "" where all are."""
    absent = missing(shards)
    if not absent:
        return ""
    numbers = some((str(each.number) for each in absent), _NAMED)
    return f"{len(absent)} of {absent[0].of} shards missing: {numbers}"
