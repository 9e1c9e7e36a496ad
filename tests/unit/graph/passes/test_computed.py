"""Constants that folding makes larger are computed in the int8 model."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from int8cal.graph.passes.computed import computed_again, folded
from int8cal.graph.prepare import prepare
from int8cal.runtime.sessions import Session, simplify

RNG = np.random.default_rng(0)


def made(text, **constants):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    return model


def tiled():
    text = """net (float[N,64,32] x) => (float[N,64,32] y, float[N,64,32] z) {
        t = Tile (base, counts) u = Mul (t, t) h = Mul (x, t) y = Add (h, u) z = Add (y, kept) }"""
    base = RNG.normal(size=(1, 1, 32)).astype(np.float32)
    kept = RNG.normal(size=(64, 32)).astype(np.float32)
    model = made(text, base=base, counts=np.array([1, 64, 1]), kept=kept)
    for node, name in zip(model.graph.node, ("plain", "twice"), strict=False):
        node.name = name
    return model


def values(model, feed):
    return list(Session(model, threads=1).run(feed).values())


def test_a_constant_that_grew_is_folded_for_planning_and_computed_in_the_end():
    model = tiled()
    prepared = prepare(model, simplify).model
    assert [node.op_type for node in prepared.graph.node] == ["Mul", "Add", "Add"]
    result = computed_again(onnx.ModelProto.FromString(prepared.SerializeToString()))
    assert not result.training_info
    assert [node.name for node in result.graph.node[:2]] == ["plain", "twice"]
    assert result.ByteSize() < model.ByteSize() + 1000 < prepared.ByteSize() - 10_000
    onnx.checker.check_model(result)
    feed = {"x": RNG.normal(size=(2, 64, 32)).astype(np.float32)}
    for given, expected in zip(values(result, feed), values(model, feed), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-6)


def test_a_constant_that_has_changed_since_stays_as_it_is():
    prepared = prepare(tiled(), simplify).model
    (changed,) = [tensor for tensor in prepared.graph.initializer if tensor.name == "t"]
    other = numpy_helper.from_array(numpy_helper.to_array(changed) * 2, "t")
    changed.CopyFrom(other)
    result = computed_again(prepared)
    assert other in [*result.graph.initializer]
    assert [node.name for node in result.graph.node[:2]] == ["plain", "twice"]  # of u
    assert result.graph.node[0].output[0] == "t_1"


@pytest.mark.parametrize("counts", [[1, 1, 1], [1, 8, 1]])
def test_what_does_not_grow_or_hardly_is_folded(counts):
    model = made(
        "net (float[N,8,32] x) => (float[N,8,32] y) { t = Tile (base, counts) y = Mul (x, t) }",
        base=RNG.normal(size=(1, 1, 32)).astype(np.float32),
        counts=np.array(counts),
    )
    assert not folded(model, simplify).training_info
    assert [node.op_type for node in computed_again(prepare(model, simplify).model).graph.node] == ["Mul"]
