"""Sums by channel against numpy, whatever the layout, and how many levels values have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.numerics import channels
from int8cal.numerics.channels import Levels, channel_sums
from int8cal.numerics.metrics import error_sums


@given(st.integers(0, 2), st.integers(1, 5), st.integers(1, 6), st.integers(1, 40), st.integers(0, 99))
def test_sums_by_channel_are_those_of_each_channel_alone(axis, first, second, chunk, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, first, second, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "_CHUNK", chunk)
        found = channel_sums(x, y, axis) + channel_sums(y, x, axis)
    for channel in range(x.shape[axis]):
        a, b = (np.take(each, channel, axis) for each in (x, y))
        alone = error_sums(a, b) + error_sums(b, a)
        assert found.noise[channel] == pytest.approx(alone.noise)
        assert found.signal[channel] == pytest.approx(alone.signal)
        assert found.lows[0, channel] == found.lows[1, channel] == min(a.min(), b.min())
        assert found.highs[0, channel] == found.highs[1, channel] == max(a.max(), b.max())
    assert found.count == 2 * x.size // x.shape[axis]


def test_the_worst_channel_is_that_of_the_lowest_ratio_and_exact_ones_are_none():
    x = np.ones((4, 3))
    assert channel_sums(x, x, 1).worst is None
    assert channel_sums(x, x + np.array([0.1, 0.2, 0.0]), 1).worst == (1, pytest.approx(13.98, abs=0.01))


@given(st.integers(1, 200), st.integers(0, 9))
def test_levels_are_counted_whatever_the_order(count, seed):
    rng = np.random.default_rng(seed)
    values = rng.permutation(np.repeat(np.arange(count) / 7, 3))
    levels = Levels()
    for part in np.array_split(values, 5):
        if part.size:
            levels.add(rng.random(part.size), part)
    assert levels.of_approximation == count
    assert levels.of_eight_bits <= 258


def test_more_values_than_eight_bits_have_are_many():
    levels = Levels()
    levels.add(np.arange(300.0), np.arange(300.0))
    assert levels.many
    assert levels.of_approximation == levels.of_eight_bits == 0
