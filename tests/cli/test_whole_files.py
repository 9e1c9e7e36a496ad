"""Models whose first axis holds points, steps or nodes and no samples, from the command line: each file is a sample."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from int8cal.cli.main import main

SIZES = (5, 9, 12, 7, 10, 6)
# Each takes x (N, 16), and gives y (N, 4): a graph network, a sum along steps, centred points.
BODIES = {
    "graph": "g = MatMul (adj, a) h = Relu (g)",
    "steps": "h = CumSum (a, zero)",
    "points": "m = ReduceMean <axes: ints = [0], keepdims: int = 1> (a) h = Sub (a, m)",
}


def weighted(model: onnx.ModelProto, **weights: np.ndarray) -> onnx.ModelProto:
    for name, values in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.checker.check_model(model)
    return model


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1 / np.sqrt(shape[0]), shape).astype(np.float32)


def network(kind: str) -> onnx.ModelProto:
    adjacency = "float[N, N] adj, " if kind == "graph" else ""
    return weighted(
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 17]> net ({adjacency}float[N, 16] x) => (float[N, 4] y) '
            f"<int64 zero = {{0}}> {{ a = MatMul (x, w) {BODIES[kind]} y = MatMul (h, v) }}"
        ),
        w=normal(0, 16, 64),
        v=normal(1, 64, 4),
    )


def write_data(folder, kind):
    rng = np.random.default_rng(2)
    folder.mkdir()
    for number, size in enumerate(SIZES):
        feed = {"x": rng.normal(0, 1, (size, 16)).astype(np.float32)}
        if kind == "graph":
            near = rng.random((size, size)) < 0.4
            feed["adj"] = ((near | near.T | np.eye(size, dtype=bool)) / size).astype(np.float32)
        np.savez(folder / f"{number}.npz", **feed)
    return folder


def sqnr_of_outputs(fp32, int8, data):
    """Run both models on whole files, and compare what they give."""
    signal = noise = 0.0
    sessions = [onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]) for path in (fp32, int8)]
    for file in sorted(data.iterdir()):
        feed = dict(np.load(file))
        expected, actual = (session.run(["y"], feed)[0].astype(np.float64) for session in sessions)
        signal += np.square(expected).sum()
        noise += np.square(expected - actual).sum()
    return 10 * np.log10(signal / noise)


@pytest.mark.parametrize("kind", BODIES)
def test_each_file_is_one_sample(tmp_path, kind):
    model, data, out = tmp_path / "net.onnx", write_data(tmp_path / "data", kind), tmp_path / "out"
    onnx.save(network(kind), model)
    assert main(["calibrate", str(model), "--data", str(data), "-o", str(out), "--no-latency", "-q"]) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["samples"] == len(SIZES)
    assert any("is one sample" in line for line in report["decisions"])
    told = report["outputs"]["y"]["sqnr_db"]
    assert told == pytest.approx(sqnr_of_outputs(model, out / "net.int8.onnx", data), abs=0.05)
    assert told > 20
    # a stored int8 model is judged on the same samples
    command = ["evaluate", str(model), str(out / "net.int8.onnx"), "--data", str(data), "-o", str(tmp_path / "again")]
    assert main([*command, "--no-latency", "-q"]) == 0
    again = json.loads((tmp_path / "again" / "report.json").read_text())
    assert again["samples"] == len(SIZES)
    assert again["outputs"]["y"]["sqnr_db"] == pytest.approx(told)


@pytest.mark.parametrize("kind", BODIES)
def test_shards_are_of_whole_files(tmp_path, kind):
    model, data = tmp_path / "net.onnx", write_data(tmp_path / "data", kind)
    onnx.save(network(kind), model)
    common = ["calibrate", str(model), "--data", str(data), "--no-latency", "-q"]
    assert main([*common, "-o", str(tmp_path / "all")]) == 0
    parts = [tmp_path / f"part{number}" for number in (1, 2, 3)]
    for number, part in enumerate(parts, 1):
        assert main([*common, "-o", str(part), "--shard", f"{number}/3"]) == 0
    files = [str(next(part.glob("*.stats.npz"))) for part in parts]
    assert main(["merge", *files, "-o", str(tmp_path / "merged.stats.npz")]) == 0
    merged = ["--stats", str(tmp_path / "merged.stats.npz"), "-o", str(tmp_path / "merged")]
    assert main([*common, *merged]) == 0
    assert (tmp_path / "merged" / "net.int8.onnx").read_bytes() == (tmp_path / "all" / "net.int8.onnx").read_bytes()


@pytest.mark.parametrize("kind", BODIES)
def test_a_shard_without_a_file_is_refused(tmp_path, capsys, kind):
    model, data = tmp_path / "net.onnx", write_data(tmp_path / "data", kind)
    onnx.save(network(kind), model)
    command = ["calibrate", str(model), "--data", str(data), "-o", str(tmp_path / "out"), "-q"]
    assert main([*command, "--shard", f"{len(SIZES) + 1}/{len(SIZES) + 1}"]) == 4
    assert "holds no sample" in capsys.readouterr().err


def test_inputs_with_rows_of_their_own_are_one_sample(tmp_path):
    model, data, out = tmp_path / "net.onnx", tmp_path / "data", tmp_path / "out"
    net = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[images, 3, 16, 16] x, float[boxes, 4] r) => (float[boxes, 4] y) '
        "{ c = Conv <pads: ints = [1, 1, 1, 1]> (x, k) f = Relu (c) "
        "p = RoiAlign <output_height: int = 2, output_width: int = 2> (f, r, which) "
        "t = Flatten (p) y = MatMul (t, v) }"
    )
    batch = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[boxes, 4] r) => (int64[boxes] which) <int64[1] one = {1}, int64[1] zero = {0}>'
        "{ s = Shape (r) n = Gather (s, zero) which = Expand (zero, n) }"
    )
    net.graph.initializer.extend(batch.graph.initializer)
    nodes = [*batch.graph.node, *net.graph.node]
    del net.graph.node[:]
    net.graph.node.extend(nodes)
    onnx.save(weighted(net, k=normal(3, 27, 32).T.reshape(32, 3, 3, 3).copy(), v=normal(4, 128, 4)), model)
    data.mkdir()
    rng = np.random.default_rng(5)
    for number, count in enumerate((1, 4, 3, 5)):
        corner = rng.uniform(0, 8, (count, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(2, 8, (count, 2))], axis=1)
        np.savez(
            data / f"{number}.npz", x=rng.normal(0, 1, (1, 3, 16, 16)).astype(np.float32), r=boxes.astype(np.float32)
        )
    assert main(["calibrate", str(model), "--data", str(data), "-o", str(out), "--no-latency", "-q"]) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["samples"] == 4
    told = report["outputs"]["y"]["sqnr_db"]
    assert told == pytest.approx(sqnr_of_outputs(model, out / "net.int8.onnx", data), abs=0.05)


def test_inputs_of_one_axis_with_unlike_rows_are_refused(tmp_path, capsys):
    model, data = tmp_path / "net.onnx", tmp_path / "data"
    data.mkdir()
    net = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[N, 16] x, float[N, 16] z) => (float[N, 4] y) '
        "{ s = Add (x, z) y = MatMul (s, v) }"
    )
    onnx.save(weighted(net, v=normal(0, 16, 4)), model)
    np.savez(data / "0.npz", x=np.ones((3, 16), np.float32), z=np.ones((2, 16), np.float32))
    assert main(["calibrate", str(model), "--data", str(data), "-o", str(tmp_path / "out"), "-q"]) == 4
    assert 'samples: "x" 3, "z" 2' in capsys.readouterr().err


def test_a_function_yields_whole_samples(tmp_path, monkeypatch):
    model, data = tmp_path / "net.onnx", write_data(tmp_path / "data", "graph")
    onnx.save(network("graph"), model)
    (tmp_path / "graphs_of_a_function.py").write_text(
        f"import pathlib, numpy\n\ndef feeds():\n    for file in sorted(pathlib.Path({str(data)!r}).iterdir()):\n"
        "        yield dict(numpy.load(file))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    common = ["calibrate", str(model), "--no-latency", "-q"]
    assert main([*common, "--data", "graphs_of_a_function:feeds", "-o", str(tmp_path / "function")]) == 0
    assert main([*common, "--data", str(data), "-o", str(tmp_path / "files")]) == 0
    first, second = (tmp_path / name / "net.int8.onnx" for name in ("function", "files"))
    assert onnx.load(first).graph == onnx.load(second).graph


def test_labels_of_rows_are_told_before_the_work(tmp_path, capsys):
    model, data = tmp_path / "net.onnx", tmp_path / "data"
    data.mkdir()
    onnx.save(network("points"), model)
    for number in range(3):
        x = np.random.default_rng(number).normal(0, 1, (5, 16)).astype(np.float32)
        np.savez(data / f"{number}.npz", x=x, labels=np.arange(5) % 4)
    command = ["calibrate", str(model), "--data", str(data), "--no-latency", "--strict"]
    assert main([*command, "-o", str(tmp_path / "out")]) == 4
    assert "mixed-rows" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["points", "graph"])
def test_one_label_for_each_file_is_that_of_a_sample(tmp_path, kind):
    model, data, out = tmp_path / "net.onnx", write_data(tmp_path / "data", kind), tmp_path / "out"
    onnx.save(network(kind), model)
    for number, file in enumerate(sorted(data.iterdir())):
        np.savez(file, **dict(np.load(file)), labels=np.array([number % 4]))
    assert main(["calibrate", str(model), "--data", str(data), "-o", str(out), "--no-latency", "-q"]) == 0
    assert json.loads((out / "report.json").read_text())["samples"] == len(SIZES)


def test_one_label_for_several_samples_is_refused(tmp_path, capsys):
    model, data = tmp_path / "net.onnx", tmp_path / "data"
    data.mkdir()
    net = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[N, 16] x) => (float[N, 4] y) { y = MatMul (x, v) }'
    )
    onnx.save(weighted(net, v=normal(0, 16, 4)), model)
    np.savez(data / "0.npz", x=np.ones((3, 16), np.float32), labels=np.array([1]))
    assert main(["calibrate", str(model), "--data", str(data), "-o", str(tmp_path / "out"), "-q"]) == 4
    assert "expected (3,)" in capsys.readouterr().err


def test_labels_of_nodes_need_not_be_taken(tmp_path):
    model, data, out = tmp_path / "net.onnx", write_data(tmp_path / "data", "graph"), tmp_path / "out"
    onnx.save(network("graph"), model)
    for file in data.iterdir():
        feed = dict(np.load(file))
        np.savez(file, **feed, labels=np.zeros(len(feed["x"]), np.int64))
    command = ["calibrate", str(model), "--data", str(data), "-o", str(out), "--no-latency", "-q"]
    assert main(command) == 4
    assert main([*command, "--labels", "none"]) == 0
    assert json.loads((out / "report.json").read_text())["samples"] == len(SIZES)


def test_samples_of_one_batch_have_one_size(tmp_path, capsys):
    model, data = tmp_path / "net.onnx", tmp_path / "data"
    data.mkdir()
    net = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[4, t, 16] x) => (float[4, t, 4] y) { y = MatMul (x, v) }'
    )
    onnx.save(weighted(net, v=normal(0, 16, 4)), model)
    for number in range(6):
        np.savez(data / f"{number}.npz", x=np.ones((2, 3 + number, 16), np.float32))
    assert main(["calibrate", str(model), "--data", str(data), "-o", str(tmp_path / "out"), "-q"]) == 4
    error = capsys.readouterr().err
    assert "takes 4 samples at once" in error
    assert "npz" in error
