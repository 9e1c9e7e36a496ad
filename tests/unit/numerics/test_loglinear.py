import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from loop_definitions import resample

from int8cal.numerics import loglinear
from int8cal.numerics.loglinear import BINS, HALF, INFINITY_BIN, bin_edges, histogram, linear_histogram

FLOATS = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


def spectrum_of(values):
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    nonzero = bits[(bits & 0x7FFFFFFF) != 0]
    table = np.bincount(nonzero >> 13, minlength=BINS)
    bins = np.flatnonzero(table)
    zeros = int(values.size - nonzero.size)
    return histogram(bins, table[bins], zeros, (float(values.min()) + 0.0, float(values.max()) + 0.0))


def test_an_octave_has_1024_bins_of_equal_width():
    first = np.float32(1.0).view(np.uint32) >> 13
    inner, outer = bin_edges(np.arange(first, first + 1024, dtype=np.int64))
    assert (inner[0], outer[-1]) == (1.0, 2.0)
    np.testing.assert_array_equal(outer - inner, 2.0**-10)
    np.testing.assert_array_equal(inner[1:], outer[:-1])


def test_the_first_bin_starts_at_zero_and_the_last_ends_at_two_to_the_128():
    inner, outer = bin_edges(np.array([0, INFINITY_BIN - 1]))
    assert inner[0] == 0.0
    assert outer[1] == 2.0**128
    assert inner[1] < float(np.finfo(np.float32).max) < outer[1]


def test_every_value_lies_in_its_bin():
    values = np.abs(np.random.default_rng(0).normal(size=1000)).astype(np.float32) * np.float32(10) ** np.arange(
        -20, 20, 0.04
    )
    values = values.astype(np.float32)
    inner, outer = bin_edges((values.view(np.uint32) >> 13).astype(np.int64))
    assert (inner <= values).all()
    assert (values < outer).all()


def test_negative_bins_come_first_and_mirror_the_positive_ones():
    result = spectrum_of([-4.0, -0.25, 0.0, -0.0, 0.25, 4.0])
    assert result.counts.tolist() == [1, 1, 2, 1, 1]
    assert result.low[2] == result.high[2] == 0.0
    np.testing.assert_array_equal(result.low[3:], -result.high[:2][::-1])
    np.testing.assert_array_equal(result.high[3:], -result.low[:2][::-1])


def test_the_outermost_bins_are_cut_to_the_observed_range():
    result = spectrum_of([-1.0007, 3.0001])
    assert result.low[0] == result.observed[0]
    assert result.high[-1] == result.observed[1]
    assert result.amax == result.observed[1]


@given(FLOATS)
def test_a_spectrum_ascends_and_keeps_every_count(values):
    result = spectrum_of(values)
    assert result.total == values.size
    assert (result.low <= result.high).all()
    assert (np.diff(result.low) >= 0).all()
    assert (result.low >= result.observed[0]).all()
    assert (result.high <= result.observed[1]).all()


@given(FLOATS, st.integers(1, 40), st.booleans())
def test_a_linear_histogram_keeps_the_sum(values, bins, magnitude):
    result = spectrum_of(values)
    low, high = (0.0, result.amax) if magnitude else (min(result.observed[0], 0.0), max(result.observed[1], 0.0))
    counts = linear_histogram(result, np.linspace(low, high, bins + 1), magnitude=magnitude)
    assert counts.shape == (bins,)
    assert (counts >= 0).all()
    assert counts.sum() == values.size


@pytest.mark.parametrize("magnitude", [False, True])
def test_a_linear_histogram_is_numpy_s_up_to_one_bin_at_each_edge(magnitude):
    values = np.random.default_rng(1).normal(size=50_000).astype(np.float32)
    source = spectrum_of(values)
    x = np.abs(values) if magnitude else values
    edges = np.linspace(0.0 if magnitude else float(x.min()), float(x.max()), 101)
    mine = np.cumsum(linear_histogram(source, edges, magnitude=magnitude))
    exact = np.cumsum(np.histogram(x.astype(np.float64), edges)[0])
    # what a cumulative count may be off by is the content of the bin that the edge cuts (of both signs)
    signed = [edges[1:], -edges[1:]] if magnitude else [edges[1:]]
    slack = sum(((source.low[:, None] <= each) & (source.high[:, None] >= each)).T @ source.counts for each in signed)
    assert (np.abs(mine - exact) <= slack).all()
    assert np.abs(mine - exact).max() < 200


def test_values_on_linear_edges_go_to_the_right_bin_and_the_last_edge_to_the_last():
    source = spectrum_of([0.0, 1.0, 1.0, 2.0, 4.0])
    # a log-linear bin starts at its power of two, so these land where numpy puts them
    assert linear_histogram(source, np.array([0.0, 1.0, 2.0, 3.0, 4.0])).tolist() == [1, 2, 1, 1]


def test_magnitudes_of_both_signs_add():
    source = spectrum_of([-3.0, -1.0, 0.0, 1.0, 3.0, 3.0])
    edges = np.array([0.0, 0.5, 2.0, 4.0])
    assert linear_histogram(source, edges, magnitude=True).tolist() == [1, 2, 3]


def test_coarse_bins_have_sixteen_per_octave():
    bins = np.array([np.float32(1.0).view(np.uint32) >> 19, (np.float32(-1.0).view(np.uint32) >> 19)], np.int64)
    inner, outer = bin_edges(bins % 4096, shift=19)
    np.testing.assert_array_equal(inner, 1.0)
    np.testing.assert_array_equal(outer - inner, 1 / 16)


def test_fraction_outside_counts_by_bin_centre():
    source = spectrum_of([-8.0, 0.0, 1.0, 8.0])
    assert source.fraction_outside(-1.5, 1.5) == 0.5
    assert source.fraction_outside(-9.0, 9.0) == 0.0
    empty = histogram(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, (0.0, 0.0))
    assert empty.fraction_outside(0.0, 0.0) == 0.0
    assert HALF * 2 == BINS


@given(FLOATS, st.integers(1, 40), st.booleans())
def test_the_resampling_loop_gives_numpys_bits(values, bins, magnitude):
    source = spectrum_of(values)
    low, high = (0.0, source.amax) if magnitude else (min(source.observed[0], 0.0), max(source.observed[1], 0.0))
    edges = np.linspace(low, high, bins + 1)
    compiled = linear_histogram(source, edges, magnitude=magnitude)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loglinear, "_resample", resample)
        np.testing.assert_array_equal(compiled, linear_histogram(source, edges, magnitude=magnitude))


@given(FLOATS, st.floats(-1e3, 1e3), st.floats(0.0, 1e3))
def test_the_fraction_outside_is_that_of_the_bins_whose_centres_are_outside(values, low, width):
    source = spectrum_of(values)
    outside = (source.centers < low) | (source.centers > low + width)
    assert source.fraction_outside(low, low + width) == source.counts[outside].sum() / values.size


@given(FLOATS)
def test_without_exact_zeros_every_other_count_stays(values):
    source = spectrum_of(values)
    keep = (source.low != 0.0) | (source.high != 0.0)
    for name in ("low", "high", "counts"):
        np.testing.assert_array_equal(getattr(source.nonzero, name), getattr(source, name)[keep])
    assert source.nonzero.observed == source.observed
