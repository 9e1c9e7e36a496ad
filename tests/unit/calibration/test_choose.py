import numpy as np
import pytest

from int8cal.calibration.ranges import METHODS, candidates, choose
from int8cal.numerics.affine import SMALLEST_SCALE, ZERO_SCALE
from int8cal.numerics.kl import kl_range
from int8cal.numerics.mse import points_of, squared_error

RNG = np.random.default_rng(21)
TENSORS = {
    "normal": RNG.normal(size=50_000),
    "relu": np.maximum(RNG.normal(size=50_000), 0),
    "negative": np.minimum(RNG.normal(size=50_000), 0),
    "heavy": RNG.standard_t(2, size=50_000) + 0.3,
    "one outlier": np.append(RNG.normal(size=400_000), 1000.0),
    "two values": np.array([0.0, 3.0] * 50),
    "constant": np.full(30, -2.5),
    "sparse": np.append(np.zeros(99_999), 1.0),
    "one value": np.array([7.0]),
}


@pytest.fixture(params=TENSORS)
def histogram(request, tools):
    return tools.count(TENSORS[request.param]).histogram


@pytest.mark.parametrize("activations", ["u8", "s8"])
@pytest.mark.parametrize("percentile", [99.99, 99.0])
def test_auto_is_the_best_of_its_candidates(histogram, activations, percentile):
    points, weights = points_of(histogram)
    errors = {
        method: squared_error(points, weights, choose(histogram, method, activations, percentile).affine)
        for method in METHODS
    }
    chosen = choose(histogram, "auto", activations, percentile)
    assert chosen.method in METHODS
    assert squared_error(points, weights, chosen.affine) == min(errors.values())
    # the search has every range in reach, so nothing beats it by more than the width of its last steps
    assert errors["mse"] <= min(errors.values()) * 1.005


@pytest.mark.parametrize("method", [*METHODS, "auto"])
@pytest.mark.parametrize("activations", ["u8", "s8"])
def test_every_method_gives_a_usable_affine(histogram, method, activations):
    affine = choose(histogram, method, activations, 99.9).affine
    assert np.isfinite(np.float32(affine.scale))
    assert affine.scale >= SMALLEST_SCALE
    assert affine.dtype.qmin <= affine.zero_point <= affine.dtype.qmax
    if activations == "s8":
        assert affine.zero_point == 0


def test_a_tensor_that_is_never_negative_has_zero_point_zero(tools):
    histogram = tools.count(TENSORS["relu"]).histogram
    for method in METHODS:
        assert choose(histogram, method, "u8", 99.9).affine.zero_point == 0


def test_only_zeros_warn(tools):
    for method in (*METHODS, "auto"):
        choice = choose(tools.count(np.zeros(4)).histogram, method, "u8", 99.9)
        assert choice.warning == "only zeros were observed"
        assert choice.affine.scale == ZERO_SCALE


def test_denormal_values_warn(tools):
    choice = choose(tools.count([1e-40, 0.0]).histogram, "max", "u8", 99.9)
    assert "smallest scale" in choice.warning


def test_kl_falls_back_to_max_with_a_warning(tools):
    for name in ("two values", "constant", "one value"):
        histogram = tools.count(TENSORS[name]).histogram
        choice = choose(histogram, "kl", "u8", 99.9)
        assert choice.method == "max"
        assert "max is used" in choice.warning
        assert choice.affine == choose(histogram, "max", "u8", 99.9).affine


def test_a_percentile_of_zero_falls_back_to_max_with_a_warning(tools):
    histogram = tools.count(TENSORS["sparse"]).histogram
    choice = choose(histogram, "percentile", "u8", 99.9)
    assert (choice.method, choice.affine.high) == ("max", pytest.approx(1.0))
    assert "99.9 % percentile is 0" in choice.warning


def test_exact_zeros_do_not_influence_kl(tools):
    values = np.maximum(RNG.normal(size=50_000), 0)
    without = tools.count(values[values > 0]).histogram
    histogram = tools.count(np.append(values, np.zeros(10**6))).histogram
    (low, high), (other_low, other_high) = kl_range(histogram, symmetric=False), kl_range(without, symmetric=False)
    assert high == other_high
    assert (low, other_low) == (0.0, without.observed[0])


def test_kl_clips_both_sides_at_one_threshold_within_the_observed_range(tools):
    low, high = kl_range(tools.count(TENSORS["heavy"]).histogram, symmetric=False)
    assert -low == pytest.approx(high)
    skewed = np.append(RNG.normal(size=50_000), -0.1) * np.where(RNG.normal(size=50_001) > 0, 1, 0.01)
    skewed = np.where(skewed < 0, skewed * 0.01, skewed)
    histogram = tools.count(skewed).histogram
    assert kl_range(histogram, symmetric=False)[0] == histogram.observed[0]


def test_s8_searches_kl_with_128_levels_on_one_sided_tensors_too(tools):
    histogram = tools.count(np.abs(RNG.laplace(size=400_000))).histogram
    assert kl_range(histogram, symmetric=True) != kl_range(histogram, symmetric=False)
    chosen = choose(histogram, "kl", "s8", 99.9).affine
    assert chosen.high == pytest.approx(kl_range(histogram, symmetric=True)[1])


def test_candidates_are_what_each_method_would_choose(tools):
    histogram = tools.count(TENSORS["heavy"]).histogram
    found = candidates(histogram, "u8", 99.9)
    assert list(found) == list(METHODS)
    for method, limits in found.items():
        affine = choose(histogram, method, "u8", 99.9).affine
        assert limits == (affine.low, affine.high)
