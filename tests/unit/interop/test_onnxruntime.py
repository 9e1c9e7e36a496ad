"""onnxruntime's calibration tables, against its own writer and its own reader classes."""

import json

import numpy as np
import pytest
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable
from onnxruntime.quantization.quant_utils import write_calibration_table

from int8cal.errors import TableError
from int8cal.interop.onnxruntime import read_onnxruntime, to_onnxruntime
from int8cal.numerics.affine import S8, U8, Affine, affine_from_range

RANGES = {"b: c d": (-2.0, 3.0), "a": (0.0, 6.0), "é": (-4.0, 4.0), "down": (-5.0, 1.0)}


def their_files(folder, ranges=RANGES, shape=()):
    data = {
        name: TensorData(lowest=np.full(shape, low, np.float32), highest=np.full(shape, high, np.float32))
        for name, (low, high) in ranges.items()
    }
    write_calibration_table(TensorsData(CalibrationMethod.MinMax, data), str(folder))
    return {form: (folder / f"calibration.{form}").read_bytes() for form in ("json", "flatbuffers", "cache")}


@pytest.mark.parametrize("shape", [(), (1,)])
def test_the_json_of_the_real_writer_is_read(tmp_path, shape):
    read = read_onnxruntime(their_files(tmp_path, shape=shape)["json"], "c").tensors
    assert read == {
        "b: c d": affine_from_range(-2, 3, U8),
        "a": affine_from_range(0, 6, U8),
        "é": Affine(float(np.float32(4 / 127)), 0, S8),
        "down": affine_from_range(-5, 1, U8),
    }


@pytest.mark.parametrize("form", ["flatbuffers", "cache"])
def test_the_one_number_forms_of_the_real_writer_are_read(tmp_path, form):
    read = read_onnxruntime(their_files(tmp_path)[form], "c")
    amax = {name: affine.high for name, affine in read.tensors.items()}
    # "down" reached -5: the writer takes the larger of both ends, not of their magnitudes
    assert amax == pytest.approx({"b: c d": 3.0, "a": 6.0, "é": 4.0, "down": 1.0})
    assert "upper end" in read.losses[0]


@pytest.mark.parametrize("form", ["flatbuffers", "cache"])
def test_a_tensor_that_is_always_negative_has_no_usable_number(tmp_path, form):
    read = read_onnxruntime(their_files(tmp_path, {"x": (-5.0, -1.0), "y": (0.0, 1.0)})[form], "c")
    assert (list(read.tensors), read.unusable) == (["y"], ("x",))


def test_our_json_is_read_by_their_classes(make):
    document = json.loads(to_onnxruntime(make.small(), "json").content)
    if not hasattr(TensorsData, "from_dict"):
        pytest.skip("this onnxruntime writes the file and has no reader of it")
    read = TensorsData.from_dict(document)
    assert read.calibration_method == CalibrationMethod.MinMax
    low, high = read["x"].range_value
    assert (low.dtype, float(low), float(high)) == (np.float32, -64.0, 63.5)


def test_our_json_has_the_structure_of_theirs(tmp_path, make):
    theirs = json.loads(their_files(tmp_path)["json"])
    ours = json.loads(to_onnxruntime(make.small(), "json").content)
    assert ours.keys() == theirs.keys()
    assert ours["calibration_method"] == theirs["calibration_method"]
    assert ours["data"]["x"].keys() == theirs["data"]["a"].keys()
    assert ours["data"]["x"]["lowest"].keys() == theirs["data"]["a"]["lowest"].keys()


def test_our_flatbuffers_are_read_by_their_classes(make):
    content = bytearray(to_onnxruntime(make.small(), "flatbuffers").content)
    root = TrtTable.GetRootAs(content, 0)
    pairs = {root.Dict(i).Key().decode(): float(root.Dict(i).Value()) for i in range(root.DictLength())}
    assert pairs == pytest.approx({"x": 64.0, "relu: a b": 25.5, "s8": 38.1})


def test_our_cache_has_the_lines_of_theirs(make):
    lines = to_onnxruntime(make.small(), "cache").content.decode().splitlines()
    assert [line.rsplit(" ", 1)[0] for line in lines] == ["relu: a b", "s8", "x"]
    assert float(lines[2].split()[-1]) == pytest.approx(64.0)


def test_tables_from_before_tensors_data_are_read():
    old = json.dumps({"x": [-1.0, 3.0], "y": [[-1.0], [3.0]]}).encode()
    read = read_onnxruntime(old, "c").tensors
    assert read["x"] == read["y"] == affine_from_range(-1, 3, U8)


@pytest.mark.parametrize("form", ["flatbuffers", "cache"])
def test_the_loss_of_one_number_is_said(make, form):
    losses = to_onnxruntime(make.small(), form).losses
    assert any(loss.startswith("2 of 3 tensors become symmetric") for loss in losses)


def test_json_loses_no_zero_point(make):
    table = make.small()
    converted = to_onnxruntime(table, "json")
    assert not any("symmetric" in loss for loss in converted.losses)
    read = read_onnxruntime(converted.content, "c").tensors
    assert {name: affine.zero_point for name, affine in read.items()} == {"x": 128, "relu: a b": 0, "s8": 0}


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"", "f:1: is empty"),
        (b"x 1.0\nno-number\n", "f:2: "),
        (b"x 1.0\nx 2.0\n", "f:2: 'x' is on line 1 already"),
        (b"x one\n", "f:1: "),
        (b"\xff\xfe 1.0\n", "f:1: is not UTF-8"),
        (b'{"data": \n nope', "f:2: is not JSON"),
        (b"{}", "f: names no tensors"),
        (b"{0", "f:1: is not JSON"),
        (b'{"CLS": "TensorsData", "data": 3}', "f: names no tensors"),
        (b'{"x": {"avg": 1.0}}', "f: tensor 'x' has None"),
        (b'{"x": [[1.0, 2.0], [3.0, 4.0]]}', "f: tensor 'x' has a range per channel"),
        (b'{"x": [true, 1]}', "f: tensor 'x' has True"),
        (b'{"x": 3}', "f: tensor 'x' has no lowest and highest"),
        (b"[" * 100000, "f"),
        (b'{"x":' + b"[" * 100000, "f"),
    ],
)
def test_malformed_files_are_refused(content, where):
    with pytest.raises(TableError) as caught:
        read_onnxruntime(content, "f")
    assert str(caught.value).startswith(f"table: {where}")


def test_numbers_that_do_not_fit_are_named():
    text = b'{"x": [NaN, 1.0], "y": [0, 1e999], "z": [0, 1], "w": [2, 1], "v": [0, 1' + b"0" * 400 + b"]}"
    read = read_onnxruntime(text, "f")
    assert (list(read.tensors), read.unusable) == (["z"], ("x", "y", "w", "v"))


def test_every_damaged_flatbuffer_is_refused_or_read(make):
    good = to_onnxruntime(make.small(), "flatbuffers").content
    rng = np.random.default_rng(0)
    cut = [good[:length] for length in range(0, len(good), 3)]
    flipped = []
    for _ in range(600):
        bad = bytearray(good)
        for position in rng.integers(0, len(bad), 3):
            bad[position] = rng.integers(0, 256)
        flipped.append(bytes(bad))
    refused = 0
    for content in [*cut, *flipped]:
        try:
            read_onnxruntime(content, "f")
        except TableError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("content", [b"0", b"null", b'"CLS"', b"[]"])
def test_json_that_is_no_object_is_refused(content):
    with pytest.raises(TableError, match="names no tensors"):
        read_onnxruntime(content, "f", "json")


def test_the_form_is_told_by_content_unless_given():
    text = b"{ 1.0\n"
    assert list(read_onnxruntime(text, "f", "cache").tensors) == ["{"]
    with pytest.raises(TableError, match="not JSON"):
        read_onnxruntime(text, "f")
