"""Following a run: how far a pass is, and the seconds of every station."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")


class Progress(Protocol):
    """Shows how far a pass is."""

    def __call__(self, iterable: Iterable[T], total: int | None, label: str) -> Iterable[T]:
        """Pass the items on."""


class Alone(Protocol):
    """Keeps other jobs from running while speed is measured; `contextlib.nullcontext` where there are none."""

    def __call__(self, threads: int, /) -> AbstractContextManager[int]:
        """Wait for the machine; gives the threads to measure with, `threads` are those that other work has."""


def silent(iterable: Iterable[T], total: int | None, label: str) -> Iterable[T]:  # noqa: ARG001 - the protocol's shape
    """Show nothing."""
    return iterable


@dataclass
class Clock:
    """Seconds per station."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def station(self, name: str) -> Iterator[None]:
        """Add the time of a block to a station's."""
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
