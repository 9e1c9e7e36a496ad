"""Several threads count the taps of one sample."""

import threading

import numpy as np
import pytest

from int8cal.calibration import collector as module
from int8cal.calibration.collector import Collectors, TapValues, group_size
from int8cal.errors import StatisticsError
from int8cal.graph.taps import Tap

TAPS = tuple(Tap(f"t{index}", 1, 4, index % 2 == 0) for index in range(9))


def samples(count=5):
    rng = np.random.default_rng(2)
    return [
        {tap.tensor: TapValues(rng.normal(size=(1, 4, 10 + at)).astype(np.float32), 1) for at, tap in enumerate(TAPS)}
        for _ in range(count)
    ]


def counted(threads, group=1):
    with Collectors(TAPS, threads) as counting:
        named = [(str(index), sample) for index, sample in enumerate(samples())]
        for start in range(0, len(named), group):
            counting.add(named[start : start + group])
        return counting.take()


@pytest.mark.parametrize(("threads", "group"), [(2, 1), (3, 2), (20, 5), (1, 4)])
def test_threads_and_groups_leave_no_trace(monkeypatch, threads, group):
    monkeypatch.setattr(module, "_WORTH_A_THREAD", 0)
    one, many = counted(1), counted(threads, group)
    for name, statistics in one.items():
        np.testing.assert_array_equal(statistics.bins, many[name].bins)
        np.testing.assert_array_equal(statistics.counts, many[name].counts)
        np.testing.assert_array_equal(statistics.channels.total, many[name].channels.total)
        assert statistics.channels.count == many[name].channels.count


def test_a_failure_in_any_thread_is_raised_when_all_are_done(monkeypatch):
    monkeypatch.setattr(module, "_WORTH_A_THREAD", 0)
    bad = samples(1)[0]
    bad["t3"].values[0, 0, 0] = np.nan
    with Collectors(TAPS, 3) as counting, pytest.raises(StatisticsError, match="tensor 't3' holds NaN"):
        counting.add([("sample", bad)])
    assert not any("int8cal-count" in thread.name for thread in threading.enumerate())


def test_as_many_samples_wait_as_fit_into_memory():
    def tapped(values):
        return {"t": TapValues(np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (values,), (0,)), 1)}

    assert [group_size(tapped(values)) for values in (1, 10**6, 7 * 10**6, 17 * 10**6)] == [16, 16, 2, 1]
