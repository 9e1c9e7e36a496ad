import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from int8cal.numerics.metrics import (
    CLOSEST_DB,
    EXACT_DB,
    ErrorSums,
    PairedCounts,
    SampleSums,
    error_sums,
    paired_counts,
    rank_of,
)

FLOATS = hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(-1e3, 1e3, width=32))


def test_sqnr_is_signal_over_noise_in_decibels():
    sums = error_sums(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    assert sums.signal == 25.0
    assert sums.noise == 0.25
    assert sums.sqnr_db == pytest.approx(20.0)
    assert sums.max_abs == 0.5


def test_identical_arrays_have_a_finite_sqnr_that_passes_any_gate():
    sums = error_sums(np.array([1.0, -1.0]), np.array([1.0, -1.0]))
    assert sums.sqnr_db == EXACT_DB
    assert sums.exact
    assert sums.cosine == pytest.approx(1.0)


def test_a_reference_of_zeros_has_no_sqnr_and_no_cosine():
    sums = error_sums(np.zeros(3), np.ones(3))
    assert sums.sqnr_db is None
    assert sums.cosine is None
    assert sums.max_abs == 1.0


def test_an_all_zero_approximation_has_zero_decibels_and_no_cosine():
    sums = error_sums(np.ones(3), np.zeros(3))
    assert sums.sqnr_db == pytest.approx(0.0)
    assert sums.cosine is None


@pytest.mark.parametrize("unit", [1e-30, 1e-16, 1e16, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_decibels_do_not_depend_on_the_unit(unit, dtype):
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, 100))
    plain = error_sums(x, x + 1e-3 * noise)
    scaled = error_sums((unit * x).astype(dtype), (unit * (x + 1e-3 * noise)).astype(dtype))
    assert scaled.sqnr_db == pytest.approx(plain.sqnr_db, abs=1e-3)
    assert scaled.cosine == pytest.approx(plain.cosine)


@given(FLOATS.map(lambda x: x.astype(np.float64)), st.integers(-1000, 1000))
def test_a_power_of_two_as_unit_changes_nothing_at_all(x, exponent):
    y = x + np.roll(x, 1) / 8
    if not 1e-300 < np.abs(x).max() * 2.0**exponent < 1e300:
        return
    with np.errstate(under="ignore"):
        scaled = error_sums(np.ldexp(x, exponent), np.ldexp(y, exponent))
    plain = error_sums(x, y)
    if np.abs(x)[x != 0].min() * 2.0**exponent > 1e-290:
        assert scaled.sqnr_db == pytest.approx(plain.sqnr_db, abs=1e-9)


def test_samples_of_very_different_size_add_up():
    x = np.array([3e-200, 4e-200])
    small, large = error_sums(x, 1.1 * x), error_sums(1e250 * x, 1.1e250 * x)
    for total in (small + large, large + small, ErrorSums() + large + ErrorSums()):
        assert total.sqnr_db == pytest.approx(20)
    twice = small + small
    assert twice.sqnr_db == pytest.approx(20)
    assert math.ldexp(twice.signal, 2 * (twice.exponent - small.exponent)) == pytest.approx(2 * small.signal)


def test_sums_over_samples_keep_their_products_in_one_unit():
    x = np.array([3e-200, 4e-200])
    parts = [error_sums(scale * x, 1.1 * scale * x) for scale in (1.0, 2.0**700, 2.0**690)]
    sums = SampleSums()
    for part in parts:
        sums += part
    assert sums.samples == 3
    of_signal, of_both, of_noise = sums.products
    assert of_both == pytest.approx(0.01 * of_signal)
    assert of_noise == pytest.approx(1e-4 * of_signal)
    assert of_signal == pytest.approx(sums.total.signal**2, rel=1e-5)


def test_what_differs_in_a_last_bit_is_not_exact():
    x = np.array([1.0, 1e-200])
    nearly = error_sums(x, x * [1.0, 1.5])
    assert not nearly.exact
    assert nearly.sqnr_db == CLOSEST_DB < EXACT_DB


def test_empty_arrays_add_nothing():
    assert error_sums(np.zeros((0, 4)), np.zeros((0, 4))) == ErrorSums()


def test_opposite_arrays_have_cosine_minus_one():
    assert error_sums(np.array([1.0, 2.0]), np.array([-1.0, -2.0])).cosine == pytest.approx(-1.0)


def test_squares_of_large_float32_do_not_overflow():
    sums = error_sums(np.full(4, 3e38, np.float32), np.full(4, -3e38, np.float32))
    assert math.isfinite(sums.noise)
    assert sums.sqnr_db == pytest.approx(-20 * math.log10(2))


def test_float16_is_summed_in_float64():
    assert error_sums(np.full(1000, 100.0, np.float16), np.zeros(1000, np.float16)).signal == 1e7


def test_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        error_sums(np.zeros(2), np.zeros(3))


def test_tensors_larger_than_one_block_are_summed_whole():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 100_001)), rng.normal(size=(3, 100_001))
    sums = error_sums(x, y)
    assert sums.count == x.size
    assert sums.noise == pytest.approx(np.square(x - y).sum())
    assert sums.dot == pytest.approx((x * y).sum())
    assert sums.max_abs == np.abs(x - y).max()


@given(FLOATS, FLOATS)
def test_sums_over_samples_equal_the_sum_over_all_of_them(a, b):
    parts = error_sums(a, a + 1) + error_sums(b, b * 2)
    whole = error_sums(np.concatenate([a, b]), np.concatenate([a + 1, b * 2]))
    assert parts.count == whole.count
    assert parts.max_abs == whole.max_abs
    for field in ("signal", "energy", "noise", "dot"):
        assert getattr(parts, field) == pytest.approx(getattr(whole, field), rel=1e-12, abs=1e-9)


@given(FLOATS, FLOATS)
def test_cosine_stays_within_its_bounds(a, b):
    size = min(a.size, b.size)
    cosine = error_sums(a[:size], b[:size]).cosine
    assert cosine is None or -1.0 <= cosine <= 1.0


@given(hnp.arrays(np.float32, st.integers(1, 20), elements=st.sampled_from([0.0, 1.0, 2.0])))
def test_ranks_are_a_permutation_that_starts_at_argmax_even_with_ties(scores):
    ranks = [rank_of(scores, label) for label in range(scores.size)]
    assert sorted(ranks) == list(range(scores.size))
    assert ranks[int(scores.argmax())] == 0


def test_counts_of_pairs_add_and_give_both_rates():
    hits = [(True, True), (True, False), (True, True), (False, True), (False, False)]
    counts = sum((paired_counts(*pair) for pair in hits), PairedCounts())
    assert counts == PairedCounts(both=2, only_first=1, only_second=1, neither=1)
    assert counts.first == counts.second == pytest.approx(0.6)
    assert counts.drop == 0.0
