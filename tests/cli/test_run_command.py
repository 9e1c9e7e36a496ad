"""`int8cal run`."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from int8cal.cli.console import shown_path
from int8cal.data.checks import Finding
from int8cal.errors import DataError, ModelError

BATCH = "defaults: {data: d}\njobs: [{model: a.onnx}, {model: bb.onnx}, {model: c.onnx}]\n"


@pytest.fixture
def batch(tmp_path):
    (tmp_path / "batch.yaml").write_text(BATCH)
    return "batch.yaml"


def test_one_row_per_job(here, pipeline, batch):
    done = here("run", batch)
    assert (done.code, done.err) == (0, "")
    head, *rows, counts = done.out.splitlines()
    assert counts == "3 jobs: 3 done; summary in summary.json"
    assert head.split() == ["job", "SQNR", "top-1", "drop", "size", "speedup", "result"]
    assert [row.split()[0] for row in rows] == ["a", "bb", "c"]
    assert all("31.50 dB" in row and "1.00 points" in row and "4.00x smaller" in row and "2.00x" in row for row in rows)
    assert len({row.index("31.50") for row in rows}) == 1


@pytest.mark.parametrize("columns", [30, 40, 80, 120])
def test_rows_fit_the_terminal_whose_columns_have_no_room_as_values_behind_their_heads(
    here, pipeline, batch, gated, terminal, columns
):
    terminal(columns)
    pipeline.report = gated(("top1.drop<=0.5", 1.0, False))
    lines = here("run", batch).out.splitlines()
    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    assert text.count("31.50 dB") == 3
    if columns < 80:
        assert (
            "bb: SQNR 31.50 dB, top-1 drop 1.00 points, size 4.00x smaller, speedup 2.00x, result failed: gate" in text
        )
    else:
        assert lines[0].split()[:2] == ["job", "SQNR"]
    assert max(map(len, here("run", batch, "--dry-run").out.splitlines())) <= columns


def test_a_yaml_may_come_through_a_pipe(here, pipeline, tmp_path):
    os.mkfifo(tmp_path / "piped")
    writer = threading.Thread(target=(tmp_path / "piped").write_text, args=(BATCH,))
    writer.start()
    done = here("run", "piped")
    writer.join()
    assert (done.code, done.out.splitlines()[-1]) == (0, "3 jobs: 3 done; summary in summary.json")


@pytest.mark.parametrize("option", ["--junit", "--summary"])
def test_a_dry_run_writes_no_results_so_it_takes_no_place_for_them(here, pipeline, batch, option):
    done = here("run", batch, "--dry-run", option, "file.xml")
    assert (done.code, done.out) == (2, "")
    assert "usage: --dry-run runs no job: no verdicts for --junit, no rows for --summary;" in done.message


def test_what_is_found_about_the_data_is_told_with_the_job_and_in_the_summary(here, pipeline, batch):
    found = (Finding("chance", "the FP32 model guesses", "check the labels"), Finding("drift", "unlike", "calibrate"))
    pipeline.report = replace(pipeline.report, findings=found)
    told = "int8cal: a: check the data: the FP32 model guesses; check the labels (and 1 more, in the report)"
    done = here("run", batch, "--only", "a")
    assert (done.code, done.err.splitlines()) == (0, [told])
    assert json.loads(Path("summary.json").read_text())["jobs"][0]["findings"] == [str(each) for each in found]
    assert "done; check the data |" in Path("summary.md").read_text()
    assert here("run", batch, "--only", "a", "--quiet", "--rerun").err == ""


def test_the_results_path_is_shown_without_detours(here, pipeline, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    assert shown_path("configs/../results") == "results"
    assert shown_path(tmp_path / "a" / ".." / "b") == str(tmp_path / "b")
    assert shown_path("link/../results") == "link/../results"


def test_the_first_failure_stops_the_batch_and_gives_its_code(here, pipeline, batch):
    pipeline.errors = [None, ModelError("is corrupt", where="bb.onnx"), None]
    done = here("run", batch)
    assert done.code == 3
    assert [call.job.name for call in pipeline.calls] == ["a", "bb"]
    assert done.err.splitlines() == [
        "int8cal: bb: model: bb.onnx: is corrupt",
        "int8cal: stopped, 1 job not run; --keep-going runs them all the same",
    ]
    assert done.out.splitlines()[-2].endswith("failed: model")
    assert done.out.splitlines()[-1].startswith("3 jobs: 1 done, 1 failed, 1 not run")


def test_keep_going_runs_all_and_gives_the_code_of_the_first_failure(here, pipeline, batch):
    pipeline.errors = [DataError("is empty"), ModelError("is corrupt"), None]
    done = here("run", batch, "--keep-going")
    assert done.code == 4
    assert len(pipeline.calls) == 3
    assert [row.split()[-1] for row in done.out.splitlines()[1:3]] == ["data", "model"]


def test_a_failed_gate_shows_its_figures_and_gives_7(here, pipeline, batch, gated):
    pipeline.report = gated(("top1.drop<=0.5", 1.0, False))
    done = here("run", batch)
    assert (done.code, len(pipeline.calls)) == (7, 3)
    assert all("31.50 dB" in row and row.endswith("failed: gate") for row in done.out.splitlines()[1:-1])


def test_a_bug_in_one_job_is_logged_and_gives_1(here, pipeline, batch, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pipeline.errors = [RuntimeError("x"), None, None]
    done = here("run", batch, "--keep-going")
    assert done.code == 1
    assert "int8cal: internal: RuntimeError: x" in done.message
    assert len(pipeline.calls) == 3


def test_an_interrupt_ends_the_batch_at_once(here, pipeline, batch):
    pipeline.errors = [None, KeyboardInterrupt()]
    done = here("run", batch, "--keep-going", "--junit", "j.xml")
    assert (done.code, len(pipeline.calls)) == (130, 2)
    assert done.err.strip() == "int8cal: interrupted; nothing was half-written"
    assert done.out.splitlines()[-1].startswith("3 jobs: 1 done, 2 not run; summary in ")
    skipped = [part.get("message") for part in ET.parse("j.xml").iter("skipped")]
    assert skipped == 2 * ["interrupted"]


def test_junit_says_why_jobs_did_not_run_and_what_was_not_judged(here, pipeline, batch):
    Path(batch).write_text(BATCH.replace("data: d", "data: d, evaluation: {gates: ['cosine>=0.9']}"))
    pipeline.errors = [None, ModelError("is corrupt", where="bb.onnx"), None]
    assert here("run", batch, "--junit", "j.xml").code == 3
    suites = list(ET.parse("j.xml").iter("testsuite"))
    told = [
        [(case.get("name"), *(part.get("message") for part in case)) for case in suite.iter("testcase")]
        for suite in suites
    ]
    assert told[1] == [("run", "model: bb.onnx: is corrupt"), ("cosine>=0.9", "not judged: run stopped")]
    assert told[2] == [("run", 'job "bb" failed'), ("cosine>=0.9", 'not judged: job "bb" failed')]
    assert suites[1].find(".//error").get("type") == "ModelError"


def test_the_summary_says_once_that_a_gate_failed(here, pipeline, batch, gated):
    pipeline.report = gated(("top1.drop<=0.5", 1.0, False))
    here("run", batch, "--summary", "s.json")
    assert "| gate failed: 1 of 1 failed: top1.drop&lt;=0.5" in Path("s.md").read_text()


@pytest.mark.parametrize(
    ("option", "key"),
    [
        (["--gate", "cosine>=1"], "--gate: settings of jobs go into the YAML, as evaluation.gates, or"),
        (["--method=kl"], "--method: settings of jobs go into the YAML, as calibration.method, or"),
        (["-o", "foo"], "-o: settings of jobs go into the YAML, as output.dir, or"),
        (["--no-such"], "no such option"),
    ],
)
def test_an_option_of_calibrate_is_answered_with_its_key(here, batch, option, key):
    done = here("run", batch, *option)
    assert done.code == 2
    assert key in done.message
    assert ("use int8cal calibrate --config FILE" in done.message) == ("settings" in key)


def test_quiet_prints_failures_only(here, pipeline, batch):
    assert here("run", batch, "--quiet").out == ""
    assert all(call.job.quiet for call in pipeline.calls)
    pipeline.errors = [DataError("is empty")]
    done = here("run", batch, "--quiet")
    assert done.out == ""
    assert "int8cal: a: data: is empty" in done.err


def test_overwrite_lets_every_job_replace_what_something_else_made(here, pipeline, batch, tmp_path):
    here("run", batch, "--overwrite")
    assert len(pipeline.calls) == 3
    for name in ("a", "bb", "c"):
        (tmp_path / f"{name}-int8" / "job.json").rename(tmp_path / f"{name}-int8" / "mine.json")
    assert here("run", batch).code == 2
    assert here("run", batch, "--overwrite").code == 0
    assert len(pipeline.calls) == 6


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("model: x.onnx\ndata: d\nqiet: true\n", 'second.yaml:3:1: qiet: unknown key "qiet"; did you mean "quiet"?'),
        ("model: x.onnx\ndata: d\ncalibration: {address: 'head:6379'}\n", "engine local uses none"),
        ("model: x.onnx\ndata: d\noutput: {dir: a-int8}\n", "would both write to a-int8"),
    ],
)
def test_all_files_are_checked_before_the_first_job_starts(here, pipeline, batch, second, message):
    (pipeline.folder / "second.yaml").write_text(second)
    done = here("run", batch, "second.yaml")
    assert (done.code, done.out, pipeline.calls) == (2, "", [])
    assert message in done.message


def test_the_same_file_twice_is_refused(here, pipeline, batch):
    done = here("run", batch, batch)
    assert (done.code, pipeline.calls) == (2, [])


@pytest.mark.slow
def test_a_real_batch_runs(call, sample, tmp_path):
    (tmp_path / "job.yaml").write_text(
        f"model: {sample}/model.onnx\ndata: {{path: {sample}/calib, samples: 8}}\nevaluation: {{latency: false}}\n"
        "output: {dir: 'results/{name}'}\nmatrix: {calibration.method: [max, percentile]}\n"
    )
    done = call("run", "job.yaml")
    assert done.code == 0
    assert "jobs     2: 2 done; exit code 0" in call("inspect", "results/summary.json").out
    assert (
        "record      job.json of job model-max in ../../job.yaml" in call("inspect", "results/model-max/job.json").out
    )
    names = ["model-max", "model-percentile", "summary.json", "summary.md"]
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == names
