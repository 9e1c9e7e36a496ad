"""Running workers: one process per job and round, contestants interleaved within one run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.errors import BenchmarkError
from benchmarks.request import Measured, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
# libraries that start threads of their own take their number from here
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def run(request: Request) -> Measured:
    """Do one job in a new process.

    Raises:
        BenchmarkError: The tool failed; the message is its own first line.
    """
    # it runs elsewhere: some tools leave files where they run
    request = replace(request, zoo=str(Path(request.zoo).absolute()))
    text = json.dumps(asdict(request))
    done, process = _timed([sys.executable, "-m", "benchmarks.worker"], request.threads, text, str(ROOT))
    try:
        answer = json.loads(done.out)
    except json.JSONDecodeError:
        raise BenchmarkError(
            f"{request.tool}: the worker ended with status {done.status}: {done.last_line()}"
        ) from None
    if "error" in answer:
        raise BenchmarkError(f"{request.tool}: {answer['error']}")
    return replace(Measured(**answer), process_seconds=process.process_seconds, cpu_seconds=process.cpu_seconds)


def run_command(tool: str, command: Sequence[str], threads: int) -> Measured:
    """Run a command as a user does; its span is all of it.

    Raises:
        BenchmarkError: It did not end with status 0; the message is its last line.
    """
    done, process = _timed(command, threads)
    if done.status:
        raise BenchmarkError(f"{tool}: the command ended with status {done.status}: {done.last_line()}")
    return replace(process, seconds=process.process_seconds)


def _timed(command: Sequence[str], threads: int, text: str = "", imports: str = "") -> tuple[_Ended, Measured]:
    """Run a process to its end, in a folder of its own: what it said, and its seconds, CPU seconds and peak memory."""
    paths = os.pathsep.join(filter(None, [imports, os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads)), "PYTHONPATH": paths}
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        given, out, err = (stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3))
        given.write(text)
        given.seek(0)
        usage = scratch / "usage.json"
        launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(usage), *command]
        subprocess.run(launch, stdin=given, stdout=out, stderr=err, cwd=scratch, env=environment, check=True)
        status, seconds, cpu, peak = json.loads(usage.read_text(encoding="utf-8"))
        told = []
        for stream in (out, err):
            stream.seek(0)
            told.append(stream.read())
    status = os.waitstatus_to_exitcode(status)
    return _Ended(status, *told), Measured(peak_mb=peak / 1e6, process_seconds=seconds, cpu_seconds=cpu)


# A process's peak memory begins at that of the one that started it, which here holds models: a small one stands
# between. No other call than wait4 tells the usage of one process alone.
_LAUNCH = """
import json, os, sys, time
started = time.perf_counter()
process = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(process, 0)
seconds = time.perf_counter() - started
with open(sys.argv[1], "w") as file:
    json.dump([status, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024], file)
"""


class _Ended(NamedTuple):
    status: int
    out: str
    err: str

    def last_line(self) -> str:
        return (self.err.strip().splitlines() or ["no message"])[-1]


def interleave(
    requests: Mapping[str, Request],
    rounds: int,
    report: Callable[[str], None],
    perform: Callable[[Request], Measured] = run,
) -> tuple[dict[str, list[Measured]], dict[str, str]]:
    """Run all contestants once per round, the order turned around every other round.

    Args:
        requests: Contestant -> job. A first round over two samples fills compile and file caches, and is not counted.
        rounds: How many are counted.
        report: Takes a line on what is running.
        perform: Does a job in a new process.

    Returns:
        (contestant -> one measurement per round, contestant -> why it failed). A contestant that fails is left out.
    """
    failed: dict[str, str] = {}
    measured: dict[str, list[Measured]] = {name: [] for name in requests}
    for number in range(rounds + 1):
        order = list(requests)[:: 1 if number % 2 else -1]
        for name in order:
            if name in failed:
                continue
            request = requests[name]
            report(f"{request.model}: {name}, " + (f"round {number} of {rounds}" if number else "warm-up"))
            try:
                result = perform(request if number else replace(request, samples=min(request.samples, 2)))
            except BenchmarkError as error:
                failed[name] = str(error)
                continue
            if number:
                measured[name].append(result)
    return {name: results for name, results in measured.items() if name not in failed}, failed
