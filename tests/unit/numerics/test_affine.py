"""Affine quantization: the vectors of the oneDNN guide, and the ranges that have no ordinary scale."""

import warnings

import numpy as np
import pytest
from affine_codes import dequantize, quantize

from int8cal.errors import NonFiniteError
from int8cal.numerics.affine import (
    S7,
    S8,
    SMALLEST_SCALE,
    U8,
    ZERO_SCALE,
    Affine,
    QType,
    affine_from_range,
    fake_quantized,
    positive_scale,
)

# The guide multiplies by Q = 255 / 15 and 127 / 9.8; a scale is its inverse. 9.8 keeps float64 here, as on the page.
ACTIVATIONS = affine_from_range(0.0, 15.0, U8)
WEIGHTS = Affine(9.8 / 127, 0, S8)
S32 = QType("int32", -(2**31), 2**31 - 1)


def test_onednn_factors():
    assert 1 / ACTIVATIONS.scale == pytest.approx(17.0, rel=1e-6)
    assert 1 / WEIGHTS.scale == pytest.approx(12.959, abs=5e-4)


def test_onednn_activations():
    assert quantize([15.0, 14.0, 11.0], ACTIVATIONS).tolist() == [255, 238, 187]


def test_onednn_weights():
    assert quantize([-5.1, 6.8, 9.8], WEIGHTS).tolist() == [-66, 88, 127]


def test_onednn_integers_that_the_page_truncates_are_rounded_half_even():
    # The page prints -15 for the weight -1.2 and 528, -1145, -1762 for the biases 2.4, -5.2, -8: truncated, against its
    # own rule of rounding to nearest (-1.2 * 12.959 = -15.55). The rule is what is kept.
    assert quantize([-1.2], WEIGHTS).tolist() == [-16]
    bias = Affine(1 / (17.0 * (127 / 9.8)), 0, S32)
    assert quantize([2.4, -5.2, -8.0], bias).tolist() == [529, -1146, -1762]


def test_ties_go_to_the_even_code():
    assert quantize([0.5, 1.5, 2.5, -0.5, -1.5], Affine(1.0, 0, S8)).tolist() == [0, 2, 2, 0, -2]


def test_codes_saturate_at_both_ends():
    assert quantize([-1e30, 1e30], Affine(0.1, 10, U8)).tolist() == [0, 255]
    assert quantize([-1e30, 1e30], Affine(0.1, 0, S8)).tolist() == [-127, 127]
    assert quantize([-1e30, 1e30], Affine(0.1, 0, S7)).tolist() == [-64, 63]


@pytest.mark.parametrize(("low", "high"), [(2.0, 5.0), (-5.0, -2.0), (-1.0, 3.0), (0.0, 1e-3), (-7e8, 1.0)])
def test_zero_is_exact_for_every_range(low, high):
    for dtype, symmetric in ((U8, False), (S8, False), (S8, True)):
        affine = affine_from_range(low, high, dtype, symmetric=symmetric)
        assert dequantize(quantize([0.0, -0.0], affine), affine).tolist() == [0.0, 0.0]
        assert affine.low <= 0.0 <= affine.high


def test_positive_range_starts_at_zero_with_zero_point_zero():
    assert affine_from_range(2.0, 5.1, U8).zero_point == 0
    assert affine_from_range(-5.1, -2.0, U8).zero_point == 255


def test_symmetric_scale_is_the_larger_end_over_127():
    affine = affine_from_range(-2.0, 1.0, S8, symmetric=True)
    assert (affine.scale, affine.zero_point) == (float(np.float32(2.0 / 127)), 0)


def test_low_and_high_are_what_the_codes_stand_for():
    affine = affine_from_range(-1.0, 2.0, U8)
    assert affine.zero_point == 85
    scale = float(np.float32(3.0 / 255))
    assert (affine.low, affine.high) == (-85 * scale, 170 * scale)
    shifted = affine_from_range(-1.003, 2.0, U8)  # no integer zero point: the ends move, by half a step at most
    assert (shifted.low, shifted.high) != (-1.003, 2.0)
    assert abs(shifted.low + 1.003) <= shifted.scale / 2
    assert affine_from_range(affine.low, affine.high, U8) == affine


def test_scale_is_an_exact_float32():
    scale = affine_from_range(0.0, 0.1, U8).scale
    assert float(np.float32(scale)) == scale


@pytest.mark.parametrize("high", [1e-45, 1e-40])
@pytest.mark.parametrize("dtype", [U8, S8])
def test_ranges_where_float32_ends_get_the_smallest_scale(high, dtype):
    affine = affine_from_range(0.0, high, dtype, symmetric=dtype is S8)
    assert affine.scale == SMALLEST_SCALE
    assert affine.zero_point == 0


@pytest.mark.parametrize("unit", [1e-34, 1e-30, 1e-22, 1e-16, 1e30])
@pytest.mark.parametrize("dtype", [U8, S8])
def test_a_scale_follows_the_range_through_all_of_float32(unit, dtype):
    affine = affine_from_range(0.0, unit, dtype, symmetric=dtype is S8)
    assert affine.scale == pytest.approx(unit / dtype.qmax, rel=1e-6)


@pytest.mark.parametrize("dtype", [U8, S8])
def test_a_range_of_zeros_has_a_scale_that_is_far_from_both_ends(dtype):
    affine = affine_from_range(0.0, 0.0, dtype, symmetric=dtype is S8)
    assert (affine.scale, affine.zero_point) == (ZERO_SCALE, 0)


@pytest.mark.parametrize("scale", [SMALLEST_SCALE, ZERO_SCALE])
def test_fallback_scales_are_normal_float32_with_finite_inverses(scale):
    assert np.float32(scale) == scale >= np.finfo(np.float32).tiny
    assert np.isfinite(np.float32(1) / np.float32(scale))


def test_the_largest_float32_range_has_a_finite_scale():
    limit = float(np.finfo(np.float32).max)
    affine = affine_from_range(-limit, limit, U8)
    assert np.isfinite(np.float32(affine.scale))
    assert 127 <= affine.zero_point <= 128


@pytest.mark.parametrize(
    ("low", "high"), [(np.nan, 1.0), (0.0, np.nan), (-np.inf, 1.0), (0.0, np.inf), (1.0, 0.5), (0.0, -1e-9)]
)
def test_a_range_that_is_not_finite_and_ordered_is_refused(low, high):
    with pytest.raises(NonFiniteError) as caught:
        affine_from_range(low, high, U8)
    assert caught.value.exit_code == 5
    assert caught.value.fields["low"] is low
    assert repr(high) in str(caught.value)


@pytest.mark.parametrize("scale", [np.nan, np.inf, 1e39])
def test_a_scale_that_float32_cannot_hold_is_refused(scale):
    with pytest.raises(NonFiniteError, match="not a finite float32"):
        positive_scale(scale)


def test_levels_count_the_codes():
    assert (U8.levels, S8.levels, S7.levels) == (256, 255, 128)


@pytest.mark.parametrize("affine", [Affine(0.031, 100, U8), Affine(0.1, 0, U8), Affine(0.02, 0, S8)])
def test_fake_quantized_values_are_those_of_the_codes_in_float32(affine):
    values = np.random.default_rng(1).normal(scale=3, size=(50, 20)).astype(np.float32)
    found = fake_quantized(values, affine)
    np.testing.assert_allclose(found, dequantize(quantize(values, affine), affine), atol=1e-6)
    assert found.dtype == np.float32


def test_a_huge_value_is_clipped_silently():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fake_quantized(np.array([3e38, -3e38, 0.0], np.float32), Affine(2.0**-40, 3, U8))
    np.testing.assert_array_equal(found, np.float32(2.0**-40) * np.array([252, -3, 0], np.float32))
