import numpy as np
import pytest

from int8cal.calibration.statistics import Statistics
from int8cal.errors import StatisticsError
from int8cal.graph.taps import Tap


def test_merging_adds_counts_and_fingerprints(tools):
    one, other = tools.statistics(1), tools.statistics(2)
    both = one + other
    assert both.samples == 4
    assert both.fingerprint == one.fingerprint + other.fingerprint
    assert both.tensors["plain"].count == one.tensors["plain"].count + other.tensors["plain"].count
    assert both.tensors["plain"].minimum == min(one.tensors["plain"].minimum, other.tensors["plain"].minimum)


def test_fingerprints_add_modulo_128_bits(tools):
    statistics = Statistics("a", 2**128 - 1, 1, {})
    assert (statistics + Statistics("a", 3, 1, {})).fingerprint == 2


def test_shards_of_different_models_name_both(tools):
    with pytest.raises(StatisticsError, match="aaaaaaaaaaaa and bbbbbbbbbbbb"):
        tools.statistics() + tools.statistics(sha="b" * 64)


def test_shards_with_different_tensors_name_the_odd_one(tools):
    with pytest.raises(StatisticsError, match="'more' is in only one") as caught:
        tools.statistics() + tools.statistics(more=tools.count([1.0]))
    assert caught.value.fields["tensor"] == "more"


def test_different_channel_counts_do_not_add_and_name_both(tools):
    one = tools.statistics(hidden=tools.count(np.ones((1, 1, 4)), tap=Tap("hidden", 1, 1, True)))
    with pytest.raises(StatisticsError, match="tensor 'hidden': 3 channels and 1 channels do not add") as caught:
        tools.statistics() + one
    assert caught.value.exit_code == 5


def test_one_side_without_channels_does_not_add(tools):
    with pytest.raises(StatisticsError, match=r"tensor 'hidden'.*per-channel figures"):
        tools.statistics() + tools.statistics(hidden=tools.count([1.0]))


def test_one_side_without_a_channel_histogram_does_not_add(tools):
    values = np.ones((1, 3, 4))
    bare = tools.statistics(hidden=tools.count(values, tap=Tap("hidden", 1, 3)))
    with pytest.raises(StatisticsError, match=r"tensor 'hidden'.*per-channel histogram"):
        tools.statistics() + bare


def test_a_shard_of_only_zeros_adds_to_either(tools):
    for tap in (Tap("hidden", 1, 3, True), Tap("hidden", 1, 3)):
        zeros = tools.count(np.zeros((1, 3, 4)), tap=tap)
        full = tools.count(np.ones((1, 3, 4)), tap=tap)
        assert (full + zeros).by_channel == tap.equalizable


def test_sums_of_squares_add_only_to_sums_of_squares(tools):
    zeros = tools.count(np.zeros((1, 3, 4)), tap=Tap("hidden", 1, 3))
    with pytest.raises(StatisticsError, match="one side has sums of squares, the other has not"):
        tools.statistics().tensors["hidden"] + zeros


def test_statistics_without_a_channel_histogram_cannot_be_equalized(tools):
    for tap in (Tap("t"), Tap("t", 1, 3)):
        with pytest.raises(StatisticsError, match="no per-channel histogram"):
            tools.count(np.ones((1, 3, 2)), tap=tap).equalized(np.zeros(3, np.int64))


def test_equalizing_scales_means_exactly(tools):
    values = np.random.default_rng(8).normal(size=(2, 3, 5)).astype(np.float32)
    tap = Tap("t", 1, 3, True)
    exponents = np.array([3, 0, -5])
    equalized = tools.count(values, tap=tap).equalized(exponents)
    counted = tools.count(values * np.exp2(exponents).reshape(1, 3, 1), tap=tap)
    np.testing.assert_array_equal(equalized.channels.mean, counted.channels.mean)
    np.testing.assert_array_equal(equalized.channels.mean_square, counted.channels.mean_square)


def test_equalizing_keeps_the_shape_of_the_distribution(tools):
    values = np.random.default_rng(9).normal(size=(4, 3, 4000)).astype(np.float32)
    exponents = np.array([2, 0, -1])
    scaled = values * np.exp2(exponents).astype(np.float32).reshape(1, 3, 1)
    histogram = tools.count(values, tap=Tap("t", 1, 3, True)).equalized(exponents).histogram
    counted = tools.count(scaled).histogram
    mean = (histogram.centers * histogram.counts).sum() / histogram.total
    power = (histogram.centers**2 * histogram.counts).sum() / histogram.total
    assert histogram.observed == counted.observed
    assert mean == pytest.approx(float(scaled.mean(dtype=np.float64)), abs=2e-3)
    assert power == pytest.approx(float(np.square(scaled, dtype=np.float64).mean()), rel=2e-3)


def test_a_value_that_leaves_float32_keeps_its_sign(tools):
    values = np.array([[[-1e-38, 1e-44]], [[1.0, -2.0]]], np.float32).reshape(1, 2, 2)
    equalized = tools.count(values, tap=Tap("t", 1, 2, True)).equalized(np.array([-30, 0]))
    histogram = equalized.histogram
    assert equalized.count == 4
    assert histogram.counts[histogram.centers < 0].sum() == 2
    assert histogram.counts[np.abs(histogram.centers) > 1e-30].sum() == 2


def test_only_statistics_add(tools):
    with pytest.raises(TypeError, match="unsupported operand"):
        tools.statistics() + 5
