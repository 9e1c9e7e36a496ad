import numpy as np
import pytest

from int8cal.numerics import compiled as compiled_loops
from int8cal.numerics import second_order
from int8cal.numerics.affine import S7, S8
from int8cal.numerics.pairs import Rows, link, unsafe_pairs
from int8cal.numerics.rounding import choose_scales, round_codes
from int8cal.numerics.second_order import (
    columnwise,
    error_power,
    factor,
    grouped,
    mixed,
    round_second_order,
    share_without_data,
    ungrouped,
)


def problem(outputs=6, channels=5, positions=9, groups=1, orders=(), dtype=S8, seed=0):
    rng = np.random.default_rng(seed)
    size = channels * positions
    rows = Rows(rng.normal(size=(outputs, 1, size)).astype(np.float32), channels, (positions,))
    few = rng.normal(size=(groups, 400, 9)) @ rng.normal(size=(9, size)) + 3  # neighbours say nearly the same
    inputs = few + rng.normal(scale=0.3, size=few.shape)
    gram = inputs.transpose(0, 2, 1) @ inputs
    links = link(orders, positions, channels)
    scales = choose_scales(rows, dtype, links)
    return rows, scales, links, gram, round_codes(rows, scales, dtype, links)


@pytest.mark.parametrize("orders", [(), ("flat",), ("flat", "channels")])
@pytest.mark.parametrize("dtype", [S8, S7])
def test_correlated_inputs_lose_several_decibels_of_error(orders, dtype):
    rows, scales, links, gram, start = problem(orders=orders, dtype=dtype)
    codes = round_second_order(rows, scales, dtype, links, mixed(gram, 400, rows.channels), start)
    before, after = error_power(rows, scales, start, gram), error_power(rows, scales, codes, gram)
    assert after < before / 2
    assert dtype.qmin <= codes.min() <= codes.max() <= dtype.qmax
    assert not unsafe_pairs(codes, links).any()


def test_the_power_of_an_error_is_that_of_its_outputs():
    rng = np.random.default_rng(3)
    rows, scales, _, _, codes = problem(groups=2)
    inputs = rng.normal(size=(2, 50, 45))
    errors = grouped(codes * scales[:, None, None] - rows.values, 2)
    outputs = errors @ inputs.transpose(0, 2, 1)
    power = error_power(rows, scales, codes, inputs.transpose(0, 2, 1) @ inputs)
    assert power == pytest.approx((outputs**2).sum(), rel=1e-5)


def test_each_group_is_rounded_by_its_own_inputs():
    rows, scales, links, gram, start = problem(groups=2)
    moments = mixed(gram, 400, rows.channels)
    whole = round_second_order(rows, scales, S8, links, moments, start)
    for group, part in enumerate((slice(0, 3), slice(3, 6))):
        alone = Rows(rows.values[part], rows.channels, rows.kernel)
        codes = round_second_order(alone, scales[part], S8, links, moments[group : group + 1], start[part])
        np.testing.assert_array_equal(codes, whole[part])


def test_the_rows_of_a_transposed_convolution_belong_to_one_group_each():
    values = np.arange(24).reshape(4, 2, 3)
    split = grouped(values, 2)
    np.testing.assert_array_equal(split[1], values[:, 1])
    np.testing.assert_array_equal(ungrouped(split, values.shape), values)


def test_without_correlation_columnwise_rounds_to_the_nearest():
    exact = np.random.default_rng(1).normal(scale=20, size=(1, 4, 300))
    codes, _ = columnwise(exact, np.eye(300)[None] * np.sqrt(3.0), link((), 300, 1), -127.0, 127.0)
    np.testing.assert_array_equal(codes, np.rint(exact))


@pytest.mark.parametrize("size", [7, 64, 65, 700])
def test_factors_are_lower_triangular_and_give_the_moments_whatever_the_threads(size):
    rows = np.random.default_rng(2).normal(size=(2, size + 5, size)) * np.geomspace(0.01, 30, size)
    moments = rows.transpose(0, 2, 1) @ rows
    found = factor(moments)
    np.testing.assert_array_equal(found, np.tril(found))
    np.testing.assert_allclose(found, np.linalg.cholesky(moments), rtol=1e-6, atol=1e-9 * np.abs(found).max())
    np.testing.assert_array_equal(factor(moments, threads=3), found)


def test_what_columnwise_weighs_is_the_errors_times_the_factor():
    rows, scales, links, gram, _ = problem()
    lower = factor(mixed(gram, 400, rows.channels))
    exact = grouped(rows.values / scales[:, None, None], len(gram))
    codes, weighed = columnwise(exact, lower, links, -127.0, 127.0)
    np.testing.assert_allclose(weighed, (codes - exact) @ lower, rtol=1e-9, atol=1e-9 * np.abs(weighed).max())


def test_zero_stays_zero():
    rows, scales, links, gram, _ = problem()
    rows.values[:, :, ::3] = 0.0
    start = round_codes(rows, scales, S8, links)
    codes = round_second_order(rows, scales, S8, links, mixed(gram, 400, rows.channels), start)
    assert not codes[rows.values == 0].any()


def test_an_input_that_never_moved_keeps_the_matrix_positive_definite():
    gram = np.zeros((1, 6, 6))
    gram[0, 0, 0] = 1000.0
    np.linalg.cholesky(mixed(gram, 10, 3))
    np.linalg.cholesky(mixed(np.zeros((1, 6, 6)), 10, 3))


def test_few_positions_leave_more_to_the_model_without_data():
    assert share_without_data(64, 64) == pytest.approx(0.3)
    assert share_without_data(576, 10**6) < 0.051
    assert share_without_data(4608, 10) == share_without_data(4608, 0) == 0.6


def test_mixing_keeps_the_scale_of_each_input():
    _, _, _, gram, _ = problem()
    mixture = mixed(gram, 400, 5)
    np.testing.assert_allclose(np.diagonal(mixture[0]), np.diagonal(gram[0]) / 400)


@pytest.mark.parametrize("groups", [1, 2])
def test_threads_give_the_same_codes(groups, monkeypatch):
    monkeypatch.setattr(second_order, "_PART", 100)
    monkeypatch.setattr(second_order, "_PART_ROWS", 1)
    rows, scales, links, gram, start = problem(groups=groups)
    given = rows, scales, S8, links, mixed(gram, 400, rows.channels), start
    np.testing.assert_array_equal(round_second_order(*given, threads=3), round_second_order(*given))


@pytest.mark.parametrize("orders", [(), ("flat",), ("flat", "channels")])
def test_the_numpy_twin_gives_the_same_codes(orders, monkeypatch):
    rows, scales, links, gram, start = problem(orders=orders)
    moments = mixed(gram, 400, rows.channels)
    monkeypatch.setattr(compiled_loops, "PATIENCE_S", 0.0)  # or the twins serve from the start
    compiled = round_second_order(rows, scales, S8, links, moments, start)
    monkeypatch.setattr(second_order, "_step", second_order._step_twin)
    monkeypatch.setattr(second_order, "_round_block", second_order._round_block_twin)
    np.testing.assert_array_equal(round_second_order(rows, scales, S8, links, moments, start), compiled)
