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
