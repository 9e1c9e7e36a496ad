import numpy as np
import pytest

from int8cal.errors import ModelError
from int8cal.numerics.reference.convolution import weight_rows
from int8cal.numerics.reference.transposed import transposed_rows
from int8cal.numerics.reference.windows import Window, patches


def test_the_channel_is_the_fastest_of_a_patch_and_of_a_row():
    x = np.arange(2 * 3 * 3).reshape(1, 2, 3, 3).astype(np.uint8)
    cut = patches(x, Window.of((2, 2)))
    assert cut.shape == (1, 4, 8)
    assert cut[0, 0].tolist() == [0, 9, 1, 10, 3, 12, 4, 13]
    weight = np.arange(8).reshape(1, 2, 2, 2).astype(np.int8)
    assert weight_rows(weight).tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]


def test_groups_see_their_own_channels():
    x = np.arange(4 * 2).reshape(1, 4, 2).astype(np.int8)
    cut = patches(x, Window.of((2,)), group=2)
    assert cut.tolist() == [[[0, 2, 1, 3]], [[4, 6, 5, 7]]]


def test_pads_hold_the_zero_point_and_taps_keep_their_distance():
    x = np.array([[[1, 2, 3, 4]]], np.uint8)
    cut = patches(x, Window.of((2,), strides=(2,), dilations=(2,), pads=(1, 2)), zero_point=9)
    assert cut.tolist() == [[[9, 2], [2, 4], [4, 9]]]


def test_images_follow_each_other():
    x = np.arange(4).reshape(2, 1, 2).astype(np.uint8)
    assert patches(x, Window.of((1,))).reshape(-1).tolist() == [0, 1, 2, 3]


def test_rows_of_a_transposed_convolution_list_group_by_group():
    weight = np.arange(4 * 3 * 2).reshape(4, 3, 2).astype(np.int8)
    rows = transposed_rows(weight, 2)
    assert rows.shape == (6, 4)
    assert rows[4].tolist() == [weight[2, 1, 0], weight[3, 1, 0], weight[2, 1, 1], weight[3, 1, 1]]


@pytest.mark.parametrize(
    ("size", "window", "floor", "ceil"),
    [
        (5, Window.of((2,), (2,)), 2, 3),
        (5, Window.of((3,), (2,)), 2, 2),
        (4, Window.of((1,), (3,), None, (0, 1)), 2, 2),
        (2, Window.of((2,), (2,), None, (0, 1)), 1, 1),  # a third step would begin behind the input
    ],
)
def test_positions_are_counted(size, window, floor, ceil):
    assert window.outputs((size,)) == (floor,)
    assert window.outputs((size,), ceil=True) == (ceil,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 2), (1,)), "differ in length"),
        (((2,), None, None, (1,)), "differ in length"),
        (((0,),), "below 1"),
        (((2,), None, None, (-1, 0)), "below 0"),
    ],
)
def test_windows_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(ModelError, match=message):
        Window.of(*arguments)


def test_a_window_larger_than_the_input_is_refused():
    with pytest.raises(ModelError, match="does not fit an input of"):
        patches(np.zeros((1, 1, 2), np.uint8), Window.of((3,)))


def test_channels_that_do_not_divide_are_refused():
    with pytest.raises(ModelError, match="not divisible into 2 groups"):
        patches(np.zeros((1, 3, 2), np.uint8), Window.of((1,)), group=2)
