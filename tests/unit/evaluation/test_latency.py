import numpy as np
import onnx
import pytest

from int8cal.evaluation import latency
from int8cal.evaluation.latency import layer_costs, layer_links, measure_interleaved, measure_latencies
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.runtime.profile import Profile, profile_kernels


class FakeClock:
    """Time that passes in runs and in sleep; `spinning` seconds behind each run another thread is busy."""

    def __init__(self):
        self.now, self.cpu, self.spinning, self.busy_until = 0.0, 0.0, 0.0, 0.0
        self.waited = 0.0  # for a core, which other processes had

    def perf_counter(self):
        return self.now

    def process_time(self):
        return self.cpu

    def sleep(self, seconds):
        self.cpu += max(min(self.busy_until - self.now, seconds), 0.0)
        self.now += seconds

    def run(self, seconds):
        self.now += seconds
        self.cpu += seconds
        self.busy_until = self.now + self.spinning


class FakeSession:
    """Takes the given seconds, one after the other, and the last one from then on."""

    def __init__(self, clock, *seconds):
        self.clock, self.seconds, self.runs = clock, list(seconds), 0

    def run(self, feed):
        self.clock.run(self.seconds[min(self.runs, len(self.seconds) - 1)])
        self.runs += 1


@pytest.fixture
def clock(monkeypatch):
    fake = FakeClock()
    monkeypatch.setattr(latency, "time", fake)
    monkeypatch.setattr(latency, "thread_times", dict)
    monkeypatch.setattr(latency, "at_work", lambda before: (1,))
    monkeypatch.setattr(latency, "cpu_s", lambda clocks: fake.cpu)
    monkeypatch.setattr(latency, "waited_s", lambda: fake.waited)
    return fake


FEEDS = ({"x": np.zeros(1)}, {"x": np.zeros(1)})


def measure_latency(fp32, int8, feeds, **settings):
    found, _ = measure_latencies({"here": (fp32, int8)}, feeds, **settings)
    return found["here"]


def test_latencies_are_milliseconds_and_the_speedup_their_ratio(clock):
    result = measure_latency(FakeSession(clock, 0.004), FakeSession(clock, 0.002), FEEDS)
    assert (result.fp32, result.int8, result.speedup) == pytest.approx((4.0, 2.0, 2.0))


class DisturbedSession(FakeSession):
    """Takes three times as long while another session's threads spin, and for its first runs in a turn."""

    def __init__(self, clock, seconds, slow_runs):
        super().__init__(clock, seconds)
        self.slow_runs, self.ended, self.in_turn = slow_runs, -1.0, 0

    def run(self, feed):
        disturbed = self.ended != self.clock.now and self.clock.now < self.clock.busy_until
        self.in_turn = self.in_turn + 1 if self.ended == self.clock.now else 1
        self.clock.run(self.seconds[0] * (3 if disturbed or self.in_turn <= self.slow_runs else 1))
        self.ended = self.clock.now


@pytest.mark.parametrize(("spinning", "slow_runs"), [(0.0, 2), (0.06, 0), (0.06, 6)])
def test_what_runs_before_threads_rest_and_have_found_their_cores_does_not_count(clock, spinning, slow_runs):
    """As on CPUs whose pause instruction is slow: the turns are shorter than that takes."""
    clock.spinning = spinning
    pairs = {name: tuple(DisturbedSession(clock, each, slow_runs) for each in (0.004, 0.003)) for name in "ab"}
    found, _ = measure_latencies(pairs, FEEDS)
    for result in found.values():
        assert (result.fp32, result.int8) == pytest.approx((4.0, 3.0))


def test_a_machine_that_became_slower_is_not_waited_for_for_ever(clock):
    seconds = [0.001] * 150 + [0.002]
    rounds = measure_interleaved((FakeSession(clock, *seconds),), FEEDS[:1], rounds=3, budget_s=0.3)
    assert [each for (each,) in rounds] == pytest.approx([1e3, 2e3, 2e3])
    assert clock.now < 0.6


def test_a_batch_is_divided_by_its_rows(clock):
    result = measure_latency(FakeSession(clock, 0.008), FakeSession(clock, 0.002), FEEDS, rows=(4, 1))
    assert (result.fp32, result.int8, result.speedup) == pytest.approx((2.0, 2.0, 1.0))


def test_the_speedup_is_the_ratio_of_the_two_medians_shown(clock):
    first, second = FakeSession(clock, 0.1, 0.2, 0.9, 0.4), FakeSession(clock, 0.2, 0.1, 0.6, 0.4)
    result = measure_latency(first, second, FEEDS, budget_s=1.0)
    assert result.speedup == result.fp32 / result.int8


def test_each_model_has_its_turn_of_many_runs_in_every_round(clock):
    first, second = FakeSession(clock, 0.01), FakeSession(clock, 0.02)
    rounds = measure_interleaved((first, second), FEEDS, rounds=5, budget_s=4.0)
    assert np.array(rounds) == pytest.approx(np.tile([1e4, 2e4], (5, 1)))
    assert first.runs > 5 * 10
    assert clock.now <= 4.0 + 0.4  # the first turns settle longer


def test_a_turn_of_a_fast_model_ends_after_enough_runs(clock):
    sessions = [FakeSession(clock, 2.0**-14) for _ in range(2)]
    measure_latency(*sessions, FEEDS)
    # a second turn on end begins at once: of the first session between rounds 2 and 3, of the other behind 1 and 3
    assert [session.runs for session in sessions] == [820 + 2 * 246 + 4 * 300, 820 + 246 + 4 * 300]


def test_every_second_round_goes_backwards_so_that_drift_hits_all_alike(clock):
    order = []

    class Named(FakeSession):
        def run(self, feed):
            super().run(feed)
            if order[-1:] != [self]:
                order.append(self)

    sessions = [Named(clock, 0.01) for _ in range(3)]
    measure_interleaved(sessions, FEEDS[:1] * 3, rounds=3, budget_s=3.0)
    assert [sessions.index(each) for each in order] == [0, 1, 2, 1, 0, 1, 2]


@pytest.mark.parametrize(("noise", "rounds"), [(1.01, 4), (1.2, 6)])
def test_rounds_end_when_every_interval_is_narrow(clock, noise, rounds):
    uneven = np.random.default_rng(1).choice([0.5, 0.5 * noise], size=100)
    pairs = {name: (FakeSession(clock, 0.5), FakeSession(clock, *each)) for name, each in (("a", [0.3]), ("b", uneven))}
    found, _ = measure_latencies(pairs, FEEDS, budget_s=90.0)
    assert {each.rounds for each in found.values()} == {rounds}


def test_short_turns_are_enough_and_slow_models_have_longer_ones(clock):
    measure_latency(FakeSession(clock, 0.002), FakeSession(clock, 0.001), FEEDS)
    assert 0.35 < clock.now < 0.6
    clock.now = 0.0
    uneven = FakeSession(clock, *([0.2, 0.3] * 9))
    result = measure_latency(uneven, FakeSession(clock, 0.1), FEEDS)
    assert result.rounds == 5  # of 0.7 s and less: after 3 s no further one starts


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


class PreemptedSession(FakeSession):
    """Shares its core: every 4 ms another process has it for 4 ms. Of two threads the second one has no core then."""

    def __init__(self, clock, seconds, threads=1, *, busy=lambda now: True):
        super().__init__(clock, seconds)
        self.threads, self.busy = threads, busy

    def run(self, feed):
        clock, left = self.clock, self.seconds[0]
        while left > 1e-9:
            passed = clock.now % 0.008
            step = min((0.004 if passed < 0.004 else 0.008) - passed + 1e-9, left)
            waits = passed >= 0.004 and self.busy(clock.now)
            clock.now += step
            clock.waited += step * waits
            clock.cpu += step * (self.threads - waits)
            left -= step * (1 - waits / self.threads)


def test_waiting_for_a_core_is_not_in_the_times(clock):
    """The float model's median run is disturbed, the int8 model's is not."""
    result = measure_latency(PreemptedSession(clock, 0.0023), PreemptedSession(clock, 0.001), FEEDS, threads=1)
    assert (result.fp32, result.int8) == pytest.approx((2.3, 1.0), rel=1e-3)
    low, high = result.speedup_ci95
    assert 2.2 < low <= high < 2.4


def test_cpu_time_counts_where_every_run_of_one_thread_is_disturbed(clock):
    result = measure_latency(PreemptedSession(clock, 0.03), PreemptedSession(clock, 0.001), FEEDS, threads=1)
    assert result.speedup == pytest.approx(30.0, rel=1e-2)


def test_undisturbed_runs_of_several_threads_count(clock):
    pair = PreemptedSession(clock, 0.0023, 2), PreemptedSession(clock, 0.001, 2)
    result = measure_latency(*pair, FEEDS, threads=2)
    assert (result.fp32, result.int8) == pytest.approx((2.3, 1.0), rel=1e-3)
    assert result.speedup_ci95 is not None


def test_a_speedup_of_several_threads_is_a_guess_where_none_was_undisturbed_and_has_no_interval(clock):
    pairs = {name: (PreemptedSession(clock, 0.03, 2), PreemptedSession(clock, 0.001, 2)) for name in "ab"}
    found, fastest = measure_latencies(pairs, FEEDS, threads=2)
    assert all(each.rounds > 1 and each.speedup_ci95 is None for each in found.values())
    assert fastest.gain_ci95 is None
    assert 2 < clock.now < 7  # longer turns, within the budget


def test_a_model_whose_second_thread_has_nothing_to_do_is_not_taken_for_a_disturbed_one(clock):
    result = measure_latency(FakeSession(clock, 0.002), FakeSession(clock, 0.001), FEEDS, threads=2)
    assert result.speedup_ci95 is not None
    assert clock.now < 1.1


def test_a_gain_is_held_against_the_first_runtime_or_the_next_best_where_that_is_the_fastest(clock):
    def timed(*milliseconds):
        pairs = {name: (FakeSession(clock, 0.01), FakeSession(clock, 0.001 * each)) for name, each in milliseconds}
        return measure_latencies(pairs, FEEDS)

    found, fastest = timed(("a", 6.0), ("b", 4.0), ("c", 3.0))
    assert [each.int8 for each in found.values()] == pytest.approx([6.0, 4.0, 3.0])
    assert (fastest.runtime, fastest.against, fastest.gain) == ("c", "a", pytest.approx(2.0))
    low, high = fastest.gain_ci95
    assert low <= fastest.gain <= high
    _, fastest = timed(("a", 3.0), ("b", 9.0), ("c", 6.0))
    assert (fastest.runtime, fastest.against, fastest.gain) == ("a", "c", pytest.approx(2.0))
    assert timed(("a", 3.0))[1] is None


def test_a_further_runtime_takes_as_long_as_the_first(clock):
    pairs = {name: (FakeSession(clock, 0.004), FakeSession(clock, 0.002)) for name in ("here", "there")}
    found, _ = measure_latencies(pairs, FEEDS)
    assert 0.8 < clock.now < 1.2
    assert found["there"].rounds == 4


# A profile's kernel times, summed up per layer.
DOMAINS = ', "com.microsoft" : 1'
TEXT = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { c = Conv(x, W) r = Relu(c) s = Sqrt(r) y = Conv(s, V) }"
FP32 = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
    xr = com.microsoft.ReorderInput(x) rr = com.microsoft.Conv(xr, W) r = com.microsoft.ReorderOutput(rr)
    s = Sqrt(r) sr = com.microsoft.ReorderInput(s) yr = com.microsoft.Conv(sr, V) y = com.microsoft.ReorderOutput(yr)
}"""
FP32_TIMES = {"in1": 1.0, "Conv_c": 10.0, "out1": 2.0, "Sqrt_s": 4.0, "in2": 8.0, "Conv_y": 20.0, "out2": 16.0}


def named(model, names):
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    return model


def profiled(bench, text, times, **weights):
    return Profile(named(bench.text(text, domains=DOMAINS, **weights), times), times)


def test_borders_count_with_the_layer_that_they_serve_and_other_nodes_with_none(bench):
    model = bench.prepared(bench.text(TEXT, W=(4, 4, 1, 1), V=(4, 4, 1, 1))).model
    plan = make_plan(model, Selection())
    both = profiled(bench, FP32, FP32_TIMES)
    (first, second) = layer_costs(plan, (both, model), (both, model))
    assert (first.node, first.fp32_us, first.int8_us) == ("Conv_c", 13.0, 13.0)
    assert (second.node, second.fp32_us, second.op_type) == ("Conv_y", 44.0, "Conv")


def test_a_layer_that_the_profile_does_not_know_is_left_out(bench):
    model = bench.prepared(bench.text(TEXT, W=(4, 4, 1, 1), V=(4, 4, 1, 1))).model
    nothing = Profile(onnx.ModelProto(), {})
    assert layer_costs(make_plan(model, Selection()), (nothing, model), (nothing, model)) == ()


@pytest.mark.newest  # where channels come last is the runtime's matter
def test_kernels_that_take_channels_last_count_for_their_layers(bench):
    """They are new nodes; where nodes are called as what they give, so are their outputs."""
    text = """g (float[N,16,16,4] x) => (float[A,B,C,D] y) {
        t = Transpose <perm = [0, 3, 1, 2]> (x)
        a = Conv(t, W) r = Relu(a) b = Conv(r, V) s = Relu(b) c = Conv(s, V) u = Transpose <perm = [0, 2, 3, 1]> (c)
        y = Sqrt(u)
    }"""
    model = named(bench.text(text, W=(8, 4, 3, 3), V=(8, 8, 3, 3)), "tarbscuy")
    prepared, plan, _, built = bench.quantized(model)
    feed = {"x": np.ones((1, 16, 16, 4), np.float32)}
    models = [prepared.model, built.model]
    profiles = profile_kernels(models, [feed, feed], threads=1, budget_s=0.0)
    costs = layer_costs(plan, *zip(profiles, models, strict=True))
    assert [cost.node for cost in costs] == ["a", "b", "c"]
    kernels = [node.name for node in profiles[1].optimized.graph.node if node.op_type == "QLinearConv"]
    for cost, kernel in zip(costs, kernels, strict=True):
        assert cost.int8_us >= profiles[1].kernels[kernel]


def test_layers_are_linked_through_what_lies_between_them(bench):
    model = bench.prepared(bench.text(TEXT, W=(4, 4, 1, 1), V=(4, 4, 1, 1))).model
    assert layer_links({"": model}, make_plan(model, Selection())) == (("Conv_c", "Conv_y"),)
