"""The other end of `benchmarks.run`: one job in a process of its own, so that its peak memory is its own.

    python -m benchmarks.worker < request.json

What tools print goes to stderr; stdout carries the answer alone, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace

from benchmarks.errors import BenchmarkError
from benchmarks.machine import peak_mb
from benchmarks.request import Measured, Request


def perform(request: Request) -> Measured:
    """Do the job in this process.

    Raises:
        BenchmarkError: There is no such tool, or it cannot do this.
    """
    from benchmarks.latency import latencies
    from benchmarks.tools import TOOLS

    if request.action == "latency":
        return latencies(request)
    tool = TOOLS.get(request.tool)
    task = None if tool is None else tool.tasks().get(request.action)
    if task is None:
        raise BenchmarkError(f'no tool "{request.tool}" that can {request.action}; there are {", ".join(TOOLS)}')
    return task(request)


def main() -> int:
    """Read a request, answer it."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    answer: dict[str, object]
    try:
        measured = perform(Request(**json.load(sys.stdin)))
        answer = asdict(replace(measured, peak_mb=peak_mb()))
    except Exception as error:  # noqa: BLE001 - a tool that fails is a line in the table, not the end of the run
        text = str(error).strip() or type(error).__name__
        kind = "" if isinstance(error, BenchmarkError) else f"{type(error).__name__}: "
        answer = {"error": (kind + text.splitlines()[0])[:300]}
    with os.fdopen(answer_to, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)
    return 0


if __name__ == "__main__":
    sys.exit(main())
