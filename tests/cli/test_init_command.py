"""`int8cal init`: a YAML from a model, which our own loader takes and which runs once there is data."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from int8cal.cli.main import main
from int8cal.config.load import load_jobs

sys.path.append(str(Path(__file__).parent))
from small_models import photo_classifier, save_photos, save_tokens, transformer

SAMPLE = Path(__file__).parents[2] / "sample_data"


def layer(inputs, name="y", classes=4):
    """A MatMul of the first input, the others added up in vain."""
    weight = numpy_helper.from_array(np.ones((8, classes), np.float32), "w")
    nodes = [helper.make_node("MatMul", [inputs[0][0], "w"], [name], "layer")]
    values = [helper.make_tensor_value_info(*each) for each in inputs]
    output = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", classes])]
    extra = [
        helper.make_node("Identity", [each[0]], [f"out{index}"], f"keep{index}")
        for index, each in enumerate(inputs[1:])
    ]
    output += [helper.make_tensor_value_info(f"out{index}", *each[1:]) for index, each in enumerate(inputs[1:])]
    graph = helper.make_graph([*nodes, *extra], "g", values, output, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write the YAML of a model; gives its text and its one job."""
    monkeypatch.chdir(tmp_path)

    def written(model, name="net.onnx"):
        onnx.save(model, tmp_path / name)
        assert main(["init", name]) == 0
        path = tmp_path / name.replace(".onnx", ".yaml")
        (job,) = (located.job for located in load_jobs(path))
        return path.read_text(), job

    return written


def test_a_dash_prints_the_yaml(written, tmp_path, capsys):
    text, _ = written(layer([("x", TensorProto.FLOAT, ["n", 8])]))
    capsys.readouterr()
    assert main(["init", "net.onnx", "-o", "-"]) == 0
    assert capsys.readouterr().out == text
    assert not (tmp_path / "-").exists()


def test_the_model_is_not_overwritten(written, tmp_path, capsys):
    written(layer([("x", TensorProto.FLOAT, ["n", 8])]))
    before = (tmp_path / "net.onnx").read_bytes()
    assert main(["init", "net.onnx", "-o", "net.onnx", "--overwrite"]) == 2
    assert "net.onnx: is also an input" in capsys.readouterr().err
    assert (tmp_path / "net.onnx").read_bytes() == before


def test_results_go_to_a_directory_that_is_free(written, tmp_path):
    _, job = written(photo_classifier())
    assert job.output.dir.name == "net-int8"
    (tmp_path / "two-int8").mkdir()
    (tmp_path / "two-int8-2").write_text("")
    _, job = written(photo_classifier(), "two.onnx")
    assert job.output.dir.name == "two-int8-3"


@pytest.mark.slow
def test_it_says_what_it_wrote_and_the_job_runs_once_there_is_data(written, tmp_path, capsys):
    text, job = written(photo_classifier())
    assert capsys.readouterr().out == "wrote net.yaml; fill in data, then: int8cal run net.yaml --dry-run\n"
    assert (job.data.preprocess.resize, job.data.preprocess.crop) == (224, 224)
    assert (job.data.preprocess.color, job.data.preprocess.layout) == ("RGB", "NCHW")
    assert job.data.preprocess.scale == 1.0
    assert "2 layers would be int8: Conv 1, Gemm 1." in text
    assert "Would stay float: " in text
    assert "Relu" not in text.split("Inputs:")[0]  # a range takes it in
    assert "the output looks like 3 classes" in text
    assert 'gates: ["top1.drop<=1.0"]' in text
    save_photos(tmp_path / "photos/calib", 2, seed=0)
    assert main(["run", "net.yaml"]) == 0
    assert (tmp_path / "net-int8/net.int8.onnx").is_file()


def test_tokens_without_their_tokenizer_are_advised_as_npz_with_the_right_keys(written, tmp_path):
    text, job = written(transformer())
    assert "For .npz files of tokens, with the keys input_ids, attention_mask" in text
    assert "Named dimensions (batch, sequence)" in text
    assert job.data.preprocess.text.tokenizer.endswith("tokenizer.json")
    save_tokens(tmp_path / "texts", 2, seed=0)
    bare = [line for line in text.split("\n") if line.strip().split(":")[0] not in ("preprocess", "text", "tokenizer")]
    (tmp_path / "net.yaml").write_text("\n".join(bare).replace("path: texts.txt", "path: texts"))
    assert main(["run", "net.yaml", "--dry-run"]) == 0


def test_integers_that_are_no_tokens_are_advised_as_npz_with_the_right_keys(written):
    inputs = [("x", TensorProto.FLOAT, ["n", 8]), ("kind", TensorProto.INT64, ["n", "sequence"])]
    text, job = written(layer(inputs))
    assert "#   kind: int64 (sequence,) per sample" in text
    assert "np.savez('calib/0.npz', x=..., kind=...)" in text
    assert job.data.preprocess is None


def test_several_inputs_need_npz(written):
    inputs = [("x", TensorProto.FLOAT, ["n", 8]), ("state", TensorProto.FLOAT, ["n", 2])]
    text, _ = written(layer(inputs))
    assert "#   x: float32 (8,) per sample" in text
    assert "#   state: float32 (2,) per sample" in text
    assert 'gates: ["sqnr_db>=20"]' in text
    assert "classes" not in text


def test_one_float_input_may_be_npy(written):
    text, _ = written(layer([("x", TensorProto.FLOAT, ["n", 8])]))
    assert "a folder of .npy files" in text
    assert "shape of a sample: (8,), dtype float32" in text
    assert "a table does too: a .csv with a sample in each row" in text


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (["n", 3, "h", "w"], (None, None, "RGB", "NCHW")),
        (["n", 24, 32, 1], ((24, 32), None, "GRAY", "NHWC")),
        ([1, 1, 28, 28], (28, 28, "GRAY", "NCHW")),
        (["n", 3, 8, 3], None),
        (["n", 16, 8, 8], None),
    ],
)
def test_images_are_told_from_the_shape(written, shape, expected):
    conv = helper.make_node("Conv", ["x", "w"], ["y"], "conv")
    channels = shape[1] if isinstance(shape[1], int) else 3
    weight = numpy_helper.from_array(np.ones((8, channels, 1, 1), np.float32), "w")
    graph = helper.make_graph(
        [conv],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    _, job = written(model)
    found = job.data.preprocess
    assert (found and (found.resize, found.crop, found.color, found.layout)) == expected


def test_odd_names_stay_in_their_places(written):
    name = 'a "${X}" # [1].onnx'
    text, job = written(layer([("in: put\n- x", TensorProto.FLOAT, ["n", 8])]), name)
    assert job.model.name == name
    assert job.output.dir.name == 'a "${X}" # [1]-int8'
    assert "in: put�- x" in text


def test_the_model_is_found_from_where_the_file_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    assert main(["init", str(SAMPLE / "model.onnx"), "-o", "sub/job.yaml"]) == 0
    (job,) = (located.job for located in load_jobs(tmp_path / "sub/job.yaml"))
    assert job.model.samefile(SAMPLE / "model.onnx")


def test_it_refuses_to_overwrite(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.yaml").write_text("mine")
    assert main(["init", str(SAMPLE / "model.onnx")]) == 2
    assert "model.yaml: exists; give --overwrite" in capsys.readouterr().err
    assert (tmp_path / "model.yaml").read_text() == "mine"
    assert main(["init", str(SAMPLE / "model.onnx"), "--overwrite"]) == 0


def test_what_is_no_float_model_gives_no_file(tmp_path, monkeypatch, capsys, sample_run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    assert main(["init", "none.onnx"]) == 3
    assert main(["init", "broken.onnx"]) == 3
    assert main(["init", str(sample_run / "model.int8.onnx")]) == 3
    assert "already quantized" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["broken.onnx"]


def test_the_schema_is_printed_or_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["schema"]) == 0
    printed = capsys.readouterr().out
    assert main(["schema", "-o", "s.json"]) == 0
    assert capsys.readouterr().out == "wrote s.json\n"
    assert (tmp_path / "s.json").read_text() == printed
    assert main(["schema", "-o", "s.json"]) == 2
    assert main(["schema", "-o", "s.json", "--overwrite"]) == 0
    assert '"$schema": "https://json-schema.org/draft/2020-12/schema"' in printed
