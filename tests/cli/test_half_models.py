"""Models of float16, bfloat16 and float64 from the command line: calibrated in float32, with the user's own types."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from int8cal.cli.main import main
from int8cal.runtime.sessions import Session

TYPES = {
    "float16": (np.float16, TensorProto.FLOAT16),
    "float64": (np.float64, TensorProto.DOUBLE),
    "bfloat16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16),
}


def network(kind: str) -> onnx.ModelProto:
    """A convolution, Relu, a table of constants and a product; x and y are of the type."""
    dtype, element = TYPES[kind]
    rng = np.random.default_rng(0)
    weights = {
        "K": rng.normal(0, 0.2, (8, 8, 3, 3)),  # of fewer products per value, it would stay float
        "table": rng.normal(0, 1, (16, 8, 8, 8)),
        "W": rng.normal(0, 0.1, (512, 10)),
    }
    nodes = [
        helper.make_node("Cast", ["x"], ["in"], "in", to=element),
        helper.make_node("Conv", ["in", "K"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Gather", ["table", "row"], ["t"], "gather"),
        helper.make_node("Mul", ["r", "t"], ["s"], "mul"),
        helper.make_node("Flatten", ["s"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "W"], ["m"], "head"),
        helper.make_node("Cast", ["m"], ["y"], "out", to=element),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", element, ["n", 8, 8, 8]),
            helper.make_tensor_value_info("row", TensorProto.INT64, ["n"]),
        ],
        [helper.make_tensor_value_info("y", element, ["n", 10])],
        [numpy_helper.from_array(np.asarray(value, dtype), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


@pytest.fixture(params=TYPES)
def calibrated(request, tmp_path, monkeypatch, capsys):
    """A calibrated model of each type; gives the type, the data and what was printed."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=(12, 8, 8, 8)).astype(np.float32), "row": rng.integers(0, 16, 12)}
    np.savez("data.npz", **data)
    onnx.save(network(request.param), "net.onnx")
    assert main(["calibrate", "net.onnx", "--data", "data.npz", "--no-latency", "-o", "out"]) == 0
    return request.param, data, capsys.readouterr().out


def test_the_int8_model_has_the_users_types_and_the_values_of_its_weights(calibrated):
    kind, data, _ = calibrated
    model = onnx.load("out/net.int8.onnx")
    onnx.checker.check_model(model, full_check=True)
    given, _ = TYPES[kind]
    for values, own in (
        (model.graph.input, network(kind).graph.input),
        (model.graph.output, network(kind).graph.output),
    ):
        assert [value.type.tensor_type.elem_type for value in values] == [
            value.type.tensor_type.elem_type for value in own
        ]
    fed = np.float32 if kind == "bfloat16" else given
    y = Session(model).run({"x": data["x"].astype(fed), "row": data["row"]})["y"]
    weights = {
        tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in network(kind).graph.initializer
    }
    padded = np.pad(data["x"].astype(given).astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    hidden = np.maximum(np.einsum("nchwij,ocij->nohw", windows, weights["K"]), 0)
    expected = (hidden * weights["table"][data["row"]]).reshape(12, -1) @ weights["W"]
    assert 10 * np.log10((expected**2).sum() / ((y.astype(np.float64) - expected) ** 2).sum()) > 25
    kernels = json.loads(Path("out/report.json").read_text())["fusion"]
    assert kernels["integer"] >= 2


def test_the_report_says_what_was_converted(calibrated):
    kind, _, out = calibrated
    assert (
        f"the model has tensors in {kind}: it was calibrated, and is compared, in float32, in speed too; size is beside its own file"
        in out
    )
    report = json.loads(Path("out/report.json").read_text())
    assert report["metrics"]["sqnr_db"] > 25
    assert report["size"]["fp32_bytes"] == Path("net.onnx").stat().st_size


def test_what_stays_float_does_not_grow(calibrated):
    kind, *_ = calibrated
    assert Path("out/net.int8.onnx").stat().st_size < Path("net.onnx").stat().st_size + 20_000
    stored = {tensor.name: tensor.data_type for tensor in onnx.load("out/net.int8.onnx").graph.initializer}
    if kind != "float64":
        assert stored[f"table_{kind}"] == TYPES[kind][1]


def test_quantize_gives_the_same_bytes(calibrated):
    assert main(["quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx"]) == 0
    assert Path("again.onnx").read_bytes() == Path("out/net.int8.onnx").read_bytes()


def test_evaluate_compares_with_the_users_file(calibrated, capsys):
    kind, *_ = calibrated
    assert main(["evaluate", "net.onnx", "out/net.int8.onnx", "--data", "data.npz", "--no-latency", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["metrics"]["sqnr_db"] == json.loads(Path("out/report.json").read_text())["metrics"]["sqnr_db"]
    assert any(f"the model has tensors in {kind}" in line for line in report["warnings"])


def test_samples_of_bfloat16_are_read_from_test_data(calibrated, capsys):
    kind, data, _ = calibrated
    for number in range(2):
        folder = Path(f"set/test_data_set_{number}")
        folder.mkdir(parents=True)
        for place, name in enumerate(("x", "row")):
            dtype = TYPES[kind][0] if name == "x" else np.int64
            tensor = numpy_helper.from_array(data[name][number : number + 1].astype(dtype), name)
            (folder / f"input_{place}.pb").write_bytes(tensor.SerializeToString())
    assert main(["evaluate", "net.onnx", "out/net.int8.onnx", "--data", "set", "--no-latency", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["sqnr_db"] > 25


def test_a_weight_beyond_float32_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = network("float64")
    weights = model.graph.initializer[-1]
    values = numpy_helper.to_array(weights).copy()
    values[2, 3] = 1e300
    weights.CopyFrom(numpy_helper.from_array(values, "W"))
    onnx.save(model, "net.onnx")
    np.savez("data.npz", x=np.ones((2, 8, 8, 8), np.float32), row=np.zeros(2, np.int64))
    for command in (["calibrate", "net.onnx"], ["evaluate", "net.onnx", "net.onnx"]):
        assert main([*command, "--data", "data.npz", "--no-latency"]) == 3
        assert capsys.readouterr().err.splitlines()[-1] == (
            "int8cal: model: net.onnx: weight 'W' of MatMul 'head' holds 1e+300, and float32 ends at 3.4e+38; scale the "
            "weight down, or repair it"
        )
