"""Whole-model times of several models, measured in turns."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from int8cal.runtime.batching import Runs

# After a run, a session's threads wait for work in a busy loop and would take a core from the next session's; they give
# up after a few milliseconds. What is measured in that time is not the model.
_SETTLE_S = 0.015


def measure_turns(
    sessions: Sequence[Runs],
    feeds: Sequence[dict[str, npt.NDArray[Any]]],
    *,
    rounds: int = 8,
    budget_s: float = 3.0,
    enough: Callable[[Sequence[tuple[float, ...]]], bool] | None = None,
) -> tuple[tuple[float, ...], ...]:
    """Time sessions in turns of many runs each.

    Args:
        sessions: Open sessions.
        feeds: The feed of each.
        rounds: How often each session has its turn.
        budget_s: Seconds after which no further round starts; one round is always measured.
        enough: Asked after each round, with all so far: whether no further one is needed.

    Returns:
        Per round the median microseconds of each session.
    """
    share = budget_s / (rounds * len(sessions))
    stop = time.perf_counter() + budget_s
    result: list[tuple[float, ...]] = []
    while not result or (len(result) < rounds and time.perf_counter() < stop):
        medians = []
        for session, feed in zip(sessions, feeds, strict=True):
            start = time.perf_counter()
            session.run(feed)
            while time.perf_counter() - start < min(_SETTLE_S, share / 2):
                session.run(feed)
            times: list[float] = []
            while not times or time.perf_counter() - start < share:
                begin = time.perf_counter()
                session.run(feed)
                times.append(1e6 * (time.perf_counter() - begin))
            medians.append(statistics.median(times))
        result.append(tuple(medians))
        if enough is not None and enough(result):
            break
    return tuple(result)
