"""Weights of a large model lie in files while it is calibrated; nothing that is written tells."""

import zipfile
from contextlib import nullcontext

import numpy as np
import onnx
import pytest

import int8cal
from int8cal import calibrating, stored
from int8cal.calibrating import calibrate_job, count_shard
from int8cal.cli.main import main
from int8cal.config.load import job_from_options
from int8cal.config.starter import starter_yaml
from int8cal.describe import describe_file
from int8cal.graph import load
from int8cal.interop import Choices
from int8cal.interop.convert import export_table, import_table
from int8cal.report.screen import Screen
from int8cal.runtime import scratch

WIDTH = 16


def network(path, external):
    """A convolution and products whose channels differ, with a table that stays float, a MatMul and an If."""
    rng = np.random.default_rng(3)
    text = f"""<ir_version: 8, opset_import: ["" : 17]> net (float[N,{WIDTH},4,4] x) => (float[N,{WIDTH}] y) {{
        a = Conv(x, W) b = Relu(a) c = Conv(b, V) d = Add(c, T) e = GlobalAveragePool(d) f = Flatten(e)
        g = MatMul(f, M) h = Relu(g) i = Gemm<transB = 1>(h, G) k = ReduceSum<keepdims = 0>(x) l = Greater(k, zero)
        y = If(l) <then_branch = one () => (o) {{ p = MatMul(i, I) o = Tanh(p) }},
                   else_branch = two () => (o) {{ o = Sigmoid(i) }}>
    }}"""
    model = onnx.parser.parse_model(text)
    spread = np.exp2(rng.integers(-4, 4, WIDTH)).astype(np.float32)
    square = (WIDTH, WIDTH)
    shapes = {"W": (*square, 1, 1), "V": (*square, 3, 3), "T": (WIDTH, 2, 2), "M": square, "G": square, "I": square}
    for name, shape in shapes.items():
        value = rng.normal(size=shape).astype(np.float32)
        value = value * spread.reshape(-1, 1, 1, 1) if name == "W" else value
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "zero"))
    onnx.save(model, path, save_as_external_data=external, location="w.bin", size_threshold=0)
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["in the model's file", "in a file beside it"])
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    np.save(folder / "x.npy", np.random.default_rng(5).normal(size=(24, WIDTH, 4, 4)).astype(np.float32))
    return folder, network(folder / "net.onnx", request.param)


def written(case, name, **more):
    folder, model = case
    options = {"model": str(model), "data.path": str(folder / "x.npy"), "output.dir": str(folder / name)}
    job = job_from_options({**options, "evaluation.latency": False, "calibration.threads": 1, **more})
    calibrate_job(job)
    with zipfile.ZipFile(folder / name / "net.stats.npz") as archive:
        statistics = {each: archive.read(each) for each in archive.namelist()}
    return [(folder / name / each).read_bytes() for each in ("net.int8.onnx", "net.table.json")], statistics


@pytest.fixture
def names(monkeypatch, tmp_path):
    """Names of the tensors that are stored, now that every model counts as a large one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for module in (stored, load):
        monkeypatch.setattr(module, "LEAST", 64)
    for module in (load, scratch):
        monkeypatch.setattr(module, "MAPPED", 0)
    names, place = set(), stored.placed

    def noted(tensor, *where, **how):
        names.add(tensor.name)
        return place(tensor, *where, **how)

    for module in (stored, load):
        monkeypatch.setattr(module, "placed", noted)
    return names


@pytest.mark.parametrize("recipe", ["fast", "accurate"])
def test_all_files_have_the_bytes_that_they_have_without(case, recipe, names, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(calibrating, "weights_folder", nullcontext)
        expected = written(case, f"plain-{recipe}", **{"quantization.recipe": recipe})
    assert not names
    assert written(case, f"stored-{recipe}", **{"quantization.recipe": recipe}) == expected
    assert {"W", "V", "M", "G", "W_quantized", "V_quantized"} <= names
    assert [*tmp_path.iterdir()] == []


def test_a_shard_and_inspect_store_them_too(case, names, tmp_path):
    folder, model = case
    options = {"model": str(model), "data.path": str(folder / "x.npy"), "output.dir": str(folder / "shards")}
    job = job_from_options({**options, "calibration.shard": "1/2", "output.overwrite": True})
    for work in (lambda: describe_file(model, Screen()), lambda: count_shard(job)):
        names.clear()
        work()
        assert {"W", "V", "M"} <= names
        assert [*tmp_path.iterdir()] == []


def test_so_does_whatever_else_reads_a_model(case, names, tmp_path, monkeypatch):
    folder, model = case
    monkeypatch.chdir(folder)
    (folder / "job.yaml").write_text(f"model: {model.name}\ndata: x.npy\noutput: {{dir: dry}}\n")
    table = int8cal.calibrate(model, folder / "x.npy", threads=1)
    assert {"W", "V", "M"} <= names
    written(case, "for-tables", **{"output.overwrite": True})
    choices = Choices(model=model)
    for work in (
        lambda: starter_yaml(model, folder),
        lambda: main(["run", "job.yaml", "--dry-run"]),
        lambda: int8cal.quantize(model, table),
        lambda: int8cal.evaluate(model, model, folder / "x.npy", threads=1, latency=False),
        lambda: export_table(
            folder / "for-tables" / "net.table.json", "onnxruntime", folder / "ort.json", choices, overwrite=True
        ),
        lambda: import_table(folder / "ort.json", "onnxruntime", folder / "again.json", choices, overwrite=True),
    ):
        names.clear()
        work()
        assert {"W", "V", "M"} <= names
        assert [*tmp_path.iterdir()] == []


def test_a_model_of_the_api_holds_its_weights(case, names, monkeypatch):
    folder, model = case
    table = int8cal.calibrate(model, folder / "x.npy", threads=1)
    stored_ones = int8cal.quantize(model, table).SerializeToString()
    assert "W_quantized" in names
    with monkeypatch.context() as patch:
        patch.setattr("int8cal.api.weights_folder", nullcontext)
        names.clear()
        assert int8cal.quantize(model, table).SerializeToString() == stored_ones
    assert "W_quantized" not in names
