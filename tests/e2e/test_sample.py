"""The shipped sample through the command line, as a user runs it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

SAMPLE = Path(__file__).parents[2] / "sample_data"
INT8CAL = [sys.executable, "-m", "int8cal"]
FEW_JUDGED = ("--eval-data", SAMPLE / "eval" / "0")  # where the statistics are the subject


def run(*arguments, cwd, code=0):
    done = subprocess.run([*INT8CAL, *map(str, arguments)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == code, done.stderr + done.stdout
    return done


def calibrate(folder, *more, data=SAMPLE / "calib", code=0):
    """Calibrate the sample into folder/out."""
    options = ["--data", data, "-o", folder / "out", "--no-latency", "--quiet", *more]
    return run("calibrate", SAMPLE / "model.onnx", *options, cwd=folder, code=code)


def arrays(path):
    with np.load(path) as data:
        return {key: data[key] for key in data.files}


def same(first, second):
    a, b = arrays(first), arrays(second)
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated")
    calibrate(folder, "--eval-data", SAMPLE / "eval")
    return folder / "out"


def test_the_sample_is_right_and_is_not_told_anything(calibrated):
    assert json.loads((calibrated / "report.json").read_text())["warnings"] == []


@pytest.fixture(scope="module")
def npz_images(tmp_path_factory):
    """Give the calibration images as float arrays (200, 1, 32, 32)."""
    from PIL import Image

    files = sorted((SAMPLE / "calib").rglob("*.png"))
    return np.stack([np.asarray(Image.open(file), np.float32)[None] for file in files])


def write_batches(folder, images, size):
    folder.mkdir(parents=True)
    for start in range(0, len(images), size):
        np.savez(folder / f"{start:05d}.npz", image=images[start : start + size])
    return folder


def test_fewer_samples_than_asked_for_are_told(tmp_path):
    calibrate(tmp_path, "--samples", "21", data=SAMPLE / "calib" / "0")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert f"{SAMPLE / 'calib' / '0'} gave 20 samples, 21 were asked for" in report["warnings"]


def test_all_files_of_the_contract_are_written(calibrated):
    names = {path.name for path in calibrated.iterdir()}
    assert names == {
        "model.int8.onnx",
        "model.table.json",
        "model.stats.npz",
        "report.json",
        "report.md",
        "report.html",
    }


def test_top1_stays_within_one_point(calibrated):
    top1 = json.loads((calibrated / "report.json").read_text())["metrics"]["top1"]
    assert top1["fp32"] >= 0.97
    assert abs(top1["drop"]) <= 1.0
    assert top1["drop_ci95"][0] <= top1["drop"] <= top1["drop_ci95"][1]


def test_every_layer_but_the_first_runs_on_integers(calibrated):
    fusion = json.loads((calibrated / "report.json").read_text())["fusion"]
    assert [node["op_type"] for node in fusion["nodes"]] == [
        "Mul",  # the 1/255
        "Conv",  # of an image of one channel, whose float kernel is faster
    ]
    assert fusion["integer"] >= 13


def test_the_model_passes_the_checker_and_keeps_its_interface(calibrated):
    model = onnx.load(calibrated / "model.int8.onnx")
    onnx.checker.check_model(model, full_check=True)
    original = onnx.load(SAMPLE / "model.onnx")
    assert list(model.graph.input) == list(original.graph.input)
    assert list(model.graph.output) == list(original.graph.output)
    assert model.opset_import == original.opset_import
    names = {node.name for node in model.graph.node}
    assert {node.name for node in original.graph.node if node.op_type in ("Conv", "Gemm", "Clip")} <= names


def test_the_report_counts_what_the_model_does(calibrated):
    from PIL import Image

    session = onnxruntime.InferenceSession(calibrated / "model.int8.onnx", providers=["CPUExecutionProvider"])
    files = sorted((SAMPLE / "eval").rglob("*.png"))
    hits = 0
    for file in files:
        image = np.asarray(Image.open(file), np.float32)[None, None]
        hits += int(session.run(None, {"image": image})[0].argmax()) == int(file.parent.name)
    top1 = json.loads((calibrated / "report.json").read_text())["metrics"]["top1"]
    assert top1["int8"] == pytest.approx(hits / len(files))


def test_a_second_run_writes_the_same_bytes(calibrated, tmp_path):
    calibrate(tmp_path, "--eval-data", SAMPLE / "eval")
    for name in ("model.int8.onnx", "model.table.json", "model.stats.npz"):
        assert (tmp_path / "out" / name).read_bytes() == (calibrated / name).read_bytes(), name


def test_quantize_writes_the_bytes_that_calibrate_wrote(calibrated, tmp_path):
    run("quantize", SAMPLE / "model.onnx", "--table", calibrated / "model.table.json", "-o", "q.onnx", cwd=tmp_path)
    assert (tmp_path / "q.onnx").read_bytes() == (calibrated / "model.int8.onnx").read_bytes()


def test_an_edited_table_changes_the_model(calibrated, tmp_path):
    table = json.loads((calibrated / "model.table.json").read_text())
    name = "/stem/Clip_output"
    table["tensors"][name]["high"] = 3.0
    (tmp_path / "t.json").write_text(json.dumps(table))
    run("quantize", SAMPLE / "model.onnx", "--table", "t.json", "-o", "q.onnx", cwd=tmp_path)
    model = onnx.load(tmp_path / "q.onnx")
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == f"{name}_scale")
    assert onnx.numpy_helper.to_array(scale) == np.float32(3.0 / 255)


@pytest.fixture(scope="module")
def counted(npz_images, tmp_path_factory):
    """The statistics of all arrays at once."""
    folder = tmp_path_factory.mktemp("whole")
    calibrate(folder, *FEW_JUDGED, data=write_batches(folder / "data", npz_images, len(npz_images)))
    return folder / "out" / "model.stats.npz"


def test_arrays_are_counted_as_the_images_that_they_were_made_of(calibrated, counted):
    with np.load(calibrated / "model.stats.npz") as images, np.load(counted) as arrays:
        assert images.files == arrays.files
        assert all(np.array_equal(images[name], arrays[name]) for name in images.files if name != "header")
        headers = [json.loads(each["header"].tobytes()) for each in (images, arrays)]
    assert headers[0].pop("preprocess")  # of arrays nothing is known
    assert headers[0] == headers[1]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_statistics_do_not_depend_on_how_the_data_is_cut(counted, npz_images, tmp_path, size):
    order = np.random.default_rng(size).permutation(len(npz_images))
    data = write_batches(tmp_path / "data", npz_images[order], size)
    calibrate(tmp_path, "--batch-size", size, *FEW_JUDGED, data=data)
    assert same(tmp_path / "out" / "model.stats.npz", counted)


@pytest.mark.slow
def test_merged_halves_are_one_run_over_all(counted, npz_images, tmp_path):
    for name, part in (("a", npz_images[:90]), ("b", npz_images[90:])):
        (tmp_path / name).mkdir()
        calibrate(tmp_path / name, *FEW_JUDGED, data=write_batches(tmp_path / name / "data", part, 32))
    halves = [tmp_path / name / "out" / "model.stats.npz" for name in ("b", "a")]
    merged = run("merge", *halves, "-o", "both.stats.npz", cwd=tmp_path)
    assert merged.stderr == ""
    twice = run("merge", halves[0], halves[0], "-o", "twice.stats.npz", cwd=tmp_path)
    assert "holds the same samples" in twice.stderr
    assert (tmp_path / "both.stats.npz").read_bytes() == counted.read_bytes()


def test_the_shipped_yaml_runs_and_its_gate_holds(tmp_path):
    import shutil

    shutil.copytree(SAMPLE, tmp_path / "sample_data")
    run("run", "sample_data/sample.yaml", cwd=tmp_path)
    report = json.loads((tmp_path / "digits-int8" / "report.json").read_text())
    assert [gate["passed"] for gate in report["gates"]] == [True, True]


def test_evaluate_gives_the_figures_that_calibrate_gave(calibrated, tmp_path):
    done = run(
        "evaluate",
        SAMPLE / "model.onnx",
        calibrated / "model.int8.onnx",
        "--data",
        SAMPLE / "eval",
        "--no-latency",
        "--json",
        cwd=tmp_path,
    )
    assert json.loads(done.stdout)["metrics"] == json.loads((calibrated / "report.json").read_text())["metrics"]


def test_nothing_appears_beside_the_input_model(tmp_path):
    import shutil

    (tmp_path / "in").mkdir()
    shutil.copy(SAMPLE / "model.onnx", tmp_path / "in")
    run(
        *("calibrate", "in/model.onnx", "--data", SAMPLE / "calib", "--samples", 5, "-o", "out", "--no-latency"),
        cwd=tmp_path,
    )
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["model.onnx"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize("after", [0.5, 1.5])
def test_an_interrupt_leaves_whole_files_or_none(tmp_path, after):
    command = [*INT8CAL, "calibrate", SAMPLE / "model.onnx", "--data", SAMPLE / "calib", "-o", tmp_path / "out"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (130, 0, -signal.SIGINT)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in left if path.name.startswith(".")]
    for path in left:
        if path.suffix == ".onnx":
            onnx.checker.check_model(onnx.load(path))
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".npz":
            arrays(path)
