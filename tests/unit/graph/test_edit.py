"""Free names, whatever a graph holds already, and what a builder makes under them."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from int8cal.graph.edit import Builder, Names, constant


def graph_of(tensors):
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in tensors]
    return onnx.helper.make_graph([], "g", values, [])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 100])
def test_a_free_number_is_the_lowest_behind_those_that_are_taken(count):
    names = Names(graph_of(["name", "other", *(f"name_{number}" for number in range(1, 1 + count))]))
    assert names.tensor("name") == f"name_{1 + count}"
    assert names.tensor("name") == f"name_{2 + count}"
    assert names.tensor("other") == "other_1"
    assert names.tensor("third") == "third"


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 100])
def test_beside_a_tensor_numbers_count_from_two(count):
    names = Names(graph_of(["name_folded", *(f"name_folded{number}" for number in range(2, 2 + count))]))
    assert names.beside("name", "folded") == f"name_folded{2 + count}"
    assert names.beside("other", "folded") == "other_folded"


def test_only_what_the_graph_had_is_renamed_when_it_changes():
    names = Names(graph_of(["x"]))
    changed = names.changed("x")
    assert changed == "x_folded"
    assert names.changed(changed) == changed


def test_a_node_is_named_after_its_output_and_nodes_and_tensors_do_not_share_names():
    builder = Builder(Names(graph_of(["y_Relu"])))
    builder.node("Relu", ["x"], "y")
    builder.node("Concat", ["x", "y"], "z", after="y", axis=1)
    builder.node("Relu", ["x"], "y")
    assert [node.name for node in builder.nodes] == ["y_Relu", "y_Concat", "y_Relu_1"]


@pytest.mark.parametrize("value", [np.float32(3), np.arange(6, dtype=np.int64).reshape(2, 3).T])
def test_a_constant_keeps_values_type_and_shape(value):
    tensor = constant("c", value)
    assert np.array_equal(numpy_helper.to_array(tensor), value)
    assert numpy_helper.to_array(tensor).dtype == value.dtype
    assert tuple(tensor.dims) == np.shape(value)


@pytest.mark.parametrize(
    "value", [np.float32(2.5), np.arange(6, dtype=np.int64).reshape(2, 3), np.zeros((2, 0), np.int8)]
)
def test_a_constant_is_the_message_that_onnx_makes(value):
    assert constant("c", value) == numpy_helper.from_array(np.asarray(value), "c")


@pytest.mark.parametrize("attributes", [{}, {"axis": 1}, {"axis": None}, {"to": 1, "axes": [0, 2], "mode": "nearest"}])
def test_a_node_is_the_message_that_onnx_makes(attributes):
    built = Builder(Names(onnx.GraphProto()))
    node = built.node("Op", ["x", ""], "y", **attributes)
    assert node == onnx.helper.make_node("Op", ["x", ""], ["y"], name="y_Op", **attributes)
