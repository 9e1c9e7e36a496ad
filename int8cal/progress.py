"""Following a run: how far a pass is, the seconds of every station, and what libraries warn of."""

from __future__ import annotations

import sys
import time
import warnings
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

# The file that is being read, which a library's warning does not name.
READING: ContextVar[str] = ContextVar("READING", default="")


class Progress(Protocol):
    """Shows how far a pass is."""

    def __call__(self, iterable: Iterable[T], total: int | None, label: str) -> Iterable[T]:
        """Pass the items on; `total` is their number where that is known, `label` one word for the work."""


class Exclusive(Protocol):
    """Opens a block in which no other job runs, for timing; `contextlib.nullcontext` where there are no other jobs."""

    def __call__(self, threads: int, /) -> AbstractContextManager[int]:
        """Wait for the machine; gives the threads to measure with, `threads` are those that other work has."""


def silent(iterable: Iterable[T], total: int | None, label: str) -> Iterable[T]:  # noqa: ARG001 - the protocol's shape
    """Show nothing."""
    return iterable


class ProgressBar:
    """Draws a bar on stderr, with rate and remaining time; none when nobody would see it.

    Args:
        quiet: Show nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.shown = not quiet and sys.stderr.isatty()

    def __call__(self, iterable: Iterable[T], total: int | None, label: str) -> Iterable[T]:
        """Pass the items on and draw a bar meanwhile."""
        if not self.shown:
            return iterable
        from tqdm import tqdm

        return tqdm(iterable, desc=label, total=total, file=sys.stderr, dynamic_ncols=True, leave=False)


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


def tell_warnings(tell: Callable[[str], object]) -> None:
    """Pass warnings of libraries on in this process, in place of Python's lines about their code.

    Args:
        tell: Called with each text once, in front of it the file that was read meanwhile, if any.
    """
    told: set[str] = set()

    def show(message: Warning | str, *_arguments: object, **_more: object) -> None:
        text = " ".join(str(message).split())
        if text not in told:
            told.add(text)
            tell("warning: " + ": ".join(filter(None, (READING.get(), text))))

    warnings.showwarning = show
