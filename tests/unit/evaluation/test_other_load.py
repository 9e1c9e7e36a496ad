import math
import sys
import threading
import time

import pytest

from int8cal.evaluation import other_load
from int8cal.evaluation.other_load import TimedRun, at_work, cpu_s, thread_times, waited_s, without_load

QUIET = [TimedRun(0.002, 0.002, 0.002)] * 4
LOST = [TimedRun(0.006, 0.003, 0.006)] * 4


@pytest.mark.parametrize(
    ("runs", "waited", "threads", "expected"),
    [
        (QUIET, 0.0, 1, (0.002, 0.002)),
        (QUIET, 0.0, 2, (0.002, 0.002)),  # the second thread has nothing to do
        (LOST, 0.0, 1, (0.006, 0.006)),  # unknown whether it waited: all runs count
        (LOST, 0.012, 1, (0.003, 0.003)),
        (LOST, 0.012, 2, (None, 0.0015)),
        ([*LOST, *QUIET[:3]], 0.012, 1, (0.002, 0.002)),
        ([*LOST, *QUIET[:2]], 0.012, 1, (0.002, 0.002)),  # the lower quartile of CPU time
        ([TimedRun(0.006, math.nan, 0.006)], 0.003, 1, (0.006, 0.006)),
    ],
)
def test_disturbed_runs_do_not_count_where_threads_waited(runs, waited, threads, expected):
    assert without_load(runs, waited, threads) == pytest.approx(expected)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_clocks_are_those_of_the_threads_that_worked():
    stop, ready = threading.Event(), threading.Event()

    def idle():
        ready.set()
        stop.wait()

    thread = threading.Thread(target=idle)
    thread.start()
    ready.wait()
    try:
        before = thread_times()
        assert len(before) >= 2
        began = time.thread_time()
        sum(range(100_000))
        clocks = at_work(before)
        assert 0 < len(clocks) < len(before)
        assert cpu_s(clocks) > began
    finally:
        stop.set()
        thread.join()
    for _ in range(1000):  # one of them ends, which the system may do a little behind `join`
        if math.isnan(cpu_s(tuple(before))):
            break
        time.sleep(0.01)
    assert math.isnan(cpu_s(tuple(before)))
    assert waited_s() >= 0


def test_a_system_that_does_not_tell_gives_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(other_load, "_TASKS", tmp_path / "none")
    assert (thread_times(), waited_s()) == ({}, 0.0)
    assert math.isnan(cpu_s(()))
