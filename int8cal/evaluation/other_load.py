"""Other processes' load: which runs it disturbed, and what a model takes without it.

A run that loses its core waits for another process's time slice, some milliseconds. A model that takes about as long
is disturbed in nearly every run, one of a third of that in few: medians of all runs would put the first one's wait into
their ratio. Linux tells each thread's CPU time, and for how long it wanted a core and had none. Elsewhere nothing is
known, and every run counts.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TASKS = Path("/proc/self/task")
# Of a turn's time, for each thread: up to that, the median of all runs is right.
_WAITED = 0.05
# Of the time of as many cores as threads: what a run has where nothing disturbs it, since idle threads spin.
_HELD = 0.9
_FEW = 3  # undisturbed runs: their median is the turn's time


@dataclass(frozen=True)
class TimedRun:
    """One run of a model, in seconds: on the clock, of CPU time, and from before to after both were read."""

    wall: float
    cpu: float
    around: float


def thread_times() -> dict[int, float]:
    """Return CPU seconds of each thread of this process, by the number of its clock; nothing where Linux has none.

    Numerics: `time.process_time` counts the other threads up to their last tick alone, up to four milliseconds ago.
    These clocks are exact (clock_getcpuclockid(3) makes their numbers in the same way).
    """
    found = {}
    for name in _listed():
        clock = ~int(name) << 3 | 6
        try:
            found[clock] = time.clock_gettime(clock)
        except OSError:  # the thread has ended
            continue
    return found


def at_work(before: Mapping[int, float]) -> tuple[int, ...]:
    """Return the clocks of the threads that worked since `thread_times` gave these times."""
    return tuple(clock for clock, seconds in thread_times().items() if seconds > before.get(clock, 0.0))


def cpu_s(clocks: Sequence[int]) -> float:
    """Sum the seconds of clocks; NaN where there are none, or a thread has ended."""
    try:
        return sum(map(time.clock_gettime, clocks)) if clocks else math.nan
    except OSError:
        return math.nan


def waited_s() -> float:
    """Return for how many seconds threads of this process have wanted a core and had none; 0 where that is unknown."""
    waited = 0
    for name in _listed():
        try:
            waited += int((_TASKS / name / "schedstat").read_bytes().split()[1])
        except (OSError, IndexError):
            continue
    return 1e-9 * waited


def _listed() -> list[str]:
    try:
        return os.listdir(_TASKS)  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []


def without_load(runs: Sequence[TimedRun], waited: float, threads: int) -> tuple[float | None, float]:
    """Tell what a model takes without other load.

    Args:
        runs: Of one turn, at least one.
        waited: Seconds that threads waited for a core during the turn, in all.
        threads: Of the model's session.

    Returns:
        Seconds, None where too few runs had a core for each thread all the time; and a guess from disturbed runs, the
        lower quartile of the CPU time of each thread. Of one thread that is what the model takes, but for what caches
        lost. Several threads do a disturbed one's work, or wait for it in a busy loop: there it is a guess.
    """
    if waited <= _WAITED * threads * sum(run.around for run in runs):
        median = statistics.median(run.wall for run in runs)
        return median, median
    guess = sorted(min(run.wall, run.cpu / threads) for run in runs)[len(runs) // 4]
    alone = [run.wall for run in runs if run.cpu >= _HELD * threads * run.around]
    if len(alone) >= _FEW:
        return statistics.median(alone), guess
    return (guess if threads == 1 else None), guess
