from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from int8cal.errors import DataError


@pytest.fixture
def put(tmp_path):
    """Write test_data_set_<set>/input_<number>.pb."""

    def write(array, number=0, name="", data_set=0):
        folder = tmp_path / f"test_data_set_{data_set}"
        folder.mkdir(exist_ok=True)
        path = folder / f"input_{number}.pb"
        path.write_bytes(numpy_helper.from_array(array, name).SerializeToString())
        return path

    return write


def _x(rows):
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)


def test_sets_are_found_beside_the_model_and_split_into_rows(tmp_path, vector, feeds, put):
    put(_x(1), data_set=0)
    put(_x(2), data_set=1)
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "test_data_set_0/output_0.pb").write_bytes(b"")
    opened = feeds(tmp_path.name, vector, base=tmp_path.parent)
    assert opened.count == 3
    name = tmp_path.name
    assert [sample.origin for sample in opened] == [
        f"{name}/test_data_set_0",
        f"{name}/test_data_set_1[0]",
        f"{name}/test_data_set_1[1]",
    ]


def test_tensors_without_a_matching_name_go_by_number(tmp_path, pair, feeds, put):
    put(np.ones((2, 4), np.int64), 0, "some")
    put(np.ones((2, 4), np.float32), 1, "other")
    assert [sample.feed["ids"].dtype for sample in feeds(tmp_path, pair)] == [np.int64] * 2


def test_tensor_whose_name_is_an_input_goes_there(tmp_path, signature, feeds, put):
    put(np.full((1, 2), 5, np.float32), 0, "b")
    put(np.full((1, 2), 7, np.float32), 1, "a")
    (sample,) = feeds(tmp_path, signature(a=("N", 2), b=("N", 2)))
    assert sample.feed["a"][0, 0] == 7


def test_numbers_above_nine_are_in_numeric_order(tmp_path, signature, feeds, put):
    for number in range(12):
        put(np.full((1,), number, np.float32), number)
    (sample,) = feeds(tmp_path, signature(**{f"in_{letter}": ("N",) for letter in "abcdefghijkl"}))
    assert [float(array[0]) for array in sample.feed.values()] == list(range(12))


def test_one_set_and_one_file_are_paths_too(tmp_path, vector, feeds, put):
    path = put(_x(2))
    assert len(list(feeds(path.parent, vector))) == len(list(feeds(path, vector))) == 2


def test_missing_extra_and_double_tensors_are_refused(tmp_path, pair, signature, feeds, put):
    put(np.ones((2, 4), np.int64), 0)
    with pytest.raises(DataError, match=r'input "weight" is missing; found input_0\.pb; add input_1\.pb'):
        feeds(tmp_path, pair)
    put(np.ones((2, 4), np.int64), 1, "ids")
    with pytest.raises(DataError, match=r'feeds input "ids", and so does input_0\.pb'):
        feeds(tmp_path, pair)
    with pytest.raises(DataError, match="is input number 1, the model has 1: z"):
        feeds(tmp_path, signature(z=(("N", 4), np.int64)))


def test_shape_and_dtype_are_checked_when_opened(tmp_path, vector, feeds, put):
    put(_x(1), data_set=0)
    put(np.ones((1, 5), np.float32), data_set=1)
    with pytest.raises(DataError, match=r"test_data_set_1: input \"x\" has shape \(1, 5\)"):
        feeds(tmp_path, vector)
    put(np.ones((1, 3), np.int64), data_set=1)
    with pytest.raises(DataError, match="has dtype int64"):
        feeds(tmp_path, vector)


@pytest.mark.parametrize("content", [b"", b"\xff\xff\xff", b"hello world"])
def test_file_that_is_no_tensor_is_named(tmp_path, vector, feeds, put, content):
    put(_x(1)).write_bytes(content)
    with pytest.raises(DataError, match=r"test_data_set_0/input_0\.pb: cannot be read"):
        feeds(tmp_path, vector)


def test_tensor_with_too_few_values_is_named_and_can_be_skipped(tmp_path, vector, feeds, put):
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=[4, 3], raw_data=b"\0" * 8)
    put(_x(1)).write_bytes(tensor.SerializeToString())
    with pytest.raises(DataError, match=r"input_0\.pb: cannot be read"):
        list(feeds(tmp_path, vector))
    put(_x(1), data_set=1)
    opened = feeds(tmp_path, vector, skip_bad=True)
    assert len(list(opened)) == 1
    assert len(opened.skipped) == 1
