import numpy as np
import pytest

from int8cal.numerics import rounding
from int8cal.numerics.affine import S7, S8, SMALLEST_SCALE
from int8cal.numerics.pairs import Reduction, Rows, link, unsafe_pairs

BOTH = ("flat", "channels")
CASES = [
    ((6, 8, 3, 3), Reduction(0, 1), BOTH),
    ((6, 3, 3, 3), Reduction(0, 1), BOTH),  # odd channels: pairs of the two orders overlap
    ((6, 1, 3, 3), Reduction(0, 1), ()),
    ((6, 4, 2, 2), Reduction(1, 0, 2), BOTH),
    ((21, 7), Reduction(1, 0), BOTH),
    ((2, 9, 5), Reduction(None, -2), BOTH),
]


def drawn(shape, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) * rng.exponential(size=shape)).astype(np.float32)


def rows_and_links(shape, reduction, orders, seed=0):
    rows = reduction.rows(drawn(shape, seed))
    return rows, link(orders, rows.positions, rows.channels)


def output_error(rows, codes, scales):
    """J of the module's docstring, written down once more, per scale."""
    error = (codes * scales[:, None, None] - rows.values).reshape(*codes.shape[:2], rows.positions, rows.channels)
    within = np.square(error.sum(axis=2)).sum(axis=2)
    every = np.square(error.sum(axis=(2, 3)))
    return (np.square(error).sum(axis=(2, 3)) + 0.6 * within + 0.3 * every).sum(axis=1)


def nearest(rows, dtype):
    flat = rows.values.reshape(len(rows.values), -1).astype(np.float64)
    scales = np.maximum(flat.max(axis=1) / dtype.qmax, flat.min(axis=1) / dtype.qmin)
    return np.clip(np.rint(rows.values / scales[:, None, None]), dtype.qmin, dtype.qmax), scales


@pytest.mark.parametrize("dtype", [S8, S7])
@pytest.mark.parametrize(("shape", "reduction", "orders"), CASES)
def test_the_loops_and_their_twins_give_the_same_bits(shape, reduction, orders, dtype, monkeypatch):
    rows, links = rows_and_links(shape, reduction, orders)
    scales = rounding.choose_scales(rows, dtype, links)
    codes = rounding.round_codes(rows, scales, dtype, links)
    monkeypatch.setattr(rounding, "_look", rounding._look_twin)
    monkeypatch.setattr(rounding, "_round", rounding._round_twin)
    np.testing.assert_array_equal(rounding.choose_scales(rows, dtype, links), scales)
    np.testing.assert_array_equal(rounding.round_codes(rows, scales, dtype, links), codes)


@pytest.mark.parametrize(("dtype", "low", "high"), [(S8, -127, 127), (S7, -64, 63)])
@pytest.mark.parametrize(("shape", "reduction", "orders"), CASES)
def test_no_code_leaves_its_range_and_no_pair_can_saturate(shape, reduction, orders, dtype, low, high):
    rows, links = rows_and_links(shape, reduction, orders)
    codes = rounding.round_codes(rows, rounding.choose_scales(rows, dtype, links), dtype, links)
    assert codes.dtype == np.int8
    assert low <= codes.min()
    assert codes.max() <= high
    assert not unsafe_pairs(codes, links).any()


@pytest.mark.parametrize("scale", [1e-3, 0.02, 1.0])
def test_pairs_are_safe_at_any_scale_that_a_table_may_hold(scale):
    rows, links = rows_and_links((6, 3, 3, 3), Reduction(0, 1), BOTH)
    codes = rounding.round_codes(rows, np.full(6, scale), S8, links)
    assert not unsafe_pairs(codes, links).any()


def test_without_links_the_same_weights_do_hold_unsafe_pairs():
    rows, links = rows_and_links((6, 8, 3, 3), Reduction(0, 1), BOTH)
    none = np.zeros_like(links)
    codes = rounding.round_codes(rows, rounding.choose_scales(rows, S8, none), S8, none)
    assert unsafe_pairs(codes, links).any()


@pytest.mark.parametrize("dtype", [S8, S7])
def test_the_error_at_the_output_is_below_that_of_nearest_codes(dtype):
    rows, _ = rows_and_links((64, 16, 3, 3), Reduction(0, 1), ())
    none = link((), rows.positions, rows.channels)
    scales = rounding.choose_scales(rows, dtype, none)
    codes = rounding.round_codes(rows, scales, dtype, none)
    plain = output_error(rows, *nearest(rows, dtype))
    assert (output_error(rows, codes, scales) < plain).all()


def test_a_weight_is_rounded_up_or_down_and_never_further():
    rows, _ = rows_and_links((32, 16, 3, 3), Reduction(0, 1), ())
    none = link((), rows.positions, rows.channels)
    scales = 1.01 * nearest(rows, S8)[1]  # nothing is clipped
    codes = rounding.round_codes(rows, scales, S8, none)
    assert (np.abs(codes - rows.values / scales[:, None, None]) < 1).all()


def test_errors_of_one_row_cancel():
    # 40 weights of 0.3 steps: the nearest codes are all 0 and their sum is 12 steps away
    rows = Rows(np.full((1, 1, 40), 0.3, np.float32), 40)
    codes = rounding.round_codes(rows, np.ones(1), S8, link((), 1, 40))
    assert abs(int(codes.sum()) - 12) <= 2


def test_zero_weights_keep_code_zero():
    weight = np.full((1, 1, 40), 0.3, np.float32)
    weight[..., ::2] = 0
    codes = rounding.round_codes(Rows(weight, 40), np.ones(1), S8, link((), 1, 40))
    assert not codes[..., ::2].any()
    assert codes.any()


def test_a_pair_is_brought_to_the_nearest_safe_codes():
    rows = Rows(np.array([[[100.0, 60.0, -100.0, -60.0, 100.0, -60.0]]], np.float32), 6)
    codes = rounding.round_codes(rows, np.ones(1), S8, link(("flat",), 1, 6))
    assert codes[0, 0].tolist() == [84, 44, -84, -44, 100, -60]


def test_scales_are_exact_float32_and_s7_takes_its_extra_code():
    rows, links = rows_and_links((6, 8, 3, 3), Reduction(0, 1), BOTH)
    scales = rounding.choose_scales(rows, S8, links)
    np.testing.assert_array_equal(scales, scales.astype(np.float32))
    codes = rounding.round_codes(Rows(np.array([[[-64.0, 10.0]]]), 2), np.ones(1), S7, np.zeros(1, np.bool_))
    assert codes.tolist() == [[[-64, 10]]]


@pytest.mark.parametrize("value", [0.0, 1e-42])
def test_a_channel_of_zeros_or_denormals_gets_a_usable_scale(value):
    rows = Rows(np.full((1, 1, 4), value, np.float32), 4)
    links = link(("flat",), 1, 4)
    scales = rounding.choose_scales(rows, S8, links)
    assert scales.tolist() == [SMALLEST_SCALE]
    assert not rounding.round_codes(rows, scales, S8, links).any()


def test_the_largest_weights_have_a_finite_scale():
    rows = Rows(np.full((1, 1, 4), np.finfo(np.float32).max), 4)
    links = link(("flat",), 1, 4)
    scales = rounding.choose_scales(rows, S8, links)
    assert np.isfinite(scales).all()
    assert rounding.round_codes(rows, scales, S8, links).any()


def test_a_single_weight_is_quantized():
    rows = Rows(np.array([[[-3.0]]], np.float32), 1)
    scales = rounding.choose_scales(rows, S8, link(("flat",), 1, 1))
    codes = rounding.round_codes(rows, scales, S8, link(("flat",), 1, 1))
    np.testing.assert_allclose(codes[0, 0, 0] * scales[0], -3.0, rtol=0.01)


def test_a_large_matrix_taken_in_parts_has_the_same_scales_and_codes(monkeypatch):
    rows, links = rows_and_links((21, 7), Reduction(1, 0), BOTH)
    scales = rounding.choose_scales(rows, S8, links)
    codes = rounding.round_codes(rows, scales, S8, links)
    sizes, real = [], rounding._chosen
    monkeypatch.setattr(rounding, "_AT_ONCE", 2 * 21)
    monkeypatch.setattr(rounding, "_chosen", lambda stored, *more: sizes.append(len(stored)) or real(stored, *more))
    np.testing.assert_array_equal(rounding.choose_scales(rows, S8, links), scales)
    np.testing.assert_array_equal(rounding.round_codes(rows, scales, S8, links), codes)
    assert sizes == [2, 2, 2, 1]


@pytest.mark.parametrize("orders", [(), ("flat",)])
@pytest.mark.parametrize("pattern", [(0.7, 0.7), (0.7, -0.7), (0.7, 0.0)])
def test_rows_of_one_magnitude_have_no_error(pattern, orders):
    rows = Rows(np.tile(np.array(pattern, np.float32), 8).reshape(1, 1, -1), 16)
    links = link(orders, 1, 16)
    scales = rounding.choose_scales(rows, S8, links)
    codes = rounding.round_codes(rows, scales, S8, links)
    np.testing.assert_allclose(codes * scales[0], rows.values, rtol=1e-6)
