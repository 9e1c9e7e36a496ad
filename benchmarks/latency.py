"""Latency of one sample: several models in one process, run in turns."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime

from benchmarks.models import workload
from benchmarks.request import Measured, Request
from int8cal.evaluation.latency import wait_until_quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.models import Feed

WARM_SECONDS = 0.06  # in which a session's threads find a core each


def open_session(model: Path | str | bytes, threads: int) -> Any:
    """Open a model with onnxruntime's default options, but for the number of threads and the log."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
    )


def latencies(request: Request) -> Measured:
    """Time the FP32 model ("fp32") and every rival's int8 model.

    FP32 and one rival take turns of a few runs each. The threads of an idle session spin for a while before they sleep,
    up to 50 ms on Intel's CPUs: runs that alternate one by one take up to twice their time on two cores, on both sides.
    So a turn begins when no thread is busy any more, and its first runs are not counted.

    Returns:
        In `series`, tool -> milliseconds per sample, one median per round; every rival has an FP32 series of its own
        rounds, "fp32:<tool>".
    """
    found = workload(request.model, Path(request.folder), Path(request.zoo))
    feed = found.sample(0)
    fp32 = open_session(found.path, request.threads)
    rivals = {name: open_session(path, request.threads) for name, path in request.rivals.items()}
    turns = [(label, each) for name, rival in rivals.items() for label, each in ((f"fp32:{name}", fp32), (name, rival))]
    return Measured(series=in_turns(turns, [feed], request.rounds, request.repeat, WARM_SECONDS))


def in_turns(
    turns: Sequence[tuple[str, Any]],
    feeds: Sequence[Feed],
    rounds: int,
    repeat: int,
    warm: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Let sessions take turns of `repeat` runs.

    Args:
        turns: (label, session) in the order of a round.
        feeds: What each of them runs, one after the other and over again.
        rounds: Rounds that count; one comes before them, in which sessions allocate.
        repeat: Runs of a turn that count; one comes before them.
        warm: Seconds of runs before those, after the other sessions' threads have fallen asleep; 0 for one thread.
        clock: Seconds, of the wall or of this process's CPU time.

    Returns:
        Label -> milliseconds, the median of each turn.
    """
    series: dict[str, list[float]] = {label: [] for label, _ in turns}
    for number in range(rounds + 1):
        for label, session in turns:
            if warm:
                wait_until_quiet()
                until = time.perf_counter() + warm
                while time.perf_counter() < until:
                    session.run(None, feeds[0])
            times = []
            for run in range(repeat + 1):
                feed = feeds[(number * (repeat + 1) + run) % len(feeds)]
                started = clock()
                session.run(None, feed)
                times.append(1e3 * (clock() - started))
            if number:
                series[label].append(statistics.median(times[1:]))
    return series
