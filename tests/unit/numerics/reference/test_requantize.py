import numpy as np
import pytest

from int8cal.errors import ModelError
from int8cal.numerics.affine import Affine, QType
from int8cal.numerics.reference.elementwise import _fma, add, add_exact, multiply, multiply_exact
from int8cal.numerics.reference.pooling import average_pool_s32, global_average_pool, max_pool
from int8cal.numerics.reference.requantize import multipliers, requantize, requantize_onednn
from int8cal.numerics.reference.windows import Window

BYTE = QType("uint8", 0, 255)


def s32(*values):
    return np.array(values, np.int32)


def test_half_goes_to_the_even_code_before_the_zero_point_comes_on_top():
    assert requantize(s32(1, 3, 5, -1, -3), 0.5, 0, np.int8, axis=0).tolist() == [0, 2, 2, 0, -2]
    assert requantize(s32(1, 3, 5, -1, -3), 0.5, 1, np.int8, axis=0).tolist() == [1, 3, 3, 1, -1]
    # oneDNN adds the zero point first, and halves go to the other side where it is odd
    assert requantize_onednn(s32(1, 3, 5, -1, -3), 0.5, 1.0, 1, np.int8, axis=0).tolist() == [2, 2, 4, 0, 0]


def test_codes_saturate_at_the_ends_of_the_type():
    assert requantize(s32(-(2**31), 2**31 - 1, 0), 1.0, 3, np.uint8, axis=0).tolist() == [0, 255, 3]
    assert requantize(s32(-(2**31), 2**31 - 1, 0), 1.0, 3, np.int8, axis=0).tolist() == [-128, 127, 3]


def test_a_sum_is_rounded_to_float32_before_it_is_multiplied():
    # 2**24 + 1 is no float32
    assert requantize(s32(2**24 + 1), np.float32(2.0**-17), 0, np.uint8, axis=0).tolist() == [128]
    above = s32(65 * 2**24 + 1)  # more than 32.5 steps of 2**25, and exactly that once rounded
    assert requantize(above, np.float32(2.0**-25), 0, np.uint8, axis=0).tolist() == [32]


def test_multipliers_are_rounded_after_every_step():
    x, w, y = np.float32(0.1), np.float32(0.3), np.float32(0.7)
    assert multipliers(0.1, 0.3, 0.7) == np.float32(np.float32(x * w) / y)
    assert multipliers(0.1, [0.3, 0.6], 0.7, alpha=0.2).tolist() == [
        float(np.float32(np.float32(np.float32(np.float32(0.2) * x) * each) / y)) for each in (w, np.float32(0.6))
    ]


def test_channels_have_their_multipliers():
    acc = np.ones((1, 2, 3), np.int32)
    assert requantize(acc, [1.0, 2.0], 0, np.uint8).tolist() == [[[1, 1, 1], [2, 2, 2]]]
    assert requantize(acc, [1.0, 2.0, 3.0], 0, np.uint8, axis=-1).tolist() == [[[1, 2, 3], [1, 2, 3]]]


def test_post_ops_come_before_the_destination_scale():
    found = requantize_onednn(s32(-10, 10, 30), 0.5, 2.0, 4, np.uint8, axis=0, added=[1.0, -9.0, 1.0], relu=True)
    assert found.tolist() == [4, 4, 12]


def test_results_of_other_types_are_refused():
    with pytest.raises(ModelError, match="must be uint8 or int8"):
        requantize(s32(1), 1.0, 0, np.int32)


def test_add_rounds_where_the_formula_does_not():
    one = Affine(1.0, 0, BYTE)
    half = Affine(0.5, 0, BYTE)
    a, b = np.array([0, 1, 2, 3], np.uint8), np.zeros(4, np.uint8)
    odd = Affine(1.0, 1, BYTE)
    # the formula rounds 0.5 and 1.5 to even and adds 1; the kernel rounds 1.5 and 2.5
    assert add_exact(a, b, half, one, odd).tolist() == [1, 1, 2, 3]
    assert add(a, b, half, one, odd).tolist() == [1, 2, 2, 2]


def test_a_fused_multiply_add_rounds_once():
    x = np.float32(1 + 2**-12)  # squared: halfway between two float32 values, and what is added decides
    assert _fma(x, x, np.float32(2.0**-60)) == np.float32(1 + 2**-11 + 2**-23)
    assert _fma(x, x, np.float32(-(2.0**-60))) == np.float32(1 + 2**-11)
    assert _fma(x, x, np.float32(0)) == np.float32(1 + 2**-11)


def test_multiply_takes_both_zero_points_off():
    of_a, of_b, of_y = Affine(0.5, 10, BYTE), Affine(2.0, 20, BYTE), Affine(1.0, 100, BYTE)
    a, b = np.array([12, 8], np.uint8), np.array([25, 25], np.uint8)
    assert multiply(a, b, of_a, of_b, of_y).tolist() == multiply_exact(a, b, of_a, of_b, of_y).tolist() == [110, 90]


def test_a_sum_too_large_for_s32_becomes_the_smallest_code_as_in_the_kernel():
    huge, tiny = Affine(1e6, 0, BYTE), Affine(1e-6, 0, BYTE)
    a = np.array([200, 0], np.uint8)
    assert add(a, a, huge, huge, tiny).tolist() == [0, 0]
    assert add_exact(a, a, huge, huge, tiny).tolist() == [255, 0]


def test_average_is_taken_in_s32_and_rounded_half_to_even():
    x = np.array([[[1, 2, 4, 5, 250, 255]]], np.uint8)
    window = Window.of((2,), (2,))
    assert average_pool_s32(x, window).tolist() == [[[2, 4, 252]]]
    assert average_pool_s32(x, window, zero_point=1).tolist() == [[[1, 5, 253]]]  # halves around 1
    padded = Window.of((2,), (2,), None, (1, 1))
    assert average_pool_s32(x, padded).tolist() == [[[1, 3, 128, 255]]]
    assert average_pool_s32(x, padded, count_include_pad=True).tolist() == [[[0, 3, 128, 128]]]


def test_global_average_sums_without_overflow():
    x = np.full((1, 1, 300, 300), 255, np.uint8)
    of_x, of_y = Affine(0.5, 3, BYTE), Affine(1.0, 7, BYTE)
    assert global_average_pool(x, of_x, of_y).tolist() == [[[[133]]]]


def test_pads_never_win_the_maximum():
    x = np.array([[[-5, -7, -3]]], np.int8)
    assert max_pool(x, Window.of((2,), None, None, (1, 1))).tolist() == [[[-5, -5, -3, -3]]]
