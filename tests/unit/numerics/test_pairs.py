import itertools

import numpy as np
import pytest

from int8cal.numerics.pairs import (
    SAFE_SUM,
    Reduction,
    link,
    one_sign,
    pair_starts,
    unsafe_pairs,
    worst_anywhere,
    worst_sums,
)

S16_MAX, S16_MIN = 32767, -32768


def numbered(*shape):
    return np.arange(np.prod(shape)).reshape(shape)


def test_rows_of_a_convolution_run_over_positions_and_then_channels():
    weight = numbered(4, 3, 2, 2)  # (M, C, kh, kw)
    rows = Reduction(0, 1).rows(weight)
    assert (rows.positions, rows.channels) == (4, 3)
    assert rows.values.shape == (4, 1, 12)
    expected = [weight[1, c, y, x] for y in range(2) for x in range(2) for c in range(3)]
    assert rows.values[1, 0].tolist() == expected


def test_rows_of_a_grouped_conv_transpose_are_one_per_output_under_a_shared_scale():
    weight = numbered(4, 3, 2, 1)  # (C, M / group, kh, kw), group 2: output channel g * 3 + k has scale k
    rows = Reduction(1, 0, 2).rows(weight)
    assert rows.values.shape == (3, 2, 4)
    for k, g in itertools.product(range(3), range(2)):
        expected = [weight[2 * g + c, k, y, 0] for y in range(2) for c in range(2)]
        assert rows.values[k, g].tolist() == expected


@pytest.mark.parametrize(
    ("reduction", "shape"),
    [
        (Reduction(0, 1), (4, 3, 2, 2)),
        (Reduction(0, 1), (4, 3, 5)),
        (Reduction(0, 1), (2, 3, 2, 2, 2)),
        (Reduction(1, 0), (3, 4, 2, 2)),
        (Reduction(1, 0, 3), (6, 4, 2, 2)),
        (Reduction(1, 0), (5, 7)),
        (Reduction(0, 1), (7, 5)),
        (Reduction(None, -2), (2, 5, 7)),
        (Reduction(None, -2), (2, 3, 5, 7)),
    ],
)
def test_rows_and_back_give_the_weight(reduction, shape):
    weight = numbered(*shape)
    np.testing.assert_array_equal(reduction.restore(reduction.rows(weight).values, shape), weight)


def test_a_stack_of_matrices_has_one_scale_and_a_row_per_column():
    rows = Reduction(None, -2).rows(numbered(2, 3, 5))
    assert rows.values.shape == (1, 10, 3)
    assert rows.values[0, 0].tolist() == [0, 5, 10]


def test_flat_pairs_run_across_positions_and_channel_pairs_do_not():
    # two positions of three channels: 0 1 2 | 3 4 5
    assert pair_starts("flat", 2, 3).tolist() == [0, 2, 4]
    assert pair_starts("channels", 2, 3).tolist() == [0, 3]


@pytest.mark.parametrize("channels", [2, 4, 16])
def test_both_orders_are_the_same_for_an_even_number_of_channels(channels):
    assert pair_starts("flat", 3, channels).tolist() == pair_starts("channels", 3, channels).tolist()


@pytest.mark.parametrize("order", ["flat", "channels"])
@pytest.mark.parametrize(("positions", "channels"), [(1, 1), (9, 1), (1, 5), (9, 3), (4, 6)])
def test_pairs_of_one_order_are_disjoint_and_inside_the_row(order, positions, channels):
    starts = pair_starts(order, positions, channels)
    members = np.concatenate([starts, starts + 1])
    assert len(np.unique(members)) == len(members)
    assert (members < positions * channels).all()


def test_links_are_the_union_of_the_orders():
    assert link(("flat", "channels"), 2, 3).tolist() == [True, False, True, True, True]
    assert not link((), 2, 3).any()
    assert link(("flat",), 1, 1).shape == (0,)


@pytest.mark.parametrize("seed", range(3))
def test_a_pair_is_called_unsafe_just_when_some_input_saturates_it(seed):
    codes = np.random.default_rng(seed).integers(-128, 128, (40, 2)).astype(np.int8)
    codes[0], codes[1], codes[2], codes[3] = (64, 64), (64, 65), (-64, -64), (-64, -65)
    inputs = np.array(list(itertools.product((0, 1, 128, 254, 255), repeat=2)))
    sums = codes.astype(np.int64) @ inputs.T
    saturates = ((sums > S16_MAX) | (sums < S16_MIN)).any(axis=1)
    np.testing.assert_array_equal(unsafe_pairs(codes, np.array([True]))[:, 0], saturates)
    assert saturates[:4].tolist() == [False, True, False, True]


def test_weights_of_opposite_sign_never_add_up():
    assert worst_sums(np.array([127, -127], np.int8)).tolist() == [127]


def test_neighbours_that_are_not_linked_may_be_as_large_as_they_like():
    codes = np.array([127, 127, 127], np.int8)
    assert unsafe_pairs(codes, np.array([True, False])).tolist() == [True, False]


@pytest.mark.parametrize("values", [range(-128, 128), [-128, -65, -64, -1, 0, 1, 64, 65, 127], [0], [-128, 127]])
@pytest.mark.parametrize("shape", [(3, 2, 11), (2, 1, 2), (4, 1, 1), (1, 1, 0), (0, 1, 5)])
def test_pairs_of_any_two_are_those_that_are_counted_one_by_one(values, shape):
    codes = np.random.default_rng(7).choice(np.array(values, np.int8), shape)
    first, second = np.triu_indices(shape[-1], 1)
    sums = one_sign(codes[..., first], codes[..., second])
    worst, counts = worst_anywhere(codes)
    assert worst == sums.max(initial=0)
    np.testing.assert_array_equal(counts, (sums > SAFE_SUM).sum(axis=-1))
