"""Models that draw random numbers, such as a variational autoencoder: both models are compared with the same ones."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from int8cal.cli.main import main

WITHIN = {
    "RandomNormalLike": "n = RandomNormalLike (s) d = Mul (s, n) h = Add (a, d)",
    "Bernoulli": "p = Sigmoid (a) n = Bernoulli (p) h = Mul (a, n)",
    "seed": "n = RandomNormalLike <seed = 3.0> (s) d = Mul (s, n) h = Add (a, d)",
    "Loop": """
        times = Constant <value_int = 2> () on = Constant <value = bool {1}> ()
        h = Loop (times, on, a) <body = b (int64 i, bool c, float[N, 16] k) => (bool d, float[N, 16] m)
            { d = Identity (c) n = RandomUniformLike (k) m = Add (k, n) }>""",
}


def autoencoder(within, functions=""):
    """Write a model (N, 8) -> (N, 8) whose inner values are random, and its samples."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        net (float[N, 8] x) => (float[N, 8] y) {{
            a = MatMul (x, w) b = MatMul (x, v) t = Tanh (b) s = Exp (t) {within} g = MatMul (h, u) y = Tanh (g) }} {functions}""")
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 16)), ("v", (8, 16)), ("u", (16, 8))):
        values = rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(model, "m.onnx")
    np.save("x.npy", rng.normal(size=(24, 8)).astype(np.float32))


def report(folder):
    return json.loads(Path(folder, "report.json").read_text())


@pytest.fixture(autouse=True)
def _inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN)
@pytest.mark.parametrize("recipe", ["fast", "accurate"])
def test_random_numbers_are_no_error_of_quantization(within, recipe):
    autoencoder(within)
    assert main(["calibrate", "m.onnx", "--data", "x.npy", "-o", "out", "--no-latency", "--recipe", recipe]) == 0
    assert main(["evaluate", "m.onnx", "out/m.int8.onnx", "--data", "x.npy", "-o", "again", "--no-latency"]) == 0
    assert report("out")["metrics"]["sqnr_db"] > 25
    assert report("again")["metrics"]["sqnr_db"] == report("out")["metrics"]["sqnr_db"]
    for each in ("out", "again"):
        told = [line for line in report(each)["warnings"] if "random" in line or "is not that of" in line]
        assert len(told) == 1
        assert "both models were compared with the same random numbers" in told[0]


def test_functions_draw_the_same_numbers():
    function = '<domain: "own", opset_import: ["" : 17]> Noisy (i) => (r) { n = RandomNormalLike (i) r = Mul (n, i) }'
    autoencoder("d = own.Noisy (s) h = Add (a, d)", function)
    assert main(["calibrate", "m.onnx", "--data", "x.npy", "-o", "out", "--no-latency"]) == 0
    assert report("out")["metrics"]["sqnr_db"] > 25
    assert not any("is not that of" in line for line in report("out")["warnings"])


def test_the_written_model_draws_anew_and_two_runs_write_the_same_bytes():
    autoencoder(WITHIN["RandomNormalLike"])
    for folder in ("first", "second"):
        assert (
            main(["calibrate", "m.onnx", "--data", "x.npy", "-o", folder, "--no-latency", "--recipe", "balanced"]) == 0
        )
    for name in ("m.table.json", "m.stats.npz"):
        assert Path("first", name).read_bytes() == Path("second", name).read_bytes()
    assert report("first")["layers"] == report("second")["layers"]
    model = onnx.load("first/m.int8.onnx")
    (node,) = [node for node in model.graph.node if node.op_type == "RandomNormalLike"]
    assert "seed" not in {item.name for item in node.attribute}
    assert [value.name for value in model.graph.input] == ["x"]


def test_models_whose_random_nodes_do_not_match_are_told():
    autoencoder(WITHIN["RandomNormalLike"])
    model = onnx.load("m.onnx")
    for node in model.graph.node:
        node.input[:] = ["other" if name == "n" else name for name in node.input]
        node.output[:] = ["other" if name == "n" else name for name in node.output]
    onnx.save(model, "n.onnx")
    assert main(["evaluate", "m.onnx", "n.onnx", "--data", "x.npy", "-o", "out", "--no-latency"]) == 0
    (told,) = [line for line in report("out")["warnings"] if "random (" in line]
    assert "what they differ by counts as error" in told
