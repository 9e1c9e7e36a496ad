"""Several jobs at a time, each in a process of its own; one that measures speed has the machine to itself."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING

from int8cal.batch.task import JobResult
from int8cal.batch.worker import MEASURE, MEASURED, Order
from int8cal.runtime.sessions import temporary_directory

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_GRACE_S = 10.0
_START = "from int8cal.batch.worker import main; main()"


@dataclass(eq=False)
class _Worker:
    """A running job."""

    index: int
    order: Order
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    result: JobResult | None = None


@dataclass(frozen=True)
class Finished:
    """The end of a job: its place in the batch, its result, and what it printed."""

    index: int
    result: JobResult
    printed: str


@dataclass
class Crew:
    """The processes of a batch.

    Attributes:
        size: How many jobs run at a time.
        stopping: No further job is started once this is set.
    """

    size: int
    stopping: bool = False
    _messages: queue.SimpleQueue[tuple[_Worker, object]] = field(default_factory=queue.SimpleQueue)
    _running: list[_Worker] = field(default_factory=list)
    _asking: list[_Worker] = field(default_factory=list)
    _measuring: _Worker | None = None

    def run(self, orders: Sequence[tuple[int, Order]]) -> Generator[Finished, None, None]:
        """Run jobs.

        Args:
            orders: Each with its place in the batch.

        Yields:
            The jobs as they end. When the caller stops early, or an interrupt comes, all processes are ended.
        """
        waiting = list(orders)
        try:
            while self._running or (waiting and not self.stopping):
                # a process that starts takes the CPU from one that measures
                while waiting and not self.stopping and not self._measuring and len(self._running) < self.size:
                    self._start(*waiting.pop(0))
                worker, message = self._messages.get()
                if message == MEASURE:
                    self._asking.append(worker)
                elif message == MEASURED:
                    self._resume()
                elif isinstance(message, JobResult):
                    worker.result = message
                else:
                    yield self._ended(worker)
                self._let_one_measure()
        finally:
            self._end_all()

    def _start(self, index: int, order: Order) -> None:
        log = tempfile.TemporaryFile(dir=temporary_directory())  # noqa: SIM115 - closed when the job has ended
        # -P: modules of the working directory do not come before Python's own, unless they do so here
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}  # noqa: PTH109 - text
        process = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-P", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            # Ctrl-C reaches the parent alone, which then ends the jobs in order
            process_group=0 if os.name == "posix" else None,
        )
        worker = _Worker(index, order, process, log)
        self._running.append(worker)
        with contextlib.suppress(BrokenPipeError):  # it died at once; its end is told below
            pickle.dump(order, process.stdin)  # type: ignore[arg-type]
            process.stdin.flush()  # type: ignore[union-attr]
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()

    def _listen(self, worker: _Worker) -> None:
        """Pass a worker's messages on; None at its end."""
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                self._messages.put((worker, pickle.load(worker.process.stdout)))  # type: ignore[arg-type] # noqa: S301 - from the worker alone
        self._messages.put((worker, None))

    def _let_one_measure(self) -> None:
        if self._measuring is not None or not self._asking:
            return
        self._measuring = self._asking.pop(0)
        for worker in self._running:
            if worker is not self._measuring:
                _signal(worker, "SIGSTOP")
        with contextlib.suppress(OSError):
            self._measuring.process.stdin.write(b"g")  # type: ignore[union-attr]
            self._measuring.process.stdin.flush()  # type: ignore[union-attr]

    def _resume(self) -> None:
        self._measuring = None
        if not self._asking:
            for worker in self._running:
                _signal(worker, "SIGCONT")
        else:  # the next one measures at once
            _signal(self._asking[0], "SIGCONT")

    def _ended(self, worker: _Worker) -> Finished:
        code = worker.process.wait()
        self._running.remove(worker)
        self._asking = [each for each in self._asking if each is not worker]
        if self._measuring is worker:
            self._resume()
        worker.log.seek(0)
        printed = worker.log.read().decode("utf-8", "replace")
        _close(worker)
        return Finished(worker.index, worker.result or _died(worker.order, code), printed)

    def _end_all(self) -> None:
        for worker in self._running:
            _signal(worker, "SIGTERM")
            _signal(worker, "SIGCONT")
        deadline = time.monotonic() + _GRACE_S
        try:
            for worker in self._running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(deadline - time.monotonic(), 0))
        finally:  # also when somebody presses Ctrl-C twice
            for worker in self._running:
                worker.process.kill()
                worker.process.wait()
                _close(worker)
            self._running.clear()


def can_pause() -> bool:
    """Tell whether this system can stop a process for a while."""
    return hasattr(signal, "SIGSTOP")


def _signal(worker: _Worker, name: str) -> None:
    number = getattr(signal, name, None)
    if number is not None:
        with contextlib.suppress(OSError):
            worker.process.send_signal(number)


def _close(worker: _Worker) -> None:
    for stream in (worker.process.stdin, worker.process.stdout, worker.log):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _died(order: Order, code: int) -> JobResult:
    """Tell of a process that ended without a result."""
    error = f"internal: the job's process ended without a result (exit code {code})"
    if code < 0:  # somebody else's doing, as a rule the system's
        memory = " (out of memory?); give fewer --jobs" if -code == getattr(signal, "SIGKILL", 9) else ""
        error = f"killed: the job's process was killed by signal {-code}{memory}"
    job, why = order.task.job, order.decision.why
    blank = JobResult(job.name, "failed", order.decision.directory, job.model.name, ran=True, why=why)
    return replace(blank, exit_code=1, error=error, kind=ChildProcessError.__name__)
