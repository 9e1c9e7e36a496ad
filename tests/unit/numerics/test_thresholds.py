import numpy as np
import pytest
from affine_codes import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from int8cal.calibration.collector import Collector
from int8cal.graph.taps import Tap
from int8cal.numerics.affine import S8, U8, affine_from_range
from int8cal.numerics.mse import mse_range, points_of, squared_error

RNG = np.random.default_rng(11)
TENSORS = {
    "normal": RNG.normal(size=40_000),
    "shifted": RNG.laplace(size=40_000) + 0.7,
    "relu": np.maximum(RNG.normal(size=40_000), 0),
    "negative": -np.abs(RNG.normal(size=20_000)),
    "clipped": np.clip(RNG.normal(3, 3, size=40_000), 0, 6),
    "heavy": RNG.standard_t(2, size=60_000),
    "outlier": np.append(RNG.normal(size=400_000), 300.0),
    "pixels": RNG.integers(0, 256, 20_000) / 255.0,
}


def spectrum_of(values):
    collector = Collector(Tap("x"))
    collector.add(np.asarray(values, np.float32), "sample")
    return collector.result().histogram


def true_error(values, limits, dtype, *, symmetric):
    x = np.asarray(values, np.float32).astype(np.float64)
    affine = affine_from_range(*limits, dtype, symmetric=symmetric)
    return float(np.square(x - dequantize(quantize(x, affine), affine)).mean())


def test_max_is_the_observed_range():
    assert spectrum_of([-1.25, 0.0, 3.7]).observed == (-1.25, float(np.float32(3.7)))


@pytest.mark.parametrize("percent", [50.0, 90.0, 99.0, 99.9, 99.99, 100.0])
@pytest.mark.parametrize("name", ["normal", "shifted", "heavy", "relu", "negative"])
def test_percentile_is_numpy_s_within_a_bin(name, percent):
    values = TENSORS[name].astype(np.float32).astype(np.float64)
    low, high = spectrum_of(values).percentile_range(percent)
    outside = 100.0 - percent
    if values.min() >= 0:
        expected = (values.min(), np.percentile(values, percent, method="inverted_cdf"))
    elif values.max() <= 0:
        expected = (np.percentile(values, outside, method="inverted_cdf"), values.max())
    else:
        expected = tuple(np.percentile(values, [outside / 2, 100 - outside / 2], method="inverted_cdf"))
    for mine, exact in zip((low, high), expected, strict=True):
        assert abs(mine - exact) <= abs(exact) * 2.0**-9 + 1e-12


def test_one_hundred_percent_is_the_observed_range():
    for values in TENSORS.values():
        source = spectrum_of(values)
        assert source.percentile_range(100.0) == source.observed


def test_a_constant_tensor_has_its_value_as_percentile():
    assert spectrum_of(np.full(10, 2.5)).percentile_range(99.0) == (2.5, 2.5)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=50), st.floats(0.001, 100.0))
def test_percentiles_stay_inside_the_observed_range(values, percent):
    source = spectrum_of(values)
    low, high = source.percentile_range(percent)
    assert source.observed[0] <= low <= source.observed[1]
    assert source.observed[0] <= high <= source.observed[1]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=50), st.floats(50.0, 100.0))
def test_percentiles_are_ordered(values, percent):
    low, high = spectrum_of(values).percentile_range(percent)
    assert low <= high


@pytest.mark.parametrize(("dtype", "symmetric"), [(U8, False), (S8, True)], ids=["u8", "s8"])
@pytest.mark.parametrize("name", TENSORS)
def test_expected_error_is_the_real_one(name, dtype, symmetric):
    source = spectrum_of(TENSORS[name])
    points, weights = points_of(source)
    assert weights.sum() == source.total
    for part in (1.0, 0.5, 0.1, 0.02):
        limits = (source.observed[0] * part, source.observed[1] * part)
        affine = affine_from_range(*limits, dtype, symmetric=symmetric)
        expected = squared_error(points, weights, affine) / source.total
        real = true_error(TENSORS[name], limits, dtype, symmetric=symmetric)
        assert expected == pytest.approx(real, rel=0.03, abs=(source.amax / 2048) ** 2 / 6)  # the points


@pytest.mark.parametrize(("dtype", "symmetric"), [(U8, False), (S8, True)], ids=["u8", "s8"])
@pytest.mark.parametrize("name", TENSORS)
def test_mse_is_within_half_a_percent_of_brute_force(name, dtype, symmetric):
    source = spectrum_of(TENSORS[name])
    points, weights = points_of(source)
    low, high = min(source.observed[0], 0.0), max(source.observed[1], 0.0)
    if symmetric:
        high = max(-low, high)
        low = -high

    def error(a, b):
        return squared_error(points, weights, affine_from_range(a, b, dtype, symmetric=symmetric))

    grid = np.geomspace(0.01, 1.0, 120)
    if symmetric:
        least = min(error(low * k, high * k) for k in np.geomspace(0.01, 1.0, 1000))
    else:
        lows = [0.0] if low == 0 else low * grid[::3]
        highs = [0.0] if high == 0 else high * grid[::3]
        least = min(error(a, b) for a in lows for b in highs)
    assert error(*mse_range(source, dtype, symmetric=symmetric)) <= least * 1.005 + 1e-20


@pytest.mark.parametrize("name", TENSORS)
def test_mse_stays_inside_the_observed_range_and_zero(name):
    source = spectrum_of(TENSORS[name])
    low, high = mse_range(source, U8, symmetric=False)
    assert min(source.observed[0], 0.0) <= low <= 0.0 <= high <= max(source.observed[1], 0.0)
    left, right = mse_range(source, S8, symmetric=True)
    assert left == -right


def test_mse_keeps_the_range_where_clipping_gains_nothing():
    assert mse_range(spectrum_of(TENSORS["pixels"]), U8, symmetric=False) == (0.0, 1.0)


def test_mse_of_only_zeros_is_the_empty_range():
    assert mse_range(spectrum_of(np.zeros(5)), U8, symmetric=False) == (0.0, 0.0)


def test_a_far_outlier_does_not_coarsen_the_estimate_for_the_others():
    inner = RNG.normal(size=100_000)
    source = spectrum_of(np.append(inner, 1000.0))
    points, weights = points_of(source)
    near = np.abs(points) < 100
    for limit in (4.0, 30.0, 250.0):
        affine = affine_from_range(-limit, limit, S8, symmetric=True)
        expected = squared_error(points[near], weights[near], affine) / inner.size
        assert expected == pytest.approx(true_error(inner, (-limit, limit), S8, symmetric=True), rel=0.05)
