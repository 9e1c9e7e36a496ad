"""What the cells of a table say, one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.data.cells import is_data, is_numeral, number
from int8cal.errors import DataError
from int8cal.graph.signature import TensorSpec


def spec(dtype):
    return TensorSpec("x", np.dtype(dtype), ("N", 1))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_read_exactly_as_they_were_written(value):
    assert number(repr(value), spec(np.float32), "c", "f") == value
    assert is_numeral(repr(value))


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_are_not_read_by_way_of_floats(value):
    assert number(f" {value} ", spec(np.int64), "c", "f") == value


@pytest.mark.parametrize(
    ("cell", "dtype", "value"),
    [("3.0", np.int32, 3), ("1e3", np.int64, 1000), (".5", np.float32, 0.5), ("+1", np.uint8, 1), ("True", bool, True)],
)
def test_spellings(cell, dtype, value):
    found = number(cell, spec(dtype), "c", "f")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("cell", ["NA", "nan", "inf", "-inf", "1_000", "0x10", "1,5", "٣", "1e999", "word", "1 2"])
def test_what_is_no_number_is_told_and_can_be_skipped(cell):
    with pytest.raises(DataError, match='cannot be read: column "c" holds') as caught:
        number(cell, spec(np.float32), "c", "a.csv, line 3")
    assert caught.value.fields["unreadable"]
    assert caught.value.where == "a.csv, line 3"


@pytest.mark.parametrize(("cell", "dtype"), [("1.5", np.int64), ("300", np.uint8), ("-1", np.uint64), ("9" * 30, "i8")])
def test_a_number_that_the_input_does_not_hold_is_told(cell, dtype):
    with pytest.raises(DataError, match=rf'holds "{cell}", input "x" takes {np.dtype(dtype).name}'):
        number(cell, spec(dtype), "c", "f")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("5.1 3.5 1.4", True),
        ("0 0", True),
        ("1 NA", True),
        ("1 2 3", True),
        ("0 1 2", False),
        ("a 1", False),
        ("NA NA", False),
    ],
)
def test_a_first_line_of_numbers_names_no_columns_unless_they_are_those_of_pandas(cells, expected):
    assert is_data(cells.split()) == expected
