from __future__ import annotations

import math

import pytest

from int8cal.calibration.table import WeightEntry
from int8cal.evaluation.result import LayerWeights, TensorHistogram
from int8cal.report.plots import GROUPS, histogram_data, ranges_of, weight_rows, weight_scale, weights_data


def histogram(edges, counts, low, high, **candidates):
    return TensorHistogram("x", tuple(edges), tuple(counts), low, high, "kl", candidates)


def weights(*scales, node="conv"):
    return LayerWeights(node, "Conv", "w", "y", WeightEntry("int8", 0, "s8", scales))


def test_equally_wide_bins_need_only_their_ends():
    assert histogram_data(histogram(range(-2, 3), [1, 10, 10, 1], -1.0, 1.0))["edges"] == [-2, 2]
    assert histogram_data(histogram([0, 1, 3], [1, 2], 0.0, 1.0))["edges"] == [0, 1, 3]


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0])
def test_a_constant_tensor_can_be_drawn(value):
    low, high = histogram_data(histogram([value, value], [7], value, value))["edges"]
    assert low < value < high


@pytest.mark.parametrize(
    ("edges", "counts", "high"),
    [([], [], 1.0), ([0, 1], [0], 1.0), ([0, 1], [1, 2], 1.0), ([0, math.inf], [1], 1.0), ([0, 1], [1], math.nan)],
)
def test_what_cannot_be_drawn_gives_no_chart(edges, counts, high):
    assert histogram_data(histogram(edges, counts, 0.0, high)) is None


def test_the_chosen_range_is_first_and_ranges_without_end_are_left_out():
    drawn = histogram([0, 1, 2], [5, 5], 0.0, 1.0, kl=(0.0, 1.0), max=(-9.0, 9.0), bad=(0.0, math.inf))
    assert histogram_data(drawn)["lines"] == [["kl", 0.0, 1.0, True], ["max", -9.0, 9.0, False]]
    assert [(each.method, each.chosen) for each in ranges_of(drawn)] == [("kl", True), ("max", False)]


def test_a_range_shared_with_others_stands_beside_what_the_method_says_of_this_tensor_alone():
    drawn = histogram_data(histogram([0, 1, 2], [5, 5], 0.0, 1.0, kl=(0.0, 0.5)))
    assert drawn["lines"] == [["kl", 0.0, 1.0, True], ["kl", 0.0, 0.5, False]]


def test_few_channels_are_told_one_by_one_with_three_digits():
    assert weights_data(weights(0.123456, 2.0)) == {"step": 1, "count": 2, "low": [0.123, 2.0]}


@pytest.mark.parametrize("count", [GROUPS + 1, 1000, 4096])
def test_many_channels_are_told_in_groups_that_keep_the_smallest_and_the_largest(count):
    scales = [1.0 + index / 8 for index in range(count)]
    data = weights_data(weights(*scales))
    assert len(data["low"]) == len(data["high"]) <= GROUPS
    assert (data["low"][0], data["count"]) == (1.0, count)
    assert data["high"][-1] == pytest.approx(scales[-1], rel=0.005)
    assert len(data["low"]) == -(-count // data["step"])


def test_weights_share_one_axis_and_the_most_uneven_comes_first():
    given = [weights(1.0, 2.0, node="even"), weights(0.01, 0.1, 10.0, node="uneven"), weights(node="none")]
    rows = weight_rows(given, weight_scale(given))
    assert [(row.node, row.anchor) for row in rows] == [("uneven", 1), ("even", 0)]
    assert 0 < rows[0].low < rows[0].middle < rows[1].low < rows[1].high < rows[0].high < 100
    assert rows[0].spread == "×1e+03"  # noqa: RUF001 (a ratio)


def test_without_weights_there_is_no_axis():
    assert weight_scale([]) is None
    assert weight_rows([weights()], None) == []
