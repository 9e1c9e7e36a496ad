import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from int8cal.calibration import collector as module
from int8cal.calibration.collector import Collector
from int8cal.errors import StatisticsError
from int8cal.graph.taps import Tap


def test_figures_per_channel_are_exact(tools):
    values = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    for axis, tap in ((1, Tap("t", 1, 3, True)), (3, Tap("t", -1, 5, True))):
        channels = tools.count(values, tap=tap).channels
        rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1).astype(np.float64)
        assert channels.count == rows.shape[1]
        np.testing.assert_array_equal(channels.low, rows.min(axis=1))
        np.testing.assert_array_equal(channels.amax, np.abs(rows).max(axis=1))
        np.testing.assert_allclose(channels.mean, rows.mean(axis=1), rtol=1e-12)
        np.testing.assert_allclose(channels.mean_square, np.square(rows).mean(axis=1), rtol=1e-12)
        counts = np.zeros((values.shape[axis], 8192), int)
        counts.reshape(-1)[channels.bins] = channels.counts
        np.testing.assert_array_equal(counts.sum(axis=1), rows.shape[1])


def test_a_tap_that_cannot_be_equalized_has_no_channel_histogram(tools):
    result = tools.count(np.ones((1, 3, 2)), tap=Tap("t", 1, 3))
    assert result.channels.bins.size == 0
    assert not result.by_channel


def test_the_sign_of_zero_leaves_no_trace(tools):
    one = tools.count([[-0.0], [0.0]], tap=Tap("t", 1, 1, True))
    other = tools.count([[0.0], [-0.0]], tap=Tap("t", 1, 1, True))
    for result in (one, other):
        assert result.zeros == 2
        assert not np.signbit([result.minimum, result.maximum, result.channels.low[0], result.channels.high[0]]).any()


@pytest.mark.parametrize(("bad", "kind"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_a_value_that_is_not_finite_names_tensor_and_sample(bad, kind):
    collector = Collector(Tap("hidden"))
    with pytest.raises(StatisticsError, match=f"calib/3.npz: tensor 'hidden' holds {kind}") as caught:
        collector.add(np.array([1.0, bad], np.float32), "calib/3.npz")
    assert caught.value.fields == {"tensor": "hidden", "sample": "calib/3.npz"}


def test_a_zero_size_tensor_counts_nothing(tools):
    result = tools.count(np.zeros((1, 0, 4)), tap=Tap("t", 1, 3, True))
    assert result.count == 0
    assert result.histogram.observed == (0.0, 0.0)
    assert result.histogram.total == 1  # a single zero stands in
    assert result.channels.count == 0


def test_channels_that_do_not_fit_the_weights_are_refused(tools):
    with pytest.raises(StatisticsError, match="has 4 channels on axis 1, the weights 3"):
        tools.count(np.ones((1, 4, 2)), tap=Tap("t", 1, 3))


def test_channel_counts_spill_before_their_counters_wrap(monkeypatch, tools):
    samples = [np.full((1, 2, 3), value, np.float32) for value in (1.0, -2.0, 1.0, 1.0)]
    whole, spilling = Collector(Tap("t", 1, 2, True)), Collector(Tap("t", 1, 2, True))
    for sample in samples:
        whole.add(sample, "sample")
    monkeypatch.setattr(module, "_LARGEST_COUNT", 7)
    for sample in samples:
        spilling.add(sample, "sample")
    np.testing.assert_array_equal(spilling.result().channels.bins, whole.result().channels.bins)
    np.testing.assert_array_equal(spilling.result().channels.counts, whole.result().channels.counts)
    assert spilling.result().channels.counts.tolist() == [9, 3, 9, 3]


@pytest.mark.parametrize("value", [1.5, 0.0])
def test_counters_near_their_end_are_moved_out_exactly(value):
    tap = Tap("t", 1, 2, True)
    collector = Collector(tap)
    sample = np.full((1, 2, 3), value, np.float32)
    collector.add(sample, "sample")
    # as if the same values had come until the tables were nearly full: planted, for nobody waits for 2**32 of them
    planted = 2**32 - 12
    for counters, share in ((collector._fine, planted), (collector._coarse, planted // 2)):
        counters.table[counters.table > 0] = share
    if not value:  # zeros take turns on slots
        collector._fine.table[collector._fine.table > 0] = planted // int((collector._fine.table > 0).sum())
    before = collector.result()
    collector._in_tables = planted
    for _ in range(4):
        collector.add(sample, "sample")
    after = collector.result()
    assert after.count == before.count + 4 * 6 > 2**32
    assert after.zeros == (0 if value else after.count)
    assert after.channels.counts.tolist() == ([planted // 2 + 4 * 3] * 2 if value else [])


def test_one_sample_of_more_values_than_a_counter_holds_is_refused(monkeypatch):
    monkeypatch.setattr(module, "_LARGEST_COUNT", 5)
    with pytest.raises(StatisticsError, match="tensor 't' has 6 values for one sample, of which 5 can be"):
        Collector(Tap("t")).add(np.ones(6, np.float32), "calib/7.npz")


def test_sums_are_exact_over_more_samples_than_limbs_hold():
    collector = Collector(Tap("t", 1, 1))
    value = np.full((1, 1, 1), np.finfo(np.float32).max, np.float32)
    collector.add(value, "sample")
    # each limb as if as many samples had come as are added between two carries
    collector._sums *= (1 << 28) - 1
    collector._uncarried = (1 << 28) - 1
    collector.add(value, "sample")
    collector.add(value, "sample")
    collector._count = (1 << 28) + 1
    assert collector.result().channels.mean[0] == np.finfo(np.float32).max


def test_statistics_of_more_than_two_to_the_32_values_add(tools):
    one = tools.count(np.array([1.0, 2.0, 2.0, 0.0]), tap=Tap("t"))
    many = replace(one, counts=one.counts * 2**33, zeros=one.zeros * 2**33)
    assert (many + many).count == 4 * 2**34
    assert (many + one).counts.tolist() == [2**33 + 1, 2**34 + 2]


def test_other_float_types_are_counted_as_float32(tools):
    half = tools.count(np.array([0.5, 0.25], np.float16))
    assert (half.minimum, half.maximum, half.count) == (0.25, 0.5, 2)


def test_statistics_stay_small_whatever_the_number_of_values(tools):
    rng = np.random.default_rng(5)
    collector = Collector(Tap("t", 1, 8, True))
    collector.add(rng.normal(size=(1, 8, 4096)).astype(np.float32), "sample")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(30):
        collector.add(rng.normal(size=(1, 8, 4096)).astype(np.float32), "sample")
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 300_000  # the last sample and nothing more
    result = collector.result()
    assert result.count == 31 * 8 * 4096
    stored = sum(array.nbytes for array in (result.bins, result.counts, result.channels.bins, result.channels.counts))
    assert stored < 2_000_000
