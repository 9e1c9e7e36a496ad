from array import array

import numpy as np
import pytest

from int8cal.evaluation.sample_figures import Alike, low_percentile
from int8cal.numerics.intervals import quantile_interval


@pytest.mark.parametrize("values", [[], [1.0], [2.0] * 50, [2.0] * 7 + [3.0], [1.0, 2.0, 1.0], [0.0, 0.0, 4.0, 0.0]])
def test_numbers_that_are_mostly_alike_are_given_back_as_they_came(values):
    held = Alike()
    for value in values:
        held.take(value)
    assert [*held] == values
    assert len(held) == len(values)
    assert all(value in held for value in values)
    assert 5.0 not in held


def test_numbers_that_are_all_alike_take_no_memory_each():
    held = Alike()
    for _ in range(1000):
        held.take(1.0)
    assert held._different is None


def test_a_percentile_is_one_of_the_samples():
    rng = np.random.default_rng(2)
    values = array("d", rng.normal(size=1001).tolist())
    figure = low_percentile(values, "p5", "how", "none")
    ordered = sorted(values)
    assert figure.value == ordered[50]
    assert type(figure.value) is float
    assert figure.ci95 == quantile_interval(ordered, 0.05)


@pytest.mark.parametrize("samples", [20_001, 50_000, 300_000])
@pytest.mark.parametrize("fraction", [0.0005, 0.05, 0.5])
def test_of_very_many_samples_an_interval_ends_where_all_counts_say(samples, fraction, monkeypatch):
    ordered = np.arange(samples, dtype=np.float64)
    found = quantile_interval(ordered, fraction)
    monkeypatch.setattr("int8cal.numerics.intervals._MANY", samples)
    assert found == quantile_interval(ordered, fraction)
