import pytest

from int8cal.errors import ModelError
from int8cal.numerics.gram import Window


@pytest.mark.parametrize(
    ("size", "window", "count"),
    [
        (5, Window.of((2,), (2,)), 2),
        (5, Window.of((3,), (2,)), 2),
        (4, Window.of((1,), (3,), None, (0, 1)), 2),
        (2, Window.of((2,), (2,), None, (0, 1)), 1),
    ],
)
def test_positions_are_counted(size, window, count):
    assert window.outputs((size,)) == (count,)


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
        Window.of((3,)).outputs((2,))
