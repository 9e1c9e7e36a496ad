"""The compiled loops against numpy, bit for bit."""

from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from loop_definitions import add_exactly, gather
from strategies import arrays, shaped

from int8cal.numerics import exactsum, kernels
from int8cal.numerics.loglinear import BINS


def observed(function, values, *, channels=None, coarse=True, squares=True, parts=1):
    """What a function leaves behind: every array, zeros apart, and what it returned."""
    count = values.shape[1] * values.shape[3] if channels is None else channels
    fine = np.zeros(kernels.FINE_SIZE, np.uint32)
    table = np.zeros(kernels.packs(count) * kernels.COARSE_ROWS * kernels.PACK if coarse else 0, np.uint32)
    low, high = (
        np.full(max(count, 1), kernels.NEVER_LOW, np.int32),
        np.full(max(count, 1), kernels.NEVER_HIGH, np.int32),
    )
    total, square = exactsum.zeros(count), exactsum.zeros(count if squares else 0)
    for _ in range(parts):
        returned = function(values, fine, table, low, high, total, square)
    by_channel = table.reshape(-1, kernels.COARSE_ROWS, kernels.PACK)
    return {
        "bins": fine[:BINS],
        "zeros": fine[BINS:].sum(),
        "coarse": by_channel[:, : kernels.COARSE_BINS].transpose(0, 2, 1).reshape(-1, kernels.COARSE_BINS)[:count],
        "zeros by channel": by_channel[:, kernels.COARSE_BINS :].sum(axis=1).reshape(-1)[:count],
        "low": low,
        "high": high,
        "sums": total,
        "squares": square,
        "returned": np.array([int(each) for each in returned]),
    }


def assert_same(one, other):
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@example(np.array([np.inf, -np.inf] * 2, np.float32).reshape(1, 1, 2, 2), 1)
@example(np.array([np.inf, -np.inf] * 2, np.float32).reshape(2, 2, 1, 1), 1)
@given(shaped(finite=False), st.integers(1, 2))
def test_the_loop_leaves_what_the_twin_leaves(values, parts):
    finite = bool(np.isfinite(values).all())
    mine = observed(kernels.observe, values, parts=parts, squares=finite)
    twin = observed(kernels.observe_twin, values, parts=parts, squares=finite)
    if not finite:  # the run stops there, and nobody reads the sums
        mine.pop("sums")
    assert_same(mine, twin)


@given(shaped(), st.integers(1, 40))
def test_a_tensor_without_channels_is_one_row(values, times):
    values = np.tile(values.reshape(-1), times).reshape(1, 1, -1, 1)
    mine = observed(kernels.observe, values, channels=0, coarse=False, squares=False)
    assert_same(mine, observed(kernels.observe_twin, values, channels=0, coarse=False, squares=False))
    assert mine["bins"].sum() + mine["zeros"] == values.size
    assert mine["zeros"] == np.count_nonzero(values == 0)


@given(shaped(), st.data())
def test_where_a_value_lies_in_memory_leaves_no_trace(values, data):
    outer, groups, inner, block = values.shape
    channels = groups * block
    other = data.draw(st.sampled_from([size for size in (1, 2, 4, 8, 16) if channels % size == 0]))
    plain = values.transpose(0, 1, 3, 2).reshape(outer, channels, inner)
    again = np.ascontiguousarray(plain.reshape(outer, channels // other, other, inner).swapaxes(2, 3))
    assert_same(observed(kernels.observe, values), observed(kernels.observe, again))


@given(shaped())
def test_figures_are_right(values):
    outer, groups, inner, block = values.shape
    found = observed(kernels.observe, values)
    rows = np.moveaxis(values.transpose(0, 1, 3, 2).reshape(outer, groups * block, inner), 1, 0)
    rows = rows.reshape(groups * block, -1)
    np.testing.assert_array_equal(kernels.key_values(found["low"]), rows.min(axis=1))
    np.testing.assert_array_equal(kernels.key_values(found["high"]), rows.max(axis=1))
    size = np.abs(rows.astype(np.float64)).sum(axis=1)
    assert (np.abs(exactsum.value(found["sums"]) - rows.sum(axis=1, dtype=np.float64)) <= size * 2.0**-45).all()
    expected = np.square(rows, dtype=np.float64).sum(axis=1)
    np.testing.assert_allclose(exactsum.value(found["squares"]), expected, rtol=1e-12)
    np.testing.assert_array_equal(found["zeros by channel"], (rows == 0).sum(axis=1))
    np.testing.assert_array_equal(found["coarse"].sum(axis=1), (rows != 0).sum(axis=1))
    nonzero = np.abs(values[values != 0])
    assert found["returned"][2] == (nonzero.min().view(np.uint32) if nonzero.size else kernels.ALL_ZERO)


@given(shaped())
def test_an_extreme_of_zero_has_no_sign(values):
    found = observed(kernels.observe, values)
    for name in ("low", "high"):
        extremes = kernels.key_values(found[name])
        assert not np.signbit(extremes[extremes == 0]).any()


@given(shaped(finite=False))
def test_values_that_are_not_finite_show_in_the_extremes(values):
    lowest, highest, _ = observed(kernels.observe, values)["returned"]
    assert kernels.are_finite(lowest, highest) == np.isfinite(values).all()


@given(st.integers(1, 3), st.sampled_from([1, 2, 16]), st.data())
def test_gathered_counts_are_those_of_the_definition(packs, lanes, data):
    bins, extra = 64, 3
    table = np.zeros((packs, bins + extra, lanes), np.uint32)
    first = data.draw(st.integers(0, 31))
    last = data.draw(st.integers(first - 1, 31))
    for _ in range(data.draw(st.integers(0, 6))):
        row = data.draw(st.integers(first, max(last, first))) + 32 * data.draw(st.booleans())
        table[data.draw(st.integers(0, packs - 1)), row, data.draw(st.integers(0, lanes - 1))] = 2**31 + 1
    mine, twin = kernels.gather(table, bins, (first, last)), gather(table, bins, (first, last))
    for one, other in zip(mine, twin, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (np.diff(mine[0]) > 0).all()
    if last >= first:
        assert mine[1].sum() == table[:, :bins].sum(dtype=np.int64)


SUMMANDS = st.floats(2.0**-300, 2.0**300).flatmap(lambda size: st.sampled_from([size, -size])) | st.just(0.0)


@given(st.lists(SUMMANDS, min_size=1, max_size=40))
def test_exact_sum_is_the_fraction(values):
    limbs = exactsum.zeros(1)
    for value in values:
        exactsum.add(limbs, np.array([value]))
    assert exactsum.value(limbs)[0] == float(sum(Fraction(value) for value in values))


@given(st.lists(SUMMANDS | st.sampled_from([np.inf, -np.inf, np.nan, 1e-300, 1e300]), min_size=1, max_size=40))
def test_exact_sum_is_that_of_its_definition(values):
    mine, expected = exactsum.zeros(2), exactsum.zeros(2)
    for value in values:
        exactsum.add(mine, np.array([value, -value]))
        add_exactly(expected, np.array([value, -value]))
    np.testing.assert_array_equal(mine, expected)


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


@given(st.lists(st.integers(-(2**62), 2**62), min_size=2 * exactsum.LIMBS, max_size=2 * exactsum.LIMBS))
def test_carrying_keeps_sums_and_leaves_limbs_of_32_bits(values):
    limbs = np.array(values, np.int64).reshape(2, -1)
    carried = exactsum.canonical(limbs)
    for before, after in zip(limbs.tolist(), carried.tolist(), strict=True):
        assert sum(limb << 32 * index for index, limb in enumerate(before)) == sum(
            limb << 32 * index for index, limb in enumerate(after)
        )
    assert (carried[:, :-1] >= 0).all()
    assert (carried[:, :-1] < 1 << 32).all()


@given(arrays(6), st.integers(-30, 30))
def test_scaling_a_sum_of_squares_is_exact(values, exponent):
    limbs, scaled = exactsum.zeros(1), exactsum.zeros(1)
    for value in np.square(values, dtype=np.float64):
        exactsum.add(limbs, np.array([value]))
        exactsum.add(scaled, np.array([value * 2.0 ** (2 * exponent)]))
    exponents = np.array([2 * exponent])
    np.testing.assert_array_equal(exactsum.scaled_sums(limbs, exponents), exactsum.canonical(scaled))
