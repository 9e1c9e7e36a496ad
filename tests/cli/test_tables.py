"""Tables of numbers from files to an int8 model: the same one that their arrays give."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from int8cal.cli.main import main

NAMES = [f"mean {number}" for number in range(6)]


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """net.onnx, and train.csv and test.csv of its six numbers, a target behind them; train.npy without it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    weights = [("w1", rng.normal(0, 0.3, (6, 32))), ("w2", rng.normal(0, 0.3, (32, 3)))]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["a"], "relu"),
        helper.make_node("MatMul", ["a", "w2"], ["y"], "second"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])]
    constants = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    for name in ("train", "test"):
        values = rng.normal(size=(30, 6))
        np.save(f"{name}.npy", values)
        rows = [f"{','.join(map(repr, row))},{number % 3}" for number, row in enumerate(values.tolist())]
        Path(f"{name}.csv").write_text("\n".join([",".join([*NAMES, "target"]), *rows]) + "\n")
    return tmp_path


@pytest.mark.slow
def test_a_table_gives_what_its_array_does_and_its_column_of_labels_is_no_value(tables, capsys):
    run = ["calibrate", "net.onnx", "--no-latency", "--json"]
    assert main([*run, "--data", "train.csv"]) == 4
    assert "if one holds labels, --labels column:target (data.labels in a YAML), or" in capsys.readouterr().err
    both = ["--data", "train.csv", "--eval-data", "test.csv", "--labels", "column:target"]
    assert main([*run, *both, "-o", "table"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["metrics"]["top1"]["samples"] == 30
    assert main([*run, "--data", "train.npy", "--eval-data", "test.npy", "-o", "array"]) == 0
    assert Path("table/net.int8.onnx").read_bytes() == Path("array/net.int8.onnx").read_bytes()
    declared = [part for name in NAMES for part in ("--column", name)]
    assert main([*run, "--data", "train.csv", "--eval-data", "test.csv", *declared, "-o", "named"]) == 0
    assert Path("named/net.int8.onnx").read_bytes() == Path("array/net.int8.onnx").read_bytes()


def test_a_target_that_is_no_class_is_told_with_the_way_around_it(tables, capsys):
    lines = Path("train.csv").read_text().splitlines()
    Path("train.csv").write_text("\n".join([lines[0], *(f"{line}.5" for line in lines[1:])]) + "\n")
    assert main(["calibrate", "net.onnx", "--data", "train.csv", "--labels", "column:target", "-o", "out"]) == 4
    told = capsys.readouterr().err
    assert (
        "train.csv, line 2: label '0.5' is no class: neither an integer of at least 0, nor a name among names" in told
    )
    assert "name the columns that the input takes: --column NAME for each (data.columns in a YAML)" in told
