import json
import math
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, reference

from int8cal.data.padding import Positions
from int8cal.errors import ModelError
from int8cal.evaluation import layerwise
from int8cal.evaluation.layerwise import find_layers, int8_with_taps, measure_layers
from int8cal.protos import weight_bytes
from int8cal.quantization.corrections.equalization import EQUALIZATION_KEY
from int8cal.runtime.sessions import Session


def test_layers_are_the_quantized_tensors_in_graph_order_with_their_producers(fp32, int8):
    taps, missing = find_layers(fp32, int8)
    assert [(tap.tensor, tap.node, tap.op_type) for tap in taps] == [
        ("x", "", "Input"),
        ("r", "Relu_1", "Relu"),  # its Relu was dropped: the codes of c stand for r
        ("f", "Flatten_3", "Flatten"),
        ("y", "Gemm_4", "Gemm"),  # a graph output, renamed before its Q
    ]
    assert missing == ()


def test_a_relu_that_the_int8_model_keeps_leaves_its_input_a_layer(fp32, tools):
    int8 = tools.quantize(fp32, {"c": (-20.0, 20.0)})
    assert [tap.tensor for tap in find_layers(fp32, int8)[0]] == ["c"]


def test_a_folded_batch_normalization_is_compared_behind_it(tools):
    one, zero = np.ones(3, np.float32), np.zeros(3, np.float32)
    kernel = np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)
    fp32 = tools.model(
        "g (float[N,3,8,8] x) => (float[N,3,8,8] y) { c = Conv(x, W) b = BatchNormalization(c, S, M, M, V) y = Tanh(b) }",
        W=kernel, S=3 * one, M=zero, V=one,
    )  # fmt: skip
    folded = tools.model("g (float[N,3,8,8] x) => (float[N,3,8,8] y) { c = Conv(x, W) y = Tanh(c) }", W=3 * kernel)
    assert [tap.tensor for tap in find_layers(fp32, tools.quantize(folded, {"c": (-9.0, 9.0)}))[0]] == ["b"]


def test_weights_behind_a_quantize_node_are_not_layers(fp32, tools):
    int8 = tools.quantize(fp32, {"x": (-4.0, 4.0)})
    graph = int8.graph
    graph.initializer.extend(
        [numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.uint8(128), "z")]
    )
    graph.node.insert(0, helper.make_node("QuantizeLinear", ["W", "s", "z"], ["W.q"]))
    graph.node.insert(1, helper.make_node("DequantizeLinear", ["W.q", "s", "z"], ["W.dq"]))
    next(node for node in graph.node if node.op_type == "Conv").input[1] = "W.dq"
    assert [tap.tensor for tap in find_layers(fp32, int8)[0]] == ["x"]


def test_the_error_of_a_layer_is_that_of_its_dequantized_codes(fp32, int8, make_samples):
    samples = list(make_samples(3))
    layers, *_ = measure_layers(fp32, int8, samples)
    x = np.concatenate([sample.feed["x"] for sample in samples]).astype(np.float64)
    scale = np.float32(8 / 255)
    codes = np.clip(np.rint(x / scale) + 128, 0, 255)
    noise = np.square(x - (codes - 128) * scale).sum()
    assert layers[0].sqnr_db == pytest.approx(10 * np.log10(np.square(x).sum() / noise), abs=1e-3)
    assert all(layer.sqnr_db is not None and layer.sqnr_db > 15 for layer in layers)


def test_layers_agree_with_the_reference_evaluator(fp32, int8, make_samples):
    (sample,) = make_samples(1)
    layers, *_ = measure_layers(fp32, int8, [sample])
    names = ["r", "f", "y"]
    float_model, int8_model = onnx.ModelProto(), onnx.ModelProto()
    float_model.CopyFrom(fp32)
    int8_model.CopyFrom(int8)
    codes = {"r": "c.dq", "f": "f.dq", "y": "y"}
    for model, tensors in ((float_model, names), (int8_model, codes.values())):
        del model.graph.output[:]
        model.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in tensors)
    expected = reference.ReferenceEvaluator(float_model).run(None, sample.feed)
    actual = reference.ReferenceEvaluator(int8_model).run(None, sample.feed)
    for layer, x, y in zip(layers[1:], expected, actual, strict=True):
        sqnr = 10 * np.log10(np.square(x).sum() / np.square(x - y).sum())
        assert layer.sqnr_db == pytest.approx(sqnr, abs=1.5)  # single codes may round the other way


def test_the_taps_leave_the_integer_kernels_alone(fp32, int8, tmp_path):
    taps, _ = find_layers(fp32, int8)
    paths = (tmp_path / "plain.onnx", tmp_path / "tapped.onnx")
    Session(int8, optimized_path=paths[0])
    tapped, _ = int8_with_taps(int8, taps, [f"t{i}" for i in range(len(taps))])
    Session(tapped, optimized_path=paths[1])

    def integer(path):
        return sorted(node.op_type for node in onnx.load(path).graph.node if node.op_type.startswith("Q"))

    assert integer(paths[0]) == integer(paths[1])
    assert any(op == "QLinearConv" for op in integer(paths[0]))


def test_what_no_tap_needs_is_not_run(fp32, int8):
    (first, *_), _ = find_layers(fp32, int8)
    tapped, _ = int8_with_taps(int8, [first], ["t0"])
    assert [node.op_type for node in tapped.shell.graph.node] == ["QuantizeLinear"]


def test_codes_are_dequantized_to_the_bit_as_the_runtime_does(fp32, int8, make_samples, monkeypatch):
    samples = list(make_samples(2))
    ours, *_ = measure_layers(fp32, int8, samples)
    monkeypatch.setattr(layerwise, "_codes", lambda *_: None)  # then the runtime does it, and the range is not known
    theirs, *_ = measure_layers(fp32, int8, samples)
    assert theirs == tuple(replace(layer, outside=None, used=None) for layer in ours)


def test_values_that_a_code_stands_for_are_not_outside(fp32, int8, make_samples):
    (sample,) = make_samples(1)  # the range of x is 8 wide, in 255 steps around 0: -4.0157 to 3.9843
    step = 8 / 255

    def outside(value):
        layers, *_ = measure_layers(fp32, int8, [replace(sample, feed={"x": np.full_like(sample.feed["x"], value)})])
        return layers[0].outside

    assert [outside(127.4 * step), outside(127.6 * step), outside(-128.4 * step), outside(-128.6 * step)] == [
        0,
        1,
        0,
        1,
    ]


def test_small_chunks_give_the_same_figures(fp32, int8, make_samples, monkeypatch):
    samples = list(make_samples(2))
    whole, *_ = measure_layers(fp32, int8, samples)
    chunks = []
    cut = layerwise._chunks
    monkeypatch.setattr(layerwise, "_chunks", lambda *given: chunks.append(cut(*given)) or chunks[-1])
    monkeypatch.setattr(layerwise, "_MOST_CHUNK_BYTES", 1)
    monkeypatch.setattr(layerwise, "_MOST_CHUNKS", 10**6)
    assert measure_layers(fp32, int8, samples)[0] == whole
    assert {len(each) for each in chunks[0]} == {1}


def _sqnr_db(x, y):
    noise = np.square(x.astype(np.float64) - y).sum()
    return 10 * np.log10(np.square(x.astype(np.float64)).sum() / noise)


def test_what_is_too_large_for_two_chunks_is_thinned_but_for_inputs(fp32, int8, make_samples, monkeypatch):
    samples = list(make_samples(2))
    whole = {layer.tensor: layer for layer in measure_layers(fp32, int8, samples)[0]}
    monkeypatch.setattr(layerwise, "_CHUNK_BYTES", 1100)
    monkeypatch.setattr(layerwise, "_MOST_CHUNK_BYTES", 1100)  # of 2,300: x takes 960, r 1,280, f and y 60
    layers = {layer.tensor: layer for layer in measure_layers(fp32, int8, samples)[0]}
    assert {name: layer.compared for name, layer in layers.items()} == {"x": None, "r": 1 / 4, "f": None, "y": None}
    assert [layers[name] for name in "xfy"] == [whole[name] for name in "xfy"]
    taps, _ = find_layers(fp32, int8)
    coded, parts = int8_with_taps(int8, taps, [f"t{index}" for index in range(len(taps))])
    shown = onnx.ModelProto()
    shown.CopyFrom(fp32)
    shown.graph.output.append(onnx.ValueInfoProto(name="r"))
    x = np.array([Session(shown).run(sample.feed)["r"][:, :, 1::2, 1::2] for sample in samples], np.float64)
    y = np.array([parts[1][0].real(Session(coded).run(sample.feed))[:, :, 1::2, 1::2] for sample in samples])
    expected = 10 * np.log10(np.square(x).sum() / np.square(x - y).sum())
    assert layers["r"].sqnr_db == pytest.approx(expected, abs=1e-9)
    assert layers["r"].sqnr_db != whole["r"].sqnr_db


def test_tensors_with_padding_that_was_not_trimmed_are_not_thinned(fp32, int8, make_samples, monkeypatch):
    samples = list(make_samples(2))
    monkeypatch.setattr(layerwise, "_CHUNK_BYTES", 1100)
    monkeypatch.setattr(layerwise, "_MOST_CHUNK_BYTES", 1100)
    positions = Positions(np.ones(3, bool), {})
    padded = [SimpleNamespace(feed=sample.feed, positions=positions) for sample in samples]
    assert {layer.compared for layer in measure_layers(fp32, int8, padded)[0]} == {None}


def test_a_chunk_holds_as_much_as_the_weights_which_are_held_anyway(fp32, int8, make_samples, monkeypatch):
    limits = []
    cut = layerwise._chunks
    monkeypatch.setattr(layerwise, "_chunks", lambda *given: limits.append(given[3]) or cut(*given))
    monkeypatch.setattr(layerwise, "_CHUNK_BYTES", 1)
    measure_layers(fp32, int8, list(make_samples(1)))
    assert limits == [weight_bytes(fp32)]
    assert limits[0] > 1


def test_a_tensor_takes_five_bytes_a_value_and_eight_where_its_codes_are_not_shown(fp32, int8, monkeypatch):
    taps, _ = find_layers(fp32, int8)
    assert layerwise._value_bytes(int8, taps) == [5] * len(taps)
    assert layerwise._chunks("abc", [1, 2, 1], [5, 5, 5], 15) == [["a", "b"], ["c"]]
    monkeypatch.setattr(layerwise, "_codes", lambda constants, quantize: None)
    assert layerwise._value_bytes(int8, taps) == [8] * len(taps)


def test_both_models_step_beside_each_other_and_one_thread_gives_the_same_figures(fp32, int8, make_samples):
    met = threading.Barrier(2, timeout=60)

    def steps(values):
        for value in values:
            met.wait()  # passed only where the other is here too
            yield value

    assert list(layerwise._together(steps([1, 2]), steps([3, 4]))) == [(1, 3), (2, 4)]
    samples = list(make_samples(3))
    assert measure_layers(fp32, int8, samples, threads=1) == measure_layers(fp32, int8, samples, threads=2)


def test_a_failure_of_either_model_is_raised():
    def fails():
        yield 1
        raise ValueError("second")

    with pytest.raises(ValueError, match="second"):
        list(layerwise._together(fails(), iter([1, 2])))
    with pytest.raises(ValueError, match="second"):
        list(layerwise._together(iter([1, 2]), fails()))


def test_steps_of_different_numbers_are_an_error():
    with pytest.raises(ValueError, match="longer"):
        list(layerwise._together(iter([1]), iter([1, 2])))


def test_a_tensor_the_fp32_model_lacks_is_skipped_and_counted(fp32, int8, make_samples):
    for node in int8.graph.node:
        for names in (node.input, node.output):
            names[:] = ["f2" if name == "f" else name for name in names]
    layers, reasons, _ = measure_layers(fp32, int8, list(make_samples(1)))
    assert [layer.tensor for layer in layers] == ["x", "r", "y"]
    assert reasons["layers.missing"] == "1 quantized tensor without a counterpart in the FP32 model: f2"


def test_clipped_fractions_are_passed_on_by_tensor(fp32, int8, make_samples):
    layers, reasons, _ = measure_layers(fp32, int8, list(make_samples(1)), clipped={"x": 0.25, "r": 0.0, "f": 0.0})
    assert [layer.clipped for layer in layers] == [0.25, 0.0, 0.0, None]
    assert "layers.y.clipped" in reasons
    assert "layers" not in reasons


def test_without_statistics_the_reason_is_stated_once(fp32, int8, make_samples):
    layers, reasons, _ = measure_layers(fp32, int8, list(make_samples(1)))
    assert {layer.clipped for layer in layers} == {None}
    assert "calibration statistics" in reasons["layers"]


def test_an_equalized_tensor_is_scaled_back_per_channel(make_samples, tools):
    weight = np.random.default_rng(3).normal(size=(4, 3, 1, 1)).astype(np.float32)
    text = "g (float[N,3,8,8] x) => (float[N,4,8,8] y) { c = Conv(x, W) y = Tanh(c) }"
    exponents = np.array([3, -2, 0, 1])
    fp32 = tools.model(text, W=weight)
    scaled = tools.model(text, W=weight * np.exp2(exponents).astype(np.float32).reshape(-1, 1, 1, 1))
    int8 = tools.quantize(scaled, {"c": (-40.0, 40.0)})
    samples = list(make_samples(2))
    off = measure_layers(fp32, int8, samples)[0][0].sqnr_db
    int8.metadata_props.add(key=EQUALIZATION_KEY, value=json.dumps({"c": {"axis": 1, "exponents": exponents.tolist()}}))
    on = measure_layers(fp32, int8, samples)[0][0].sqnr_db
    assert off < 0
    assert on > 10


def test_channels_of_a_matrix_product_are_on_the_last_axis(make_samples, tools):
    weight = np.random.default_rng(3).normal(size=(8, 5)).astype(np.float32)
    text = "g (float[N,3,8,8] x) => (float[N,3,8,5] y) { c = MatMul(x, W) y = Tanh(c) }"
    exponents = np.array([3, -2, 0, 1, 5])
    fp32 = tools.model(text, W=weight)
    int8 = tools.quantize(tools.model(text, W=weight * np.exp2(exponents).astype(np.float32)), {"c": (-90.0, 90.0)})
    record = json.dumps({"c": {"axis": -1, "exponents": exponents.tolist()}})
    int8.metadata_props.add(key=EQUALIZATION_KEY, value=record)
    assert measure_layers(fp32, int8, list(make_samples(2)))[0][0].sqnr_db > 10


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '{"x": "a"}', '{"x": {"axis": 1, "exponents": [1, 2]}}', '{"x": {"axis": 9, "exponents": [1, 2, 3]}}'],
)
def test_a_malformed_equalization_record_is_a_model_error(fp32, int8, make_samples, text):
    int8.metadata_props.add(key=EQUALIZATION_KEY, value=text)
    with pytest.raises(ModelError, match=EQUALIZATION_KEY):
        measure_layers(fp32, int8, list(make_samples(1)))


def test_a_layer_that_is_zero_everywhere_has_no_sqnr_but_a_reason(fp32, int8, tools):
    sample = tools.sample({"x": np.zeros((1, 3, 8, 8), np.float32)}, "zeros.npz")
    layers, reasons, _ = measure_layers(fp32, int8, [sample])
    assert layers[0].sqnr_db is None
    assert reasons["layers.x.sqnr_db"] == "the FP32 tensor is zero everywhere"


def test_a_layer_with_infinity_has_no_sqnr_but_a_reason(tools):
    model = tools.model("g (float[N,4] x) => (float[N,4] y) { a = Log(x) y = Exp(a) }")
    int8 = tools.quantize(model, {"a": (-8.0, 8.0)})
    sample = tools.sample({"x": np.array([[0, 1, 2, 3]], np.float32)}, "one.npz")
    layers, reasons, _ = measure_layers(model, int8, [sample])
    assert layers[0].sqnr_db is None
    assert reasons["layers.a.sqnr_db"] == "the FP32 tensor holds NaN or infinity"


def test_a_float_model_has_no_layers_and_says_so(fp32, make_samples):
    layers, reasons, _ = measure_layers(fp32, fp32, list(make_samples(1)))
    assert layers == ()
    assert "quantizes no tensor" in reasons["layers"]


def test_a_fixed_batch_gives_the_layers_of_single_samples(tools, make_samples):
    samples = list(make_samples(3))
    figures = []
    for batch in ("N", "2"):
        fp32 = tools.classifier(batch)
        int8 = tools.quantize(fp32, tools.ranges, drop=("Relu_1",), weights=("W", "G"))
        figures.append([layer.sqnr_db for layer in measure_layers(fp32, int8, samples)[0]])
    assert figures[1] == pytest.approx(figures[0], abs=0.05)


def test_what_a_second_plane_holds_is_no_layer(tools):
    fp32 = tools.model("g (float[N,4] x) => (float[N,4] y) { y = Tanh(x) }")
    int8 = tools.model(
        "g (float[N,4] x) => (float[N,4] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
        "left = Sub(x, d) r = QuantizeLinear(left, s, z) e = DequantizeLinear(r, s, z) b = Add(d, e) y = Tanh(b) }",
        s=np.float32(0.1), z=np.uint8(128),
    )  # fmt: skip
    taps, missing = find_layers(fp32, int8)
    assert ([tap.tensor for tap in taps], missing) == (["x"], ())
    turned = onnx.ModelProto()
    turned.CopyFrom(int8)
    next(node for node in turned.graph.node if node.op_type == "Sub").input[:] = ["d", "x"]  # another difference
    assert find_layers(fp32, turned)[1] == ("left",)


def test_samples_beyond_enough_values_are_not_compared(fp32, int8, make_samples, monkeypatch):
    samples = list(make_samples(6))
    two, *_ = measure_layers(fp32, int8, samples[:2])
    four, *_ = measure_layers(fp32, int8, samples[:4])
    values = sum(map(math.prod, layerwise._dims(fp32, find_layers(fp32, int8)[0], samples[0], 1)))
    monkeypatch.setattr(layerwise, "_MOST_VALUES", 4 * values + 1)
    assert measure_layers(fp32, int8, samples)[::2] == (four, 4)
    monkeypatch.setattr(layerwise, "_MOST_VALUES", 1)
    assert measure_layers(fp32, int8, samples)[::2] == (two, 2)
