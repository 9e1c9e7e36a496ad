"""What is spent on accuracy: `--latency-allowance`, and what a table says of second planes and nodes in float."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

pytestmark = pytest.mark.slow

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,32] x) => (float[N,96] y) {
    h = Gemm (x, W)
    r = Relu (h)
    y = Gemm (r, V)
}"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model whose input makes most of the noise, in front of a quarter of its weights; and its data."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(4)
    model = onnx.parser.parse_model(NET)
    for name, shape in (("W", (32, 8)), ("V", (8, 96))):
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    onnx.save(model, folder / "net.onnx")
    np.savez(folder / "data.npz", x=rng.normal(size=(300, 32)).astype(np.float32))
    return folder


@pytest.fixture
def here(made, tmp_path):
    """The same files in the working directory of `call`."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def calibrate(call, *arguments):
    return call("calibrate", "net.onnx", "--data", "data.npz", "-o", "out", "--quiet", "--no-latency", *arguments)


@pytest.fixture(scope="module")
def results(shared, made, tmp_path_factory):
    """What an allowance gave, run once for all tests; without `--include`, the first layer would be left in float."""
    folder = tmp_path_factory.mktemp("generous")
    shutil.copytree(made, folder, dirs_exist_ok=True)
    options = ("--latency-allowance", "1000", "--include", "op:Gemm")
    assert calibrate(lambda *each: shared(folder, *each), *options).code == 0
    return folder / "out"


@pytest.fixture
def generous(here, results):
    """The same, in the working directory of `call`."""
    return Path(shutil.copytree(results, here / "out"))


def edited(path, **parts):
    """Rewrite a table with other parts under corrections or settings."""
    table = json.loads(path.read_text(encoding="utf-8"))
    for name, value in parts.items():
        table["settings" if name.startswith("left") else "corrections"][name] = value
    path.write_text(json.dumps(table), encoding="utf-8")


def test_with_an_allowance_inputs_get_second_planes_and_the_report_says_so(call, here, generous):
    table = json.loads((generous / "net.table.json").read_text(encoding="utf-8"))
    assert table["settings"]["latency_allowance"] == 1000
    assert table["corrections"]["remainder"] == {"Gemm_h": 16}
    decisions = json.loads((generous / "report.json").read_text(encoding="utf-8"))["decisions"]
    assert any(
        line.startswith("residual codes for x would take away ") and line.endswith(": tried") for line in decisions
    )
    # those of all layers would double all bytes of weights, for a decibel more
    told = [re.match(r"(.+?): SQNR on the (?:first \d+ )?validation samples ", line) for line in decisions]
    assert {each[1] for each in told if each} >= {
        "residual codes of inputs dropped",
        "residual codes of some inputs kept",
    }
    assert call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx").code == 0
    assert (here / "again.onnx").read_bytes() == (generous / "net.int8.onnx").read_bytes()
    audited = call("audit", "out/net.int8.onnx")
    assert audited.code == 0
    assert "Saturation  0 of 104 channels can saturate, in 0 of 2 integer layers" in audited.out


def test_without_one_nothing_is_spent(call, here):
    assert calibrate(call, "--latency-allowance", "0").code == 0
    table = json.loads((here / "out" / "net.table.json").read_text(encoding="utf-8"))
    assert "remainder" not in table["corrections"]
    assert "left_for_accuracy" not in table["settings"]


def test_the_yaml_says_the_same(call, here):
    (here / "job.yaml").write_text(
        "model: net.onnx\ndata: data.npz\nquantization: {latency_allowance: 1000, include: ['op:Gemm']}\noutput: {dir: out}\n"
    )
    assert call("calibrate", "--config", "job.yaml", "--quiet", "--no-latency").code == 0
    table = json.loads((here / "out" / "net.table.json").read_text(encoding="utf-8"))
    assert "remainder" in table["corrections"]


def test_an_allowance_that_cannot_be_meant_is_refused(call, here):
    for value in ("-1", "nan", "1001", "much"):
        done = calibrate(call, f"--latency-allowance={value}")
        assert (done.code, (here / "out").exists()) == (2, False)
        assert "--latency-allowance" in done.message


WRONG = [
    ({"remainder": {"Gemm_nobody": 16}}, "corrections.remainder names 'Gemm_nobody'"),
    ({"remainder": {"Gemm_h": 4}}, "corrections.remainder of 'Gemm_h' is 4, this version knows 16"),
    ({"remainder": {"Gemm_h": "a lot"}}, "corrections.remainder of 'Gemm_h' is a lot"),
    ({"remainder": ["Gemm_h"]}, "corrections.remainder is ['Gemm_h'], expected an object"),
    ({"remainder": []}, "corrections.remainder is [], expected an object"),
    ({"bias": []}, "corrections.bias is [], expected an object"),
    ({"left_for_accuracy": {"nobody": "noisy"}}, "names the node 'nobody'"),
    ({"left_for_accuracy": ["Gemm_h"]}, "settings.left_for_accuracy is ['Gemm_h']"),
]


def test_a_table_that_cannot_be_meant_is_refused(call, here, generous):
    path = generous / "net.table.json"
    untouched = path.read_text(encoding="utf-8")
    for parts, message in WRONG:
        path.write_text(untouched, encoding="utf-8")
        edited(path, **parts)
        done = call("quantize", "net.onnx", "--table", path, "-o", "q.onnx")
        assert done.code == 6
        assert message in done.message
        assert not (here / "q.onnx").exists()


def test_a_plane_that_is_taken_out_by_hand_is_gone(call, here, generous):
    path = generous / "net.table.json"
    for planes, rows in (({"Gemm_h": 16}, 64), ({}, 32)):
        edited(path, remainder=planes)
        assert call("quantize", "net.onnx", "--table", path, "-o", "q.onnx", "--overwrite").code == 0
        shapes = {tensor.name: list(tensor.dims) for tensor in onnx.load(here / "q.onnx").graph.initializer}
        assert shapes["W_quantized"] == [rows, 8]
        assert shapes["V_quantized"] == [8, 96]
