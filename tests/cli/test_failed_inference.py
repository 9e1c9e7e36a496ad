"""An inference that fails on a sample, from the command line."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture
def network(tmp_path):
    """A layer behind a Reshape that only rows of 32 values pass."""
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(0, 0.1, (32, 10)).astype(np.float32), "w")
    shape = numpy_helper.from_array(np.array([-1, 32]), "shape")
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["x", "shape"], ["r"], "r"),
            helper.make_node("MatMul", ["r", "w"], ["y"], "head"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "k"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [weights, shape],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx"
    )
    (tmp_path / "data").mkdir()
    for name, width in (("a", 32), ("b", 33), ("c", 32)):
        np.save(tmp_path / "data" / f"{name}.npy", np.ones((1, width), np.float32))


def test_it_names_the_sample_and_is_an_error_of_the_data(call, network):
    done = call("calibrate", "net.onnx", "--data", "data", "--no-latency", "-q")
    assert done.code == 4
    assert done.message.startswith("int8cal: data: data/b.npy: inference failed: ")


def test_what_a_kernel_does_not_support_is_an_error_of_the_model(call, tmp_path):
    """The runtime loads it, and refuses every sample."""
    weights = numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "wide", auto_pad="SAME_UPPER", dilations=[2, 2])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, 12, 12])],
        [weights],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx"
    )
    np.save(tmp_path / "data.npy", np.ones((4, 3, 12, 12), np.float32))
    for command in (("calibrate", "net.onnx"), ("evaluate", "net.onnx", "net.onnx")):
        done = call(*command, "--data", "data.npy", "--no-latency", "-q")
        assert done.code == 3
        assert done.message.startswith("int8cal: model: inference failed: ")
        assert "(on data.npy[0]" in done.message
        assert done.message.endswith("; export the model with another form of that node")


def test_a_model_whose_sizes_do_not_fit_is_refused_by_its_name(call, tmp_path):
    """The runtime loads it, since a quotient of sizes is nothing that it computes; prepared, its sizes are numbers."""
    sizes = {"half": np.array(2), "place": np.array(1), "axis": np.array([0]), "rest": np.array([-1])}
    weights = {"w": np.ones((8, 8), np.float32), "v": np.ones((7, 3), np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Shape", ["h"], ["all"]),
        helper.make_node("Gather", ["all", "place"], ["width"]),
        helper.make_node("Div", ["width", "half"], ["four"]),
        helper.make_node("Unsqueeze", ["four", "axis"], ["columns"]),
        helper.make_node("Concat", ["rest", "columns"], ["shape"], axis=0),
        helper.make_node("Reshape", ["h", "shape"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in (sizes | weights).items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "sizes.onnx"
    )
    np.save(tmp_path / "data.npy", np.ones((4, 8), np.float32))
    done = call("calibrate", "sizes.onnx", "--data", "data.npy", "--no-latency", "-q")
    assert done.code == 3
    assert done.message.startswith("int8cal: model: sizes.onnx: onnxruntime cannot load it: ")
