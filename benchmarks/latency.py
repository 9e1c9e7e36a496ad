"""Latency of one sample: several models in one process, run in turns."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime

from benchmarks.models import workload
from benchmarks.request import Measured, Request

if TYPE_CHECKING:
    from benchmarks.models import Feed

PAUSE_SECONDS = 0.03


def open_session(model: Path | str, threads: int) -> Any:
    """Open a model with onnxruntime's default options, but for the number of threads and the log."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def latencies(request: Request) -> Measured:
    """Time the FP32 model ("fp32") and every rival's int8 model.

    FP32 and one rival take turns of a few runs each. The threads of an idle session spin for a while before they sleep:
    runs that alternate one by one take up to twice their time on two cores, on both sides. So a turn begins with a
    pause, and its first run is not counted.

    Returns:
        In `series`, tool -> milliseconds per sample, one median per round; every rival has an FP32 series of its own
        rounds, "fp32:<tool>".
    """
    found = workload(request.model, Path(request.folder), Path(request.zoo))
    feed = found.sample(0)
    fp32 = open_session(found.path, request.threads)
    rivals = {name: open_session(path, request.threads) for name, path in request.rivals.items()}
    series: dict[str, list[float]] = {}
    for number in range(request.rounds + 1):
        for name, session in rivals.items():
            for label, each in ((f"fp32:{name}", fp32), (name, session)):
                milliseconds = _turn(each, feed, request.repeat)
                if number:  # the first round allocates
                    series.setdefault(label, []).append(milliseconds)
    return Measured(series=series)


def _turn(session: Any, feed: Feed, repeat: int) -> float:
    """Return the median milliseconds of `repeat` runs in a row, after a pause and one run more."""
    time.sleep(PAUSE_SECONDS)
    times = []
    for _ in range(repeat + 1):
        started = time.perf_counter()
        session.run(None, feed)
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[1:])
