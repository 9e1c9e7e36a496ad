"""`int8cal quantize`."""

import json
from pathlib import Path

import pytest


def test_arguments_reach_the_pipeline(here, pipeline):
    done = here("quantize", "m.onnx", "--table", "m.table.json", "-o", "q.onnx")
    assert (done.code, done.out) == (0, "wrote q.onnx\n")
    assert vars(pipeline.calls[0]) == {
        "model": Path("m.onnx"),
        "table": Path("m.table.json"),
        "output": Path("q.onnx"),
        "force": False,
        "overwrite": False,
    }


def test_warnings_go_to_stderr(here):
    assert (
        here("quantize", "m.onnx", "--table", "t", "-o", "q.onnx").message == "int8cal: warning: tensor x is constant"
    )


def test_force_and_overwrite_are_passed_on(here, pipeline):
    here("quantize", "m.onnx", "--table", "t", "-o", "q.onnx", "--force", "--overwrite")
    assert (pipeline.calls[0].force, pipeline.calls[0].overwrite) == (True, True)


def test_the_table_of_a_run_gives_the_bytes_of_that_run(call, sample, sample_run, tmp_path):
    done = call("quantize", sample / "model.onnx", "--table", sample_run / "model.table.json", "-o", "q.onnx")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "q.onnx").read_bytes() == (sample_run / "model.int8.onnx").read_bytes()


def test_an_existing_file_is_refused_without_overwrite(call, sample, sample_run, tmp_path):
    (tmp_path / "q.onnx").write_text("mine")
    arguments = ("quantize", sample / "model.onnx", "--table", sample_run / "model.table.json", "-o", "q.onnx")
    done = call(*arguments)
    assert (done.code, (tmp_path / "q.onnx").read_text()) == (2, "mine")
    assert "--overwrite" in done.message
    assert call(*arguments, "--overwrite").code == 0


@pytest.mark.parametrize("text", ["not json", "{}", '{"format": "other"}'])
def test_a_malformed_table_ends_with_6(call, sample, tmp_path, text):
    (tmp_path / "bad.table.json").write_text(text)
    done = call("quantize", sample / "model.onnx", "--table", "bad.table.json", "-o", "q.onnx")
    assert done.code == 6
    assert "bad.table.json" in done.message
    assert not (tmp_path / "q.onnx").exists()


def test_a_table_of_another_model_ends_with_6_unless_forced(call, sample, sample_run, tmp_path):
    table = json.loads((sample_run / "model.table.json").read_text())
    table["model"]["sha256"] = "0" * 64
    (tmp_path / "other.table.json").write_text(json.dumps(table))
    arguments = ("quantize", sample / "model.onnx", "--table", "other.table.json", "-o", "q.onnx")
    done = call(*arguments)
    assert done.code == 6
    assert "--force" in done.message
    forced = call(*arguments, "--force")
    assert forced.code == 0
    assert "warning: other.table.json was made for another model (sha256 000000000000…" in forced.err
    assert "ranges and scales of weights are those of that model" in forced.err


def test_what_an_edit_changes_besides_and_names_that_the_model_lacks_are_told(call, sample, sample_run, tmp_path):
    table = json.loads((sample_run / "model.table.json").read_text())
    tensors = table["tensors"]
    shared = next(name for name, entry in tensors.items() if entry["source"] == "shared")
    tensors[shared]["high"] /= 2
    tensors["zz"] = next(iter(tensors.values()))
    table["weights"] |= dict.fromkeys(("vv", "ww@node"), next(iter(table["weights"].values())))
    (tmp_path / "edited.table.json").write_text(json.dumps(table))
    done = call("quantize", sample / "model.onnx", "--table", "edited.table.json", "-o", "q.onnx")
    assert done.code == 0
    follow, stranger, weights = done.err.splitlines()
    assert follow.startswith(f"int8cal: warning: tensor {shared!r} shares its scale: ")
    assert follow.endswith("take the edit too")
    assert stranger == "int8cal: warning: the model has no tensor 'zz'"
    assert weights == "int8cal: warning: the model has no weight 'vv', nor 1 more of the table's"


def test_a_tensor_without_entry_is_told_with_the_file(call, sample, sample_run, tmp_path):
    table = json.loads((sample_run / "model.table.json").read_text())
    del table["tensors"]["/stem/Clip_output"]
    (tmp_path / "less.table.json").write_text(json.dumps(table))
    done = call("quantize", sample / "model.onnx", "--table", "less.table.json", "-o", "q.onnx")
    assert done.code == 6
    assert done.message.startswith("int8cal: table: less.table.json: has no entry for tensor '/stem/Clip_output'")
