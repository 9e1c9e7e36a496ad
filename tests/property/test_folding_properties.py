"""Whatever graph of layers, steps, activations and branches: folding keeps its outputs and ends with less."""

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, shape_inference

from int8cal.graph.prepare import fold
from int8cal.runtime.sessions import Session

CHANNELS = 4
STEPS = ("Mul", "Div", "Add", "Sub", "SubFrom", "Neg", "BatchNormalization")
LAYERS = ("Conv", "ConvTranspose", "Depthwise")
PLAIN = ("Relu", "LeakyRelu", "Sigmoid", "Identity", "GlobalAveragePool", "Max", "Clip", "Transpose")
JOINS = ("Add", "Sub", "Mul", "Concat")
SHAPES = ((), (1,), (CHANNELS, 1, 1), (1, CHANNELS, 1, 1), (1, 1, 5))


class Net:
    """A graph that grows by one op at a time; every tensor has four channels."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def constant(self, shape, low=0.2, high=2.0):
        values = self.rng.uniform(low, high, shape) * self.rng.choice([-1, 1], shape)
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.float32), f"k{len(self.constants)}"))
        return self.constants[-1].name

    def node(self, op_type, inputs, **attributes):
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def grow(self, op, data, shape):
        if op in ("Mul", "Div", "Add", "Sub"):
            return self.node(op, [data, self.constant(shape)])
        if op == "SubFrom":
            return self.node("Sub", [self.constant(shape), data])
        if op == "BatchNormalization":
            scale, offset, mean = (self.constant((CHANNELS,)) for _ in range(3))
            variance = np.abs(self.rng.normal(size=CHANNELS)).astype(np.float32) + np.float32(0.5)
            self.constants.append(numpy_helper.from_array(variance, f"k{len(self.constants)}"))
            return self.node(op, [data, scale, offset, mean, self.constants[-1].name])
        if op == "Conv":
            return self.node("Conv", [data, self.constant((CHANNELS, CHANNELS, 1, 1)), self.constant((CHANNELS,))])
        if op == "Depthwise":
            return self.node("Conv", [data, self.constant((CHANNELS, 1, 1, 1))], group=CHANNELS)
        if op == "ConvTranspose":
            return self.node("ConvTranspose", [data, self.constant((CHANNELS, 2, 1, 1))], group=2)
        if op == "Max":
            return self.node("Max", [data, self.constant(())])
        if op == "Clip":
            low = self.constant(())
            high = numpy_helper.to_array(self.constants[-1]) + np.float32(1)
            self.constants.append(numpy_helper.from_array(high, f"k{len(self.constants)}"))
            return self.node("Clip", [data, low, self.constants[-1].name])
        if op == "Transpose":
            return self.node("Transpose", [self.node("Transpose", [data], perm=[0, 2, 3, 1])], perm=[0, 3, 1, 2])
        return self.node(op, [data])

    def join(self, op, first, second):
        if op != "Concat":
            return self.node(op, [first, second])
        both = self.node("Concat", [first, second], axis=1)
        return self.node("Conv", [both, self.constant((CHANNELS, 2 * CHANNELS, 1, 1))])

    def model(self, outputs):
        shape = ["N", CHANNELS, "H", "W"]
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, CHANNELS, 5, 5])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return shape_inference.infer_shapes(model)


@st.composite
def nets(draw):
    """Layers are followed by steps and activations more often than not, so that there is something to fold."""
    net = Net(draw(st.integers(0, 2**31)))
    tensors = ["x"]
    pooled = set()  # tensors that may be one pixel wide: they do not concatenate with others
    for _ in range(draw(st.integers(1, 14))):
        # mostly the last tensor, so that long chains come up; sometimes an earlier one, so that one has two readers
        data = tensors[-1] if draw(st.integers(0, 3)) else draw(st.sampled_from(tensors))
        op = draw(st.sampled_from((*STEPS, *STEPS, *LAYERS, *LAYERS, *PLAIN, "join")))
        if op == "join":
            other = draw(st.sampled_from(tensors))
            joins = JOINS[:-1] if {data, other} & pooled else JOINS
            tensors.append(net.join(draw(st.sampled_from(joins)), data, other))
        else:
            other = data
            tensors.append(net.grow(op, data, draw(st.sampled_from(SHAPES))))
        if op == "GlobalAveragePool" or {data, other} & pooled:
            pooled.add(tensors[-1])
    inner = draw(st.lists(st.sampled_from(tensors[1:]), max_size=1))
    return net.model(list(dict.fromkeys([*inner, tensors[-1]])))


def run(model, feed):
    return Session(model, threads=1, optimization="none").run(feed)


@settings(max_examples=400)
@given(nets())
def test_folding_keeps_the_outputs(model):
    before = onnx.ModelProto()
    before.CopyFrom(model)
    changed = fold(model)
    onnx.checker.check_model(model, full_check=True)
    assert changed == (model != before)
    feed = {"x": np.random.default_rng(1).normal(size=(2, CHANNELS, 5, 5)).astype(np.float32)}
    expected, actual = run(before, feed), run(model, feed)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(value).max())))


@given(nets())
def test_folding_leaves_no_more_nodes_and_is_done_at_once(model):
    nodes = len(model.graph.node)
    fold(model)
    assert len(model.graph.node) <= nodes
    assert not fold(model)
