"""Latency of two models on one feed, measured in turns so that a machine's drift hits both alike."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from int8cal.evaluation.result import Latency

if TYPE_CHECKING:
    import numpy.typing as npt

    from int8cal.runtime.sessions import Session

_WARM_UP = 3
_MAX_PAIRS = 200


def measure_latency(
    fp32: Session,
    int8: Session,
    feeds: tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]],
    *,
    rows: tuple[int, int] = (1, 1),
    budget_s: float = 3.0,
) -> Latency:
    """Time both models in interleaved pairs.

    Args:
        fp32, int8: Open sessions.
        feeds: The feed of each model, both of the same sample.
        rows: Samples in each feed (the model's fixed batch); times are divided by it.
        budget_s: Seconds after which no further pair starts, warm-up included; one pair is always measured.

    Returns:
        Medians in milliseconds per sample, and their ratio fp32 / int8.
    """
    stop = time.perf_counter() + budget_s
    for _ in range(_WARM_UP):
        fp32.run(feeds[0])
        int8.run(feeds[1])
        if time.perf_counter() > stop - budget_s / 2:
            break
    pairs: list[tuple[float, float]] = []
    while not pairs or (len(pairs) < _MAX_PAIRS and time.perf_counter() < stop):
        start = time.perf_counter()
        fp32.run(feeds[0])
        middle = time.perf_counter()
        int8.run(feeds[1])
        end = time.perf_counter()
        pairs.append((1e3 * (middle - start) / rows[0], 1e3 * (end - middle) / rows[1]))
    first, second = (statistics.median(times) for times in zip(*pairs, strict=True))
    # a clock too coarse for a tiny model must not divide by zero
    return Latency(fp32=first, int8=second, speedup=first / max(second, 1e-9))
