import numpy as np
import pytest

from int8cal.evaluation import turns
from int8cal.evaluation.latency import measure_latency
from int8cal.evaluation.turns import measure_turns


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
    monkeypatch.setattr(turns, "time", fake)
    return fake


FEEDS = ({"x": np.zeros(1)}, {"x": np.zeros(1)})


def test_latencies_are_milliseconds_and_the_speedup_their_ratio(clock):
    result = measure_latency(FakeSession(clock, 0.004), FakeSession(clock, 0.002), FEEDS)
    assert (result.fp32, result.int8, result.speedup) == pytest.approx((4.0, 2.0, 2.0))


def test_what_runs_before_the_other_model_s_threads_rest_does_not_count(clock):
    slow = (0.012, 0.012)
    result = measure_latency(FakeSession(clock, *slow, 0.004), FakeSession(clock, *slow, 0.004), FEEDS)
    assert result.fp32 == pytest.approx(4.0)


def test_a_batch_is_divided_by_its_rows(clock):
    result = measure_latency(FakeSession(clock, 0.008), FakeSession(clock, 0.002), FEEDS, rows=(4, 1))
    assert (result.fp32, result.int8, result.speedup) == pytest.approx((2.0, 2.0, 1.0))


def test_the_speedup_is_the_ratio_of_the_two_medians_shown(clock):
    first, second = FakeSession(clock, 0.1, 0.2, 0.9, 0.4), FakeSession(clock, 0.2, 0.1, 0.6, 0.4)
    result = measure_latency(first, second, FEEDS, budget_s=1.0)
    assert result.speedup == result.fp32 / result.int8


def test_each_model_has_its_turn_of_many_runs_in_every_round(clock):
    first, second = FakeSession(clock, 0.01), FakeSession(clock, 0.02)
    rounds = measure_turns((first, second), FEEDS, rounds=5, budget_s=4.0)
    assert np.array(rounds) == pytest.approx(np.tile([1e4, 2e4], (5, 1)))
    assert first.runs > 5 * 10
    assert clock.now <= 4.0 + 0.2


def test_a_model_slower_than_the_budget_is_measured_once(clock):
    first, second = FakeSession(clock, 9.0), FakeSession(clock, 3.0)
    result = measure_latency(first, second, FEEDS, budget_s=3.0)
    assert first.runs == second.runs == 2
    assert result.speedup == pytest.approx(3.0)


def test_the_speedup_has_an_interval_over_the_rounds_but_not_after_a_single_one(clock):
    uneven = [0.1 + 0.02 * (run % 3) for run in range(400)]
    result = measure_latency(FakeSession(clock, *uneven), FakeSession(clock, 0.05), FEEDS, budget_s=6.0)
    low, high = result.speedup_ci95
    assert 1.5 < low < result.speedup < high < 3.5
    once = measure_latency(FakeSession(clock, 9.0), FakeSession(clock, 3.0), FEEDS, budget_s=3.0)
    assert once.speedup_ci95 is None
