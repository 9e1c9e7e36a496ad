import numpy as np
import pytest
from im2col import landings, patches, transposed_sizes

from int8cal.numerics import gram
from int8cal.numerics.gram import (
    MomentSums,
    Window,
    centred,
    chosen_rows,
    convolution_reads,
    convolution_rows,
    some_of,
    transposed_reads,
)

ALL = 1 << 30


def moments(codes, zero_point=0):
    sums = MomentSums(codes.shape[0], codes.shape[2], zero_point)
    sums.add(codes)
    return sums.result()


@pytest.mark.parametrize(
    ("kernel", "strides", "dilations", "pads", "group"),
    [
        ((3, 3), None, None, (1, 1, 1, 1), 1),
        ((3, 2), (2, 1), (1, 2), (1, 0, 2, 1), 2),
        ((3, 3), (2, 2), None, (0, 0, 1, 1), 4),
        ((5,), (2,), (2,), (3, 4), 1),
    ],
)
def test_rows_of_a_convolution_are_im2col(kernel, strides, dilations, pads, group):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, 4, *([9, 7][: len(kernel)])), np.uint8)
    window = Window.of(kernel, strides, dilations, pads)
    rows = convolution_rows(x, 100, convolution_reads(window, x.shape[2:], ALL), group)
    expected = patches(x, window, 100, group).astype(np.int64) - 100
    assert rows.dtype == np.uint8
    np.testing.assert_array_equal(centred(rows, 100), expected)
    found = moments(rows, 100)
    np.testing.assert_array_equal(found.gram, np.einsum("grk,grl->gkl", expected, expected))
    np.testing.assert_array_equal(found.total, expected.sum(axis=1))
    assert found.count == expected.shape[1]


@pytest.mark.parametrize(("strides", "added", "group"), [((1, 1), (0, 0), 1), ((2, 2), (1, 0), 2), ((3, 1), (0, 0), 4)])
def test_rows_of_a_transposed_convolution_give_its_sums(strides, added, group):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (2, 4, 5, 4), np.uint8)
    weight = rng.integers(-127, 128, (4, 3, 3, 2), np.int8)
    window = Window.of((3, 2), strides, (1, 2), (1, 0, 0, 1))
    outputs = transposed_sizes((5, 4), window, added)
    expected = np.zeros((2, group * 3, *outputs), np.int64)
    weights = weight.reshape(group, 4 // group, 3, 6)
    for at, tap, place in landings((5, 4), window, outputs):
        read = (x[(slice(None), slice(None), *at)].astype(np.int64) - 7).reshape(2, group, -1)
        made = np.einsum("ngc,gco->ngo", read, weights[..., tap].astype(np.int64))
        expected[(slice(None), slice(None), *place)] += made.reshape(2, -1)
    rows = convolution_rows(x, 7, transposed_reads(window, (5, 4), added, ALL), group)
    by_group = weights.transpose(0, 2, 3, 1).reshape(group, 3, -1)
    sums = np.einsum("grk,gok->gor", rows.astype(np.int64) - 7, by_group.astype(np.int64))
    found = sums.reshape(group * 3, 2, -1).transpose(1, 0, 2).reshape(expected.shape)
    np.testing.assert_array_equal(found, expected)


def test_moments_of_16_bit_codes_are_exact_where_float32_sums_would_not_be():
    codes = np.random.default_rng(2).integers(0, 65536, (1, 5000, 80), np.uint16)
    rows = codes.astype(np.int64) - 40_000
    np.testing.assert_array_equal(moments(codes, 40_000).gram, np.einsum("grk,grl->gkl", rows, rows))


def test_strips_of_a_gram_make_the_whole(monkeypatch):
    monkeypatch.setattr(gram, "_SIDE", 32)
    codes = np.random.default_rng(5).integers(0, 256, (2, 300, 90), np.uint8)
    rows = codes.astype(np.int64) - 9
    np.testing.assert_array_equal(moments(codes, 9).gram, np.einsum("grk,grl->gkl", rows, rows))


def test_neither_order_nor_cuts_nor_sums_of_sums_change_moments():
    rng = np.random.default_rng(3)
    rows = rng.integers(-128, 128, (2, 900, 70), np.int8)
    whole = moments(rows)
    mixed = MomentSums(2, 70)
    for part in np.array_split(rows[:, rng.permutation(900)], [1, 300, 333], axis=1):
        mixed.add(part)
    joined = moments(rows[:, :400]) + moments(rows[:, 400:])
    for other in (mixed.result(), joined):
        np.testing.assert_array_equal(other.gram, whole.gram)
        np.testing.assert_array_equal(other.total, whole.total)
        assert other.count == whole.count


def test_chosen_positions_are_spread_and_no_more_than_asked_for():
    chosen = some_of(10_000, 500)
    assert len(np.unique(chosen)) == 500
    assert (np.diff(chosen) < 60).all()
    # in step with no grid: every column of a 100 x 100 image is seen
    assert len(np.unique(chosen % 100)) == 100
    np.testing.assert_array_equal(some_of(5, 9), np.arange(5))


def test_rows_of_a_matrix_are_chosen_per_sample():
    codes = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    chosen = chosen_rows(codes, 2)
    np.testing.assert_array_equal(chosen, codes[:, some_of(4, 2)].reshape(-1, 3))
    np.testing.assert_array_equal(centred(chosen, 1), chosen.astype(int) - 1)
