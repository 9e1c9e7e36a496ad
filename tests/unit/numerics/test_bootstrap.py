"""The bootstrap against every resample there is, and against scipy's."""

import itertools
import statistics
from math import sqrt

import numpy as np
import pytest

from int8cal.numerics import bootstrap
from int8cal.numerics.bootstrap import mean_interval, paired_mean_interval
from int8cal.numerics.intervals import paired_interval, student_t95

FEW = np.array([0.1, -0.4, 2.5, 0.9, 0.0, 1.2])


def moved_percentile(samples):
    """The share of resamples below the lower end: 2.5 %, moved outwards for the few samples."""
    return statistics.NormalDist().cdf(-sqrt(samples / (samples - 1)) * student_t95(samples - 1))


def test_the_ends_are_percentiles_of_all_resamples():
    means = np.array([np.mean(drawn) for drawn in itertools.product(FEW, repeat=len(FEW))])
    tail = moved_percentile(len(FEW))
    low, high = mean_interval(FEW)
    # 4,999 of 46,656 resamples are drawn: the ends are near these percentiles, not on them
    assert np.mean(means <= low) == pytest.approx(tail, abs=0.005)
    assert np.mean(means >= high) == pytest.approx(tail, abs=0.005)


def test_it_is_scipys_percentile_interval_at_the_moved_level():
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(3).lognormal(size=40)
    level = 1 - 2 * moved_percentile(len(values))
    found = stats.bootstrap((values,), np.mean, confidence_level=level, method="percentile", n_resamples=20_000, rng=1)
    assert mean_interval(values) == pytest.approx(tuple(found.confidence_interval), rel=0.02)


def test_the_same_values_give_the_same_interval(monkeypatch):
    drawn = mean_interval(FEW)
    monkeypatch.setattr(bootstrap, "_AT_ONCE", 1)
    assert mean_interval(FEW) == drawn  # however many resamples are drawn at a time


def test_more_samples_make_it_shorter_and_it_holds_the_mean():
    values = np.random.default_rng(5).exponential(size=400)
    widths = []
    for count in (10, 100, 400):
        low, high = mean_interval(values[:count])
        assert low <= values[:count].mean() <= high
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)


def test_beyond_the_limit_it_is_students(monkeypatch):
    values = np.random.default_rng(6).exponential(size=2000)
    drawn = mean_interval(values)
    monkeypatch.setattr(bootstrap, "MOST", 1999)
    assert mean_interval(values) == pytest.approx(drawn, abs=0.1 * (drawn[1] - drawn[0]))


def test_it_moves_with_unit_and_zero():
    low, high = mean_interval(FEW)
    assert mean_interval(3 * FEW + 7) == pytest.approx((3 * low + 7, 3 * high + 7))


def test_equal_differences_are_a_point_and_one_sample_has_no_interval():
    assert mean_interval(np.full(9, 0.25)) == (0.25, 0.25)
    assert mean_interval(np.array([1.0])) is None
    assert paired_mean_interval(np.array([1.0]), np.array([0.0])) is None


def test_ones_and_zeros_get_the_score_interval_of_paired_proportions():
    first, second = np.array([1, 1, 1, 0, 1.0]), np.array([1, 0, 1, 1, 0.0])
    assert paired_mean_interval(first, second) == paired_interval(2, 1, 5)
    low, high = paired_mean_interval(first, first)
    assert low < 0 < high  # no sample that differs is no certainty


def test_pairs_that_vary_together_have_a_short_interval():
    first = np.random.default_rng(7).normal(size=100)
    low, high = paired_mean_interval(first, first - 0.5 + 0.01 * FEW[:1])
    assert high - low < 1e-9
    assert low == pytest.approx(0.499)
