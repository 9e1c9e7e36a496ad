"""Convolutions and products on small numbers; the oracle is in tests/property/test_reference_properties.py."""

import numpy as np
import pytest

from int8cal.errors import ModelError
from int8cal.numerics.reference.convolution import convolve
from int8cal.numerics.reference.matmul import gemm, matmul
from int8cal.numerics.reference.transposed import convolve_transposed
from int8cal.numerics.reference.windows import Window

X = np.array([[[10, 20, 30]]], np.uint8)


def test_pads_add_nothing_whatever_the_zero_point():
    w = np.array([[[1, 2, 3]]], np.int8)
    found = convolve(X, w, Window.of((3,), pads=(1, 1)), zero_point=10, bias=[5])
    assert found.sums.tolist() == [[[5 + 2 * 0 + 3 * 10, 5 + 2 * 10 + 3 * 20, 5 + 10 + 2 * 20]]]
    assert found.peak.tolist() == [5 + 80]


def test_pairs_saturate_on_what_the_pads_hold():
    x, w = np.full((1, 2, 1), 1, np.uint8), np.full((1, 2, 2), 127, np.int8)
    window = Window.of((2,), pads=(1, 0))
    zero_point_there = convolve(x, w, window, zero_point=255, pair_starts=[0, 2])
    zeros_there = convolve(x, w, window, zero_point=255, padding=0, pair_starts=[0, 2])
    assert zero_point_there.saturated.tolist() == [1]
    assert zeros_there.saturated.tolist() == [0]
    assert zeros_there.sums.tolist() == zero_point_there.wide.tolist() == [[[-254 * 2 * 127]]]


def test_weights_have_a_zero_point_per_channel():
    w = np.array([[[3]], [[3]]], np.int8)
    found = convolve(X, w, Window.of((1,)), zero_point=10, weight_zero_point=[1, -1])
    assert found.sums.tolist() == [[[0, 20, 40], [0, 40, 80]]]


def test_blocks_of_positions_do_not_show(monkeypatch):
    rng = np.random.default_rng(4)
    x = rng.integers(0, 256, (2, 6, 7, 5)).astype(np.uint8)
    w = rng.integers(-128, 128, (4, 3, 3, 2)).astype(np.int8)
    back = rng.integers(-128, 128, (6, 4, 3, 2)).astype(np.int8)
    window = Window.of((3, 2), strides=(2, 1), pads=(1, 0, 2, 1))
    settings = {"group": 2, "zero_point": 3, "pair_starts": np.arange(0, 17, 3)}

    def both():
        return convolve(x, w, window, padding=1, **settings), convolve_transposed(x, back, window, **settings)

    whole = both()
    monkeypatch.setattr("int8cal.numerics.reference.dot.BUDGET", 1000)
    for one, other in zip(whole, both(), strict=True):
        for name in ("sums", "wide", "saturated", "peak"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        assert one.saturated.sum() > 0


def test_a_transposed_convolution_spreads_its_input():
    w = np.array([[[1, 2, 3]]], np.int8)
    found = convolve_transposed(X, w, Window.of((3,), strides=(2,), pads=(1, 0)), output_padding=(1,), zero_point=10)
    # 0 0 0 | 10 20 30 | 20 40 60 at steps of 2, the first cut off, one zero behind
    assert found.sums.tolist() == [[[0, 10, 20, 50, 40, 60, 0]]]


def test_taps_that_land_outside_do_not_saturate():
    x, w = np.full((1, 2, 1), 255, np.uint8), np.full((2, 1, 3), 127, np.int8)
    found = convolve_transposed(x, w, Window.of((3,), pads=(1, 1)), pair_starts=[0, 2, 4])
    assert found.saturated.tolist() == [1]
    assert found.sums.tolist() == [[[32767]]]


def test_products_broadcast_and_take_a_bias():
    a = np.arange(12).reshape(2, 2, 3).astype(np.uint8)
    b = np.array([[1, -1], [2, 0], [0, 3]], np.int8)
    expected = (a.astype(int) - 2) @ b.astype(int)
    np.testing.assert_array_equal(matmul(a, b, zero_point=2).sums, expected)
    np.testing.assert_array_equal(matmul(a, b, zero_point=2, bias=[5, 7]).sums, expected + np.array([5, 7]))
    rows = np.array([[1, 2], [3, 4]])
    np.testing.assert_array_equal(matmul(a, b, zero_point=2, bias=rows).sums, expected + rows)
    np.testing.assert_array_equal(matmul(a, b[None], zero_point=2, bias=rows).sums, expected + rows)


def test_products_saturate_along_their_inner_axis():
    a, b = np.full((1, 16), 255, np.uint8), np.full((16, 2), 127, np.int8)
    for found in (
        matmul(a, b, pair_starts=np.arange(0, 16, 2)),
        gemm(a.T, b.T, transpose_a=True, transpose_b=True, pair_starts=np.arange(0, 16, 2)),
    ):
        assert found.sums.tolist() == [[262136, 262136]]
        assert found.wide.tolist() == [[518160, 518160]]
        assert found.saturated.tolist() == [8, 8]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: convolve(X, np.zeros((2, 2, 1), np.int8), Window.of((1,))), "does not fit input"),
        (lambda: convolve(X, np.zeros((2, 1, 1), np.int8), Window.of((2,))), "does not fit input"),
        (lambda: convolve(X, np.zeros((3, 1, 1), np.int8), Window.of((1,)), group=2), "not divisible into 2 groups"),
        (lambda: convolve(X, np.zeros((2, 1, 1), np.int8), Window.of((1,)), bias=[1, 2, 3]), "3 values do not fit 2"),
        (lambda: convolve_transposed(X, np.zeros((2, 1, 1), np.int8), Window.of((1,))), "does not fit input"),
        (
            lambda: convolve_transposed(X, np.zeros((1, 1, 1), np.int8), Window.of((1,), pads=(2, 1))),
            "leaves an output",
        ),
        (
            lambda: convolve_transposed(X, np.zeros((1, 1, 2), np.int8), Window.of((2,)), pair_starts=[0]),
            "crosses from one tap to the next",
        ),
        (lambda: matmul(X[0], np.zeros((2, 2), np.int8)), "cannot be multiplied"),
        (lambda: matmul(X[0], np.zeros((3, 2), np.int8), bias=[1, 2, 3]), "does not fit a product"),
        (lambda: gemm(X, np.zeros((3, 2), np.int8)), "2 dimensions"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ModelError, match=message):
        call()
