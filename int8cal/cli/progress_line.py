"""The line on stderr that says what a run does: redrawn on a terminal, elsewhere a new one now and then."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING

from int8cal.progress import Event, stage, watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TextIO

DRAWN_EVERY_S = 0.25  # on a terminal
TOLD_EVERY_S = 10.0  # elsewhere: a log
_LEAST_TOTAL = 2  # of one item no rate is known before it is done


class ProgressLine:
    """Shows the latest event, as long as a stage is open.

    Args:
        stream: Where; a terminal's line is redrawn.
        clock: Seconds, monotonic.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream.isatty()
        self._event = Event()
        self._since = self._told = clock()  # when the latest event came, and when the last line was written
        self._width = 0  # of what stands on the terminal
        self._lock = threading.Lock()
        self._announced = ""

    def announce(self, order: str) -> None:
        """Say what will be done: at once on a terminal, elsewhere in front of the first line."""
        if self._terminal:
            self._write(f"int8cal: {order}\n")
        else:
            self._announced = f"int8cal: {order}\n"

    def __call__(self, event: Event) -> None:
        """Take an event; a terminal is cleared when the last stage has ended, since others write there then."""
        with self._lock:
            now = self._clock()
            self._event, self._since = event, now
            if not event.stage:
                self._draw("")

    def refresh(self) -> None:
        """Write what there is to say now: called again and again by a thread of its own."""
        with self._lock:
            event, now = self._event, self._clock()
            if not event.stage:
                return
            seconds = event.seconds + now - self._since
            if self._terminal:
                self._draw(_bar(event, seconds, shutil.get_terminal_size().columns - 1))
            elif now - self._told >= TOLD_EVERY_S:
                self._told = now
                self._write(f"{self._announced}int8cal: {plain_line(event, seconds)}\n")
                self._announced = ""

    def _draw(self, text: str) -> None:
        if self._terminal and (text or self._width):
            self._write("\r" + text.ljust(self._width) + ("" if text else "\r"))
            self._width = len(text)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            self._stream.write(text)
            self._stream.flush()


@contextlib.contextmanager
def shown_progress(*, quiet: bool) -> Iterator[ProgressLine | None]:
    """Show on stderr what runs in a block."""
    if quiet:
        yield None
        return
    line, ended = ProgressLine(sys.stderr), threading.Event()

    def refresh() -> None:
        while not ended.wait(DRAWN_EVERY_S):
            line.refresh()

    thread = threading.Thread(target=refresh, name="int8cal-progress", daemon=True)
    thread.start()
    try:
        with watching(line):
            yield line
    finally:
        ended.set()
        thread.join()
        line(Event())


@contextlib.contextmanager
def starting(values: Mapping[str, object]) -> Iterator[None]:
    """Show that a command begins, while it loads what it works with and reads its settings.

    Args:
        values: Of the options that were given; with "quiet" nothing is shown.
    """
    with shown_progress(quiet=bool(values.get("quiet"))), stage("start"):
        yield


def plain_line(event: Event, seconds: float) -> str:
    """Say where a run is, in words.

    Args:
        event: The latest one.
        seconds: Since its counting stage began.
    """
    text = _name(event)
    if event.total is not None:
        text += f", {event.done} of {event.total}"
    text += f", {seconds:.0f} s"
    if event.done and event.total is not None and event.total >= _LEAST_TOTAL:
        text += f", about {seconds / event.done * (event.total - event.done):.0f} s left"
    return text


def _bar(event: Event, seconds: float, columns: int) -> str:
    from tqdm import tqdm

    if event.total is None or event.total < _LEAST_TOTAL:
        return f"{_name(event)} [{tqdm.format_interval(seconds)}]"[:columns]
    return str(tqdm.format_meter(event.done, event.total, seconds, ncols=columns, prefix=_name(event)))[:columns]


def _name(event: Event) -> str:
    return ": ".join(filter(None, (event.job, event.stage, event.detail)))
