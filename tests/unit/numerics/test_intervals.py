import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.numerics.intervals import (
    Z95,
    paired_interval,
    proportion_interval,
    quantile_interval,
    ratio_interval,
    ratio_of_sums_interval,
    sqnr_interval,
    student_t95,
)
from int8cal.numerics.metrics import EXACT_DB


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (7, 2.3646), (10, 2.2281), (30, 2.0423)],
)
def test_quantiles_of_students_t_are_those_of_the_printed_tables(freedom, quantile):
    assert student_t95(freedom) == pytest.approx(quantile, abs=5e-5)


def test_the_expansion_for_many_degrees_of_freedom_continues_the_exact_quantiles():
    exact, expanded = student_t95(200), student_t95(201)
    assert 0 < exact - expanded < 1e-4
    assert student_t95(10**9) == pytest.approx(1.959963984540054)
    falling = [student_t95(freedom) for freedom in range(1, 260)]
    assert falling == sorted(falling, reverse=True)


def test_no_degree_of_freedom_is_an_error():
    with pytest.raises(ValueError, match="degrees of freedom are 0"):
        student_t95(0)


def binomial(k, n, p):
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


@given(n=st.integers(1, 60), p=st.floats(0.001, 0.999))
def test_the_interval_of_a_proportion_covers_at_least_95_percent(n, p):
    covered = 0.0
    for hits in range(n + 1):
        low, high = proportion_interval(hits, n)
        assert 0 <= low <= hits / n <= high <= 1
        if low <= p <= high:
            covered += binomial(hits, n, p)
    assert covered >= 0.95 - 1e-9


def test_the_interval_of_a_proportion_is_the_one_of_the_textbook():
    assert proportion_interval(20, 20) == pytest.approx((0.025 ** (1 / 20), 1.0))
    assert proportion_interval(0, 10) == pytest.approx((0.0, 1 - 0.025 ** (1 / 10)))
    assert proportion_interval(5, 10) == pytest.approx((0.1870860, 0.8129140))
    low, high = proportion_interval(49_000, 50_000)
    assert (low, high) == pytest.approx((0.97873, 0.98121), abs=2e-5)


@pytest.mark.parametrize(("hits", "samples"), [(1, 0), (-1, 4), (5, 4)])
def test_counts_that_cannot_be_are_refused(hits, samples):
    with pytest.raises(ValueError, match="counts cannot be"):
        proportion_interval(hits, samples)


def interval_of(energies):
    """Of per-sample energies, shape (samples, 2)."""
    (of_signal, of_both), (_, of_noise) = energies.T @ energies
    return sqnr_interval(*energies.sum(axis=0), (of_signal, of_both, of_noise), len(energies))


def energies_of(rng, samples, sigma):
    signal = rng.lognormal(0.0, 0.4, samples)
    noise = 1e-3 * rng.lognormal(0.0, sigma, samples) * rng.lognormal(0.0, 0.1, samples)
    return np.stack([signal, noise], axis=1)


@pytest.mark.parametrize(("samples", "sigma", "least"), [(20, 0.3, 0.93), (200, 0.8, 0.92), (20, 0.8, 0.88)])
def test_the_interval_of_an_sqnr_covers_the_true_one(samples, sigma, least):
    rng = np.random.default_rng(7)
    truth = 10 * np.log10(math.exp(0.08) / (1e-3 * math.exp(sigma**2 / 2 + 0.005)))
    bounds = [interval_of(energies_of(rng, samples, sigma)) for _ in range(1000)]
    share = np.mean([low <= truth <= high for low, high in bounds])
    assert least <= share <= 0.97


def test_the_interval_of_an_sqnr_surrounds_it_and_does_not_depend_on_the_order():
    energies = energies_of(np.random.default_rng(3), 50, 0.5)
    low, high = interval_of(energies)
    value = 10 * math.log10(energies[:, 0].sum() / energies[:, 1].sum())
    assert (low + high) / 2 == pytest.approx(value)
    assert interval_of(energies[::-1]) == pytest.approx((low, high))


def test_equal_samples_leave_nothing_open():
    low, high = interval_of(np.tile([[4.0, 0.04]], (10, 1)))
    assert (low, high) == pytest.approx((20.0, 20.0), abs=1e-5)


def test_nothing_is_open_of_an_exact_output():
    energies = energies_of(np.random.default_rng(5), 30, 0.5)
    energies[:, 1] = 0.0
    assert interval_of(energies) == (EXACT_DB, EXACT_DB)


@pytest.mark.parametrize("unit", [1e-70, 1e70])
def test_an_interval_does_not_depend_on_the_unit(unit):
    energies = energies_of(np.random.default_rng(3), 50, 0.5)
    assert interval_of(unit * energies) == pytest.approx(interval_of(energies))


def test_one_sample_gives_no_interval():
    assert interval_of(energies_of(np.random.default_rng(3), 1, 0.5)) is None
    assert sqnr_interval(0.0, 1.0, (0.0, 0.0, 1.0), 9) is None


def test_the_interval_of_a_speedup_covers_the_true_ratio_though_the_machine_drifts():
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(2000):
        drift = np.exp(np.cumsum(rng.normal(0, 0.1, 8)))
        first, second = (time * drift * rng.lognormal(0, 0.03, 8) for time in (3.0, 2.0))
        centre = float(np.exp(np.mean(np.log(first / second))))
        low, high = ratio_interval(first, second, centre)
        covered += low <= 1.5 <= high
    assert 0.935 <= covered / 2000 <= 0.965


def test_the_reported_ratio_lies_in_its_interval_and_a_single_round_has_none():
    low, high = ratio_interval([1.0, 1.0, 1.01], [1.0, 1.0, 1.0], 1.5)
    assert low < 1.01
    assert high == 1.5
    assert ratio_interval([2.0], [1.0], 2.0) is None
    assert ratio_interval([2.0, 4.0], [1.0, 2.0], 2.0) == (2.0, 2.0)


def test_interval_of_the_airway_example_is_the_published_one():
    # Bentur et al. 2009, n = (1, 1, 7, 12); Fagerland, Lydersen, Laake (2014) print -0.517 to -0.026 for Tango's interval
    assert paired_interval(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)


@pytest.mark.parametrize(
    ("b", "c", "n"), [(40, 20, 160), (12, 2, 50), (1, 0, 30), (3, 3, 1000), (0, 9, 25), (7, 6, 14)]
)
def test_interval_solves_the_score_equation(b, c, n):
    # the same equation as a polynomial of degree four (Yang, Sun, Hardin 2012): its extreme real roots are the bounds
    g = Z95**2
    coefficients = [
        n**2 * (n / g + 1) ** 2,
        -n * (b - c) * (n / g + 1) * (4 * n / g + 1),
        2 * n * (b - c) ** 2 * (3 * n / g + 2) / g - n**2 * ((b + c) / g + 1),
        n * (b - c) * (2 * (b + c) / g + 1) - (b - c) ** 3 * (4 * n / g + 1) / g,
        (b - c) ** 2 * ((b - c) ** 2 / g - (b + c)) / g,
    ]
    roots = np.roots(coefficients)
    real = roots[np.abs(roots.imag) < 1e-7].real
    assert paired_interval(b, c, n) == pytest.approx((real.min(), real.max()), abs=1e-9)


def test_no_disagreement_is_not_certainty():
    low, high = paired_interval(0, 0, 20)
    assert high == -low == pytest.approx(Z95**2 / (20 + Z95**2))


@given(st.integers(1, 300), st.data())
def test_interval_holds_the_estimate_and_mirrors_when_the_models_swap(n, data):
    b = data.draw(st.integers(0, n))
    c = data.draw(st.integers(0, n - b))
    low, high = paired_interval(b, c, n)
    assert -1.0 <= low <= (b - c) / n <= high <= 1.0
    assert paired_interval(c, b, n) == (-high, -low)


def test_one_sample_and_total_failure_stay_inside_the_bounds():
    assert paired_interval(5, 0, 5)[1] == 1.0
    assert paired_interval(0, 1, 1)[0] == -1.0


@pytest.mark.parametrize("counts", [(0, 0, 0), (-1, 0, 5), (3, 3, 5)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ValueError, match="cannot be"):
        paired_interval(*counts)


def _coverage(n, p_first, p_second):
    """Exact coverage of the score and of the Wald interval: the sum over all outcomes of the multinomial."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    score = wald = 0.0
    for b in range(n + 1):
        for c in range(n + 1 - b):
            rest = n - b - c
            weight = math.exp(
                logs[n] - logs[b] - logs[c] - logs[rest]
                + b * math.log(p_first) + c * math.log(p_second) + rest * math.log(1 - p_first - p_second)
            )  # fmt: skip
            if weight < 1e-7:
                continue
            low, high = paired_interval(b, c, n)
            score += weight * (low <= p_first - p_second <= high)
            half = Z95 * math.sqrt(b + c - (b - c) ** 2 / n) / n
            wald += weight * (abs((b - c) / n - (p_first - p_second)) <= half)
    return score, wald


@pytest.mark.parametrize("n", [30, 100])
def test_interval_keeps_its_coverage_where_a_wald_interval_loses_it(n):
    cases = [(0.01, 0.01), (0.02, 0.005), (0.05, 0.02), (0.05, 0.05), (0.1, 0.02), (0.1, 0.1)]
    score, wald = zip(*(_coverage(n, *case) for case in cases), strict=True)
    assert min(score) > 0.92
    assert np.mean(score) > 0.945
    assert min(wald) < 0.9


def test_the_interval_of_a_mean_is_the_one_of_the_textbook():
    # mean 5, standard deviation 2, t of 3 degrees of freedom 3.18245
    low, high = ratio_of_sums_interval([3.0, 5.0, 4.0, 8.0], [1.0] * 4)
    margin = 3.182446 * math.sqrt(14 / 3) / 2
    assert (low, high) == pytest.approx((5 - margin, 5 + margin), rel=1e-6)
    assert ratio_of_sums_interval([3.0, 5.0, 4.0, 8.0], [1.0] * 4, (4.0, 6.0)) == (4.0, 6.0)
    assert ratio_of_sums_interval([3.0], [1.0]) is None
    assert ratio_of_sums_interval([0.0, 3.0], [0.0, 1.0]) is None


def test_the_interval_of_a_ratio_of_sums_covers_about_95_percent():
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(1000):
        bottoms = rng.integers(1, 30, 40)
        low, high = ratio_of_sums_interval(rng.binomial(bottoms, 0.8).tolist(), bottoms.tolist())
        covered += low <= 0.8 <= high
    assert 925 <= covered <= 975


def test_the_interval_of_a_percentile_needs_72_samples_and_covers_95_percent():
    assert quantile_interval([], 0.05) is None
    assert quantile_interval([float(at) for at in range(71)], 0.05) is None
    low, high = quantile_interval([float(at) for at in range(72)], 0.05)
    assert low == 0.0
    covered = sum(binomial(below, 72, 0.05) for below in range(1, int(high) + 1))  # of 72, as many are below it
    assert covered >= 0.95 > covered - binomial(int(high), 72, 0.05)
