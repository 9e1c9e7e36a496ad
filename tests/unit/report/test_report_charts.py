from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from int8cal.report.charts import (
    BOTTOM,
    DECIBEL_CAP,
    LEFT,
    RIGHT,
    TOP,
    Dot,
    LogScale,
    decibel_scale,
    interval_scale,
    nice_values,
    picture,
)


@given(st.floats(-1e30, 1e30), st.floats(1e-6, 1e30))
def test_nice_values_are_few_and_inside(low, width):
    high = low + width
    if (high - low) < 1e-9 * abs(low) or not high > low:
        return
    values = nice_values(low, high)
    slack = 1e-6 * (high - low)
    assert len(values) <= 7
    assert all(low - slack <= value <= high + slack for value in values)


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


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=9),
    st.one_of(st.none(), st.floats(0, 1e6)),
)
@example([(5e-324, 0.0)], None)  # a fifth of which is 0
def test_every_point_of_a_picture_lies_inside_it(points, mark):
    dots = [Dot(x, y, "", "", span=(y - 1.0, y + 2.0)) for x, y in points]
    drawn = picture(dots, x_label="x", y_label="y", marker=None if mark is None else (mark, "m"))
    for dot in drawn.dots:
        assert LEFT <= dot.x <= RIGHT
        assert TOP <= dot.y <= BOTTOM
        assert TOP <= dot.span[1] <= dot.y <= dot.span[0] <= BOTTOM
    assert drawn.marker is None or LEFT <= drawn.marker.at <= RIGHT


def test_the_labels_of_two_near_points_stand_on_different_sides():
    near, far = ([Dot(1.0, 1.0, "a", ""), Dot(x, 1.0, "b", "")] for x in (1.02, 9.0))
    assert [dot.before for dot in picture(near, x_label="", y_label="").dots] == [True, False]
    assert [dot.before for dot in picture(far, x_label="", y_label="").dots] == [False, False]


@given(st.floats(1e-12, 1e3), st.floats(1.5, 1e9))
def test_a_logarithmic_axis_has_few_ticks_inside(low, ratio):
    scale = LogScale(low, low * ratio)
    assert math.isclose(scale.at(low), 0.0, abs_tol=0.01)
    assert math.isclose(scale.at(low * ratio), 100.0, abs_tol=0.01)
    assert len(scale.ticks()) <= 7
    assert all(-0.01 <= tick.at <= 100.01 for tick in scale.ticks())
