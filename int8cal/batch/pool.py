"""A worker pool: calls run in processes of their own, and one that measures speed has the CPUs to itself meanwhile.

Parent and worker exchange pickles on the pipes that are the worker's stdin and stdout:

    parent -> worker   the call; then one byte each time that the worker may measure
    worker -> parent   (ACQUIRE, None) before it measures, (RELEASE, None) after; (RESULT, value) at the end

What a call or its libraries print goes to the worker's stderr, which the parent hands over as one block. A worker ends
when its parent does, however that ended.

This is not concurrent.futures or joblib: there one killed worker takes the others' calls with it, and none of them can
be stopped while another measures.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, BinaryIO

from int8cal.io.paths import temporary_directory
from int8cal.io.signals import heeded, signal_main
from int8cal.progress import Exclusive, tell_warnings

if TYPE_CHECKING:
    from types import FrameType

# What a worker runs: a picklable function whose argument opens a block in which no other worker runs.
PooledCall = Callable[[Exclusive], object]

ACQUIRE, RELEASE, RESULT, _END = "acquire", "release", "result", "end"
_GRACE_S = 30.0  # a worker may be within a long call, on a busy machine
# An interrupt is lost where it lands in a callback of the garbage collector or of an import. It is sent again, but not
# soon: a worker that did hear it writes what it has found first.
_AGAIN_S = 10.0
_START = "from int8cal.batch.pool import work; work()"
_PR_SET_PDEATHSIG = 1
_LISTENER = "int8cal-listen"


@dataclass(frozen=True)
class Finished:
    """The end of a call.

    Attributes:
        key: What the caller knows it by.
        result: What it returned; None for a process that ended without.
        exit_code: Of the process, negative for a signal.
        printed: What it printed.
    """

    key: int
    result: object
    exit_code: int
    printed: str


@dataclass(eq=False)
class _Worker:
    """A running call, seen from the parent."""

    key: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    listener: threading.Thread | None = None
    result: object = None


@dataclass
class WorkerPool:
    """Runs calls in worker processes.

    Attributes:
        size: How many run at a time.
        stopping: No further call is started once this is set.
    """

    size: int
    stopping: bool = False
    _messages: queue.SimpleQueue[tuple[_Worker, str, object]] = field(default_factory=queue.SimpleQueue)
    _running: list[_Worker] = field(default_factory=list)
    _exclusive: _Worker | None = None
    _waiting: list[_Worker] = field(default_factory=list)  # for their turn to be exclusive

    def run(self, calls: Sequence[tuple[int, PooledCall]]) -> Generator[Finished, None, None]:
        """Run calls.

        Args:
            calls: Each with a key of the caller's.

        Yields:
            The calls as they end. When the caller stops early, or an interrupt comes, all processes are ended.
        """
        queued = list(calls)
        try:
            while self._running or (queued and not self.stopping):
                # a process that starts takes the CPU from one that measures
                while queued and not self.stopping and not self._exclusive and len(self._running) < self.size:
                    self._start(*queued.pop(0))
                worker, kind, value = self._messages.get()
                if kind == ACQUIRE:
                    self._waiting.append(worker)
                elif kind == RELEASE:
                    self._release_exclusive()
                elif kind == RESULT:
                    worker.result = value
                else:
                    yield self._finish(worker)
                self._grant_exclusive()
        finally:
            self._end_all()

    def _start(self, key: int, call: PooledCall) -> None:
        log = tempfile.TemporaryFile(dir=temporary_directory())  # noqa: SIM115 - closed when the call has ended
        # -P: modules of the working directory do not come before Python's own, unless they do so here
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}  # noqa: PTH109 - text
        process = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-P", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            # Ctrl-C reaches the parent alone, which then ends the workers in order
            process_group=0 if os.name == "posix" else None,
        )
        worker = _Worker(key, process, log)
        self._running.append(worker)
        with contextlib.suppress(BrokenPipeError):  # it died at once; its end comes as a message
            pickle.dump(call, process.stdin)  # type: ignore[arg-type]
            process.stdin.flush()  # type: ignore[union-attr]
        worker.listener = threading.Thread(target=self._listen, args=(worker,), name=_LISTENER, daemon=True)
        worker.listener.start()

    def _listen(self, worker: _Worker) -> None:
        """Pass a worker's messages on, and its end; what cannot be read is one, or the caller would wait for ever."""
        try:
            with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
                while True:
                    kind, value = pickle.load(worker.process.stdout)  # type: ignore[arg-type] # noqa: S301 - from the worker alone
                    self._messages.put((worker, kind, value))
        finally:
            self._messages.put((worker, _END, None))

    def _grant_exclusive(self) -> None:
        """Let the next worker that waits for it measure, and stop the others."""
        if self._exclusive is not None or not self._waiting:
            return
        self._exclusive = self._waiting.pop(0)
        for worker in self._running:
            if worker is not self._exclusive:
                _signal(worker, "SIGSTOP")
        with contextlib.suppress(OSError):
            self._exclusive.process.stdin.write(b"g")  # type: ignore[union-attr]
            self._exclusive.process.stdin.flush()  # type: ignore[union-attr]

    def _release_exclusive(self) -> None:
        """Let the others go on; where one of them waits to measure, that one alone, for it is next."""
        self._exclusive = None
        for worker in self._waiting[:1] or self._running:
            _signal(worker, "SIGCONT")

    def _finish(self, worker: _Worker) -> Finished:
        exit_code = worker.process.wait()
        self._running.remove(worker)
        self._waiting = [each for each in self._waiting if each is not worker]
        if self._exclusive is worker:
            self._release_exclusive()
        worker.log.seek(0)
        printed = worker.log.read().decode("utf-8", "replace")
        _close(worker)
        return Finished(worker.key, worker.result, exit_code, printed)

    def _end_all(self) -> None:
        end = time.monotonic() + _GRACE_S
        try:
            while time.monotonic() < end and (left := [each for each in self._running if each.process.poll() is None]):
                for worker in left:
                    _ask_to_end(worker)
                again = min(time.monotonic() + _AGAIN_S, end)
                for worker in left:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        worker.process.wait(max(again - time.monotonic(), 0))
        finally:  # also when somebody presses Ctrl-C twice
            for worker in self._running:
                worker.process.kill()
                worker.process.wait()
                _close(worker)
            self._running.clear()


def _ask_to_end(worker: _Worker) -> None:
    """Let a worker remove what it has staged, and end."""
    if hasattr(signal, "SIGCONT"):
        _signal(worker, "SIGTERM")
        _signal(worker, "SIGCONT")
    else:  # Windows, where SIGTERM would end it at once: as if the parent were gone
        with contextlib.suppress(OSError):
            worker.process.stdin.close()  # type: ignore[union-attr]


def _signal(worker: _Worker, name: str) -> None:
    number = getattr(signal, name, None)
    if number is not None:
        with contextlib.suppress(OSError):
            worker.process.send_signal(number)


def _close(worker: _Worker) -> None:
    """Let go of a worker whose process has ended."""
    if worker.listener is not None:
        worker.listener.join()  # the pipe is at its end; to close it under a read is an error of that thread
    for stream in (worker.process.stdin, worker.process.stdout, worker.log):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


class _Connection:
    """The worker's end of the two pipes."""

    def __init__(self, from_parent: BinaryIO, to_parent: BinaryIO) -> None:
        self._from_parent, self._to_parent = from_parent, to_parent
        self._granted = threading.Event()

    def receive(self) -> PooledCall:
        """Wait for the call; from then on a thread listens, and ends this process with its parent."""
        call: PooledCall = pickle.load(self._from_parent)  # noqa: S301 - from the parent process alone
        threading.Thread(target=self._listen, daemon=True).start()
        return call

    def send(self, kind: str, value: object = None) -> None:
        """Send a message."""
        pickle.dump((kind, value), self._to_parent)
        self._to_parent.flush()

    @contextmanager
    def exclusive(self, threads: int, /) -> Iterator[int]:
        """Let the parent stop the other workers meanwhile; gives `threads` back."""
        self._granted.clear()
        self.send(ACQUIRE)
        self._granted.wait()
        try:
            yield threads
        finally:
            self.send(RELEASE)

    def _listen(self) -> None:
        while self._from_parent.read(1):
            self._granted.set()
        while True:  # ends with the process
            signal_main(signal.SIGTERM)
            time.sleep(_AGAIN_S)


def work() -> None:
    """Run one call, in a worker process."""
    _end_like_the_parent()
    tell_warnings(lambda text: sys.stderr.write(f"int8cal: {text}\n"))
    connection = _own_pipes()
    try:
        call = connection.receive()
        connection.send(RESULT, call(connection.exclusive))
    except (KeyboardInterrupt, BrokenPipeError) as error:
        # The parent asked for this end, or is gone; what was staged has been removed on the way here, but for what a
        # generator holds that was interrupted as it gave it: that is removed with its frame.
        traceback.clear_frames(error.__traceback__)
        os._exit(130)


def _own_pipes() -> _Connection:
    """Keep the pipes for messages, so that a print of anybody's cannot get between them."""
    to_parent = os.fdopen(os.dup(1), "wb")
    from_parent = os.fdopen(os.dup(0), "rb", buffering=0)
    os.dup2(2, 1)
    with open(os.devnull) as nothing:  # noqa: PTH123 - a descriptor is wanted
        os.dup2(nothing.fileno(), 0)
    return _Connection(from_parent, to_parent)


def _end_like_the_parent() -> None:
    """Turn signals that end a run into KeyboardInterrupt: staged files are removed. Wake up when the parent dies."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in heeded():
        signal.signal(number, interrupt)
    if sys.platform == "linux":
        # a stopped worker would wait for ever for a parent that was killed; awake, it finds its pipe closed
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
