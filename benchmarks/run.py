"""Running workers: one process per job and round, contestants interleaved within one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.errors import BenchmarkError
from benchmarks.request import Measured, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parents[1]
# libraries that start threads of their own take their number from here
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def run(request: Request) -> Measured:
    """Do one job in a new process.

    Raises:
        BenchmarkError: The tool failed; the message is its own first line.
    """
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(request.threads))}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.worker"],
        input=json.dumps(asdict(request)),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    seconds = time.perf_counter() - started
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BenchmarkError(f"{request.tool}: the worker ended with status {done.returncode}: {last}") from None
    if "error" in answer:
        raise BenchmarkError(f"{request.tool}: {answer['error']}")
    return replace(Measured(**answer), process_seconds=seconds)


def interleave(
    requests: Mapping[str, Request], rounds: int, report: Callable[[str], None]
) -> tuple[dict[str, list[Measured]], dict[str, str]]:
    """Run all contestants once per round, the order turned around every other round.

    Args:
        requests: Contestant -> job. A first round over two samples fills compile and file caches, and is not counted.
        rounds: How many are counted.
        report: Takes a line on what is running.

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
                result = run(request if number else replace(request, samples=min(request.samples, 2)))
            except BenchmarkError as error:
                failed[name] = str(error)
                continue
            if number:
                measured[name].append(result)
    return {name: results for name, results in measured.items() if name not in failed}, failed
