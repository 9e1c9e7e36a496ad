from __future__ import annotations

import math
from dataclasses import replace

import pytest

from int8cal.evaluation.result import LayerScales, TensorHistogram
from int8cal.quantization.table import WeightEntry
from int8cal.report.document import document_of
from int8cal.report.plots import (
    GROUPS,
    histogram_data,
    ranges_of,
    scales_text,
    weight_rows,
    weight_scale,
    weights_data,
)


def histogram(edges, counts, low, high, **candidates):
    return TensorHistogram("x", tuple(edges), tuple(counts), low, high, "kl", candidates)


def weights(*scales, node="conv"):
    return LayerScales(node, "Conv", "w", "y", WeightEntry("int8", 0, "s8", scales))


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
    assert [(method, chosen) for method, _, chosen in ranges_of(drawn)] == [("kl", True), ("max", False)]


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


def test_weights_share_one_axis_and_the_most_uneven_comes_first(report):
    given = (weights(1.0, 2.0, node="even"), weights(0.01, 0.1, 10.0, node="uneven"), weights(node="none"))
    document = document_of(replace(report, weights=given))
    rows, scale = weight_rows(document), weight_scale(document)
    assert [(row.node, number) for number, row in rows] == [("uneven", 1), ("even", 0)]
    (_, uneven), (_, even) = rows
    places = [uneven.scale_min, uneven.scale_median, even.scale_min, even.scale_max, uneven.scale_max]
    at = [scale.at(place) for place in places]
    assert at == sorted(set(at))
    assert 0 < at[0] < at[-1] < 100
    assert uneven.spread == pytest.approx(1000)
    assert scales_text(uneven) == "3 scales (axis 0), 0.01 to 10, median 0.1"


def test_without_weights_there_is_no_axis(report):
    document = document_of(replace(report, weights=(weights(),)))
    assert weight_scale(document) is None
    assert weight_rows(document) == []
