"""Parts of the data that are counted by themselves: every N-th sample, so that all parts are about as large."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

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
