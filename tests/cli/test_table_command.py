"""`int8cal table`."""

import json
import shutil

import pytest

FORMATS = {
    "tensorrt": "calibration.cache",
    "onnxruntime": "calibration.json",
    "openvino": "fakequantize.json",
    "ncnn": "model.table",
}


def lost(done):
    """The lines of stderr, all of which must say what is lost."""
    lines = done.err.splitlines()
    assert all(line.startswith("int8cal: lost: ") for line in lines)
    return [line.removeprefix("int8cal: lost: ") for line in lines]


@pytest.fixture(scope="module")
def table(sample_run):
    return sample_run / "model.table.json"


@pytest.mark.parametrize("form", ["tensorrt", "onnxruntime", "openvino"])
def test_a_table_goes_there_and_back_and_quantizes(call, sample, table, tmp_path, form):
    name = FORMATS[form]
    done = call("table", table, "--to", form, "-o", name)
    assert (done.code, done.out) == (0, f"wrote {name}\n")
    assert lost(done)
    back = call("table", name, "--from", form, "--model", sample / "model.onnx", "-o", "back.table.json")
    assert (back.code, back.out) == (0, "wrote back.table.json\n")
    before, after = (json.loads(path.read_text()) for path in (table, tmp_path / "back.table.json"))
    assert after["tensors"].keys() == before["tensors"].keys()
    assert after["warnings"] == lost(back)
    done = call("quantize", sample / "model.onnx", "--table", "back.table.json", "-o", "q.onnx")
    assert (done.code, done.err) == (0, "")


@pytest.mark.slow
def test_the_quantized_round_trip_is_a_good_model(call, sample, table):
    call("table", table, "--to", "tensorrt", "-o", "t.cache")
    call("table", "t.cache", "--from", "tensorrt", "--model", sample / "model.onnx", "-o", "t.table.json")
    call("quantize", sample / "model.onnx", "--table", "t.table.json", "-o", "q.onnx")
    evaluated = ("--data", sample / "eval", "--no-latency", "--json")
    report = json.loads(call("evaluate", sample / "model.onnx", "q.onnx", *evaluated).out)
    assert report["metrics"]["sqnr_db"] > 28


@pytest.mark.slow
def test_ncnn_with_the_names_of_pnnx_and_back(call, sample, table, tmp_path):
    param = sample.parent / "tests" / "golden" / "sample.ncnn.param"
    named = ("--model", sample / "model.onnx", "--param", param)
    done = call("table", table, "--to", "ncnn", *named, "-o", "n.table")
    assert done.code == 0
    lines = (tmp_path / "n.table").read_text().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("linear")] == ["linear_8_param_0", "linear_8"]
    assert len(lines) == 16
    # ncnn has no ranges of tensors that no layer reads
    done = call("table", "n.table", "--from", "ncnn", *named, "-o", "back.table.json")
    assert done.code == 6
    assert "--missing float" in done.message
    done = call("table", "n.table", "--from", "ncnn", *named, "--missing", "float", "-o", "back.table.json")
    assert done.code == 0
    assert any("stay in float" in line for line in lost(done))
    assert call("quantize", sample / "model.onnx", "--table", "back.table.json", "-o", "q.onnx").code == 0


def test_ncnn_without_a_model_says_what_it_cannot_know(here, table, tmp_path):
    done = here("table", table, "--to", "ncnn", "-o", "n.table")
    assert done.code == 0
    assert "without --model" in lost(done)[0]
    assert (tmp_path / "n.table").read_text().startswith("/block1/conv/Conv_param_0 ")
    done = here("table", "n.table", "--from", "ncnn", "-o", "back.table.json")
    assert (done.code, "--model" in done.message) == (2, True)


@pytest.mark.parametrize("suffix", ["json", "flatbuffers", "cache"])
def test_the_suffix_says_which_form_of_onnxruntime(here, table, tmp_path, suffix):
    assert here("table", table, "--to", "onnxruntime", "-o", f"c.{suffix}").code == 0
    content = (tmp_path / f"c.{suffix}").read_bytes()
    assert {"json": content[:1] == b"{", "flatbuffers": b"\0" in content, "cache": content[:1] == b"/"}[suffix]
    assert here("table", f"c.{suffix}", "--from", "onnxruntime", "-o", "b.table.json").code == 0


def test_another_suffix_is_refused(here, table):
    done = here("table", table, "--to", "onnxruntime", "-o", "c.txt")
    assert (done.code, ".flatbuffers" in done.message) == (2, True)


def test_the_same_table_gives_the_same_bytes(here, table, tmp_path):
    for name in "ab":
        here("table", table, "--to", "onnxruntime", "-o", f"{name}.flatbuffers")
        here("table", table, "--to", "openvino", "-o", f"{name}.json")
    for suffix in ("flatbuffers", "json"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


@pytest.mark.slow
def test_a_model_for_openvino(call, sample, table, tmp_path):
    pytest.importorskip("openvino", reason="the extra openvino: pip install '.[openvino]'")
    for name in "ab":
        done = call("table", table, "--to", "openvino", "--model", sample / "model.onnx", "-o", f"{name}.xml")
        assert (done.code, done.out) == (0, f"wrote {name}.xml\n")
    assert (tmp_path / "a.xml").read_bytes() == (tmp_path / "b.xml").read_bytes()
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()
    done = call("table", "a.xml", "--from", "openvino", "--model", sample / "model.onnx", "-o", "back.table.json")
    assert done.code == 0
    before, after = (json.loads(path.read_text())["tensors"] for path in (table, tmp_path / "back.table.json"))
    assert {name: entry["zero_point"] for name, entry in after.items()} == {
        name: entry["zero_point"] for name, entry in before.items()
    }
    done = call("table", table, "--to", "openvino", "-o", "c.xml")
    assert (done.code, "--model" in done.message) == (2, True)


def test_the_header_of_a_cache(here, table, tmp_path):
    header = "TRT-100300-MinMaxCalibration"
    assert here("table", table, "--to", "tensorrt", "--header", header, "-o", "t.cache").code == 0
    assert (tmp_path / "t.cache").read_text().startswith(f"{header}\n/stem/Clip_output: ")
    assert here("table", table, "--to", "tensorrt", "--header", "8601", "-o", "u.cache").code == 2


def test_an_existing_file_is_refused_without_overwrite(here, table, tmp_path):
    (tmp_path / "t.cache").write_text("mine")
    done = here("table", table, "--to", "tensorrt", "-o", "t.cache")
    assert (done.code, (tmp_path / "t.cache").read_text()) == (2, "mine")
    assert "--overwrite" in done.message
    assert here("table", table, "--to", "tensorrt", "-o", "t.cache", "--overwrite", "-q").err == ""


def test_the_input_is_never_overwritten(here, table, tmp_path):
    copy = tmp_path / "t.table.json"
    shutil.copy(table, copy)
    done = here("table", copy, "--to", "tensorrt", "-o", copy, "--overwrite")
    assert (done.code, copy.read_bytes()) == (2, table.read_bytes())


@pytest.mark.parametrize(
    ("form", "text", "where"),
    [
        ("tensorrt", "TRT-8601-EntropyCalibration2\nx: 3f8\ny 3f800000\n", "bad:3: "),
        ("onnxruntime", "x 1.0\ny\n", "bad:2: "),
        ("openvino", '{"tensors":\n oops}', "bad:2: "),
        ("ncnn", "x 1.0\ny z\n", "bad:2: "),
    ],
)
def test_a_malformed_file_ends_with_6_and_names_the_line(here, sample, tmp_path, form, text, where):
    (tmp_path / "bad").write_text(text)
    done = here("table", "bad", "--from", form, "--model", sample / "model.onnx", "-o", "t.table.json")
    assert done.code == 6
    assert done.message.startswith(f"int8cal: table: {where}")
    assert not (tmp_path / "t.table.json").exists()


def test_missing_and_wrong_files(here, sample, table, tmp_path):
    assert here("table", "none", "--from", "tensorrt", "-o", "t.table.json").code == 6
    assert here("table", "none", "--to", "tensorrt", "-o", "t.cache").code == 6
    assert here("table", table, "--to", "tensorrt", "--model", "none.onnx", "-o", "t.cache").code == 3
    other = json.loads(table.read_text())
    other["model"]["sha256"] = "0" * 64
    (tmp_path / "other.table.json").write_text(json.dumps(other))
    arguments = ("table", "other.table.json", "--to", "ncnn", "--model", sample / "model.onnx", "-o", "n.table")
    assert here(*arguments).code == 6
    assert here(*arguments, "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "--to FORMAT or --from FORMAT"),
        (("--to", "ncnn", "--from", "ncnn"), "one of them"),
        (("--to", "tensorrt", "--param", "p"), "--param is for ncnn"),
        (("--from", "tensorrt", "--header", "h"), "--header is for --to"),
        (("--to", "tensorrt", "--missing", "float"), "--missing is for --from"),
        (("--from", "tensorrt", "--force"), "--force is for --to"),
        (("--to", "tflite"), "tflite"),
    ],
)
def test_contradictory_options_are_usage_errors(here, arguments, word):
    done = here("table", "t", "-o", "o", *arguments)
    assert done.code == 2
    assert word in done.message
