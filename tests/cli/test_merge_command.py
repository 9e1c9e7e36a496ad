"""`int8cal merge`."""

from pathlib import Path

import onnx
import pytest


def test_arguments_reach_the_pipeline(here, pipeline):
    done = here("merge", "a.stats.npz", "b.stats.npz", "-o", "c.stats.npz")
    assert (done.code, done.out) == (0, "wrote c.stats.npz: 12 samples from 2 files\n")
    assert vars(pipeline.calls[0]) == {
        "inputs": [Path("a.stats.npz"), Path("b.stats.npz")],
        "output": Path("c.stats.npz"),
        "overwrite": False,
    }


def test_overwrite_is_passed_on(here, pipeline):
    here("merge", "a.stats.npz", "-o", "c.stats.npz", "--overwrite")
    assert pipeline.calls[0].overwrite is True


@pytest.mark.slow
def test_two_shards_merge_the_same_in_either_order(call, sample, tmp_path):
    for shard in ("0", "1"):
        done = call(
            *("calibrate", sample / "model.onnx", "--data", sample / "calib" / shard, "--samples", 4),
            *("--no-latency", "-o", f"s{shard}"),
        )
        assert done.code == 0
    first, second = "s0/model.stats.npz", "s1/model.stats.npz"
    assert call("merge", first, second, "-o", "ab.stats.npz").code == 0
    assert call("merge", second, first, "-o", "ba.stats.npz").code == 0
    assert (tmp_path / "ab.stats.npz").read_bytes() == (tmp_path / "ba.stats.npz").read_bytes()


def test_what_is_no_statistics_file_ends_with_5(call, tmp_path, sample_run):
    (tmp_path / "bad.stats.npz").write_bytes(b"PK nothing")
    done = call("merge", sample_run / "model.stats.npz", "bad.stats.npz", "-o", "c.stats.npz")
    assert done.code == 5
    assert "bad.stats.npz" in done.message
    assert not (tmp_path / "c.stats.npz").exists()


def test_an_existing_file_is_refused_without_overwrite(call, tmp_path, sample_run):
    (tmp_path / "c.stats.npz").write_text("mine")
    done = call("merge", sample_run / "model.stats.npz", "-o", "c.stats.npz")
    assert (done.code, (tmp_path / "c.stats.npz").read_text()) == (2, "mine")


@pytest.mark.slow
def test_merged_shards_give_the_model_of_one_run_over_all(call, sample, tmp_path):
    quick, both = ("--no-latency",), sample / "calib" / "[01]"
    for shard in ("0", "1"):
        done = call("calibrate", sample / "model.onnx", "--data", sample / "calib" / shard, *quick, "-o", f"s{shard}")
        assert done.code == 0
    assert call("merge", "s0/model.stats.npz", "s1/model.stats.npz", "-o", "all.stats.npz").code == 0
    whole = call("calibrate", sample / "model.onnx", "--data", both, *quick, "-o", "whole")
    merged = call(
        "calibrate", sample / "model.onnx", "--data", both, *quick, "--stats", "all.stats.npz", "-o", "merged"
    )
    assert (whole.code, merged.code) == (0, 0)
    for name in ("model.int8.onnx", "model.table.json", "model.stats.npz"):
        assert (tmp_path / "merged" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "s0/model.table.json").read_bytes() != (tmp_path / "whole/model.table.json").read_bytes()
    assert "ranges follow" not in merged.out
    other = call("calibrate", sample / "model.onnx", "--data", both, *quick, "--stats", "s0/model.stats.npz", "-o", "s")
    assert "ranges follow 20 samples of s0/model.stats.npz, which are not the data's 40" in other.out
    assert "a share of" not in other.out + other.err  # 40 are judged on, of which 36 are enough


@pytest.mark.slow
def test_statistics_of_another_model_or_plan_end_with_5(call, sample, sample_run, tmp_path):
    model = onnx.load(sample / "model.onnx")
    model.doc_string = "another"
    onnx.save(model, tmp_path / "other.onnx")
    stats = sample_run / "model.stats.npz"
    done = call("calibrate", "other.onnx", "--data", sample / "calib", "--stats", stats, "-o", "out")
    assert done.code == 5
    assert "model.stats.npz: is of another model" in done.message
    done = call(
        *("calibrate", sample / "model.onnx", "--data", sample / "calib/0", "--samples", 4, "--exclude", "op:Gemm"),
        *("--no-latency", "-o", "less"),
    )
    assert done.code == 0
    done = call(
        *("calibrate", sample / "model.onnx", "--data", sample / "calib", "--stats", "less/model.stats.npz"),
        *("-o", "out"),
    )
    assert done.code == 5
    assert "holds no tensor" in done.message
    assert not (tmp_path / "out").exists()


def test_the_yaml_names_statistics_beside_itself(call, sample, sample_run, tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(
        f"model: {sample / 'model.onnx'}\ndata: {sample / 'calib'}\ncalibration: {{statistics: missing.stats.npz}}\n"
    )
    done = call("run", "jobs/job.yaml")
    assert done.code == 5
    assert "jobs/missing.stats.npz" in done.message
