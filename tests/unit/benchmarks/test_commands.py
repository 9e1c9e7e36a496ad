"""Every subcommand once, on the smallest model there is: what comes out, never how fast."""

import json
import subprocess
import sys

import pytest

from benchmarks.__main__ import COMMANDS
from benchmarks.errors import BenchmarkError
from benchmarks.request import Request
from benchmarks.run import ROOT, run

pytestmark = pytest.mark.slow


def test_help_names_every_subcommand(bench):
    status, out, _ = bench("--help")
    assert status == 0
    assert all(name in out for name in COMMANDS)
    for name in COMMANDS:
        status, out, _ = bench(name, "--help")
        assert status == 0
        assert "--markdown" in out


def test_calibration(bench, tmp_path):
    tools = "plain,read,taps-ordinary,taps,int8cal,int8cal-job,ort-minmax,ort-entropy,ort-percentile"
    status, out, err = bench(
        "calibration", "--models", "chain2", "--samples", 3, "--peer-samples", 2, "--rounds", 1, "--tools", tools,
        "--threads", 1, "--json", tmp_path / "all.json", "--markdown", tmp_path / "table.md", "--plot", tmp_path / "plots",
    )  # fmt: skip
    assert status == 0, err
    assert "failed" not in out
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == out.rstrip("\n") + "\n"
    measured = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))["measurements"]["chain2"]
    assert list(measured) == tools.split(",")
    assert measured["int8cal"][0]["stations"].keys() == {"prepare", "collect", "thresholds"}
    # the input, two convolutions, the pool, and what follows it
    assert measured["taps"][0]["facts"]["tapped_bytes"] > 4 * 28 * 28 * (3 + 32 + 32)
    assert measured["taps"][0]["facts"]["tensors"] == measured["int8cal"][0]["facts"]["tensors"]
    rows = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in out.splitlines() if line.startswith("|")}
    assert rows["int8cal"] == "3"
    assert rows["onnxruntime Entropy"] == "2"
    assert any(row.startswith("floor") for row in rows)
    assert (tmp_path / "plots" / "calibration-chain2.svg").is_file()


def test_whole(bench, tmp_path):
    status, out, err = bench(
        "whole", "--models", "chain1", "--samples", 16, "--rounds", 1, "--threads", 1, "--json", tmp_path / "all.json"
    )
    assert status == 0, err
    assert "failed" not in out
    measured = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))["measurements"]["chain1"]
    assert list(measured) == ["int8cal", "ort-minmax"]
    for (one,) in measured.values():
        assert one["cpu_seconds"] > 0
        assert one["process_seconds"] > 0
        assert one["peak_mb"] > 50
    rows = {cells[1].strip(): cells for line in out.splitlines() if len(cells := line.split("|")) > 3}
    assert rows["onnxruntime MinMax"][3].strip() == "1.00 (1.00..1.00)"
    assert rows["int8cal"][3].strip().endswith(")")


def test_inference(bench, tmp_path):
    status, out, err = bench(
        "inference", "--models", "chain1", "--samples", 2, "--rounds", 1, "--repeat", 1, "--threads", 1,
        "--tools", "int8cal,ort-minmax", "--folder", tmp_path, "--json", tmp_path / "all.json", "--plot", tmp_path,
    )  # fmt: skip
    assert status == 0, err
    assert "failed" not in out
    series = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))["measurements"]["chain1"]
    assert {name: len(values) for name, values in series.items()} == dict.fromkeys(
        ("fp32:int8cal", "int8cal", "fp32:ort-minmax", "ort-minmax"), 1
    )
    assert (tmp_path / "chain1.int8cal.int8.onnx").is_file()
    assert "onnxruntime" in (tmp_path / "inference-chain1.svg").read_text(encoding="utf-8")


def test_thresholds(bench):
    status, out, err = bench("thresholds", "--tensors", 2, "--size", 1000, "--rounds", 1, "--peer-tensors", 1)
    assert status == 0, err
    for method in ("max", "percentile", "kl", "mse", "auto"):
        assert f"int8cal {method} " in out
    assert "onnxruntime Entropy, 2048 bins" in out


def test_scaling(bench, tmp_path):
    status, out, err = bench(
        "scaling", "--model", "chain1", "--samples", "1,2", "--blocks", "1,2", "--chain-samples", 1, "--rounds", 1,
        "--plot", tmp_path / "plots",
    )  # fmt: skip
    assert status == 0, err
    assert out.count("R² =") == 2
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"scaling-samples.svg", "scaling-tensors.svg"}


def test_kernels(bench):
    status, out, err = bench("kernels", "--channels", 16, "--side", 4, "--rounds", 1)
    assert status == 0, err
    assert "one read" in out
    assert "after ReLU" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["calibration", "--models", "vgg"], 'no model "vgg"'),
        (["calibration", "--tools", "tensorrt"], 'no contestant "tensorrt"'),
        (["inference", "--tools", "plain"], 'no tool "plain"'),
        (["scaling", "--samples", "5"], "two or more"),
        (["kernels", "--channels", "20"], "not a multiple of 16"),
        (["calibration", "--models", "zoo", "--zoo", "nowhere"], "the zoo is not at nowhere"),
    ],
)
def test_a_mistake_is_one_line(bench, arguments, says):
    status, _, err = bench(*arguments)
    assert status == 2
    message = [line for line in err.splitlines() if not line.startswith("  ")]
    assert len(message) == 1
    assert says in message[0]


def test_a_worker_that_fails_is_one_line(tmp_path):
    with pytest.raises(BenchmarkError, match='int8cal: no model "vgg"'):
        run(Request("int8cal", "calibrate", "vgg", 1, 1, str(tmp_path), str(tmp_path)))


def test_the_module_runs_from_the_checkout():
    done = subprocess.run([sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "calibration" in done.stdout


def test_endurance(bench, tmp_path):
    status, out, err = bench(
        "endurance", "--samples", 40, "--files", 3, "--gigabytes", 0.001, "--nodes", 8, "--threads", 1, "--json",
        tmp_path / "all.json",
    )  # fmt: skip
    assert status == 0, err
    measured = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))["measurements"]
    assert list(measured) == ["40 samples in one file", "3 files", "0.001 GB of weights", "8 nodes"]
    assert measured["0.001 GB of weights"]["model_mb"] == pytest.approx(1.0, rel=0.01)
    assert all(len(one["tenths"]) == 10 and one["peak_mb"] > 0 for one in measured.values())
    assert all(name in out for name in measured)
