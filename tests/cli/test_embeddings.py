"""Embeddings through the commands: size, table, report, patterns, and what goes wrong."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

pytestmark = pytest.mark.slow

GATHER, ADD = "words/lookup", "positions/add"


def encoder(positions=True):
    """Words (N, 8) -> rows of a table, learned positions, two layers."""
    rng = np.random.default_rng(4)
    shapes = {"words": (3000, 32), "places": (1, 64, 32), "up": (32, 64), "down": (64, 8)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, unit in (("words", 1 / 64), ("places", 1 / 256)):
        codes = rng.integers(-126, 127, shapes[name])
        codes[..., 3] = 127
        weights[name] = (codes * unit).astype(np.float32)  # int8 takes nothing away from these
    nodes = [helper.make_node("Gather", ["words", "ids"], ["rows"], name=GATHER)]
    if positions:
        nodes.append(helper.make_node("Add", ["rows", "places"], ["placed"], name=ADD))
    nodes += [
        helper.make_node("MatMul", [nodes[-1].output[0], "up"], ["wide"], name="up/MatMul"),
        helper.make_node("Relu", ["wide"], ["active"], name="relu"),
        helper.make_node("MatMul", ["active", "down"], ["y"], name="down/MatMul"),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["N", 64])],
        [helper.make_tensor_value_info("y", 1, ["N", 64, 8])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(folder):
    onnx.save(encoder(), folder / "encoder.onnx")
    data = folder / "data"
    data.mkdir()
    np.save(data / "a.npy", np.random.default_rng(5).integers(0, 3000, (24, 64)))


def calibrate(call, *more):
    return call("calibrate", "encoder.onnx", "--data", "data", "-o", "out", "--no-latency", *more)


@pytest.fixture(scope="module")
def results(shared, tmp_path_factory):
    """One run for all tests that need its files."""
    folder = tmp_path_factory.mktemp("encoder")
    save(folder)
    done = calibrate(lambda *each: shared(folder, *each))
    assert done.code == 0, done.err
    return folder


def test_table_model_and_report_of_one_run(calibrated):
    table = json.loads((calibrated / "out" / "encoder.table.json").read_text())
    assert table["settings"]["embeddings"] == {GATHER: "rows", ADD: "rows"}
    entry = table["weights"]["words"]
    assert (entry["dtype"], entry["axis"], entry["range"], entry["node"]) == ("int8", 0, "s8", GATHER)
    words = numpy_helper.to_array(encoder().graph.initializer[0])
    assert entry["scales"] == pytest.approx(np.abs(words).max(axis=1) / 127)
    model = onnx.load(calibrated / "out" / "encoder.int8.onnx")
    assert {item.domain for item in model.opset_import} == {""}
    assert not [tensor.name for tensor in model.graph.initializer if tensor.name in ("words", "places")]
    report = json.loads((calibrated / "out" / "report.json").read_text())
    assert report["size"]["int8_bytes"] < 0.3 * report["size"]["fp32_bytes"]
    assert report["metrics"]["sqnr_db"] > 30
    decisions = "\n".join(report["decisions"])
    assert f"the table of Gather {GATHER} is int8: a scale for each of its rows" in decisions
    assert f"the table of Add {ADD} is int8" in decisions


def test_quantize_writes_the_same_bytes_and_inspect_shows_model_and_table(call, calibrated, tmp_path):
    done = call("quantize", "encoder.onnx", "--table", "out/encoder.table.json", "-o", "again.onnx")
    assert done.code == 0, done.err
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out" / "encoder.int8.onnx").read_bytes()
    assert "words  int8 s8, 3000 scales (axis 0)" in call("inspect", "out/encoder.table.json").out
    shown = call("inspect", "encoder.onnx").out
    assert "2 layers, 2 activations, 2 embeddings" in shown
    assert f"{GATHER}: its table words" in shown
    assert call("audit", "out/encoder.int8.onnx").code == 0


def test_an_excluded_gather_keeps_its_table_in_float(call, tmp_path):
    save(tmp_path)
    assert calibrate(call, "--exclude", "op:Gather").code == 0
    model = onnx.load(tmp_path / "out" / "encoder.int8.onnx")
    assert "words" in [tensor.name for tensor in model.graph.initializer]
    assert "places" not in [tensor.name for tensor in model.graph.initializer]
    assert "excluded by the user" in (tmp_path / "out" / "report.json").read_text()


def test_a_form_that_there_is_not_is_told(call, calibrated, tmp_path):
    path = tmp_path / "out" / "encoder.table.json"
    path.write_text(path.read_text().replace(f'"{GATHER}": "rows"', f'"{GATHER}": "blocks"'))
    done = call("quantize", "encoder.onnx", "--table", "out/encoder.table.json", "-o", "again.onnx")
    assert done.code == 6
    assert "settings.embeddings" in done.err
    assert "expected node names with rows or columns" in done.err


def test_conversions_say_that_embeddings_stay_float(call, calibrated):
    pytest.importorskip("openvino")  # IR is written by it
    done = call("table", "out/encoder.table.json", "--to", "openvino", "--model", "encoder.onnx", "-o", "encoder.xml")
    assert done.code == 0, done.err
    assert "2 embeddings stay float" in done.out + done.err
