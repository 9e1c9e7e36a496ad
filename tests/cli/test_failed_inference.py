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
