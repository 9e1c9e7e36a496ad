"""LSTM and GRU through the commands: table, model, report, patterns and what goes wrong."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

pytestmark = pytest.mark.slow

LSTM, GRU = "rnn/lstm", "rnn/gru"


def recurrent_model(bad=None, conv=True):
    """(N, 3, steps) -> Conv -> steps first -> LSTM in both directions -> GRU -> the last state."""
    rng = np.random.default_rng(4)
    shapes = {"K": (6, 3, 3), "W": (2, 20, 6), "R": (2, 20, 5), "B": (2, 40), "V": (1, 12, 10), "U": (1, 12, 4)}
    weights = {name: rng.normal(scale=0.4, size=shape).astype(np.float32) for name, shape in shapes.items()}
    if bad:
        weights[bad][0, 0, 0] = np.nan
    if conv:
        first = helper.make_node("Conv", ["x", "K"], ["c"], name="conv", pads=[1, 1])
    else:
        first = helper.make_node("Concat", ["x", "x"], ["c"], name="concat", axis=1)
    nodes = [
        first,
        helper.make_node("Transpose", ["c"], ["s"], name="steps", perm=[2, 0, 1]),
        helper.make_node("LSTM", ["s", "W", "R", "B"], ["l"], name=LSTM, hidden_size=5, direction="bidirectional"),
        helper.make_node("Transpose", ["l"], ["m"], name="merge", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["m", "flat"], ["f"], name="flatten"),
        helper.make_node("GRU", ["f", "V", "U"], ["", "y"], name=GRU, hidden_size=4),
    ]
    tensors = [*(numpy_helper.from_array(value, name) for name, value in weights.items())]
    tensors.append(numpy_helper.from_array(np.array([0, 0, 10]), "flat"))
    graph = helper.make_graph(
        nodes,
        "speech",
        [helper.make_tensor_value_info("x", 1, ["N", 3, 8])],
        [helper.make_tensor_value_info("y", 1, [1, "N", 4])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def save(folder, **settings):
    onnx.save(recurrent_model(**settings), folder / "speech.onnx")
    data = folder / "data"
    data.mkdir()
    np.save(data / "a.npy", np.random.default_rng(5).normal(size=(12, 3, 8)).astype(np.float32))


def ops(path):
    return {node.name: node.op_type for node in onnx.load(path).graph.node if node.name in (LSTM, GRU)}


def calibrate(call, *more):
    return call("calibrate", "speech.onnx", "--data", "data", "-o", "out", "--no-latency", *more)


@pytest.fixture(scope="module")
def results(shared, tmp_path_factory):
    """One run for all tests that need its files."""
    folder = tmp_path_factory.mktemp("speech")
    save(folder)
    done = calibrate(lambda *each: shared(folder, *each))
    assert done.code == 0, done.err
    return folder


def decisions(folder):
    return "\n".join(json.loads((folder / "out" / "report.json").read_text())["decisions"])


def test_table_model_and_report_of_one_run(calibrated):
    table = json.loads((calibrated / "out" / "speech.table.json").read_text())
    assert table["settings"]["recurrent"] == {LSTM: "kernel", GRU: "weights"}
    found = {name: (entry["dtype"], entry["axis"], entry["range"], len(entry["scales"]))
             for name, entry in table["weights"].items() if name != "K"}  # fmt: skip
    assert found == {
        "W": ("int8", 1, "s7", 40),
        "R": ("int8", 1, "s7", 40),
        "V": ("int8", 1, "s8", 12),
        "U": ("int8", 1, "s8", 12),
    }
    w = numpy_helper.to_array(next(t for t in recurrent_model().graph.initializer if t.name == "W"))
    assert table["weights"]["W"]["scales"] == pytest.approx((np.abs(w).max(axis=2) / 63).reshape(-1))
    assert ops(calibrated / "out" / "speech.int8.onnx") == {LSTM: "DynamicQuantizeLSTM", GRU: "GRU"}
    report = json.loads((calibrated / "out" / "report.json").read_text())
    floats = {node["node"]: node["reason"] for node in report["fusion"]["nodes"]}
    assert floats[GRU] == "only its weights are quantized"
    assert LSTM not in floats
    assert f"LSTM {LSTM} is integer: DynamicQuantizeLSTM" in decisions(calibrated)
    assert f"GRU {GRU} is weight-only" in decisions(calibrated)
    assert report["metrics"]["sqnr_db"] > 25


def test_quantize_writes_the_same_bytes_and_inspect_shows_the_table(call, calibrated, tmp_path):
    done = call("quantize", "speech.onnx", "--table", "out/speech.table.json", "-o", "again.onnx")
    assert done.code == 0, done.err
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out" / "speech.int8.onnx").read_bytes()
    shown = call("inspect", "out/speech.table.json").out
    assert "W  int8 s7, 40 scales (axis 1)" in shown


@pytest.mark.parametrize(
    ("more", "lstm", "gru"),
    [
        (("--exclude", "op:LSTM"), "LSTM", "GRU"),
        (("--exclude", "rnn/l*"), "LSTM", "GRU"),
        (("--include", "conv", "--include", "op:LSTM"), "DynamicQuantizeLSTM", "GRU"),
    ],
)
def test_patterns_hold_for_recurrent_nodes(call, tmp_path, more, lstm, gru):
    save(tmp_path)
    assert calibrate(call, *more).code == 0
    assert ops(tmp_path / "out" / "speech.int8.onnx") == {LSTM: lstm, GRU: gru}
    assert "excluded by the user" in decisions(tmp_path)
    done = call("quantize", "speech.onnx", "--table", "out/speech.table.json", "-o", "again.onnx")
    assert done.code == 0, done.err
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out" / "speech.int8.onnx").read_bytes()


def test_a_model_of_recurrent_nodes_alone_is_enough(call, tmp_path):
    save(tmp_path, conv=False)
    done = calibrate(call)
    assert done.code == 0, done.err
    assert ops(tmp_path / "out" / "speech.int8.onnx") == {LSTM: "DynamicQuantizeLSTM", GRU: "GRU"}


def test_inspect_lists_them(call, tmp_path):
    save(tmp_path)
    shown = call("inspect", "speech.onnx").out
    assert "would be quantized: 2 layers" in shown
    assert f"LSTM       {LSTM}" in shown


def test_a_weight_that_is_not_finite_ends_with_5(call, tmp_path):
    save(tmp_path, bad="U")
    done = calibrate(call, "--exclude", "op:LSTM")
    assert done.code == 5
    assert f"weight 'U' of node '{GRU}' holds NaN or infinity" in done.message


@pytest.mark.parametrize(
    ("forms", "message"),
    [
        ({LSTM: "fast"}, "settings.recurrent is"),
        ({GRU: "kernel"}, "the runtime has no integer kernel for GRU"),
        ({"rnn/none": "weights"}, "names the node 'rnn/none'"),
        (["rnn/gru"], "settings.recurrent is"),
    ],
)
def test_an_edit_that_cannot_be_ends_with_6(call, calibrated, forms, message):
    path = calibrated / "out" / "speech.table.json"
    table = json.loads(path.read_text())
    table["settings"]["recurrent"] = forms
    path.write_text(json.dumps(table))
    done = call("quantize", "speech.onnx", "--table", path, "-o", "again.onnx")
    assert (done.code, message in done.message) == (6, True), done.message


def test_an_edit_chooses_the_form(call, calibrated):
    path = calibrated / "out" / "speech.table.json"
    table = json.loads(path.read_text())
    table["settings"]["recurrent"] = {LSTM: "weights"}
    path.write_text(json.dumps(table))
    done = call("quantize", "speech.onnx", "--table", path, "-o", "again.onnx")
    assert done.code == 0, done.err
    names = {tensor.name for tensor in onnx.load(calibrated / "again.onnx").graph.initializer}
    assert {"W_quantized", "V"} <= names
    assert ops(calibrated / "again.onnx")[LSTM] == "LSTM"
