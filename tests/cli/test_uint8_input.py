"""`--uint8-input`, as users run it: images, a YAML, the commands that follow."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from PIL import Image

from int8cal.cli.main import main
from int8cal.search.goals import latency

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,3,16,16] image) => (float[N,4] y) {
    c = Conv <pads = [1, 1, 1, 1]> (image, W)
    r = Relu (c)
    p = GlobalAveragePool (r)
    f = Flatten (p)
    y = Gemm (f, G)
}"""
PREPROCESS = "{resize: [16, 16], scale: 0.00392156862745098, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, photos and a YAML."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(4)
    model = onnx.parser.parse_model(NET)
    for name, shape in (("W", (8, 3, 3, 3)), ("G", (8, 4))):
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    onnx.save(model, folder / "net.onnx")
    (folder / "photos").mkdir()
    for index in range(6):
        smooth = Image.fromarray(rng.integers(0, 256, (4, 5, 3)).astype(np.uint8)).resize((20, 18))
        smooth.save(folder / "photos" / f"{index}.png")
    (folder / "job.yaml").write_text(
        f"model: net.onnx\ndata: {{path: photos, preprocess: {PREPROCESS}}}\noutput: {{dir: out}}\n"
    )
    return folder


def calibrate(call, *arguments):
    return call("calibrate", "--config", "job.yaml", "--quiet", "--no-latency", *arguments)


@pytest.fixture(scope="module")
def results(shared, made, tmp_path_factory):
    """A run on raw pixels, once for all tests that need its files."""
    folder = tmp_path_factory.mktemp("pixels")
    shutil.copytree(made, folder, dirs_exist_ok=True)
    assert calibrate(lambda *each: shared(folder, *each), "--uint8-input").code == 0
    return folder


@pytest.fixture
def here(made, tmp_path):
    """The same files in the working directory of `call`."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def calibrated(results, here):
    """The same with the results."""
    shutil.copytree(results / "out", here / "out")
    return here


def test_what_reads_pixels_stays_int8_where_float_is_measured_to_be_faster(here, monkeypatch):
    def timed(sessions, feeds, *, enough=None, **_):
        return [(90.0, 100.0)] * 8 if enough is not None else [(60.0, 80.0)] * 6

    monkeypatch.setattr(latency, "measure_interleaved", timed)
    monkeypatch.chdir(here)
    options = ("--quiet", "--no-latency", "--uint8-input", "--optimize", "latency")
    assert main(["calibrate", "--config", "job.yaml", *options]) == 0
    report = json.loads(Path("out/report.json").read_text(encoding="utf-8"))
    assert report["optimize"]["left"] == {}
    assert report["optimize"]["int8_us"] == 80.0
    assert any("80.0 µs against 60.0 µs" in line for line in report["warnings"])
    session = onnxruntime.InferenceSession("out/net.int8.onnx")
    assert session.get_inputs()[0].type == "tensor(uint8)"


def test_pillow_s_pixels_go_straight_into_the_model(calibrated):
    session = onnxruntime.InferenceSession(calibrated / "out" / "net.int8.onnx")
    float_session = onnxruntime.InferenceSession(calibrated / "net.onnx")
    assert session.get_inputs()[0].type == "tensor(uint8)"
    for path in sorted((calibrated / "photos").iterdir()):
        pixels = np.asarray(Image.open(path).resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)[None]
        got = session.run(None, {"image": pixels})[0]
        x = (pixels / np.float32(255) - np.float32([0.485, 0.456, 0.406]).reshape(3, 1, 1)) / np.float32(
            [0.229, 0.224, 0.225]
        ).reshape(3, 1, 1)
        expected = float_session.run(None, {"image": x.astype(np.float32)})[0]
        assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_the_report_is_about_the_same_images_and_says_what_was_done(calibrated):
    report = json.loads((calibrated / "out" / "report.json").read_text())
    assert report["metrics"]["sqnr_db"] > 25
    assert report["settings"]["uint8_input"] is True
    assert any(
        line.startswith("raw pixels at image: scale, mean and std folded into Conv_c") for line in report["decisions"]
    )
    table = json.loads((calibrated / "out" / "net.table.json").read_text())
    assert table["tensors"]["image"]["dtype"] == "uint8"
    assert table["corrections"]["uint8_input"]["input"] == "image"


def test_quantize_writes_the_same_bytes_from_the_table(call, calibrated):
    assert call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx").code == 0
    assert (calibrated / "again.onnx").read_bytes() == (calibrated / "out" / "net.int8.onnx").read_bytes()


def test_evaluate_feeds_each_model_what_it_takes(call, calibrated):
    done = call("evaluate", "net.onnx", "out/net.int8.onnx", "--config", "job.yaml", "--json", "--no-latency")
    assert done.code == 0, done.err
    report = json.loads((calibrated / "out" / "report.json").read_text())
    assert json.loads(done.out)["metrics"] == report["metrics"]


@pytest.mark.slow
def test_evaluate_measures_its_latency(call, calibrated):
    done = call("evaluate", "net.onnx", "out/net.int8.onnx", "--config", "job.yaml", "--json")
    assert json.loads(done.out)["latency_ms"]["int8"] > 0


def test_the_yaml_says_it_too(call, here):
    with (here / "job.yaml").open("a") as file:
        file.write("quantization: {uint8_input: true}\nevaluation: {latency: false}\n")
    assert call("run", "job.yaml", "--quiet").code == 0
    (value,) = onnx.load(here / "out" / "net.int8.onnx").graph.input
    assert value.type.tensor_type.elem_type == onnx.TensorProto.UINT8


def test_a_convolution_in_front_of_a_swish_takes_pixels(call, here):
    """Without raw pixels it stays float."""
    model = onnx.load(here / "net.onnx")
    (position,) = (at for at, node in enumerate(model.graph.node) if node.op_type == "Relu")
    del model.graph.node[position]
    model.graph.node.insert(position, onnx.helper.make_node("Mul", ["c", "s"], ["r"]))
    model.graph.node.insert(position, onnx.helper.make_node("Sigmoid", ["c"], ["s"]))
    onnx.save(model, here / "net.onnx")
    assert calibrate(call, "-o", "float").code == 0
    assert "beside floats" in call("inspect", "net.onnx").out
    assert calibrate(call, "--uint8-input").code == 0
    assert json.loads((here / "out" / "report.json").read_text())["metrics"]["sqnr_db"] > 25
    assert call("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx").code == 0
    assert (here / "again.onnx").read_bytes() == (here / "out" / "net.int8.onnx").read_bytes()
    (value,) = onnx.load(here / "again.onnx").graph.input
    assert value.type.tensor_type.elem_type == onnx.TensorProto.UINT8


def test_statistics_are_those_of_the_float_model(call, calibrated):
    assert calibrate(call, "-o", "float").code == 0
    assert (calibrated / "out" / "net.stats.npz").read_bytes() == (calibrated / "float" / "net.stats.npz").read_bytes()


def test_inspect_shows_it(call, calibrated):
    assert "uint8_input: raw pixels at image" in call("inspect", "out/net.table.json").out


def test_arrays_of_preprocessed_pixels_are_refused_by_name(call, here):
    np.save(here / "ready.npy", np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32))
    done = call("calibrate", "net.onnx", "--data", "ready.npy", "--uint8-input", "-o", "out", "--quiet")
    assert done.code == 4
    assert "ready.npy[0]: input 'image' holds" in done.message
    assert "data.preprocess" in done.message
    assert not (here / "out").exists()


def test_arrays_of_pixels_as_they_are_need_no_declaration(call, here):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16))
    np.save(here / "pixels.npy", pixels.astype(np.float32))
    options = ("--uint8-input", "-o", "out", "--quiet", "--no-latency")
    done = call("calibrate", "net.onnx", "--data", "pixels.npy", *options)
    assert done.code == 0, done.err
    assert json.loads((here / "out" / "report.json").read_text())["metrics"]["sqnr_db"] > 25


def test_signed_activations_are_refused(call, here):
    done = calibrate(call, "--uint8-input", "--activations", "s8")
    assert done.code == 2
    assert "uint8_input needs activations u8" in done.message


def test_an_excluded_first_layer_is_refused(call, here):
    done = calibrate(call, "--uint8-input", "--exclude", "Conv_c")
    assert done.code == 3
    assert "Conv 'Conv_c' reads the input 'image' (excluded by the user)" in done.message


def test_from_python_preprocess_says_how_feeds_were_made(here):
    import int8cal

    rng = np.random.default_rng(0)
    feeds = [{"image": ((rng.integers(0, 256, (3, 16, 16)) - 127) / 128).astype(np.float32)} for _ in range(4)]
    table = int8cal.calibrate(here / "net.onnx", feeds, uint8_input=True, preprocess={"mean": [127.0], "std": [128.0]})
    assert table.tensors["image"].zero_point == 127
    model = int8cal.quantize(here / "net.onnx", table)
    report = int8cal.evaluate(here / "net.onnx", model, feeds, latency=False)
    assert report.origin is not None
    assert report.origin.command == "int8cal.evaluate(...)"
    assert report.evaluation.metrics.sqnr_db > 25
