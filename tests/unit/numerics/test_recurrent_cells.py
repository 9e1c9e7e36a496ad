"""The reference cells against onnxruntime's float ops, and their integer products against its DynamicQuantizeLSTM."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from recurrent_cells import Cell, dynamic_products, float_products, hidden_products, run_cell

from int8cal.numerics.affine import S7, S8
from int8cal.numerics.weights import gate_scales, quantize_gates
from int8cal.runtime.sessions import Session

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# s8 weights saturate on a CPU without VNNI, unless the runtime takes its slower, exact products
EXACT = {"session.x64quantprecision": "1"}
TOLERANCE = 3e-6  # float32 against float64, and the runtime's own tanh and sigmoid


class Net:
    """One node with random weights."""

    def __init__(self, op, *, direction="forward", hidden=7, inputs=5, peepholes=False, states=False, **attributes):
        rng = np.random.default_rng(11)
        count = 2 if direction == "bidirectional" else 1
        rows = GATES[op] * hidden
        self.op, self.direction, self.attributes, self.states = op, direction, attributes, states
        self.hidden = hidden
        self.w = rng.normal(scale=0.6, size=(count, rows, inputs)).astype(np.float32)
        self.r = rng.normal(scale=0.6, size=(count, rows, hidden)).astype(np.float32)
        self.b = rng.normal(scale=0.3, size=(count, 2 * rows)).astype(np.float32)
        self.p = rng.normal(scale=0.5, size=(count, 3 * hidden)).astype(np.float32) if peepholes else None

    def feed(self, steps=6, batch=1, lengths=None):
        rng = np.random.default_rng(12)
        feed = {"x": rng.normal(size=(steps, batch, self.w.shape[2])).astype(np.float32)}
        if lengths is not None:
            feed["lengths"] = np.array(lengths, np.int32)
        if self.states:
            shape = (len(self.w), batch, self.hidden)
            feed["h"] = rng.uniform(-1, 1, shape).astype(np.float32)
            if self.op == "LSTM":
                feed["c"] = rng.uniform(-2, 2, shape).astype(np.float32)
        return feed

    def runtime(self, feed, gates=None):
        weights = {"B": self.b} | ({"P": self.p} if self.p is not None else {})
        names = ["x", "W", "R", "B", *(name if name in feed else "" for name in ("lengths", "h"))]
        op, domain = self.op, ""
        if op == "LSTM":
            names += ["c" if "c" in feed else "", "P" if self.p is not None else ""]
        if gates is None:
            weights |= {"W": self.w, "R": self.r}
        else:
            op, domain = "DynamicQuantizeLSTM", "com.microsoft"
            for name, each in zip("WR", gates, strict=True):
                weights[name] = np.ascontiguousarray(each.codes.transpose(0, 2, 1))
                weights[f"{name}s"] = each.scales.astype(np.float32)
                weights[f"{name}z"] = np.zeros(each.scales.shape, np.int8)
            names += ["Ws", "Wz", "Rs", "Rz"]
        outputs = ["y", "yh", "yc"][: 3 if self.op == "LSTM" else 2]
        attributes = {"hidden_size": self.hidden, "direction": self.direction, **self.attributes}
        graph = helper.make_graph(
            [helper.make_node(op, names, outputs, domain=domain, **attributes)],
            "net",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
                for name, value in feed.items()
            ],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in weights.items()],
        )
        opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return list(Session(model, threads=1, entries=EXACT).run(feed).values())

    def reference(self, feed, inputs, states):
        cell = Cell(self.op, inputs, states, self.b, self.direction, peepholes=self.p, **self.attributes)
        found = run_cell(cell, feed["x"], hidden=feed.get("h"), memory=feed.get("c"), lengths=feed.get("lengths"))
        return found[: 3 if self.op == "LSTM" else 2]


def distance(first, second):
    return max(np.abs(a - b).max() for a, b in zip(first, second, strict=True))


CASES = {
    "plain": {},
    "reverse": {"direction": "reverse"},
    "bidirectional": {"direction": "bidirectional", "states": True},
    "clip": {"clip": 0.3},
    "states": {"states": True},
}


@pytest.mark.parametrize("lengths", [None, [6, 2, 4]])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("op", GATES)
def test_float_cells_are_those_of_the_runtime(op, case, lengths):
    net = Net(op, **CASES[case])
    feed = net.feed(batch=3, lengths=lengths)
    assert distance(net.reference(feed, float_products(net.w), float_products(net.r)), net.runtime(feed)) < TOLERANCE


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"peepholes": True}),
        ("LSTM", {"peepholes": True, "direction": "bidirectional"}),
        ("GRU", {"linear_before_reset": 1}),
    ],
)
def test_the_variants_of_a_cell(op, attributes):
    net = Net(op, **attributes)
    feed = net.feed(batch=2)
    assert distance(net.reference(feed, float_products(net.w), float_products(net.r)), net.runtime(feed)) < TOLERANCE


@pytest.mark.parametrize("dtype", [S7, S8], ids=["s7", "s8"])
@pytest.mark.parametrize(
    "settings",
    [
        *CASES.values(),
        {"peepholes": True},
        {"input_forget": 1, "clip": 0.8},
        {"direction": "bidirectional", "peepholes": True, "states": True, "hidden": 9, "inputs": 3},
        {"hidden": 1, "inputs": 1},
    ],
    ids=str,
)
def test_the_integer_kernel_is_the_cell_with_dynamic_products(settings, dtype):
    net = Net("LSTM", **settings)
    gates = [quantize_gates(each, gate_scales(each, dtype), dtype) for each in (net.w, net.r)]
    feed = net.feed(lengths=[5])
    expected = net.reference(feed, *map(dynamic_products, gates))
    assert distance(expected, net.runtime(feed, gates)) < TOLERANCE
    # and that is not the float cell by another name
    assert distance(net.reference(feed, float_products(net.w), float_products(net.r)), expected) > 10 * TOLERANCE


def test_sequences_of_one_batch_share_a_range():
    net = Net("LSTM")
    gates = [quantize_gates(each, gate_scales(each, S7), S7) for each in (net.w, net.r)]
    feed = net.feed(batch=4)
    products = list(map(dynamic_products, gates))
    together = net.reference(feed, *products)
    assert distance(together, net.runtime(feed, gates)) < TOLERANCE
    alone = net.reference({"x": feed["x"][:, :1]}, *products)
    assert distance([together[0][:, :, :1]], alone[:1]) > 10 * TOLERANCE


def test_inputs_of_zero_have_a_scale():
    net = Net("LSTM")
    gates = [quantize_gates(each, gate_scales(each, S7), S7) for each in (net.w, net.r)]
    feed = {"x": np.zeros((2, 1, 5), np.float32)}
    assert distance(net.reference(feed, *map(dynamic_products, gates)), net.runtime(feed, gates)) < TOLERANCE


def test_onednns_hidden_state_is_as_near_as_its_step():
    net = Net("LSTM")
    gates = quantize_gates(net.r, gate_scales(net.r, S7), S7)
    feed = net.feed()
    exact = net.reference(feed, float_products(net.w), float_products(gates.codes * gates.scales[..., None]))
    rounded = net.reference(feed, float_products(net.w), hidden_products(gates))
    assert 0 < distance(exact, rounded) < 2 / 127
