import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from int8cal.errors import NonFiniteError
from int8cal.numerics.affine import S7, S8, SMALLEST_SCALE
from int8cal.numerics.weights import gate_scales, quantize_gates

WEIGHTS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 2), st.integers(1, 12), st.integers(1, 9)),
    elements=st.floats(-1e3, 1e3, width=32),
)


@given(WEIGHTS, st.sampled_from([S7, S8]))
def test_codes_are_within_half_a_step_and_within_the_range(weight, dtype):
    scales = gate_scales(weight, dtype)
    gates = quantize_gates(weight, scales, dtype)
    assert np.abs(gates.codes.astype(int)).max() <= dtype.qmax
    assert (np.abs(gates.codes * scales[..., None] - weight) <= scales[..., None] * (0.5 + 1e-4)).all()


@given(WEIGHTS)
def test_s7_codes_cannot_saturate_a_pair(weight):
    codes = quantize_gates(weight, gate_scales(weight, S7), S7).codes.astype(int)
    pairs = codes[..., : codes.shape[-1] // 2 * 2].reshape(*codes.shape[:2], -1, 2)
    assert (255 * np.clip(pairs, 0, None).sum(axis=-1) <= 32767).all()
    assert (255 * np.clip(pairs, None, 0).sum(axis=-1) >= -32768).all()


@given(WEIGHTS, st.sampled_from([S7, S8]))
def test_a_row_and_its_negative_have_the_same_scale_and_opposite_codes(weight, dtype):
    scales = gate_scales(weight, dtype)
    assert np.array_equal(gate_scales(-weight, dtype), scales)
    plus, minus = (quantize_gates(each, scales, dtype).codes for each in (weight, -weight))
    assert np.array_equal(plus, -minus)


def test_the_scale_is_the_inverse_of_onednns_factor():
    weight = np.array([[[0.5, -2.0], [0.25, 0.1]]], np.float32)
    assert gate_scales(weight, S7) == pytest.approx(1 / np.array([[63 / 2.0, 63 / 0.25]]))
    assert quantize_gates(weight, gate_scales(weight, S7), S7).codes.tolist() == [[[16, -63], [63, 25]]]


def test_every_row_of_every_direction_has_its_own_scale():
    weight = np.arange(1, 2 * 8 * 3 + 1, dtype=np.float32).reshape(2, 8, 3)
    assert np.array_equal(gate_scales(weight, S8), (weight.max(axis=2) / 127).astype(np.float32))


def test_a_row_of_zeros_has_the_smallest_scale_and_codes_of_zero():
    weight = np.zeros((1, 4, 2), np.float32)
    scales = gate_scales(weight, S7)
    assert (scales == SMALLEST_SCALE).all()
    assert not quantize_gates(weight, scales, S7).codes.any()


def test_scales_are_exact_float32():
    weight = np.random.default_rng(0).normal(size=(2, 12, 5)).astype(np.float32)
    scales = gate_scales(weight, S7)
    assert np.array_equal(scales, scales.astype(np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_refused(bad):
    with pytest.raises(NonFiniteError):
        gate_scales(np.array([[[1.0, bad]]], np.float32), S7)
