"""Latency of two models on one feed, measured in turns so that a machine's drift hits both alike."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from int8cal.evaluation.result import Latency
from int8cal.evaluation.turns import measure_turns

if TYPE_CHECKING:
    import numpy.typing as npt

    from int8cal.runtime.sessions import Session


def measure_latency(
    fp32: Session,
    int8: Session,
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
        Medians in milliseconds per sample, and their ratio fp32 / int8.
    """
    rounds = measure_turns((fp32, int8), feeds, budget_s=budget_s)
    medians = (statistics.median(times) for times in zip(*rounds, strict=True))
    first, second = (1e-3 * microseconds / count for microseconds, count in zip(medians, rows, strict=True))
    # a clock too coarse for a tiny model must not divide by zero
    return Latency(fp32=first, int8=second, speedup=first / max(second, 1e-9))
