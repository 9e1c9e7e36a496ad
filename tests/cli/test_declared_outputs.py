"""What goes in and out of the int8 model is what the user's model declares: names, types, dimensions, order, texts."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from int8cal.cli.main import main

FLOAT = TensorProto.FLOAT


def value(name, dims, text=""):
    return helper.make_tensor_value_info(name, FLOAT, dims, text)


# what users declare of outputs whose true shapes are (batch, 8) and (batch, 1, 8)
DECLARED = {
    "symbols of the user's": [value("y", ["rows", "classes"], "scores"), value("z", ["rows", 1, "more"], "wide")],
    "another order": [value("z", ["n", 1, 8]), value("y", ["n", 8])],
    "nothing known of dimensions": [value("y", [None, None]), value("z", [None, None, None])],
    "an output of a tensor that is read further": [value("r", ["n", 8]), value("y", ["n", 8])],
    "one listed twice": [value("y", ["n", 8]), value("z", ["n", 1, 8]), value("y", ["n", 8])],
}


def network(outputs, opset):
    """Conv behind two products, with a batch normalization that folds and a shift that becomes a bias."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "W"], ["m"], name="first"),
        node("Add", ["m", "b"], ["a"], name="shift"),
        node("Relu", ["a"], ["r"], name="relu"),
        node("MatMul", ["r", "V"], ["y"], name="second"),
        node("Reshape", ["r", "shape"], ["s"], name="reshape"),
        node("Conv", ["s", "K"], ["c"], name="conv", kernel_shape=[3], pads=[1, 1]),
        node("BatchNormalization", ["c", "g", "o", "o", "g"], ["z"], name="norm"),
    ]
    weights = {"W": rng.normal(size=(8, 8)), "b": rng.normal(size=8), "V": rng.normal(size=(8, 8))}
    weights |= {"K": rng.normal(size=(1, 1, 3)), "g": np.full(1, 2.0), "o": np.full(1, 0.5)}
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    tensors.append(numpy_helper.from_array(np.array([-1, 1, 8]), "shape"))
    graph = helper.make_graph(nodes, "g", [value("x", ["samples", 8], "the input")], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Save a model and samples, calibrate, quantize from the table, and give what the commands wrote."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(1).normal(size=(9, 8)).astype(np.float32))

    def run(model):
        onnx.save(model, "m.onnx")
        assert main(["calibrate", "m.onnx", "--data", "x.npy", "-o", "out", "--no-latency", "--quiet"]) == 0
        assert main(["quantize", "m.onnx", "--table", "out/m.table.json", "-o", "q.onnx"]) == 0
        assert Path("q.onnx").read_bytes() == Path("out/m.int8.onnx").read_bytes()
        return onnx.load("q.onnx")

    return run


@pytest.mark.parametrize(("kind", "opset"), [*((kind, 17) for kind in DECLARED), ("symbols of the user's", 11)])
def test_inputs_and_outputs_stay_as_the_users_model_declares_them(run, kind, opset):
    model = network(DECLARED[kind], opset)
    int8 = run(model)
    assert list(int8.graph.input) == list(model.graph.input)
    assert list(int8.graph.output) == list(model.graph.output)


def test_a_shape_that_is_not_declared_is_filled_in(run):
    int8 = run(network([value("y", None), value("z", ["n", 1, 8]), value("y", None)], 17))
    onnx.checker.check_model(int8)
    assert [len(output.type.tensor_type.shape.dim) for output in int8.graph.output] == [2, 3, 2]


def test_an_output_listed_twice_is_judged_once(run):
    run(network(DECLARED["one listed twice"], 17))
    report = json.loads(Path("out/report.json").read_text())
    assert list(report["outputs"]) == ["y", "z"]
    assert report["metrics"]["agreement"] <= 1
