"""A job in a process of its own: it takes its task from stdin, asks for the machine when it times, sends its result.

Messages are pickles on the pipes that were stdin and stdout. What the job or its libraries print goes to stderr, which
the parent shows as one block. The process ends when its parent does, however that ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from int8cal.batch.perform import perform
from int8cal.batch.task import with_threads
from int8cal.progress import silent, tell_warnings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from int8cal.batch.decide import Decision
    from int8cal.batch.task import Endings, Task

MEASURE, MEASURED = "measure", "measured"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Order:
    """What a worker is asked to do; `threads` is its share, for a task that leaves their number open."""

    task: Task
    decision: Decision
    endings: Endings
    threads: int


class _Line:
    """The worker's end of the two pipes."""

    def __init__(self, take: BinaryIO, give: BinaryIO) -> None:
        self._take, self._give = take, give
        self._go = threading.Event()

    def order(self) -> Order:
        """Wait for the order; from then on a thread listens, and ends this process with its parent."""
        order: Order = pickle.load(self._take)  # noqa: S301 - from the parent process alone
        threading.Thread(target=self._listen, daemon=True).start()
        return order

    def send(self, message: object) -> None:
        """Send a message."""
        pickle.dump(message, self._give)
        self._give.flush()

    @contextmanager
    def alone(self, threads: int, own: int) -> Iterator[int]:
        """Let the parent stop the other workers meanwhile; all threads are this one's then."""
        del threads
        self._go.clear()
        self.send(MEASURE)
        self._go.wait()
        try:
            yield own
        finally:
            self.send(MEASURED)

    def _listen(self) -> None:
        while self._take.read(1):
            self._go.set()
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Do one job."""
    _end_like_the_parent()
    tell_warnings(lambda text: sys.stderr.write(f"int8cal: {text}\n"))
    line = _own_pipes()
    order = line.order()
    own = order.task.job.calibration.threads
    task = order.task if own else with_threads(order.task, order.threads)
    try:
        result = perform(
            task,
            order.decision,
            order.endings,
            progress=silent,
            alone=lambda threads: line.alone(threads, own),
        )
        line.send(result)
    except (KeyboardInterrupt, BrokenPipeError):
        # the parent asked for this end, or is gone; what was staged has been removed on the way here
        os._exit(130)


def _own_pipes() -> _Line:
    """Keep the pipes for messages, so that a print of anybody's cannot get between them."""
    give = os.fdopen(os.dup(1), "wb")
    take = os.fdopen(os.dup(0), "rb", buffering=0)
    os.dup2(2, 1)
    with open(os.devnull) as nothing:  # noqa: PTH123 - a descriptor is wanted
        os.dup2(nothing.fileno(), 0)
    return _Line(take, give)


def _end_like_the_parent() -> None:
    """Turn SIGTERM into KeyboardInterrupt, so that staged files are removed; wake up when the parent dies."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    if sys.platform == "linux":
        # a stopped worker would wait for ever for a parent that was killed; awake, it finds its pipe closed
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
