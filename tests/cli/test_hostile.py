"""Files that mean harm: names that are commands or markup, data outside of a model's folder, bombs, links in place of outputs."""

import html.parser
import io
import json
import os
import shutil
import struct
import xml.etree.ElementTree as ET
import zipfile
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper
from PIL import Image

SAMPLE = Path(__file__).parents[2] / "sample_data"
NAME = "\x1b]0;title\x07\x1b[31m<script>alert(1)</script><img src=x onerror=alert(1)>\n\r../../up|`x`\u202e]]>&amp;"
WEIGHT = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)


def network(name=""):
    """x (n, 8) -> y (n, 8); a name goes in front of that of every tensor and node."""
    nodes = [
        helper.make_node("MatMul", [f"{name}x", f"{name}W"], [f"{name}m"], f"{name}first"),
        helper.make_node("Relu", [f"{name}m"], [f"{name}r"], f"{name}relu"),
        helper.make_node("MatMul", [f"{name}r", f"{name}W"], [f"{name}t"], f"{name}second"),
        helper.make_node("Tanh", [f"{name}t"], [f"{name}y"], f"{name}tanh"),
    ]
    values = [helper.make_tensor_value_info(f"{name}{each}", TensorProto.FLOAT, [f"{name}n", 8]) for each in "xy"]
    graph = helper.make_graph(nodes, f"{name}g", values[:1], values[1:], [numpy_helper.from_array(WEIGHT, f"{name}W")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name, model.doc_string = name, name
    helper.set_model_props(model, {f"{name}key": f"{name}value"})
    return model


@pytest.fixture
def data(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32))
    return "x.npy"


def require_plain(text):
    """No control character but the end of a line, and no mark that turns the direction of writing."""
    assert [char for char in text if char != "\n" and not char.isprintable()] == []


class Tags(html.parser.HTMLParser):
    """What a page consists of: its elements, and attributes that would run something."""

    def __init__(self, page):
        super().__init__()
        self.names, self.handlers = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.handlers += [key for key, _ in attrs if key.startswith("on")]


def test_names_of_a_model_are_text_wherever_they_are_shown(call, tmp_path, data):
    for file, name in (("plain.onnx", ""), ("odd.onnx", NAME)):
        onnx.save(network(name), tmp_path / file)
        done = call("calibrate", file, "--data", data, "-o", file[:-5], "--no-latency", "--junit", f"{file}.xml")
        assert done.code == 0, done.err
        require_plain(done.out + done.err)
    out = tmp_path / "odd"
    page, sound = (Tags((tmp_path / each / "report.html").read_text()) for each in ("odd", "plain"))
    assert page.names.count("script") == sound.names.count("script")
    assert "img" not in page.names
    assert page.handlers == []
    markdown = (out / "report.md").read_text()
    assert "<script" not in markdown
    assert "<img" not in markdown
    require_plain(markdown)
    assert list(ET.parse(tmp_path / "odd.onnx.xml").getroot().iter("testcase"))
    assert any(NAME in layer["tensor"] for layer in json.loads((out / "report.json").read_text())["layers"])
    for file in (
        "odd.onnx",
        *(out / each for each in ("odd.int8.onnx", "odd.table.json", "odd.stats.npz", "report.json")),
    ):
        done = call("inspect", file)
        assert done.code == 0, done.err
        require_plain(done.out + done.err)
    for command in (
        ("audit", out / "odd.int8.onnx"),
        ("compare", tmp_path / "plain" / "report.json", out / "report.json"),
        ("evaluate", "odd.onnx", out / "odd.int8.onnx", "--data", data, "--no-latency"),
        ("quantize", "odd.onnx", "--table", out / "odd.table.json", "-o", "again.onnx"),
        ("init", "odd.onnx"),
        *(("table", out / "odd.table.json", "--to", form, "-o", f"t.{form}.cache") for form in ("tensorrt", "ncnn")),
        ("table", out / "odd.table.json", "--to", "onnxruntime", "-o", "t.json"),
        ("table", out / "odd.table.json", "--to", "openvino", "-o", "t.openvino"),
    ):
        done = call(*command)
        assert done.code in {0, 6, 7}, done.err
        require_plain(done.out + done.err)
    assert sorted(path.name for path in tmp_path.parent.iterdir() if path.name == "up") == []


def test_names_of_files_and_classes_are_text(call, tmp_path):
    folders = [f"{number}{NAME.replace('/', '_')[:80]}" for number in range(2)]
    for place, folder in enumerate(folders):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(np.full((32, 32, 3), 60 * place + number, np.uint8)).save(
                tmp_path / "photos" / folder / f"{number}\x1b[31m.png"
            )
    (tmp_path / "photos" / folders[0] / "\x1b[2Jbroken\n.png").write_bytes(b"no image")
    done = call("calibrate", SAMPLE / "model.onnx", "--data", "photos", "-o", "out", "--no-latency")
    assert done.code == 4
    assert "it is not a JPEG" in done.message
    require_plain(done.err)


def outside(tmp_path, location):
    """A model in tmp_path/model whose weights are said to be elsewhere; they are in tmp_path/secret.bin."""
    folder = tmp_path / "model"
    folder.mkdir()
    model = network()
    external_data_helper.convert_model_to_external_data(model, location="secret.bin", size_threshold=0)
    onnx.save(model, folder / "m.onnx")
    (folder / "secret.bin").rename(tmp_path / "secret.bin")
    stored = onnx.load(folder / "m.onnx", load_external_data=False)
    for entry in stored.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    (folder / "m.onnx").write_bytes(stored.SerializeToString())
    return folder


@pytest.mark.parametrize(
    "where", ["up", "through nothing", "absolute", "link", "linked folder", "device", "pipe", "itself"]
)
def test_external_data_is_read_from_the_models_folder_alone(call, tmp_path, data, where):
    locations = {
        "up": "../secret.bin",
        "through nothing": "nothing/../secret.bin",
        "absolute": str(tmp_path / "secret.bin"),
        "link": "link.bin",
        "linked folder": "linked/secret.bin",
        "device": "/dev/zero",
        "pipe": "pipe",
        "itself": ".",
    }
    folder = outside(tmp_path, locations[where])
    if where == "through nothing":
        shutil.copy(tmp_path / "secret.bin", folder)
    if where == "link":
        (folder / "link.bin").symlink_to("../secret.bin")
    if where == "linked folder":
        (folder / "linked").symlink_to("..")
    if where == "pipe":
        os.mkfifo(folder / "pipe")
    (tmp_path / "job.yaml").write_text(f"model: model/m.onnx\ndata: {{path: {data}}}\nevaluation: {{latency: false}}\n")
    for command in (
        ("calibrate", "model/m.onnx", "--data", data, "-o", "out"),
        ("inspect", "model/m.onnx"),
        ("audit", "model/m.onnx"),
        ("init", "model/m.onnx"),
        ("evaluate", "model/m.onnx", "model/m.onnx", "--data", data),
        ("run", "job.yaml"),
    ):
        done = call(*command)
        assert done.code == 3, (command, done.err)
        assert (
            "is no file in the model's folder; put the data file itself, not a link to it, beside the model" in done.err
        )


def nested(depth):
    """A model whose graphs lie in each other: If nodes by bytes, since no library writes them."""

    def field(number, content):
        size, length = bytearray(), len(content)
        while length > 127:
            size.append(length & 127 | 128)
            length >>= 7
        return bytes([number << 3 | 2]) + bytes(size) + bytes([length]) + content

    graph = field(2, b"g")
    for _ in range(depth):
        attribute = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(4, b"If") + field(5, attribute)) + field(2, b"g")
    return b"\x08\x08" + field(7, graph)


@pytest.mark.parametrize("depth", [20, 500])
def test_graphs_in_graphs_come_to_an_end(call, tmp_path, data, depth):
    (tmp_path / "m.onnx").write_bytes(nested(depth))
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out")
    assert done.code == 3
    assert done.message


def test_aliases_that_multiply_are_refused(call, tmp_path):
    onnx.save(network(), tmp_path / "m.onnx")
    text = "&b0 [x,x,x,x,x,x,x,x,x,x]"
    for level in range(1, 11):
        text = f"&b{level} [{text},{','.join([f'*b{level - 1}'] * 9)}]"
    (tmp_path / "job.yaml").write_text(
        f"model: m.onnx\ndata: {{path: x.npy}}\nmatrix: {{calibration.method: {text}}}\n"
    )
    done = call("run", "job.yaml")
    assert done.code == 2
    assert "job.yaml:3:" in done.message
    assert "its aliases (*) stand for more than 1,000,000 values; write fewer" in done.message


def header(shape, dtype="<f4"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def png_of(width, height):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("x.npy", header((1 << 40, 8))),
        ("x.npy", header((1 << 62, 8))),
        ("x.npy", header((1 << 40, 0)) + b"\0"),
        ("x.npy", header((2, 8), "|O") + b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR."),
        (
            "input_0.pb",
            onnx.TensorProto(name="x", data_type=1, dims=[1 << 50, 8], raw_data=b"1234").SerializeToString(),
        ),
        ("x.png", png_of(60000, 60000)),
    ],
    ids=["a terabyte", "more than there is", "samples without values", "a pickle", "a tensor", "an image"],
)
def test_data_that_claims_what_it_is_not_is_refused(call, tmp_path, file, content):
    onnx.save(network(), tmp_path / "m.onnx")
    folder = tmp_path / ("data/test_data_set_0" if file.endswith(".pb") else "data")
    folder.mkdir(parents=True)
    (folder / file).write_bytes(content)
    model = SAMPLE / "model.onnx" if file.endswith(".png") else "m.onnx"
    done = call("calibrate", model, "--data", "data", "-o", "out")
    assert done.code == 4
    assert file in done.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "m.onnx"]


def test_an_archive_that_grows_a_thousandfold_is_no_statistics(call, tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "a.stats.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("header.npy", "w") as file,
    ):
        file.write(header((1 << 24,), "<i8"))
        for _ in range(128):
            file.write(bytes(1 << 20))
    for command in (("inspect", "a.stats.npz"), ("merge", "a.stats.npz", "a.stats.npz", "-o", "b.stats.npz")):
        done = call(*command)
        assert done.code == 5
        assert "is not a readable statistics file" in done.message


def test_a_report_leads_to_no_file_by_the_name_of_its_model(call, tmp_path, sample_run):
    report = json.loads((sample_run / "report.json").read_text())
    for name in ("../../x.int8.onnx", "/etc/passwd.int8.onnx", ".int8.onnx"):
        report["model"]["int8"] = name
        (tmp_path / "report.json").write_text(json.dumps(report))
        assert call("inspect", "report.json").code == 0


@pytest.mark.parametrize("settings", [[1], "x", None, 5])
def test_a_table_beside_a_model_is_asked_for_preprocessing_whatever_it_holds(call, tmp_path, sample_run, settings):
    table = json.loads((sample_run / "model.table.json").read_text())
    table["settings"] = settings
    (tmp_path / "model.table.json").write_text(json.dumps(table))
    shutil.copy(sample_run / "model.int8.onnx", tmp_path)
    done = call("evaluate", SAMPLE / "model.onnx", "model.int8.onnx", "--data", SAMPLE / "calib" / "0", "--no-latency")
    assert done.code == 0, done.err


def test_links_in_an_output_directory_are_replaced_and_never_written_through(call, tmp_path, data):
    onnx.save(network(), tmp_path / "m.onnx")
    (tmp_path / "precious").write_bytes(b"keep me")
    (tmp_path / "out").mkdir()
    for name in ("m.int8.onnx", "m.table.json", "m.stats.npz", "report.json", "report.md", "report.html"):
        (tmp_path / "out" / name).symlink_to("../precious")
    done = call("calibrate", "m.onnx", "--data", data, "-o", "out", "--overwrite", "--no-latency")
    assert done.code == 0, done.err
    assert (tmp_path / "precious").read_bytes() == b"keep me"
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())


def test_a_link_to_an_input_is_no_output(call, tmp_path, sample_run):
    shutil.copy(sample_run / "model.table.json", tmp_path / "t.json")
    before = (tmp_path / "t.json").read_bytes()
    (tmp_path / "q.onnx").symlink_to("t.json")
    done = call("quantize", SAMPLE / "model.onnx", "--table", "t.json", "-o", "q.onnx", "--overwrite")
    assert done.code == 2
    assert "is also an input" in done.message
    assert (tmp_path / "t.json").read_bytes() == before


@pytest.mark.parametrize("name", ["../up", "/up", "..", "a/../../up", NAME])
def test_the_name_of_a_job_makes_no_directory_elsewhere(call, tmp_path, data, name):
    (tmp_path / "batch").mkdir()
    onnx.save(network(), tmp_path / "batch" / "m.onnx")
    shutil.copy(tmp_path / data, tmp_path / "batch")
    job = {"model": "m.onnx", "name": name, "data": {"path": data}, "evaluation": {"latency": False}}
    (tmp_path / "batch" / "job.yaml").write_text(json.dumps(job))
    done = call("run", "batch/job.yaml")
    require_plain(done.out + done.err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch", data]
    assert done.code == 2, done.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("calibrate", os.devnull, "--data", "x.npy"), 3),
        (("init", os.devnull, "-o", "-"), 3),
        (("evaluate", "m.onnx", os.devnull, "--data", "x.npy"), 3),
        (("calibrate", "m.onnx", "--data", "x.npy", "--labels", os.devnull), 4),
        (("calibrate", "--config", os.devnull), 2),
        (("run", os.devnull), 2),
        (("table", os.devnull, "--from", "ncnn", "-o", "t.table.json"), 6),
    ],
)
def test_a_pipe_or_device_is_no_file_to_read_which_might_never_end(call, tmp_path, data, arguments, code):
    onnx.save(network(), tmp_path / "m.onnx")
    done = call(*arguments)
    assert (done.code, "is not a regular file" in done.message) == (code, True)
