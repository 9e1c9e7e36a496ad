from dataclasses import replace

import numpy as np
import pytest

from int8cal.calibration.ranges import MOST_ROOM, ROOM_OF_AUTO, candidates, choose_ranges, group_histogram
from int8cal.calibration.statistics import TensorStatistics, Widths
from int8cal.errors import ConfigError, StatisticsError
from int8cal.job import CalibrationSettings, QuantizationSettings
from int8cal.numerics.affine import U8, affine_from_range

MAX = CalibrationSettings(method="max")


@pytest.fixture
def plan(tools):
    return tools.plan(("x", "x", True), ("conv", "conv", True), ("pool", "conv", False), ("cat_b", "conv", True))


@pytest.fixture
def tensors(tools):
    return {
        "x": tools.count([-1.0, 2.0, 0.0]),
        "conv": tools.count([0.0, 4.0]),
        "pool": tools.count([4.0]),
        "cat_b": tools.count([1.0, 10.0]),
    }


def chosen(plan, tensors, calibration=MAX, *, limits=None, **settings):
    return choose_ranges(plan, tensors, calibration, QuantizationSettings(**settings), limits=limits)


def test_ranges_are_what_was_observed(plan, tensors):
    entry = chosen(plan, tensors).entries["x"]
    affine = affine_from_range(-1.0, 2.0, U8)
    assert (entry.dtype, entry.scale, entry.zero_point) == ("uint8", affine.scale, affine.zero_point)
    assert (entry.low, entry.high) == (affine.low, affine.high)
    assert (entry.observed, entry.amax, entry.clipped) == ((-1.0, 2.0), 2.0, 0.0)
    assert (entry.method, entry.source) == ("max", "calibrated")


def test_a_group_shares_the_range_of_its_sources(plan, tensors):
    result = chosen(plan, tensors)
    assert list(result.entries) == ["x", "conv", "pool", "cat_b"]
    group = [result.entries[name] for name in ("conv", "pool", "cat_b")]
    assert len({entry.affine for entry in group}) == 1
    assert group[0].high == pytest.approx(10.0)
    assert [entry.source for entry in group] == ["calibrated", "shared", "shared"]
    assert [entry.observed for entry in group] == [(0.0, 4.0), (4.0, 4.0), (1.0, 10.0)]


def test_ranges_that_are_known_of_the_same_statistics_are_kept(plan, tensors, tools):
    before = chosen(plan, tensors)
    changed = {**tensors, "x": tools.count([-1.0, 3.0]), "pool": tools.count([4.0, 5.0])}
    settings = MAX, QuantizationSettings()
    result = choose_ranges(plan, changed, *settings, (tensors, before))
    assert result == chosen(plan, changed)
    assert all(result.entries[name] is not before.entries[name] for name in (*plan.groups, "pool"))
    kept = choose_ranges(plan, {**tensors, "x": changed["x"]}, *settings, (tensors, before))
    assert [name for name in tensors if kept.entries[name] is before.entries[name]] == ["conv", "pool", "cat_b"]
    assert kept.entries["x"] == result.entries["x"]


def test_tensors_that_only_pass_values_on_do_not_count_twice(plan, tensors):
    histogram = group_histogram(plan, tensors, "conv")
    assert histogram.total == 4
    assert histogram.observed == (0.0, 10.0)


@pytest.mark.parametrize("method", ["auto", "max", "percentile", "kl", "mse"])
def test_ranges_do_not_depend_on_how_many_values_there_were(plan, tools, method):
    one = tools.count(np.random.default_rng(3).laplace(size=4000))
    # a histogram is split into linear bins in whole counts: with more of them a little finer. The larger is 2**52 values
    few, many = (
        dict.fromkeys(("x", "conv", "pool", "cat_b"), replace(one, counts=one.counts * times, zeros=one.zeros * times))
        for times in (2**20, 2**40)
    )
    first, second = (chosen(plan, each, CalibrationSettings(method=method)).entries["x"] for each in (few, many))
    assert second.scale == pytest.approx(first.scale, rel=0.01)
    assert (second.zero_point, second.clipped) == (first.zero_point, pytest.approx(first.clipped, abs=1e-3))


def of_samples(tensors, *widths):
    """Say of tensors that single samples need ranges so wide."""
    units = [width << 149 for width in widths]
    widths = Widths(len(units), sum(units), sum(each * each for each in units))
    return {name: replace(each, widths=widths) for name, each in tensors.items()}


@pytest.mark.parametrize("activations", ["u8", "s8"])
def test_room_makes_the_widest_ranges_wider_by_their_uncertainty(plan, tensors, activations):
    # mean 20, standard deviation 1: twice its standard error is 2 / sqrt(3) / 20 of the mean
    found = chosen(plan, of_samples(tensors, 19, 20, 21), limits={}, activations=activations).entries
    widest = chosen(plan, tensors, activations=activations).entries
    for name, entry in found.items():
        assert entry.method == "max"
        assert entry.scale == pytest.approx(widest[name].scale * (1 + 0.1 / np.sqrt(3)), rel=1e-6)
        assert entry.zero_point == widest[name].zero_point


@pytest.mark.parametrize(("uncertain", "high"), [("cat_b", 10 * 1.05), ("conv", 10.0), ("pool", 10.0)])
def test_a_group_has_the_room_that_each_of_its_sources_needs(plan, tensors, uncertain, high):
    some = of_samples(tensors, 2, 2) | {uncertain: of_samples(tensors, 39, 41)[uncertain]}
    found = chosen(plan, some, limits={}).entries
    assert found["conv"].high == pytest.approx(high)  # twice the standard error is a twentieth of the mean
    assert found["x"].high == pytest.approx(tensors["x"].maximum)


@pytest.mark.parametrize(
    ("limits", "low", "high"),
    [((-1.05, 2.1), -1.05, 2.1), ((-5.0, 2.1), -1.1, 2.1), ((-1.0, 9.0), -1.0, 2.2), ((-0.9, 1.9), -1.0, 2.0)],
)
def test_room_ends_where_no_value_can_lie_and_nothing_observed_is_cut(plan, tensors, limits, low, high):
    found = chosen(plan, of_samples(tensors, 1, 3), limits={"x": limits}).entries["x"]
    assert found.affine == affine_from_range(low, high, U8)


def test_there_is_no_more_room_than_samples_tell_for_sure(plan, tensors):
    found = chosen(plan, of_samples(tensors, 1, 3), limits={}).entries
    assert found["conv"].high == pytest.approx(10 * (1 + MOST_ROOM))


@pytest.mark.parametrize(
    ("widths", "method", "activations"),
    [((2,), "max", "u8"), ((), "max", "u8"), ((1, 3), "mse", "u8"), ((1, 3), "max", "u16")],
)
def test_one_sample_unknown_ones_and_other_ranges_get_no_room(plan, tensors, widths, method, activations):
    settings = CalibrationSettings(method=method)
    found = chosen(plan, of_samples(tensors, *widths), settings, limits={}, activations=activations)
    assert found.entries == chosen(plan, tensors, settings, activations=activations).entries


@pytest.mark.parametrize("widths", [(19, 20, 21), (9, 10, 11), (1, 3)])
@pytest.mark.parametrize("activations", ["u8", "s8"])
def test_room_of_the_range_with_the_least_error_is_more_and_ends_where_that_of_the_widest_does(
    plan, tools, widths, activations
):
    values = np.random.default_rng(0).laplace(size=20000)
    auto = CalibrationSettings(method="auto")
    seen = dict.fromkeys(("x", "conv", "pool", "cat_b"), tools.count(values))
    some = of_samples(seen, *widths)
    least, widest = (chosen(plan, seen, each, activations=activations).entries["x"] for each in (auto, MAX))
    assert least.clipped > 0
    uncertain = some["x"].widths.uncertainty
    factor = min((1 + ROOM_OF_AUTO * uncertain) * least.scale, (1 + min(uncertain, MOST_ROOM)) * widest.scale)
    entry = chosen(plan, some, auto, limits={}, activations=activations).entries["x"]
    assert entry.scale == pytest.approx(factor, rel=0.01)  # the zero point is a whole number
    assert entry.method == least.method


@pytest.mark.parametrize("widths", [(), (2,), (2, 2)])
def test_without_uncertainty_the_range_with_the_least_error_has_no_room(plan, tools, widths):
    auto = CalibrationSettings(method="auto")
    seen = dict.fromkeys(("x", "conv", "pool", "cat_b"), tools.count(np.random.default_rng(0).laplace(size=2000)))
    found = chosen(plan, of_samples(seen, *widths), auto, limits={})
    assert found.entries == chosen(plan, seen, auto).entries


def test_a_user_range_wins_and_is_marked(plan, tensors):
    result = chosen(plan, tensors, ranges={"x": (-4.0, 4.0)})
    affine = affine_from_range(-4.0, 4.0, U8)
    assert result.entries["x"].affine == affine
    assert (result.entries["x"].source, result.entries["x"].method) == ("user", "user")
    assert result.entries["conv"].source == "calibrated"


def test_a_user_range_of_one_tensor_holds_for_its_group(plan, tensors):
    result = chosen(plan, tensors, ranges={"pool": (0.0, 6.0)})
    assert [result.entries[name].source for name in ("conv", "pool", "cat_b")] == ["shared", "user", "shared"]
    assert len({result.entries[name].affine for name in ("conv", "pool", "cat_b")}) == 1
    assert result.entries["cat_b"].high == pytest.approx(6.0)
    assert result.entries["cat_b"].clipped == 0.5


def test_equal_user_ranges_in_one_group_are_both_marked(plan, tensors):
    result = chosen(plan, tensors, ranges={"pool": (0.0, 6.0), "cat_b": (0.0, 6.0)})
    assert [result.entries[name].source for name in ("conv", "pool", "cat_b")] == ["shared", "user", "user"]


def test_different_user_ranges_in_one_group_contradict(plan, tensors):
    with pytest.raises(ConfigError, match="'conv' and 'cat_b' different ranges"):
        chosen(plan, tensors, ranges={"conv": (0.0, 6.0), "cat_b": (0.0, 5.0)})


@pytest.mark.parametrize("limits", [(1.0, -1.0), (0.0, np.inf), (np.nan, 1.0)])
def test_a_user_range_that_is_none_names_the_tensor(plan, tensors, limits):
    with pytest.raises(ConfigError, match="tensor 'x': range") as caught:
        chosen(plan, tensors, ranges={"x": limits})
    assert caught.value.exit_code == 2


def test_an_unknown_tensor_names_the_nearest(plan, tensors):
    with pytest.raises(ConfigError, match=r"names 'con', .*did you mean 'conv'\?"):
        chosen(plan, tensors, ranges={"con": (0.0, 1.0)})
    with pytest.raises(ConfigError, match="inspect TABLE lists"):
        chosen(plan, tensors, ranges={"0123456789": (0.0, 1.0)})


def test_symmetric_activations(plan, tensors):
    entry = chosen(plan, tensors, activations="s8").entries["x"]
    assert (entry.dtype, entry.zero_point, entry.scale) == ("int8", 0, float(np.float32(2.0 / 127)))


def test_an_uncalibrated_tensor_is_an_error_of_the_statistics(plan, tensors):
    del tensors["pool"]
    with pytest.raises(StatisticsError, match="tensor 'pool': was not calibrated") as caught:
        chosen(plan, tensors)
    assert caught.value.exit_code == 5


def test_a_zero_size_tensor_gets_a_placeholder_and_a_warning(plan, tensors, tools):
    tensors["x"] = tools.count(np.zeros((1, 0)))
    result = chosen(plan, tensors, CalibrationSettings())
    assert result.entries["x"].scale > 0
    assert result.entries["x"].observed == (0.0, 0.0)
    assert [warning for warning in result.warnings if "'x'" in warning and "zero size" in warning]


def test_an_all_zero_tensor_is_named_in_a_warning(plan, tensors, tools):
    tensors["x"] = tools.count(np.zeros(5))
    assert "tensor 'x': only zeros were observed" in chosen(plan, tensors).warnings


def test_a_fallback_is_named_in_a_warning(plan, tensors):
    result = chosen(plan, tensors, CalibrationSettings(method="kl"))
    assert [warning.split(":")[0] for warning in result.warnings] == ["tensor 'x'", "tensor 'conv'"]
    assert result.entries["x"].method == "max"


def test_a_percentile_states_what_it_clips(plan, tensors, tools):
    tensors["x"] = tools.count(np.arange(1, 1001, dtype=np.float32))
    entry = chosen(plan, tensors, CalibrationSettings(method="percentile", percentile=90.0)).entries["x"]
    assert entry.high == pytest.approx(900, rel=2e-3)
    assert entry.clipped == pytest.approx(0.098)  # 901 lies within half a step of the end


def test_statistics_are_not_changed(plan, tensors):
    before = {name: (tensor.bins.copy(), tensor.counts.copy()) for name, tensor in tensors.items()}
    chosen(plan, tensors, CalibrationSettings())
    for name, (bins, counts) in before.items():
        assert isinstance(tensors[name], TensorStatistics)
        np.testing.assert_array_equal(tensors[name].bins, bins)
        np.testing.assert_array_equal(tensors[name].counts, counts)


def test_a_user_range_without_zero_is_widened_with_a_warning(plan, tensors):
    ranges = chosen(plan, tensors, ranges={"x": (1.0, 2.0)})
    assert ranges.entries["x"].low == 0.0
    assert [warning for warning in ranges.warnings if "[1, 2] was widened" in warning]


def test_a_value_within_half_a_step_of_the_end_is_rounded_not_clipped(plan, tensors, tools):
    scale = np.float32(4.0 / 255)
    tensors["x"] = tools.count([0.0, 4.0 + 0.3 * scale, 4.0 + 5 * scale, 1.0])
    assert chosen(plan, tensors, ranges={"x": (0.0, 4.0)}).entries["x"].clipped == pytest.approx(0.25)


@pytest.mark.parametrize("method", ["auto", "kl"])
def test_ranges_do_not_depend_on_the_number_of_threads(plan, tensors, method):
    one, many = (chosen(plan, tensors, CalibrationSettings(method=method, threads=threads)) for threads in (1, 5))
    assert one == many


def test_ranges_of_all_methods_are_handed_on_for_tensors_with_a_scale_of_their_own(plan, tensors):
    auto = CalibrationSettings(method="auto")
    result = chosen(plan, tensors, auto)
    assert list(result.methods) == ["x"]  # the others share theirs
    histogram = tensors["x"].histogram
    assert candidates(histogram, "u8", auto.percentile, result.methods["x"]) == candidates(
        histogram, "u8", auto.percentile
    )
    assert chosen(plan, tensors, auto, ranges={"x": (-1.0, 1.0)}).methods == {}
    assert chosen(plan, tensors).methods == {}
