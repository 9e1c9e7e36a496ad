import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.numerics.neighbours import neighbour_recalls


def brute_recall(x, y, k):
    def nearest(vectors, at):
        lengths = [math.sqrt(sum(value * value for value in row)) for row in vectors]
        near = [
            (-sum(a * b for a, b in zip(vectors[at], row, strict=True)) / lengths[at] / lengths[other], other)
            for other, row in enumerate(vectors)
            if other != at
        ]
        return {other for _, other in sorted(near)[:k]}

    return [len(nearest(x, at) & nearest(y, at)) / k for at in range(len(x))]


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
def test_recalls_are_those_of_plain_loops(k, noise):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((20, 6))
    y = x + noise * rng.standard_normal(x.shape)
    assert neighbour_recalls(x, y, k).tolist() == pytest.approx(brute_recall(x.tolist(), y.tolist(), k))


def test_vectors_that_collapsed_into_one_get_what_guessing_gets():
    x = np.random.default_rng(0).standard_normal((11, 4))
    assert neighbour_recalls(x, np.ones_like(x), 1) == pytest.approx(1 / 10)
    assert neighbour_recalls(x, np.zeros_like(x), 5) == pytest.approx(5 / 10)


@given(st.integers(0, 10**6))
def test_neither_duplicates_nor_the_order_of_samples_make_a_difference(seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-1, 2, (12, 3)).astype(np.float32)
    y = rng.integers(-1, 2, (12, 3)).astype(np.float32)
    order = rng.permutation(12)
    np.testing.assert_array_equal(neighbour_recalls(x, x, 2), 1.0)
    np.testing.assert_allclose(neighbour_recalls(x[order], y[order], 2), neighbour_recalls(x, y, 2)[order])
