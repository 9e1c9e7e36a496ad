import numpy as np
import pytest

from int8cal.errors import NonFiniteError
from int8cal.numerics.affine import SMALLEST_SCALE, ZERO_SCALE
from int8cal.numerics.weights import BIAS_LIMIT, guard_bias, guard_products, quantize_bias


def test_grouped_conv_transpose_bias_takes_the_shared_scales():
    scales = np.array([0.5, 0.25])
    codes = quantize_bias(np.array([1.0, 1.0, 2.0, 2.0]), 1.0, np.tile(scales, 2))
    assert codes.tolist() == [2, 4, 4, 8]
    raised_scales, raised = guard_bias(scales, np.array([0.0, 1.0, 0.0, 2.0**32]), 1.0)
    assert raised.tolist() == [False, True]
    assert raised_scales[0] == 0.5
    assert 2.0**32 / raised_scales[1] <= BIAS_LIMIT


def test_an_all_zero_channel_behind_an_all_zero_input_has_a_finite_bias():
    scales, ended = guard_products(np.full(2, SMALLEST_SCALE), ZERO_SCALE, np.ones(2, np.bool_))
    assert quantize_bias(np.zeros(2), ZERO_SCALE, scales).tolist() == [0, 0]
    assert not ended.any()


@pytest.mark.parametrize("input_scale", [ZERO_SCALE, 0.006, 3e30])
def test_the_range_of_an_output_is_finite_in_units_of_a_channel_of_zeros(input_scale):
    """OpenVINO gave 3.475 for zeros of a spectrum whose channels' products had the smallest normal scale."""
    (scale,), _ = guard_products(np.array([SMALLEST_SCALE]), input_scale, np.ones(1, np.bool_))
    assert np.isfinite(np.float32(1e18) / np.float32(np.float32(input_scale) * np.float32(scale)))


@pytest.mark.parametrize("input_scale", [SMALLEST_SCALE, 1e-30, ZERO_SCALE, 0.037, 3e30])
def test_products_of_scales_are_normal_float32(input_scale):
    input_scale = np.float32(input_scale)
    before = np.array([SMALLEST_SCALE, 1e-30, 1e-12, 0.01], np.float32).astype(np.float64)
    after, ended = guard_products(before, float(input_scale), np.zeros(4, np.bool_))
    np.testing.assert_array_equal(after, after.astype(np.float32))
    assert (input_scale * after.astype(np.float32) >= np.finfo(np.float32).tiny).all()
    fits = (before * float(input_scale) > SMALLEST_SCALE) & (before > SMALLEST_SCALE)
    np.testing.assert_array_equal(after[fits], before[fits])
    assert ended.tolist() == (~fits).tolist()
    again, still = guard_products(after, float(input_scale), np.zeros(4, np.bool_))
    np.testing.assert_array_equal(again, after)
    assert still.tolist() == ended.tolist()


def test_guard_leaves_scales_alone_that_fit():
    scales = np.array([0.01, 1e-3])
    after, raised = guard_bias(scales, np.array([3.0, -5.0]), 0.02)
    np.testing.assert_array_equal(after, scales)
    assert not raised.any()


def test_guard_raises_to_the_smallest_float32_that_fits():
    rng = np.random.default_rng(5)
    bias = rng.normal(size=200) * 10.0 ** rng.integers(-3, 4, 200)
    scales = np.full(200, 1e-18)
    input_scale = float(np.float32(0.037))
    after, raised = guard_bias(scales, bias, input_scale)
    assert raised.all()
    np.testing.assert_array_equal(after, after.astype(np.float32))
    limit = BIAS_LIMIT * (1 + 2**-50)  # float64 rounding of the test's own division
    assert (np.abs(bias) / (input_scale * after) <= limit).all()
    below = np.nextafter(after.astype(np.float32), np.float32(0)).astype(np.float64)
    assert (np.abs(bias) / (input_scale * below) > BIAS_LIMIT * (1 - 2**-50)).all()


def test_a_guarded_bias_is_exact_to_float32():
    bias = np.array([2.5, -2.5, 1e-3])
    input_scale = float(np.float32(0.02))
    scales, raised = guard_bias(np.array([1e-12, 1e-12, 1e-3]), bias, input_scale)
    codes = quantize_bias(bias, input_scale, scales)
    product = (np.float32(input_scale) * scales.astype(np.float32)).astype(np.float64)
    assert raised.tolist() == [True, True, False]
    np.testing.assert_allclose(codes[:2] * product[:2], bias[:2], rtol=2**-23)
    assert abs(codes[2] * product[2] - bias[2]) <= product[2] / 2
    assert np.abs(codes[:2]).min() > 2**31 - 1000


def test_guard_keeps_room_for_the_sum():
    reserve = 255 * 127 * 64
    scales, _ = guard_bias(np.array([1e-12]), np.array([2.5]), 0.02, reserve=reserve)
    code = int(quantize_bias(np.array([2.5]), 0.02, scales)[0])
    assert code + reserve <= (2**31 - 1) * (1 + 2**-24)  # the runtime's product of the scales is rounded to float32


def test_one_scale_is_raised_for_the_largest_bias():
    scales, raised = guard_bias(np.array([1e-12]), np.array([0.0, -4.0, 1.0]), 0.5)
    assert raised.tolist() == [True]
    assert 4.0 / (0.5 * scales[0]) <= BIAS_LIMIT


def test_one_bias_raises_every_scale_it_does_not_fit():
    scales, raised = guard_bias(np.array([1e-12, 1.0]), np.array([4.0]), 0.5)
    assert raised.tolist() == [True, False]
    assert quantize_bias(np.array([4.0]), 0.5, scales).shape == (2,)


@pytest.mark.parametrize("bias", [np.nan, np.inf, 1e60])
def test_a_bias_that_no_scale_can_hold_is_refused(bias):
    with pytest.raises(NonFiniteError, match="bias"):
        guard_bias(np.array([1.0]), np.array([bias]), 0.5)


def test_bias_rounds_half_to_even():
    assert quantize_bias(np.array([0.5, 1.5, -2.5]), 1.0, np.ones(3)).tolist() == [0, 2, -2]
