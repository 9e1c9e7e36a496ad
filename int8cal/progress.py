"""Following a run: which stage it is in and how far, for whoever watches; its seconds; what libraries warn of.

Stages lie inside each other, as the steps of a search inside "quantize". Whoever works opens them, with `stage` and
`track`, and need not know who watches; who watches, with `watching`, gets every change as an `Event`.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Event:
    """Where a run is.

    Attributes:
        job: Its name, in a batch; "" for a single one.
        stage: What it does: "prepare", "calibrate", "quantize", ...; "" when the last stage has ended.
        detail: The innermost part of it that is under way; "" for none.
        done: Items of the innermost stage that counts any, such as samples or steps.
        total: Their number; None where it is not known, or nothing is counted.
        seconds: Since that one began.
    """

    job: str = ""
    stage: str = ""
    detail: str = ""
    done: int = 0
    total: int | None = None
    seconds: float = 0.0


@dataclass(eq=False)
class _Stage:
    name: str
    total: int | None = None
    done: int = 0
    began: float = field(default_factory=time.monotonic)


@dataclass
class _Watched:
    """A run that is watched: its open stages, from the outermost on."""

    watcher: Callable[[Event], object]
    job: str
    stages: list[_Stage] = field(default_factory=list)

    def begin(self, own: _Stage) -> None:
        self.stages.append(own)
        self.tell()

    def end(self, own: _Stage) -> None:
        # a pass that is left early lasts until its iterator goes, which may be after the stage around it
        if own in self.stages:
            del self.stages[self.stages.index(own) :]
            self.tell()

    def tell(self) -> None:
        if not self.stages:
            self.watcher(Event(self.job))
            return
        counting = next((each for each in reversed(self.stages) if each.total is not None), self.stages[-1])
        detail = self.stages[-1].name if len(self.stages) > 1 else ""
        seconds = time.monotonic() - counting.began
        self.watcher(Event(self.job, self.stages[0].name, detail, counting.done, counting.total, seconds))


_WATCHED: ContextVar[_Watched | None] = ContextVar("WATCHED", default=None)


@contextmanager
def watching(watcher: Callable[[Event], object] | None, job: str = "") -> Iterator[None]:
    """Let a function follow what runs in this thread meanwhile.

    Args:
        watcher: Called in this thread, when a stage begins or ends and with every item; None for nobody.
        job: Its name, for the events.
    """
    token = _WATCHED.set(None if watcher is None else _Watched(watcher, job))
    try:
        yield
    finally:
        _WATCHED.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Say what is done in a block."""
    watched = _WATCHED.get()
    if watched is None:
        yield
        return
    own = _Stage(name)
    watched.begin(own)
    try:
        yield
    finally:
        watched.end(own)


def track(items: Iterable[T], total: int | None, name: str) -> Iterator[T]:
    """Pass items on, and say how many have been.

    Args:
        items: Any.
        total: Their number; None where it is not known.
        name: Of the stage, while it lasts.
    """
    watched = _WATCHED.get()
    if watched is None:
        yield from items
        return
    own = _Stage(name, total)
    watched.begin(own)
    try:
        for item in items:
            yield item
            own.done += 1
            watched.tell()
    finally:
        watched.end(own)


@contextmanager
def own_job(name: str, *, quiet: bool = False) -> Iterator[None]:
    """Let a job of several be watched by its name.

    Args:
        name: For the events.
        quiet: Let nobody watch it.
    """
    outer = _WATCHED.get()
    with watching(None if quiet or outer is None else outer.watcher, name):
        yield


class Exclusive(Protocol):
    """Opens a block in which no other job runs, for timing; `contextlib.nullcontext` where there are no other jobs."""

    def __call__(self, threads: int, /) -> AbstractContextManager[int]:
        """Wait for the machine; gives the threads to measure with, `threads` are those that other work has."""


@dataclass
class Clock:
    """Seconds per station, each of which is a stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def station(self, name: str) -> Iterator[None]:
        """Add the time of a block to a station's."""
        started = time.perf_counter()
        with stage(name):
            yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


# What a warning of a library means here, by how its text begins; "" for nothing.
_MEANS = {
    # of Pillow: a limit for pictures from strangers, far below the one at which it refuses them
    "Image size (": "",
    "Corrupt EXIF data": "its EXIF data is damaged: its pixels are read as they are stored, upright or not",
    "Truncated File Read": "its EXIF data is damaged: its pixels are read as they are stored, upright or not",
}


def tell_warnings(tell: Callable[[str], object]) -> None:
    """Pass warnings of libraries on in this process, in place of Python's lines about their code.

    Args:
        tell: Called with each text once, in front of it the file that was read meanwhile, if any.
    """
    told: set[str] = set()

    def show(message: Warning | str, *_arguments: object, **_more: object) -> None:
        text = " ".join(str(message).split())
        text = next((own for start, own in _MEANS.items() if text.startswith(start)), text)
        if text and text not in told:
            told.add(text)
            tell("warning: " + ": ".join(filter(None, (READING.get(), text))))

    warnings.showwarning = show
