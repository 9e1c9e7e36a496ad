from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.evaluation.result import TensorHistogram
from int8cal.report.charts import DECIBEL_CAP, LEFT, RIGHT, decibel_scale, histogram_chart, interval_scale, nice_values


def histogram(edges, counts, low, high, **candidates):
    return TensorHistogram("x", tuple(edges), tuple(counts), low, high, "kl", candidates)


def places(path):
    return [float(x) for x in re.findall(r"[MH](-?[\d.]+)", path)]


@given(st.floats(-1e30, 1e30), st.floats(1e-6, 1e30))
def test_nice_values_are_few_and_inside(low, width):
    high = low + width
    if (high - low) < 1e-9 * abs(low) or not high > low:
        return
    values = nice_values(low, high)
    slack = 1e-6 * (high - low)
    assert len(values) <= 7
    assert all(low - slack <= value <= high + slack for value in values)


def test_bins_outside_the_range_are_drawn_as_clipped():
    chart = histogram_chart(histogram(range(-2, 3), [1, 10, 10, 1], -1.0, 1.0))
    assert places(chart.kept)[0] == chart.low
    assert places(chart.kept)[-1] == chart.high
    assert places(chart.clipped)[0] == LEFT
    assert places(chart.clipped)[-1] == RIGHT


def test_a_range_beyond_the_observed_values_widens_the_axis():
    chart = histogram_chart(histogram([0, 1, 2], [5, 5], -1.0, 4.0))
    assert (chart.low, chart.high) == (LEFT, RIGHT)
    assert chart.clipped == ""


def test_runs_of_equal_counts_and_empty_bins_take_one_step():
    chart = histogram_chart(histogram(range(9), [3, 3, 3, 0, 0, 0, 3, 3], 0.0, 8.0))
    assert chart.kept.count("M") == 2
    assert chart.kept.count("H") == 2


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0])
def test_a_constant_tensor_can_be_drawn(value):
    assert histogram_chart(histogram([value, value], [7], value, value)) is not None


@pytest.mark.parametrize(
    ("edges", "counts", "high"),
    [([], [], 1.0), ([0, 1], [0], 1.0), ([0, 1], [1, 2], 1.0), ([0, math.inf], [1], 1.0), ([0, 1], [1], math.nan)],
)
def test_what_cannot_be_drawn_gives_no_chart(edges, counts, high):
    assert histogram_chart(histogram(edges, counts, 0.0, high)) is None


def test_the_chosen_range_is_first_and_other_ranges_stay_on_the_axis():
    chart = histogram_chart(histogram([0, 1, 2], [5, 5], 0.0, 1.0, kl=(0.0, 1.0), max=(-9.0, 9.0), bad=(0.0, math.inf)))
    assert [row.method for row in chart.ranges] == ["kl", "max"]
    assert [row.chosen for row in chart.ranges] == [True, False]
    assert (chart.ranges[1].low, chart.ranges[1].high) == (LEFT, RIGHT)


@given(st.lists(st.floats(-60, 200, allow_subnormal=False), max_size=8))
def test_the_decibel_axis_holds_zero_and_every_layer_below_the_cap(values):
    scale = decibel_scale(values)
    assert scale.low <= min([0.0, *values])
    assert scale.high >= min(max([0.0, *values]), DECIBEL_CAP)
    assert scale.high <= DECIBEL_CAP
    assert all(0 <= tick.at <= 100 for tick in scale.ticks())


def test_an_almost_exact_layer_does_not_stretch_the_axis():
    scale = decibel_scale([12.0, 31.0, 338.0])
    assert (scale.low, scale.high) == (0.0, DECIBEL_CAP)
    assert scale.at(338.0) == 100.0


def test_no_drop_at_all_still_has_an_axis():
    assert interval_scale([0.0, 0.0, 0.0]).at(0.0) == 50.0
