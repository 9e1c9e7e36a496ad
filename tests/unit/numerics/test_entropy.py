"""The entropy threshold, its vectors, and a naive transcription of the slides as the oracle."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from int8cal.numerics.kl import BINS, divergences, entropy_threshold


def naive_quantize(reference, levels):
    """Q of the slides: levels with boundaries rint(linspace), each spread over its non-empty bins."""
    boundaries = np.rint(np.linspace(0, len(reference), levels + 1)).astype(int)
    result = np.zeros(len(reference))
    for start, end in pairwise(boundaries):
        part = reference[start:end]
        filled = np.count_nonzero(part)
        if filled:
            result[start:end][part > 0] = part.sum() / filled
    return result


def naive_divergence(p, q):
    p, q = p / p.sum(), q / q.sum()
    if (q[p > 0] == 0).any():
        return math.inf
    return float(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0))


def naive_search(counts, levels):
    result = np.full(len(counts) + 1, math.inf)
    for i in range(levels, len(counts) + 1):
        reference = counts[:i].astype(float)
        if not reference.sum():
            continue
        p = reference.copy()
        p[i - 1] += counts[i:].sum()
        result[i] = naive_divergence(p, naive_quantize(reference, levels))
    return result


def gaussian():
    edges = np.linspace(0.0, 8.0, BINS + 1)
    below = np.array([math.erf(edge / math.sqrt(2)) for edge in edges])
    counts = np.rint(1e6 * np.diff(below)).astype(np.int64)
    counts[-1] += 1
    return counts


def test_vector_of_eight_bins():
    counts = np.array([1, 0, 2, 3, 5, 3, 1, 7])
    assert naive_quantize(counts, 2).tolist() == [2, 0, 2, 2, 4, 4, 4, 4]
    assert divergences(counts, 2)[8] == pytest.approx(0.15031527, abs=5e-9)


def test_vector_of_the_error_function():
    counts = gaussian()
    found = entropy_threshold(counts, 128, 8.0 / BINS)
    assert found is not None
    threshold, i = found
    assert i == 1070
    assert threshold == pytest.approx(4.177734, abs=5e-7)
    assert threshold == (i - 0.5) * 8.0 / BINS
    assert divergences(counts, 128)[i] == pytest.approx(4.65121e-5, rel=5e-6)


@settings(deadline=None, derandomize=True, max_examples=80)
@given(
    hnp.arrays(np.int64, st.integers(2, 40), elements=st.integers(0, 50) | st.sampled_from([0, 0, 10**6])),
    st.integers(2, 12),
)
def test_every_candidate_is_that_of_the_slides(counts, levels):
    mine, naive = divergences(counts, levels), naive_search(counts, levels)
    np.testing.assert_array_equal(np.isfinite(mine), np.isfinite(naive))
    finite = np.isfinite(naive)
    np.testing.assert_allclose(mine[finite], naive[finite], atol=1e-12)


def test_a_long_histogram_is_that_of_the_slides():
    counts = np.random.default_rng(2).geometric(0.01, size=200_000)
    counts = np.bincount(np.minimum(counts, 511), minlength=512)[:512]
    mine, naive = divergences(counts, 128), naive_search(counts, 128)
    np.testing.assert_allclose(mine[128:], naive[128:], atol=1e-12)
    assert int(np.argmin(mine)) == int(np.argmin(naive))


def test_candidates_with_fewer_bins_than_levels_are_undefined():
    assert np.isinf(divergences(np.ones(20, np.int64), 8)[:8]).all()


def test_a_candidate_that_would_put_outliers_into_an_empty_bin_is_skipped():
    counts = np.array([5, 3, 4, 0, 2, 1])
    result = divergences(counts, 2)
    assert np.isinf(result[4])
    assert np.isfinite(result[3])
    assert np.isfinite(result[5])


def test_nothing_clipped_and_one_bin_per_level_has_no_divergence():
    assert divergences(np.array([3, 1, 2, 9]), 4)[4] == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize(
    "counts",
    [
        np.zeros(BINS, np.int64),
        np.eye(1, BINS, BINS - 1, dtype=np.int64)[0],
        (np.arange(BINS) % 20 == 0).astype(np.int64),
    ],
    ids=["empty", "one value", "few distinct values"],
)
def test_a_degenerate_histogram_has_no_threshold(counts):
    assert entropy_threshold(counts, 128, 0.1) is None


@given(st.integers(0, 2**32 - 1), st.sampled_from([16, 128, 256]), st.sampled_from([0.0, 0.3]), st.floats(0.1, 4.0))
def test_leaving_candidates_out_finds_the_same_minimum(seed, levels, empty, spread):
    rng = np.random.default_rng(seed)
    values = np.abs(rng.standard_normal(20_000)) ** spread
    counts = np.histogram(values, 1024, (0.0, values.max()))[0] * (rng.random(1024) >= empty)
    counts[-1] += 1
    every = divergences(counts, levels)
    every[np.append(0, np.cumsum(counts > 0)) < levels] = math.inf
    found = entropy_threshold(counts, levels, 1.0)
    if np.isinf(every).all():
        assert found is None
    else:
        assert found == (int(np.argmin(every)) - 0.5, int(np.argmin(every)))
