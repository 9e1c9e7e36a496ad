"""Several threads count the taps of one sample."""

import threading

import numpy as np
import pytest

from int8cal.calibration.engines import counting as module
from int8cal.calibration.engines.counting import Counting, Tapped
from int8cal.errors import StatisticsError
from int8cal.graph.taps import Tap

TAPS = tuple(Tap(f"t{index}", 1, 4, index % 2 == 0) for index in range(9))


def samples(count=5):
    rng = np.random.default_rng(2)
    return [
        {tap.tensor: Tapped(rng.normal(size=(1, 4, 10 + at)).astype(np.float32), 1) for at, tap in enumerate(TAPS)}
        for _ in range(count)
    ]


def counted(threads):
    with Counting(TAPS, threads) as counting:
        for index, sample in enumerate(samples()):
            counting.add(sample, str(index))
        return counting.result()


@pytest.mark.parametrize("threads", [2, 3, 20])
def test_the_number_of_threads_leaves_no_trace(monkeypatch, threads):
    monkeypatch.setattr(module, "_WORTH_A_THREAD", 0)
    one, many = counted(1), counted(threads)
    for name, statistics in one.items():
        np.testing.assert_array_equal(statistics.bins, many[name].bins)
        np.testing.assert_array_equal(statistics.counts, many[name].counts)
        np.testing.assert_array_equal(statistics.channels.total, many[name].channels.total)
        assert statistics.channels.count == many[name].channels.count


def test_a_failure_in_any_thread_is_raised_when_all_are_done(monkeypatch):
    monkeypatch.setattr(module, "_WORTH_A_THREAD", 0)
    bad = samples(1)[0]
    bad["t3"].values[0, 0, 0] = np.nan
    with Counting(TAPS, 3) as counting, pytest.raises(StatisticsError, match="tensor 't3' holds NaN"):
        counting.add(bad, "sample")
    assert not any("int8cal-count" in thread.name for thread in threading.enumerate())
