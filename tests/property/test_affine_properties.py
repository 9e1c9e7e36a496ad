import numpy as np
from affine_codes import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st
from strategies import ranges

from int8cal.numerics.affine import S7, S8, SMALLEST_SCALE, U8, affine_from_range

TYPES = st.sampled_from([(U8, False), (S8, False), (S8, True), (S7, True)])


@given(ranges(), TYPES, st.floats(0, 1))
def test_error_is_at_most_half_a_step_inside_the_range(limits, kind, position):
    dtype, symmetric = kind
    affine = affine_from_range(*limits, dtype, symmetric=symmetric)
    x = affine.low + position * (affine.high - affine.low)
    error = abs(float(dequantize(quantize(x, affine), affine)) - x)
    assert error <= affine.scale * (0.5 + 1e-12)


@given(ranges(), TYPES, st.floats(0, 1))
def test_the_asked_range_is_covered_to_half_a_step(limits, kind, position):
    dtype, symmetric = kind
    affine = affine_from_range(*limits, dtype, symmetric=symmetric)
    x = limits[0] + position * (limits[1] - limits[0])
    error = abs(float(dequantize(quantize(x, affine), affine)) - x)
    assert error <= affine.scale * (0.5 + 256 * 2**-23)  # the scale was rounded to float32


@given(ranges(), TYPES)
def test_parameters_are_usable_and_zero_is_exact(limits, kind):
    dtype, symmetric = kind
    affine = affine_from_range(*limits, dtype, symmetric=symmetric)
    assert affine.scale >= SMALLEST_SCALE
    assert np.isfinite(np.float32(affine.scale))
    assert float(np.float32(affine.scale)) == affine.scale
    assert dtype.qmin <= affine.zero_point <= dtype.qmax
    assert float(dequantize(quantize(0.0, affine), affine)) == 0.0


@given(ranges(), TYPES)
def test_every_code_survives_a_round_trip(limits, kind):
    dtype, symmetric = kind
    affine = affine_from_range(*limits, dtype, symmetric=symmetric)
    codes = np.arange(dtype.qmin, dtype.qmax + 1)
    np.testing.assert_array_equal(quantize(dequantize(codes, affine), affine), codes)
