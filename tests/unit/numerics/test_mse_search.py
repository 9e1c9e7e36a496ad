"""The search from tail sums against the plain one: the same candidates, each summed over every point."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.numerics.affine import S8, U8, affine_from_range
from int8cal.numerics.loglinear import SHIFT, histogram
from int8cal.numerics.mse import (
    RESOLUTION,
    ROUNDS,
    STAGES,
    WINDOWS,
    _edges,
    mse_range,
    points_of,
    squared_error,
)

TYPES = pytest.mark.parametrize(("dtype", "symmetric"), [(U8, False), (S8, True)], ids=["u8", "s8"])
RNG = np.random.default_rng(31)
TENSORS = {
    "normal": RNG.normal(size=20_000),
    "skewed": RNG.gamma(1.5, size=20_000) - 0.3,
    "relu": np.maximum(RNG.normal(size=20_000), 0),
    "negative": -np.abs(RNG.laplace(size=20_000)),
    "relu6": np.clip(RNG.normal(3, 3, size=20_000), 0, 6),
    "heavy": RNG.standard_t(2, size=20_000),
    "outliers": np.append(RNG.normal(size=20_000), [300.0, -80.0]),
    "pixels": RNG.integers(0, 256, 20_000) / 255.0,
    "softmax": np.exp(RNG.normal(size=20_000) * 4 - 12),
    "constant": np.full(10, -2.5),
    "two far values": np.array([1e-30, 1e30]),
    "largest": np.array([3.4e38, -3.4e38, 1.0]),
}


def spectrum_of(values):
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    bins, counts = np.unique(bits[values != 0] >> SHIFT, return_counts=True)
    zeros = int((values == 0).sum())
    return histogram(bins.astype(np.int64), counts, zeros, (float(values.min()) + 0.0, float(values.max()) + 0.0))


def plain_search(source, dtype, *, symmetric):
    points, weights = points_of(source)
    low, high = min(source.observed[0], 0.0), max(source.observed[1], 0.0)
    if symmetric:
        high = max(-low, high)
        low = -high

    def error(a, b):
        affine = affine_from_range(a, b, dtype, symmetric=symmetric)
        q = np.clip(np.rint(points / affine.scale) + affine.zero_point, dtype.qmin, dtype.qmax)
        terms = weights * (points - (q - affine.zero_point) * affine.scale) ** 2
        return float(terms.sum()), (affine.scale, affine.zero_point)

    best = (*error(low, high), low, high)
    for ratio, powers in STAGES:
        factors = [ratio**power for power in powers]
        moves = [(each, each) for each in factors]
        if not symmetric and low < 0.0 < high:
            moves += [(each, 1.0) for each in factors] + [(1.0, each) for each in factors]
        for _ in range(ROUNDS):
            before = best
            for left, right in moves:
                a, b = max(before[2] * left, low), min(before[3] * right, high)
                value, affine = error(a, b)
                if affine != best[1] and value < best[0]:
                    best = (value, affine, a, b)
            if best is before:
                break
    return best[2], best[3]


def compare(source, dtype, *, symmetric):
    found = mse_range(source, dtype, symmetric=symmetric)
    plain = plain_search(source, dtype, symmetric=symmetric)
    points, weights = points_of(source)
    mine, expected = (
        squared_error(points, weights, affine_from_range(*limits, dtype, symmetric=symmetric))
        for limits in (found, plain)
    )
    return found, plain, mine, expected


@TYPES
@pytest.mark.parametrize("name", TENSORS)
def test_the_range_is_that_of_the_plain_search(name, dtype, symmetric):
    found, plain, _, _ = compare(spectrum_of(TENSORS[name]), dtype, symmetric=symmetric)
    assert found == plain


@st.composite
def histograms(draw):
    """Bins of some octaves in any pattern, of one sign or both, with counts over many orders of magnitude."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, octaves = draw(st.integers(1, 400)), draw(st.sampled_from([0.01, 1, 6, 20]))
    middle = draw(st.integers(40, 200))
    bins = np.unique(rng.integers(middle << 10, int((middle + octaves) * 1024) + 1, count))
    signs = draw(st.sampled_from([(0,), (1,), (0, 1)]))
    bins = np.unique(bins + rng.choice(signs, bins.size) * (1 << (31 - SHIFT)))
    counts = np.ceil(np.exp(rng.uniform(0, draw(st.sampled_from([0.1, 5, 16])), bins.size))).astype(np.int64)
    edges = histogram(bins, counts, 0, (-np.inf, np.inf))
    observed = (float(edges.centers[0]), float(edges.centers[-1]))
    zeros = draw(st.sampled_from([0, 0, 1000])) if observed[0] <= 0.0 <= observed[1] else 0
    return histogram(bins, counts, zeros, observed)


@TYPES
@given(source=histograms())
def test_the_error_is_that_of_the_plain_search(dtype, symmetric, source):
    # sums in another order may tell equal ranges apart by their last bits, and a search goes on from what it has
    _, _, mine, expected = compare(source, dtype, symmetric=symmetric)
    assert mine <= expected * (1 + 1e-9)


@given(st.floats(-(2.0**127), 0.0, width=32), st.floats(0.0, 2.0**127, width=32))
def test_edges_are_those_of_numpy_s_linspace_over_every_window(low, high):
    every = [np.linspace(low * part, high * part, RESOLUTION + 1) for part in WINDOWS]
    np.testing.assert_array_equal(_edges(low, high), np.unique(np.concatenate(every)))


def test_points_are_the_centres_of_the_bins_between_the_edges_of_all_windows():
    source = spectrum_of(TENSORS["skewed"])
    low, high = source.observed
    edges = np.unique(np.concatenate([np.linspace(low * part, high * part, RESOLUTION + 1) for part in WINDOWS]))
    points, weights = points_of(source)
    assert points[-1] == 0.0
    assert np.isin(points[:-1], (edges[:-1] + edges[1:]) / 2).all()
    assert weights.sum() == source.total
