"""TensorRT's calibration cache, against a reader written from the format's description."""

import re
import struct

import pytest

from int8cal.errors import TableError
from int8cal.interop.tensorrt import read_tensorrt, to_tensorrt
from int8cal.numerics.affine import S8, ZERO_SCALE, Affine
from int8cal.quantization.corrections.integers import Bias, Rounding

# as TensorRT itself wrote them: a name with spaces, scales without leading zeros
REAL = b"""TRT-7202-EntropyCalibration2
data: 3f9839e4
(Unnamed Layer* 0) [Convolution]_output: 404efcc8
onnx::Conv_329: 3c96d93c
prob: 3c010a14
"""


def provider(content):
    """What onnxruntime's TensorRT provider does: split at the first colon, times 127."""
    header, *lines = content.decode().splitlines()
    assert re.match(r"TRT-", header)
    ranges = {}
    for line in lines:
        name, digits, *_ = line.split(":")
        ranges[name] = struct.unpack(">f", int(digits, 16).to_bytes(4, "big"))[0] * 127
    return ranges


def test_each_line_is_a_name_and_amax_over_127_as_big_endian_hex(make):
    text = to_tensorrt(make.table({"x": Affine(1 / 127, 0, S8), "y": Affine(0.5, 0, S8)})).content.decode()
    assert text == "TRT-8601-EntropyCalibration2\nx: 3c010204\ny: 3f000000\n"


def test_the_provider_reads_the_amax(make):
    read = provider(to_tensorrt(make.table({"y": Affine(0.5, 0, S8)})).content)
    assert read == {"y": 63.5}


def test_an_asymmetric_range_becomes_its_larger_end_and_that_is_said(make):
    converted = to_tensorrt(make.small())
    affines = read_tensorrt(converted.content, "c").tensors
    assert affines["x"] == Affine(make.f32(64 / 127), 0, S8)
    assert affines["s8"] == Affine(make.f32(0.3), 0, S8)
    (told,) = [loss for loss in converted.losses if "symmetric" in loss]
    assert told.startswith("2 of 3 tensors become symmetric")
    assert "2.01 times (worst: 'relu: a b', [0, 25.5] becomes [-25.5, 25.5])" in told


def test_what_else_is_lost_is_said(make):
    losses = " ".join(to_tensorrt(make.small(corrections=(Bias({"n": (1.0,)}), Rounding({"n": "x"})))).losses)
    for word in ("1 weight", "corrected biases", "rounding chose", "'relu: a b'", "observed ranges"):
        assert word in losses


def test_a_symmetric_table_loses_no_step(make):
    assert not [loss for loss in to_tensorrt(make.table({"y": Affine(0.5, 0, S8)})).losses if "symmetric" in loss]


def test_a_real_cache_is_read():
    read = read_tensorrt(REAL, "c").tensors
    assert list(read) == ["data", "(Unnamed Layer* 0) [Convolution]_output", "onnx::Conv_329", "prob"]
    assert read["data"].scale == struct.unpack(">f", bytes.fromhex("3f9839e4"))[0]
    assert {affine.dtype for affine in read.values()} == {S8}


@pytest.mark.parametrize("header", ["TRT-100300-MinMaxCalibration", "TRT-8205-EntropyCalibration", "TRT-3000-x y"])
def test_any_version_is_read(header):
    assert read_tensorrt(f"{header}\r\nx: 3f800000\r\n".encode(), "c").tensors == {"x": Affine(1.0, 0, S8)}


def test_a_name_may_look_like_a_line():
    name = "a: 3f800000: b"
    assert list(read_tensorrt(f"TRT-1-x\n{name}: 3f800000\n".encode(), "c").tensors) == [name]


def test_numbers_that_are_no_scale_are_named_and_not_fatal():
    text = b"TRT-1-x\nnan: 7fc00000\ninf: 7f800000\nneg: bf800000\nzero: 0\nok: 3f800000\n"
    read = read_tensorrt(text, "c")
    assert read.unusable == ("nan", "inf", "neg")
    assert read.tensors == {"zero": Affine(ZERO_SCALE, 0, S8), "ok": Affine(1.0, 0, S8)}
    assert "'zero'" in read.losses[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", 1),
        (b"\n\nx: 3f800000\n", 3),
        (b"x: 3f800000\n", 1),
        (b"TRT-1-x\nx 3f800000\n", 2),
        (b"TRT-1-x\nx: 3f800000\ny: zz\n", 3),
        (b"TRT-1-x\nx: 3f8000001\n", 2),
        (b"TRT-1-x\nx: 3f800000\nx: 3f800000\n", 3),
        (b"TRT-1-x\nx: 3f800000\n\xff: 3f800000\n", 3),
    ],
)
def test_a_malformed_cache_is_refused_with_its_line(text, line):
    with pytest.raises(TableError) as caught:
        read_tensorrt(text, "some.cache")
    assert str(caught.value).startswith(f"table: some.cache:{line}: ")
    assert caught.value.exit_code == 6


def test_a_name_with_a_line_break_is_refused(make):
    with pytest.raises(TableError, match="line break"):
        to_tensorrt(make.table({"a\nb": Affine(1.0, 0, S8)}))
