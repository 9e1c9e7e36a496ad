"""Table -> the file of another runtime -> table: any names, any scales; what comes back is what the format can hold."""

import contextlib
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from affine_codes import dequantize, fake_quantize, quantize
from hypothesis import given
from hypothesis import strategies as st

from int8cal.calibration.ranges import TensorEntry
from int8cal.errors import TableError
from int8cal.interop import Choices
from int8cal.interop.foreign import symmetric
from int8cal.interop.ncnn import NcnnLayer, parse_ncnn, read_ncnn, to_ncnn
from int8cal.interop.onnxruntime import read_onnxruntime, to_onnxruntime
from int8cal.interop.openvino import read_openvino, to_openvino
from int8cal.interop.tables import table_of
from int8cal.interop.tensorrt import float_of, hex_of, read_tensorrt, to_tensorrt
from int8cal.numerics.affine import S8, SMALLEST_SCALE, U8, Affine
from int8cal.numerics.fakequantize import affine_of, fakequantize_of
from int8cal.quantization.table import CalibrationTable, TableSettings, WeightEntry
from int8cal.quantization.table_file import parse_table

# from the smallest scale of a table up to where 255 steps still fit float32
SCALES = st.one_of(
    st.floats(SMALLEST_SCALE, 2.0**119, width=32),
    st.floats(2.0**-10, 2.0**10, width=32),
)
# ONNX names are UTF-8: no lone surrogates
NAMES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
    st.text(": /_0123abcdef\u00e9\u2028\x85\r.*[]", min_size=1, max_size=12),
    st.sampled_from(["a: 3f800000", " x", "x ", ":", "TRT-1-x", "é:0 / b", "\u2028", "x\x0cy", "a_param_0"]),
)
SIGNED = st.builds(lambda scale: Affine(scale, 0, S8), SCALES)
UNSIGNED = st.builds(lambda scale, zero: Affine(scale, zero, U8), SCALES, st.integers(0, 255))
AFFINES = st.one_of(SIGNED, UNSIGNED)


def entry_of(affine):
    amax = max(abs(affine.low), abs(affine.high))
    return TensorEntry(
        affine.dtype.name,
        affine.scale,
        affine.zero_point,
        affine.low,
        affine.high,
        "max",
        amax,
        (affine.low, affine.high),
        0.0,
        "calibrated",
    )


def table_for(affines, weights=None):
    tensors = {name: entry_of(affine) for name, affine in affines.items()}
    settings = TableSettings({"target": "portable", "weights": "paired"})
    return CalibrationTable({"sha256": "", "name": ""}, {}, settings, tensors, weights or {})


def tables(affines=AFFINES):
    return st.dictionaries(NAMES, affines, max_size=5)


@given(SCALES)
def test_hex_keeps_every_bit(scale):
    assert float_of(hex_of(scale)) == scale


def line_broken(names):
    return any("\n" in name or "\r" in name for name in names)


@given(tables())
def test_tensorrt_brings_back_names_and_symmetric_scales(affines):
    table = table_for(affines)
    if line_broken(affines):
        with pytest.raises(TableError, match="line break"):
            to_tensorrt(table)
        return
    read = read_tensorrt(to_tensorrt(table).content, "c")
    assert read.tensors == {name: symmetric(entry) for name, entry in table.tensors.items()}
    assert read.unusable == ()


@given(tables(SIGNED))
def test_a_symmetric_table_survives_tensorrt_unchanged(affines):
    if not line_broken(affines):
        assert read_tensorrt(to_tensorrt(table_for(affines)).content, "c").tensors == affines


@given(AFFINES)
def test_the_symmetric_range_covers_the_old_one_with_nothing_to_spare(affine):
    result = symmetric(entry_of(affine))
    amax = max(-affine.low, affine.high)
    assert result.high == pytest.approx(amax, rel=1e-6)
    assert (result.dtype, result.zero_point) == (S8, 0)


@given(tables(), st.sampled_from(["flatbuffers", "cache"]))
def test_onnxruntimes_one_number_forms_bring_back_names_and_symmetric_scales(affines, form):
    table = table_for(affines)
    if form == "cache" and (line_broken(affines) or not affines):
        return
    if form == "cache" and any(not name.strip() for name in affines):
        return
    read = read_onnxruntime(to_onnxruntime(table, form).content, "c", form)
    assert read.tensors == {name: symmetric(entry) for name, entry in table.tensors.items()}


@given(tables().filter(bool))
def test_onnxruntimes_json_brings_back_ranges_to_a_float32(affines):
    converted = to_onnxruntime(table_for(affines), "json")
    read = read_onnxruntime(converted.content, "c").tensors
    assert read.keys() == affines.keys()
    for name, affine in affines.items():
        assert math.isclose(read[name].scale, affine.scale, rel_tol=2e-7)
        assert (read[name].zero_point, read[name].dtype) == (affine.zero_point, affine.dtype)
    told = [loss for loss in converted.losses if "float32" in loss]
    assert bool(told) == (read != affines)


@given(tables())
def test_fakequantize_parameters_bring_back_everything(affines):
    read = read_openvino(to_openvino(table_for(affines)).content, "c")
    assert read.tensors == affines
    assert read.losses == ()


@given(AFFINES, st.integers(0, 2**32 - 1))
def test_fakequantize_is_q_and_dq_except_between_two_codes(affine, seed):
    x = np.random.default_rng(seed).uniform(affine.low, affine.high, 100)
    difference = fake_quantize(fakequantize_of(affine), x) - dequantize(quantize(x, affine), affine)
    midway = np.abs(x / affine.scale % 1 - 0.5) < 1e-9
    assert (np.abs(difference[~midway]) <= 1e-9 * affine.scale * 255).all()
    assert (np.abs(difference) <= affine.scale * 1.001).all()


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_a_nudge_moves_no_end_by_more_than_a_step_but_to_reach_zero(low, width):
    high = low + width
    operation = type(fakequantize_of(Affine(1.0, 0, U8)))(low, high, low, high, 256)
    nudged = affine_of(operation)
    lower, higher = nudged.after
    step = nudged.affine.scale
    assert min(low, 0) - 1.01 * step <= lower <= min(low, 0) + 0.51 * step
    assert max(high, 0) - 0.51 * step <= higher <= max(high, 0) + 1.01 * step
    assert lower <= 0 <= higher


LAYER_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)


@st.composite
def networks(draw):
    names = draw(
        st.lists(
            st.one_of(LAYER_NAMES, st.from_regex(r"[a-z/_.:]{1,8}", fullmatch=True)),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    layers, affines, weights = [], {}, {}
    for position, name in enumerate(names):
        channels = draw(st.integers(1, 4))
        winograd = draw(st.booleans())
        key, tensor = f"W{position}", f"t{position}"
        layers.append(NcnnLayer(name, name, key, tensor, 0, channels, 1, winograd))
        affines[tensor] = draw(AFFINES)
        scales = draw(st.lists(st.floats(2.0**-60, 2.0**60, width=32), min_size=channels, max_size=channels))
        weights[key] = WeightEntry("int8", 0, "s8", tuple(scales))
    return SimpleNamespace(layers=layers, table=table_for(affines, weights))


@given(networks())
def test_ncnn_brings_back_inputs_and_weights_of_layers(network):
    names = [layer.name for layer in network.layers]
    if any(set(name) & set(" \t\n\r\v\f") or "_param_" in name for name in names):
        with pytest.raises(TableError):
            to_ncnn(network.table, network.layers)
        return
    content = to_ncnn(network.table, network.layers).content
    assert list(parse_ncnn(content, "t").inputs) == names
    read = read_ncnn(content, "t", network.layers)
    assert read.tensors == {name: symmetric(entry) for name, entry in network.table.tensors.items()}
    for layer in network.layers:
        scales = network.table.weights[layer.key].scales
        if layer.winograd:
            np.testing.assert_allclose(read.weights[layer.key].scales, scales, rtol=1e-6)
        else:
            assert read.weights[layer.key].scales == scales


@given(tables(), st.binary(max_size=60))
def test_no_bytes_make_a_reader_fail_otherwise_than_by_saying_so(affines, noise):
    table = table_for(affines)
    contents = [noise, noise + b"\0" * 20, b"TRT-1-x\n" + noise, b"{" + noise, to_openvino(table).content + noise]
    readers = [partial(read_onnxruntime, form=form) for form in (None, "json", "flatbuffers", "cache")]
    for read in (read_tensorrt, read_openvino, parse_ncnn, *readers):
        for content in contents:
            with contextlib.suppress(TableError):
                assert read(content, "f") is not None


@given(tables(SIGNED))
def test_an_imported_table_is_a_table_file(affines):
    if line_broken(affines):
        return
    foreign = read_tensorrt(to_tensorrt(table_for(affines)).content, "c")
    converted = table_of(foreign, "tensorrt", "c", Choices(), None)
    read = parse_table(converted.content.decode(), "t")
    assert {name: entry.affine for name, entry in read.tensors.items()} == affines
    assert read.warnings == converted.losses
