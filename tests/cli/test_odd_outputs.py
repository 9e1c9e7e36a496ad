"""Models whose outputs say nothing: zero on every sample, or not finite."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from int8cal.cli.main import main


@pytest.fixture
def calibrate(tmp_path, monkeypatch, capsys):
    """Calibrate a product, Relu and a product with these last weights; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(6, 8)).astype(np.float32)
    samples[:3] = -np.abs(samples[:3])
    np.save("x.npy", samples)
    value, node = helper.make_tensor_value_info, helper.make_node

    def calibrate(last, *arguments):
        nodes = [
            node("MatMul", ["x", "W"], ["m"], name="first"),
            node("Relu", ["m"], ["r"], name="relu"),
            node("MatMul", ["r", "V"], ["y"], name="last"),
        ]
        weights = {"W": np.eye(8, dtype=np.float32), "V": last.astype(np.float32)}
        graph = helper.make_graph(
            nodes,
            "g",
            [value("x", TensorProto.FLOAT, ["n", 8])],
            [value("y", TensorProto.FLOAT, ["n", 8])],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        )
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
        code = main(["calibrate", "m.onnx", "--data", "x.npy", "-o", "out", "--no-latency", *arguments])
        return (code, *capsys.readouterr())

    return calibrate


@pytest.mark.parametrize("recipe", ["fast", "balanced"])
def test_a_model_whose_output_is_zero_is_reported_in_words(calibrate, capsys, recipe):
    code, out, err = calibrate(np.zeros((8, 8)), "--recipe", recipe, "--explain")
    assert (code, err.count("\n")) == (0, 1)
    assert "warning: with 6 samples ranges are uncertain by" in err
    assert main(["inspect", "out/report.json"]) == 0
    text = out + capsys.readouterr().out + Path("out/report.md").read_text() + Path("out/report.json").read_text()
    assert "nothing to compare" in text
    assert "inf dB" not in text
    assert "nan" not in text
    assert [step["sqnr_db"] for step in json.loads(Path("out/report.json").read_text())["steps"]][:2] == [None, None]


def test_an_output_that_is_not_finite_is_an_error_that_names_output_and_sample(calibrate):
    # the first three samples are negative, so that Relu gives zeros and the sums stay finite
    code, _, err = calibrate(np.full((8, 8), 3.3e38))
    assert code == 5
    assert 'x.npy[3]: output "y" of the FP32 model holds infinity' in err


SELECTED = ["Greater(s, zero) -> c", "Compress(s, c) -> y"]
SUMMED = [
    "Relu(s) -> d",
    "Ceil(d) -> e",
    "ReduceSum(e) -> n",
    "Cast(n) -> i",
    "Range(none, i, one) -> k",
    "Cast(k) -> y",
]


@pytest.fixture
def deciding(tmp_path, monkeypatch, capsys):
    """Calibrate a model whose output has as many values as nodes behind its scores decide; gives code, report, stdout."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.normal(size=(8, 32)).astype(np.float32))
    value, node = helper.make_tensor_value_info, helper.make_node

    def run(chain, *arguments, scores=False):
        nodes = [node("MatMul", ["x", "W"], ["m"]), node("Relu", ["m"], ["r"]), node("MatMul", ["r", "V"], ["p"])]
        nodes.append(node("Reshape", ["p", "flat"], ["s"]))
        for at, each in enumerate(chain):
            op, read, made = each.replace(")", "").replace(" -> ", "(").split("(")
            last = TensorProto.FLOAT if at == len(chain) - 1 else TensorProto.INT64
            options = {"Cast": {"to": last}, "ReduceSum": {"keepdims": 0}}.get(op, {})
            nodes.append(node(op, read.split(", "), [made], **options))
        weights = {"W": rng.normal(size=(32, 64)), "V": rng.normal(size=(64, 400)), "zero": np.zeros(())}
        stored = {name: each.astype(np.float32) for name, each in weights.items()}
        stored |= {"flat": np.array([-1]), "none": np.array(0), "one": np.array(1)}
        outputs = [value("y", TensorProto.FLOAT, ["k"]), *([value("p", TensorProto.FLOAT, [1, 400])] if scores else [])]
        initializers = [numpy_helper.from_array(each, name) for name, each in stored.items()]
        graph = helper.make_graph(nodes, "g", [value("x", TensorProto.FLOAT, [1, 32])], outputs, initializers)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
        code = main(["calibrate", "m.onnx", "--data", "x.npy", "-o", "out", "--no-latency", *arguments])
        return code, json.loads(Path("out/report.json").read_text()), capsys.readouterr().out

    return run


@pytest.mark.parametrize("chain", [SELECTED, SUMMED])
def test_an_output_whose_length_values_decide_has_no_error_and_the_report_says_why(deciding, chain):
    code, report, out = deciding(chain)
    assert code == 0
    assert report["metrics"]["sqnr_db"] is None
    why = 'output "y" has another shape in the int8 model for '
    assert report["reasons"]["metrics.sqnr_db"].startswith(why)
    assert report["reasons"]["outputs.y"].startswith(why)
    assert out.count("of 8 samples, such as (") == 1
    assert "Accuracy  SQNR not measured: see the warnings\n" in out
    assert report["layers"]


def test_outputs_beside_it_keep_their_figures(deciding):
    code, report, out = deciding(SELECTED, scores=True)
    assert code == 0
    assert report["outputs"]["y"]["sqnr_db"] is None
    assert report["metrics"]["sqnr_db"] == report["outputs"]["p"]["sqnr_db"] > 20.0
    assert 'output "y" has another shape in the int8 model' in out


def test_a_gate_on_what_cannot_be_measured_fails(deciding):
    code, report, _ = deciding(SELECTED, "--gate", "sqnr_db>=20")
    assert code == 7
    assert report["gates"][0]["passed"] is False
