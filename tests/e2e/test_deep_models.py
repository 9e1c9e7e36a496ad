"""Models of thousands of nodes in a row go through every command and every function of the API."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from deep_models import DEEP, samples

import int8cal
from int8cal.cli.main import main
from int8cal.runtime import segments, sessions
from int8cal.runtime.segments import segments_of

FRAMES = 220  # what a command may need, whatever the model: far less than a frame per node


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", samples())

    def call(*arguments, code=0):
        found = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert found == code, captured.err
        return captured.out

    return call


def through_every_command(call, model):
    """Run all commands that see a model on one that is deep, and all functions of the API."""
    onnx.save(model, "deep.onnx")
    data = ("--data", "x.npy")
    call("init", "deep.onnx", "-o", "deep.yaml")
    call("calibrate", "deep.onnx", *data, "-o", "out", "--no-latency")
    call("inspect", "deep.onnx")
    for suffix in ("int8.onnx", "table.json", "stats.npz"):
        call("inspect", f"out/deep.{suffix}")
    call("inspect", "out/report.json")
    call("quantize", "deep.onnx", "--table", "out/deep.table.json", "-o", "again.onnx")
    call("evaluate", "deep.onnx", "again.onnx", *data, "--no-latency")
    call("audit", "again.onnx", *data)
    call("audit", "again.onnx", "--fix", "-o", "safe.onnx")
    call("merge", "out/deep.stats.npz", "out/deep.stats.npz", "-o", "sum.stats.npz")
    call("compare", "out/report.json", "out/report.json")
    for target, output in (("tensorrt", "t.cache"), ("onnxruntime", "t.json"), ("openvino", "o.json")):
        call("table", "out/deep.table.json", "--to", target, "-o", output, "--model", "deep.onnx")
        call(
            "table",
            output,
            "--from",
            target,
            "-o",
            f"{output}.table.json",
            "--model",
            "deep.onnx",
            "--missing",
            "float",
        )
    call("table", "out/deep.table.json", "--to", "ncnn", "-o", "deep.ncnn", "--model", "deep.onnx")
    Path("run.yaml").write_text(
        yaml.safe_dump({"model": "deep.onnx", "data": {"path": "x.npy"}, "output": {"dir": "run"}}), "utf-8"
    )
    call("run", "run.yaml", "--dry-run")
    table = int8cal.calibrate(model, "x.npy", samples=1)
    assert int8cal.evaluate(model, int8cal.quantize(model, table), "x.npy", latency=False).evaluation.samples == 2


@pytest.mark.parametrize("shallow_stack", [FRAMES], indirect=True, ids=[""])
@pytest.mark.parametrize("kind", DEEP)
def test_no_command_needs_a_deeper_stack_for_a_deeper_model(call, shallow_stack, kind):
    through_every_command(call, DEEP[kind](240 if kind == "layers" else 600))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_in_segments_gives_the_files_and_figures_of_the_whole(call, monkeypatch, threads):
    onnx.save(DEEP["layers"](60), "deep.onnx")

    def files(folder):
        call("calibrate", "deep.onnx", "--data", "x.npy", "--threads", threads, "--no-latency", "-o", folder)
        report = json.loads(Path(folder, "report.json").read_text("utf-8"))
        paths = [Path(folder, f"deep.{suffix}") for suffix in ("int8.onnx", "stats.npz", "table.json")]
        return [path.read_bytes() for path in paths], report["metrics"], report["layers"], report["decisions"]

    whole = files("whole")
    cut = []
    for name, nodes in (("LEAST_NODES", 20), ("SEGMENT_NODES", 10), ("SMALL_SEGMENT_NODES", 4)):
        monkeypatch.setattr(segments, name, nodes)
    monkeypatch.setattr(
        sessions, "segments_of", lambda *model, **how: cut.append(segments_of(*model, **how)) or cut[-1]
    )
    assert files("cut") == whole
    models = [[node.op_type for node in part[0].model.graph.node] for part in cut if part]
    assert {"QuantizeLinear" in nodes for nodes in models} == {True, False}


@pytest.mark.long
@pytest.mark.parametrize(("kind", "nodes"), [("layers", 800), ("moves", 2000), ("elementwise", 6000)])
def test_a_chain_of_thousands_of_nodes_goes_through_every_command(call, kind, nodes):
    # sizes that the runtime opens in seconds as QDQ models: its own time grows faster than the graph
    through_every_command(call, DEEP[kind](nodes))
