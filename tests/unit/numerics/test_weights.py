import numpy as np
import pytest

from int8cal.errors import NonFiniteError
from int8cal.numerics.affine import S7, S8, SMALLEST_SCALE
from int8cal.numerics.weights import (
    BIAS_LIMIT,
    channels_first,
    guard_bias,
    quantize_bias,
    quantize_weights,
    weight_scales,
)


def ramp(*shape):
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("op", "shape", "axis", "channels"),
    [
        ("Conv", (4, 3, 2, 2), 0, 4),
        ("depthwise Conv", (6, 1, 3, 3), 0, 6),
        ("ConvTranspose", (3, 4, 2, 2), 1, 4),
        ("Gemm", (5, 7), 1, 7),
        ("Gemm transB", (7, 5), 0, 7),
        ("MatMul", (5, 7), 1, 7),
        ("MatMul, batched", (2, 5, 7), None, 1),
    ],
)
def test_scales_follow_the_output_channels(op, shape, axis, channels):
    weight = ramp(*shape)
    scales = weight_scales(weight, axis, S8)
    assert scales.shape == (channels,), op
    others = tuple(index for index in range(len(shape)) if index != axis) if axis is not None else None
    expected = np.atleast_1d(np.abs(weight).max(axis=others)).astype(np.float64) / 127
    np.testing.assert_array_equal(scales, expected.astype(np.float32))


def test_grouped_conv_transpose_shares_a_scale_between_its_groups():
    # ONNX stores (C, M / group, kh, kw): axis 1 holds M / group channels, and output channel g * (M / group) + k is
    # row k of every group. DequantizeLinear has no axis for all M, so the groups share the scale of k.
    weight = np.zeros((4, 3, 1, 1), np.float32)
    weight[:2, 1] = 2.0  # group 0, channel 1
    weight[2:, 1] = 6.0  # group 1, channel 1
    scales = weight_scales(weight, 1, S8)
    assert scales.shape == (3,)
    assert scales[1] == float(np.float32(6.0 / 127))


def test_grouped_conv_transpose_lists_its_output_channels_in_their_order():
    group, per_group = 2, 3
    weight = ramp(4, per_group, 2, 2)
    rows = channels_first(weight, 1, group)
    assert rows.shape == (group * per_group, 2 * 4)
    for g in range(group):
        for k in range(per_group):
            np.testing.assert_array_equal(rows[g * per_group + k], weight[2 * g : 2 * g + 2, k].ravel())


def test_grouped_conv_transpose_bias_takes_the_shared_scales():
    scales = np.array([0.5, 0.25])
    codes = quantize_bias(np.array([1.0, 1.0, 2.0, 2.0]), 1.0, scales)
    assert codes.tolist() == [2, 4, 4, 8]
    raised_scales, raised = guard_bias(scales, np.array([0.0, 1.0, 0.0, 2.0**32]), 1.0)
    assert raised.tolist() == [False, True]
    assert raised_scales[0] == 0.5
    assert 2.0**32 / raised_scales[1] <= BIAS_LIMIT


@pytest.mark.parametrize(("dtype", "low", "high"), [(S8, -127, 127), (S7, -64, 63)])
@pytest.mark.parametrize("sign", [1, -1])
def test_codes_use_the_range_and_never_leave_it(dtype, low, high, sign):
    weight = sign * np.random.default_rng(3).normal(size=(8, 5, 3, 3)).astype(np.float32)
    codes = quantize_weights(weight, weight_scales(weight, 0, dtype), 0, dtype)
    assert codes.dtype == np.int8
    assert codes.shape == weight.shape
    assert low <= codes.min()
    assert codes.max() <= high
    ends = np.maximum(codes.reshape(8, -1).max(axis=1) / high, codes.reshape(8, -1).min(axis=1) / low)
    np.testing.assert_array_equal(ends, 1.0)  # every channel reaches one end


def test_s7_uses_its_extra_negative_code():
    weight = np.array([[-64.0, 10.0], [-10.0, 63.0]], np.float32)
    np.testing.assert_array_equal(weight_scales(weight, 0, S7), [1.0, 1.0])
    assert quantize_weights(weight, np.ones(2), 0, S7).tolist() == [[-64, 10], [-10, 63]]


def test_weight_error_is_at_most_half_a_step():
    weight = np.random.default_rng(4).normal(size=(6, 50)).astype(np.float32)
    scales = weight_scales(weight, 0, S8)
    back = quantize_weights(weight, scales, 0, S8) * scales[:, None]
    assert (np.abs(back - weight) <= scales[:, None] * (0.5 + 1e-5)).all()


def test_an_all_zero_channel_gets_a_usable_scale_and_zero_codes():
    weight = np.array([[0.0, 0.0], [1.0, -2.0]], np.float32)
    scales = weight_scales(weight, 0, S8)
    assert scales[0] == SMALLEST_SCALE
    assert quantize_weights(weight, scales, 0, S8)[0].tolist() == [0, 0]


def test_an_all_zero_channel_behind_an_all_zero_input_has_a_finite_bias():
    assert quantize_bias(np.zeros(2), SMALLEST_SCALE, np.full(2, SMALLEST_SCALE)).tolist() == [0, 0]


def test_denormal_weights_do_not_give_a_denormal_scale():
    scales = weight_scales(np.full((1, 4), 1e-42, np.float32), 0, S8)
    assert scales[0] == SMALLEST_SCALE


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_refused(bad):
    weight = np.ones((2, 3), np.float32)
    weight[1, 2] = bad
    with pytest.raises(NonFiniteError, match="weight"):
        weight_scales(weight, 0, S8)


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
