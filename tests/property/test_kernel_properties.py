"""The compiled loops against their numpy twins, bit for bit."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import arrays, channelled

from int8cal.numerics import exactsum, kernels
from int8cal.numerics.loglinear import BINS


def rows(function, values, parts=1):
    channels = values.shape[1]
    low, high = np.full(channels, np.inf, np.float32), np.full(channels, -np.inf, np.float32)
    total, square = np.full(channels, 7.0), np.full(channels, 7.0)
    for _ in range(parts):
        function(values, low, high, total, square)
    return [low.view(np.uint32), high.view(np.uint32), total.view(np.uint64), square.view(np.uint64)]


@given(st.integers(1, 200).flatmap(lambda size: arrays(size, finite=False)))
def test_counts_are_those_of_the_twin(values):
    results = []
    for function in (kernels.count_values, kernels.count_twin):
        table, tally = np.zeros(BINS, np.int64), np.zeros(kernels.TALLY, np.int64)
        function(values.view(np.uint32), table, tally)
        results.append((table, tally))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
    table, tally = results[0]
    assert table.sum() + tally.sum() == values.size
    assert tally.tolist() == [
        np.count_nonzero(values == 0),
        np.count_nonzero(np.isnan(values)),
        np.count_nonzero(values == np.inf),
        np.count_nonzero(values == -np.inf),
    ]


@given(channelled(most=33))
def test_row_sums_and_extremes_are_those_of_the_twin(values):
    for mine, twin in zip(rows(kernels.channel_rows, values), rows(kernels.rows_twin, values), strict=True):
        np.testing.assert_array_equal(mine, twin)


@given(channelled())
def test_rows_are_right(values):
    low, high, total, square = rows(kernels.channel_rows, values)
    np.testing.assert_array_equal(low.view(np.float32), values.min(axis=(0, 2)))
    np.testing.assert_array_equal(high.view(np.float32), values.max(axis=(0, 2)))
    by_channel = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)
    size = np.abs(by_channel.astype(np.float64)).sum(axis=1)
    assert (np.abs(total.view(np.float64) - by_channel.sum(axis=1, dtype=np.float64)) <= size * 2.0**-45).all()
    np.testing.assert_allclose(square.view(np.float64), np.square(by_channel, dtype=np.float64).sum(axis=1), rtol=1e-12)


@given(channelled())
def test_an_extreme_of_zero_has_no_sign(values):
    for bits in rows(kernels.channel_rows, values)[:2]:
        assert not (bits == 0x80000000).any()


@given(channelled(finite=False))
def test_coarse_counts_are_those_of_the_twin(values):
    tables = []
    for function in (kernels.count_channels, kernels.coarse_twin):
        table = np.zeros((values.shape[1], kernels.COARSE_BINS), np.uint32)
        function(values.view(np.uint32), table)
        tables.append(table)
    np.testing.assert_array_equal(*tables)
    counted = np.isfinite(values) & (values != 0)
    np.testing.assert_array_equal(tables[0].sum(axis=1), counted.sum(axis=(0, 2)))


SUMMANDS = st.floats(2.0**-300, 2.0**300).flatmap(lambda size: st.sampled_from([size, -size])) | st.just(0.0)


@given(st.lists(SUMMANDS, min_size=1, max_size=40))
def test_exact_sum_is_the_fraction(values):
    limbs = exactsum.zeros(1)
    for value in values:
        exactsum.add(limbs, np.array([value]))
    assert exactsum.value(limbs)[0] == float(sum(Fraction(value) for value in values))


@given(st.lists(SUMMANDS | st.sampled_from([np.inf, -np.inf, np.nan, 1e-300, 1e300]), min_size=1, max_size=40))
def test_exact_sum_is_that_of_its_twin(values):
    mine, twin = exactsum.zeros(2), exactsum.zeros(2)
    for value in values:
        exactsum.add(mine, np.array([value, -value]))
        exactsum.add_twin(twin, np.array([value, -value]))
    np.testing.assert_array_equal(mine, twin)


@given(
    st.lists(SUMMANDS, min_size=1, max_size=20).flatmap(lambda each: st.tuples(st.just(each), st.permutations(each)))
)
def test_exact_sum_does_not_depend_on_the_order(orders):
    results = []
    for order in orders:
        limbs = exactsum.zeros(1)
        for value in order:
            exactsum.add(limbs, np.array([value]))
        results.append(exactsum.canonical(limbs))
    np.testing.assert_array_equal(*results)


@given(st.lists(SUMMANDS, min_size=2, max_size=20), st.integers(0, 19))
def test_exact_sums_add_in_canonical_form(values, cut):
    parts = []
    for part in (values, values[:cut], values[cut:]):
        limbs = exactsum.zeros(1)
        for value in part:
            exactsum.add(limbs, np.array([value]))
        parts.append(exactsum.canonical(limbs))
    np.testing.assert_array_equal(parts[0], exactsum.canonical(parts[1] + parts[2]))


@given(arrays(6), st.integers(-30, 30))
def test_scaling_a_sum_of_squares_is_exact(values, exponent):
    limbs, scaled = exactsum.zeros(1), exactsum.zeros(1)
    for value in np.square(values, dtype=np.float64):
        exactsum.add(limbs, np.array([value]))
        exactsum.add(scaled, np.array([value * 2.0 ** (2 * exponent)]))
    exponents = np.array([2 * exponent])
    np.testing.assert_array_equal(exactsum.scaled(limbs, exponents), exactsum.canonical(scaled))
