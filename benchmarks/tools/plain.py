"""What nobody can go below: plain FP32 inference, and reading memory."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.latency import open_session
from benchmarks.models import workload
from benchmarks.request import Measured, Request
from benchmarks.samples import endless, stored_samples

READ_BYTES = 1 << 28
READ_TIMES = 5


def infer(request: Request) -> Measured:
    """Run every sample alone through the FP32 model; the span is opening the session and the pass."""
    folder = Path(request.folder)
    found = workload(request.model, folder, Path(request.zoo))
    samples = (endless if request.streamed else stored_samples)(found, request.samples, folder)
    started = time.perf_counter()
    session = open_session(found.path, request.threads)
    opened = time.perf_counter()
    for feed in samples:
        session.run(None, feed)
    ended = time.perf_counter()
    return Measured(ended - started, {"session": opened - started, "pass": ended - opened})


def read(request: Request) -> Measured:
    """Measure how fast memory is read: float32 sums over an array far larger than the caches, with all threads."""
    array = np.ones(READ_BYTES // 4, np.float32)
    parts = np.array_split(array, request.threads)
    with ThreadPoolExecutor(request.threads) as pool:
        list(pool.map(np.sum, parts))
        started = time.perf_counter()
        for _ in range(READ_TIMES):
            list(pool.map(np.sum, parts))
        seconds = time.perf_counter() - started
    return Measured(seconds, facts={"gb_per_s": READ_TIMES * array.nbytes / seconds / 1e9})


TASKS = {"plain": {"calibrate": infer}, "read": {"calibrate": read}}
