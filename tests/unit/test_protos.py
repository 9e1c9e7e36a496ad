import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from int8cal import protos


@pytest.fixture
def model():
    """Big and small initializers, one in typed fields, one inside a branch of an If."""
    big = np.arange(600, dtype=np.float32)
    typed = helper.make_tensor("typed", onnx.TensorProto.FLOAT, [600], big.tolist())
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], ["o"])],
        "branch",
        [],
        [helper.make_tensor_value_info("o", 1, [600])],
        [numpy_helper.from_array(big + 1, "inner")],
    )
    nodes = [
        helper.make_node("If", ["k"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["i", "big"], ["j"]),
        helper.make_node("Mul", ["j", "typed"], ["l"]),
        helper.make_node("Mul", ["l", "small"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, [600]), helper.make_tensor_value_info("k", 9, [])],
        [helper.make_tensor_value_info("y", 1, [600])],
        [numpy_helper.from_array(big, "big"), typed, numpy_helper.from_array(np.float32(2), "small")],
    )
    result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result.metadata_props.add(key="who", value="test")
    return result


def test_the_size_of_a_model_counts_every_initializer(model, monkeypatch):
    weights = 4 * (600 + 600 + 1 + 2 * 600)
    monkeypatch.setattr(protos, "LIMIT", weights)
    assert protos.is_large(model)
    monkeypatch.setattr(protos, "LIMIT", weights + 1)
    assert not protos.is_large(model)


def test_without_weights_everything_else_is_there(model):
    expected = onnx.ModelProto()
    expected.CopyFrom(model)
    del expected.graph.initializer[:]
    assert protos.without_weights(model) == expected
    assert len(model.graph.initializer) == 3


def test_an_outline_keeps_names_types_shapes_and_small_values(model):
    outlined = {tensor.name: tensor for tensor in protos.outline(model).graph.initializer}
    assert outlined["big"].dims == [600]
    assert not outlined["big"].raw_data
    assert numpy_helper.to_array(outlined["small"]) == 2


def test_a_split_model_loads_as_the_same_model_and_leaves_the_original_alone(model, tmp_path):
    before = model.SerializeToString(deterministic=True)
    protos.write_split(model, tmp_path / "net.onnx", tmp_path / "net.data", "net.data")
    assert model.SerializeToString(deterministic=True) == before
    graph_alone = onnx.load(tmp_path / "net.onnx", load_external_data=False)
    offsets = {
        entry.value: tensor.name
        for tensor in graph_alone.graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    }
    assert offsets == {"0": "big", "4096": "typed"}
    loaded = onnx.load(tmp_path / "net.onnx")
    onnx.checker.check_model(loaded)
    for old, new in zip(model.graph.initializer, loaded.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(old), numpy_helper.to_array(new))
    inner = loaded.graph.node[0].attribute[0].g.initializer[0]
    np.testing.assert_array_equal(numpy_helper.to_array(inner), np.arange(1, 601))
