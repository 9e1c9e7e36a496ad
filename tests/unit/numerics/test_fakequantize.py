"""FakeQuantize: the formula, and scale and zero point from its ends and back."""

import math

import numpy as np
import pytest
from affine_codes import dequantize, fake_quantize, quantize

from int8cal.errors import NonFiniteError
from int8cal.numerics.affine import S7, S8, U8, Affine, QType
from int8cal.numerics.fakequantize import (
    FakeQuantize,
    affine_of,
    fakequantize_of,
    fakequantize_of_weights,
)

AFFINES = [
    Affine(0.5, 0, U8),
    Affine(0.25, 128, U8),
    Affine(0.125, 255, U8),
    Affine(0.03125, 7, U8),
    Affine(0.5, 0, S8),
]


def same(low, high, levels):
    return FakeQuantize(low, high, low, high, levels)


def test_the_definition_by_hand():
    operation = FakeQuantize(0.0, 3.0, 10.0, 40.0, 4)
    assert fake_quantize(operation, [-1.0, 0.0, 0.4, 1.6, 2.9, 3.5]).tolist() == [10.0, 10.0, 10.0, 30.0, 40.0, 40.0]


def test_halves_go_to_the_even_code():
    assert fake_quantize(same(0.0, 255.0, 256), [0.5, 1.5, 2.5]).tolist() == [0.0, 2.0, 2.0]


@pytest.mark.parametrize("affine", AFFINES)
def test_it_is_q_and_dq_of_its_affine_away_from_midpoints(affine):
    # runtimes saturate int8 at -128, quantize() at -127
    dtype = QType("int8", -128, 127) if affine.dtype is S8 else affine.dtype
    x = np.linspace(affine.low - 3, affine.high + 3, 4001) + 1e-7
    expected = dequantize(quantize(x, Affine(affine.scale, affine.zero_point, dtype)), affine)
    np.testing.assert_allclose(fake_quantize(fakequantize_of(affine), x), expected, atol=1e-9)


@pytest.mark.parametrize("zero_point", [0, 1, 2, 7])
def test_midpoints_go_the_other_way_where_the_zero_point_is_odd(zero_point):
    affine = Affine(1.0, zero_point, U8)
    x = np.arange(3, 9) + 0.5
    equal = fake_quantize(fakequantize_of(affine), x) == dequantize(quantize(x, affine), affine)
    assert equal.all() if zero_point % 2 == 0 else not equal.any()


@pytest.mark.parametrize("affine", AFFINES)
def test_an_affine_comes_back_unmoved(affine):
    nudged = affine_of(fakequantize_of(affine), signed=affine.dtype is S8)
    assert nudged.affine == affine
    assert nudged.moved == 0


@pytest.mark.parametrize("affine", AFFINES)
def test_ends_stored_as_float32_do_not_count_as_a_nudge(affine):
    affine = Affine(float(np.float32(affine.scale / 3)), affine.zero_point, affine.dtype)
    exact = fakequantize_of(affine)
    low, high = (float(np.float32(end)) for end in (exact.input_low, exact.input_high))
    nudged = affine_of(same(low, high, 256), signed=affine.dtype is S8)
    assert nudged.affine.zero_point == affine.zero_point
    assert nudged.affine.scale == pytest.approx(affine.scale, rel=1e-6)
    assert not nudged.changed


def test_a_symmetric_range_has_zero_point_128_where_the_low_end_is_128_127ths():
    operation = same(-(128 / 127) * 3.0, 3.0, 256)
    assert -operation.input_low / operation.scale == pytest.approx(128, abs=1e-12)
    assert affine_of(operation).affine == Affine(float(np.float32(3 / 127)), 128, U8)


def test_a_plain_symmetric_range_of_256_levels_is_widened_below():
    nudged = affine_of(same(-127.0, 127.0, 256))
    assert nudged.affine == Affine(1.0, 128, U8)
    assert (nudged.before, nudged.after) == ((-127.0, 127.0), (-128.0, 127.0))
    assert nudged.changed
    assert nudged.moved == 1.0


def test_a_range_from_zero_has_zero_point_0():
    assert affine_of(same(0.0, 255.0, 256)).affine == Affine(1.0, 0, U8)


def test_255_symmetric_levels_are_signed():
    assert affine_of(same(-127.0, 127.0, 255)).affine == Affine(1.0, 0, S8)


def test_weights_keep_to_their_codes():
    assert fakequantize_of_weights(0.5, S8) == same(-63.5, 63.5, 255)
    assert fakequantize_of_weights(0.5, S7) == same(-32.0, 31.5, 128)


def test_256_levels_are_int8_where_that_is_said():
    assert affine_of(same(-128.0, 127.0, 256), signed=True).affine == Affine(1.0, 0, S8)
    assert affine_of(same(-100.0, 155.0, 256), signed=True).affine == Affine(1.0, -28, S8)
    assert affine_of(same(0.0, 255.0, 256), signed=True).affine == Affine(1.0, 0, U8)  # -128 is no code of int8cal's


def test_any_other_zero_point_is_rounded_and_the_nudge_says_from_where():
    nudged = affine_of(same(-1.0, 3.0, 256))
    scale = float(np.float32(4 / 255))
    assert nudged.affine == Affine(scale, 64, U8)  # 63.75
    assert nudged.before == (-1.0, 3.0)
    assert nudged.moved == pytest.approx(0.25, abs=1e-4)


def test_a_range_without_zero_is_widened():
    nudged = affine_of(same(2.0, 255.0, 256))
    assert nudged.after == (0.0, 255.0)
    assert nudged.changed


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.inf)])
def test_empty_and_infinite_ranges_are_refused(low, high):
    with pytest.raises(NonFiniteError):
        affine_of(same(low, high, 256))


def test_other_levels_and_other_output_ranges_are_no_q_and_dq():
    with pytest.raises(ValueError, match="levels is 16"):
        affine_of(same(0.0, 1.0, 16))
    with pytest.raises(ValueError, match="output range"):
        affine_of(FakeQuantize(0.0, 1.0, 0.0, 2.0, 256))
