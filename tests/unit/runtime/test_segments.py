"""A long graph in segments: cut at codes or between float convolutions, and to the bit what the whole gives."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from int8cal.evaluation.fusion import audit_graph_file
from int8cal.graph.taps import tapped_model
from int8cal.protos import view_of
from int8cal.runtime import segments, sessions
from int8cal.runtime.batching import ReusedOutputs
from int8cal.runtime.segments import segments_of
from int8cal.runtime.sessions import Session

LAYERS = 40
CHANNELS = 4


class Chain:
    """Quantized convolutions in a row; every fifth adds what the layer two before gave."""

    def __init__(self):
        self.rng = np.random.default_rng(5)
        self.nodes, self.weights = [], []
        self.dequantized = [self.quantized("x", 0)]
        for number in range(1, LAYERS + 1):
            self.dequantized.append(self.quantized(self.layer(number), number))

    def constant(self, name, value):
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def quantized(self, tensor, number):
        scale = self.constant(f"s{number}", np.float32(0.02))
        zero = self.constant(f"z{number}", np.uint8(128))
        self.nodes.append(helper.make_node("QuantizeLinear", [tensor, scale, zero], [f"q{number}"]))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"q{number}", scale, zero], [f"d{number}"]))
        return f"d{number}"

    def layer(self, number):
        codes = self.rng.integers(-60, 60, (CHANNELS, CHANNELS, 1, 1)).astype(np.int8)
        scale = self.constant(f"ws{number}", np.full(CHANNELS, 0.01, np.float32))
        # all weights at the very start, as some tools write them
        weight = helper.make_node(
            "DequantizeLinear", [self.constant(f"w{number}", codes), scale], [f"wd{number}"], axis=0
        )
        self.nodes.insert(0, weight)
        self.nodes.append(helper.make_node("Conv", [self.dequantized[-1], f"wd{number}"], [f"c{number}"]))
        if number % 5:
            return f"c{number}"
        skipped = self.quantized(f"c{number}", f"c{number}")
        earlier = [name.replace("d", letter) for letter in "qsz" for name in self.dequantized[-3:-2]]
        self.nodes.append(helper.make_node("DequantizeLinear", earlier, [f"e{number}"]))
        self.nodes.append(helper.make_node("Add", [skipped, f"e{number}"], [f"a{number}"]))
        return f"a{number}"

    def model(self, outputs=()):
        shape = ["N", CHANNELS, 3, 3]
        outputs = [*outputs, f"d{LAYERS}"]
        graph = helper.make_graph(
            self.nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(segments, "LEAST_NODES", 20)
    monkeypatch.setattr(segments, "SEGMENT_NODES", 16)
    monkeypatch.setattr(segments, "SMALL_SEGMENT_NODES", 4)


@pytest.fixture
def feed():
    return {"x": np.random.default_rng(1).normal(size=(1, CHANNELS, 3, 3)).astype(np.float32)}


def test_segments_give_the_bits_of_the_whole(short, feed, monkeypatch):
    model = Chain().model(["d7", "c20"])
    cut = Session(model)
    found = cut.run(feed)
    assert len(segments_of(model)) > 4
    assert segments_of(view_of(model)) != []
    monkeypatch.setattr(segments, "LEAST_NODES", 10_000)
    whole = Session(model)
    assert (cut.inputs, cut.outputs) == (whole.inputs, ("d7", "c20", f"d{LAYERS}"))
    for name, value in whole.run(feed).items():
        np.testing.assert_array_equal(found[name], value)
    np.testing.assert_array_equal(cut.run(feed, ["c20"])["c20"], found["c20"])


def test_sessions_of_one_thread_have_smaller_segments_of_the_same_bits(short, feed, monkeypatch):
    model = Chain().model()
    assert len(segments_of(model, small=True)) > 2 * len(segments_of(model))
    seen = []
    monkeypatch.setattr(
        sessions,
        "segments_of",
        lambda model, small, between_floats: seen.append(small) or segments_of(model, small=small),
    )
    small, large = (Session(model, threads=threads) for threads in (1, 2))
    assert seen == [True, False]
    ((value, other),) = zip(small.run(feed).values(), large.run(feed).values(), strict=True)
    np.testing.assert_array_equal(value, other)


def test_only_codes_pass_from_one_segment_to_another(short):
    parts = segments_of(Chain().model())
    assert all(name == "x" or name.startswith("q") for part in parts for name in part.inputs)
    assert parts[0].inputs == ("x",)
    # what is added two layers later passes too
    assert any(len(part.inputs) > 1 for part in parts)
    for part in parts:
        assert {value.name for value in part.model.graph.input} == set(part.inputs)


def test_every_weight_is_in_the_segment_that_reads_it_alone(short):
    model = Chain().model()
    held = [tensor.name for part in segments_of(model) for tensor in part.model.graph.initializer]
    weights = [f"w{number}" for number in range(1, LAYERS + 1)]
    assert sorted(name for name in held if name in weights) == sorted(weights)


def test_a_graph_that_is_not_long_or_has_no_codes_stays_whole(short):
    nodes = [helper.make_node("Neg", [f"t{number}"], [f"t{number + 1}"]) for number in range(50)]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("t0", "t50")]
    floats = helper.make_model(helper.make_graph(nodes, "floats", info[:1], info[1:]))
    assert segments_of(floats) == []
    model = Chain().model()
    segments.LEAST_NODES = len(model.graph.node) + 1
    assert segments_of(model) == []


def float_model(rng):
    """Layers whose kernels the runtime blocks, fuses, or does neither with: few channels, depthwise, sums, pools."""
    nodes, weights = [], []

    def add(op, *inputs, **attributes):
        nodes.append(helper.make_node(op, inputs, [f"{op}{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def conv(tensor, shape, group=1):
        weights.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), f"w{len(nodes)}"))
        return add("Conv", tensor, weights[-1].name, group=group, pads=[shape[2] // 2] * 4)

    tensor = add("Relu", conv("x", (24, 3, 3, 3)))
    for _ in range(6):
        inner = add("Relu", conv(add("Relu", conv(tensor, (32, 24, 1, 1))), (32, 1, 3, 3), group=32))
        tensor = add("Relu", add("Add", conv(inner, (24, 32, 1, 1)), tensor))
        tensor = add("AveragePool", tensor, kernel_shape=[3, 3], pads=[1] * 4)
        tensor = conv(add("Sigmoid", conv(conv(tensor, (5, 24, 1, 1)), (24, 5, 1, 1))), (24, 24, 1, 1))
    shape = ["N", 3, 9, 9]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape[:1] + [None] * 3) for name in ("x", tensor)]
    infos[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "floats", infos[:1], infos[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("is_tapped", [False, True])
def test_float_convolutions_are_cut_where_their_kernels_stay(short, monkeypatch, is_tapped):
    model = float_model(np.random.default_rng(2))
    assert segments_of(model) == []
    parts = segments_of(model, small=True, between_floats=True)
    assert len(parts) > 5
    producer = {name: node.op_type for node in model.graph.node for name in node.output}
    for part in parts[1:]:
        assert {producer[name] for name in part.inputs} <= {"Conv", "Relu", "Add"}
        readers = [node for node in part.model.graph.node if not set(part.inputs).isdisjoint(node.input)]
        assert {node.op_type for node in readers} == {"Conv"}
    tensors = [name for name in producer if name.startswith(("Relu", "Sigmoid"))] if is_tapped else []
    shown = tapped_model(model, tensors, keep_outputs=True)
    cut = Session(shown, threads=1)
    monkeypatch.setattr(segments, "LEAST_NODES", 10_000)
    whole = Session(shown, threads=1)
    feed = {"x": np.random.default_rng(3).normal(size=(2, 3, 9, 9)).astype(np.float32)}
    found = cut.run(feed)
    again = ReusedOutputs(cut).run(feed)
    assert cut.outputs == whole.outputs
    for name, value in whole.run(feed).items():
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(again[name], value)


def test_nothing_is_cut_between_floats_of_unknown_size(short):
    model = float_model(np.random.default_rng(2))
    # what Shape nodes make of a size is folded in the whole, and would not be in a segment
    model.graph.input[0].type.tensor_type.shape.dim[2].Clear()
    assert segments_of(model, small=True, between_floats=True) == []


def test_an_input_with_a_default_is_fed_to_the_segment_that_reads_it(short, monkeypatch):
    model = float_model(np.random.default_rng(2))
    for node in [*model.graph.node]:
        if node.op_type == "Conv" and node.input[0] != "x":
            name, added = f"{node.output[0]}_error", f"{node.output[0]}_added"
            model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 1, 1, 1), np.float32), name))
            model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, None, None]))
            addition = helper.make_node("Add", [node.input[0], name], [added])
            node.input[0] = added
            model.graph.node.insert([*model.graph.node].index(node), addition)
    cut = Session(model, threads=1)
    assert len(segments_of(model, small=True, between_floats=True)) > 5
    monkeypatch.setattr(segments, "LEAST_NODES", 10_000)
    whole = Session(model, threads=1)
    assert cut.inputs == whole.inputs == ("x",)
    rng = np.random.default_rng(3)
    feed = {"x": rng.normal(size=(1, 3, 9, 9)).astype(np.float32)}
    errors = {value.name: rng.normal(size=(1, 1, 9, 9)).astype(np.float32) for value in model.graph.input[2:4]}
    (plain,), (noisy,) = (cut.run({**feed, **more}).values() for more in ({}, errors))
    np.testing.assert_array_equal(plain, *whole.run(feed).values())
    np.testing.assert_array_equal(noisy, *whole.run({**feed, **errors}).values())
    assert (plain != noisy).any()


def test_nothing_is_cut_at_floats_that_another_node_reads_too(short):
    model = float_model(np.random.default_rng(2))
    first = len(segments_of(model, small=True, between_floats=True))
    for node in [*model.graph.node]:
        if node.op_type == "Conv":
            model.graph.node.append(helper.make_node("Neg", [node.input[0]], [f"{node.output[0]}_read"]))
            model.graph.output.add(name=f"{node.output[0]}_read")
    assert len(segments_of(model, small=True, between_floats=True)) == 0 < first


def test_the_optimized_graph_of_segments_tells_the_same_kernels(short, tmp_path, monkeypatch):
    model = Chain().model()
    Session(model, optimized_path=tmp_path / "cut.onnx")
    monkeypatch.setattr(segments, "LEAST_NODES", 10_000)
    Session(model, optimized_path=tmp_path / "whole.onnx")
    cut, whole = (
        [node.op_type for node in onnx.load(tmp_path / name).graph.node if node.op_type.startswith("QLinear")]
        for name in ("cut.onnx", "whole.onnx")
    )
    assert sorted(cut) == sorted(whole)
    assert len(cut) > LAYERS
    assert (
        audit_graph_file(tmp_path / "cut.onnx", model).float_ == audit_graph_file(tmp_path / "whole.onnx", model).float_
    )
