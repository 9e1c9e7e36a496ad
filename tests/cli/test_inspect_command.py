"""`int8cal inspect`."""

from pathlib import Path

import pytest


def test_the_lines_of_the_pipeline_are_printed(here, pipeline):
    done = here("inspect", "x.table.json")
    assert (done.code, done.out, done.err) == (0, "version: 1\nproviders: CPU\n", "")
    assert pipeline.calls[0].path == Path("x.table.json")


@pytest.mark.parametrize("name", ["model.int8.onnx", "model.table.json", "model.stats.npz", "report.json"])
def test_every_file_of_a_run_can_be_shown(call, sample_run, name):
    done = call("inspect", sample_run / name)
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) > 1


def test_a_missing_file_is_one_line(call):
    done = call("inspect", "missing.onnx")
    assert done.code in (2, 3)
    assert "missing.onnx" in done.message


def test_a_file_of_no_known_kind_is_one_line(call, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    done = call("inspect", "notes.txt")
    assert done.code in (2, 3)
    assert "notes.txt" in done.message
