import numpy as np
import pytest

from int8cal.evaluation import latency
from int8cal.evaluation.latency import measure_latency


class FakeClock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


class FakeSession:
    """Takes the given seconds, one after the other, and the last one from then on."""

    def __init__(self, clock, *seconds):
        self.clock, self.seconds, self.runs = clock, list(seconds), 0

    def run(self, feed):
        self.clock.now += self.seconds[min(self.runs, len(self.seconds) - 1)]
        self.runs += 1


@pytest.fixture
def clock(monkeypatch):
    fake = FakeClock()
    monkeypatch.setattr(latency, "time", fake)
    return fake


FEEDS = ({"x": np.zeros(1)}, {"x": np.zeros(1)})


def test_latencies_are_milliseconds_and_the_speedup_their_ratio(clock):
    result = measure_latency(FakeSession(clock, 0.004), FakeSession(clock, 0.002), FEEDS)
    assert (result.fp32, result.int8, result.speedup) == pytest.approx((4.0, 2.0, 2.0))


def test_the_warm_up_does_not_count(clock):
    result = measure_latency(FakeSession(clock, 0.2, 0.2, 0.2, 0.004), FakeSession(clock, 0.2, 0.2, 0.2, 0.004), FEEDS)
    assert result.fp32 == pytest.approx(4.0)


def test_a_batch_is_divided_by_its_rows(clock):
    result = measure_latency(FakeSession(clock, 0.008), FakeSession(clock, 0.002), FEEDS, rows=(4, 1))
    assert (result.fp32, result.int8, result.speedup) == pytest.approx((2.0, 2.0, 1.0))


def test_the_speedup_is_the_ratio_of_the_two_medians_shown(clock):
    warm = (0.001,) * 3
    result = measure_latency(
        FakeSession(clock, *warm, 0.002, 0.004, 0.9), FakeSession(clock, *warm, 0.001, 0.004, 0.6), FEEDS, budget_s=1.0
    )
    assert (result.fp32, result.int8) == pytest.approx((4.0, 4.0))
    assert result.speedup == result.fp32 / result.int8


def test_the_models_take_turns_and_stop_with_the_budget(clock):
    first, second = FakeSession(clock, 0.1), FakeSession(clock, 0.1)
    measure_latency(first, second, FEEDS, budget_s=3.0)
    assert first.runs == second.runs
    assert clock.now <= 3.0 + 0.2 + 1e-9


def test_a_model_slower_than_the_budget_is_measured_once(clock):
    first, second = FakeSession(clock, 9.0), FakeSession(clock, 3.0)
    result = measure_latency(first, second, FEEDS, budget_s=3.0)
    assert first.runs == second.runs == 2
    assert result.speedup == pytest.approx(3.0)
