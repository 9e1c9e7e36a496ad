"""Latency of two models on one feed, measured in turns so that a machine's drift hits both alike."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from int8cal.evaluation.result import Latency
from int8cal.evaluation.turns import measure_turns
from int8cal.numerics.intervals import ratio_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from int8cal.runtime.batching import Runs


def measure_latency(
    fp32: Runs,
    int8: Runs,
    feeds: tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]],
    *,
    rows: tuple[int, int] = (1, 1),
    budget_s: float = 3.0,
) -> Latency:
    """Time both models in turns of many runs: single runs in turn would measure how their threads disturb each other.

    Args:
        fp32, int8: Open sessions.
        feeds: The feed of each model, both of the same sample.
        rows: Samples in each feed (the model's fixed batch); times are divided by it.
        budget_s: Seconds after which no further round of turns starts, warm-up included; one is always measured.

    Returns:
        Medians in milliseconds per sample, and their ratio fp32 / int8, with its interval over the rounds.
    """
    return measure_latencies([(fp32, int8)], feeds, rows=rows, budget_s=budget_s)[0]


def measure_latencies(
    pairs: Sequence[tuple[Runs, Runs]],
    feeds: tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]],
    *,
    rows: tuple[int, int] = (1, 1),
    budget_s: float = 3.0,
) -> tuple[Latency, ...]:
    """Time both models in several runtimes, as `measure_latency` does, all in the same turns.

    Args:
        pairs: Open sessions of the FP32 and the int8 model, of each runtime.
        feeds, rows: As there.
        budget_s: As there, of one pair.

    Returns:
        As there, of each pair.
    """
    sessions = [session for pair in pairs for session in pair]
    rounds = measure_turns(sessions, feeds * len(pairs), budget_s=budget_s * len(pairs))
    found = []
    for number in range(0, len(sessions), 2):
        # a clock too coarse for a tiny model must not divide by zero
        times = [[max(1e-3 * each[number + side] / rows[side], 1e-9) for each in rounds] for side in (0, 1)]
        first, second = (statistics.median(each) for each in times)
        speedup = first / second
        found.append(Latency(first, second, speedup, ratio_interval(times[0], times[1], speedup)))
    return tuple(found)
