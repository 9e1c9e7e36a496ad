"""Taps in the runtime's own layout: the same values, read from where they lie."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from int8cal.graph.taps import Tap, tapped_model
from int8cal.runtime import blocked
from int8cal.runtime.blocked import block_size, expose_blocked, open_taps
from int8cal.runtime.sessions import Session


def network(channels=32):
    rng = np.random.default_rng(3)
    weights = {
        "W": rng.normal(size=(channels, 3, 3, 3)).astype(np.float32),
        "V": rng.normal(size=(16, channels, 1, 1)).astype(np.float32),
    }
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        net (float[N,3,8,8] x) => (float[N,16] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, W)
            r = Relu(c)
            d = Conv(r, V)
            p = GlobalAveragePool(d)
            y = Flatten(p)
        }"""
    )
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return onnx.shape_inference.infer_shapes(model)


def natural(values, block):
    """Undo the blocked layout."""
    batch, channels, *inner = values.shape
    parts = values.reshape(batch, channels // block, int(np.prod(inner)), block).swapaxes(2, 3)
    return parts.reshape(values.shape)


TAPS = (Tap("r", 1, 32), Tap("d"))
FEED = {"x": np.random.default_rng(4).normal(size=(2, 3, 8, 8)).astype(np.float32)}


def test_values_are_those_of_the_ordinary_outputs():
    tapped = tapped_model(network(), [tap.tensor for tap in TAPS])
    opened = open_taps(network(), TAPS)
    expected = Session(tapped).run(FEED)
    found = opened.session.run(FEED)
    for name in ("r", "d"):
        values = natural(found[opened.outputs[name]], opened.blocks[name])
        np.testing.assert_array_equal(values.view(np.uint32), expected[name].view(np.uint32))


@pytest.mark.skipif(block_size() == 1, reason="the runtime keeps no blocks on this CPU")
def test_what_may_be_blocked_is():
    opened = open_taps(network(), (Tap("r", 1, 32), Tap("d", -1, 8)))
    assert opened.blocks == {"r": block_size(), "d": 1}
    assert opened.outputs["d"] == "d"


@pytest.mark.skipif(block_size() == 1, reason="the runtime keeps no blocks on this CPU")
def test_channels_that_do_not_fill_their_blocks_stay_ordinary():
    opened = open_taps(network(12), (Tap("r", 1, 12),))
    assert opened.blocks == {"r": 1}


@pytest.mark.parametrize("channels", [12, 32])
def test_the_runtime_is_not_asked_where_no_channels_can_fill_their_blocks(monkeypatch, channels):
    block_size()
    asked = []
    monkeypatch.setattr(blocked, "_optimized", lambda *_: asked.append(True))
    opened = open_taps(network(channels), (Tap("x", 1, 3), Tap("r", 1, channels)))
    assert opened.blocks == {"r": 1}
    assert bool(asked) == (block_size() > 1 and channels % block_size() == 0)


def test_the_size_of_a_block_is_a_power_of_two():
    assert block_size() in {1, 4, 8, 16, 32}


def test_without_blocks_the_ordinary_session_opens(monkeypatch):
    monkeypatch.setattr(blocked, "block_size", lambda: 1)
    assert open_taps(network(), TAPS).blocks == {"r": 1, "d": 1}


def test_a_graph_that_the_runtime_cannot_write_opens_as_it_is(monkeypatch):
    monkeypatch.setattr(blocked, "_optimized", lambda model, folder: None)
    block_size()
    monkeypatch.setattr(blocked, "block_size", lambda: 16)
    assert open_taps(network(), TAPS).blocks == {"r": 1, "d": 1}


def test_a_graph_that_the_runtime_writes_but_does_not_read_opens_as_it_is():
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        net (float[N,16,4,4] x) => (float[N,16,4,4] y) {
            a = Conv(x, W)
            b = Relu(a)
            s = ReduceSum <keepdims = 0> (x)
            z = Constant <value_float = 0.0> ()
            c = Greater(s, z)
            i = If <then_branch = yes () => (float[N,16,4,4] t) { u = Conv(b, W) t = Relu(u) },
                    else_branch = no () => (float[N,16,4,4] e) { e = Neg(b) }> (c)
            y = Conv(i, W)
        }"""
    )
    weight = np.random.default_rng(3).normal(size=(16, 16, 1, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "W"))
    opened = open_taps(onnx.shape_inference.infer_shapes(model), (Tap("b"), Tap("y")))
    feed = {"x": np.random.default_rng(4).normal(size=(1, 16, 4, 4)).astype(np.float32)}
    found = opened.session.run(feed)
    assert {name: found[opened.outputs[name]].shape for name in ("b", "y")} == dict.fromkeys("by", (1, 16, 4, 4))


@pytest.mark.parametrize(
    ("attributes", "read", "replaced"),
    [
        ({"channels": 32}, False, True),
        ({"channels": 20}, False, False),  # padded with channels that are not there
        ({"channels": 32, "channels_last": 1}, False, False),
        ({"channels": 32}, True, False),  # somebody else needs the ordinary layout
    ],
)
def test_only_whole_blocks_that_nobody_else_reads_are_exposed(attributes, read, replaced):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["b"], domain="com.microsoft.nchwc"),
        helper.make_node("ReorderOutput", ["b"], ["t"], domain="com.microsoft.nchwc", **attributes),
    ]
    outputs = [helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, None)]
    if read:
        nodes.append(helper.make_node("Relu", ["t"], ["u"]))
        outputs.append(helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, None))
    model = helper.make_model(helper.make_graph(nodes, "g", [], outputs))
    exposed, names = expose_blocked(model, {"t", "u"}, 16)
    assert names == ({"t": "b"} if replaced else {})
    assert next(output.name for output in exposed.graph.output) == ("b" if replaced else "t")
    assert ("ReorderOutput" in [node.op_type for node in exposed.graph.node]) != replaced
