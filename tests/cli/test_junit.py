"""`--junit` of calibrate and evaluate."""

import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from int8cal.errors import ModelError

CALIBRATE = ("calibrate", "m.onnx", "--data", "d")
EVALUATE = ("evaluate", "f.onnx", "q.onnx", "--data", "v")


def cases(path="j.xml"):
    """Name and outcome of every case."""
    return [(case.get("name"), next((part.tag for part in case), "")) for case in ET.parse(path).iter("testcase")]


@pytest.mark.parametrize("command", [CALIBRATE, EVALUATE], ids=["calibrate", "evaluate"])
def test_gates_become_cases(here, pipeline, gated, command):
    pipeline.report = gated(("sqnr_db>=20", 31.5, True), ("cosine>=0.9", 0.999, True))
    done = here(*command, "--junit", "j.xml")
    assert (done.code, done.err) == (0, "" if command is EVALUATE else done.err)
    assert cases() == [(command[0], ""), ("sqnr_db>=20", "system-out"), ("cosine>=0.9", "system-out")]


@pytest.mark.parametrize("command", [CALIBRATE, EVALUATE], ids=["calibrate", "evaluate"])
def test_it_is_written_when_a_gate_fails(here, pipeline, gated, command):
    pipeline.report = gated(("sqnr_db>=40", 31.5, False))
    assert here(*command, "--junit", "j.xml").code == 7
    assert cases() == [(command[0], ""), ("sqnr_db>=40", "failure")]


@pytest.mark.parametrize("command", [CALIBRATE, EVALUATE], ids=["calibrate", "evaluate"])
def test_it_is_written_when_the_job_stops_and_tells_why(here, pipeline, command):
    pipeline.error = ModelError("is not an ONNX file", where="m.onnx", do="export it again")
    done = here(*command, "--gate", "sqnr_db>=20", "--junit", "j.xml")
    assert done.code == 3
    assert cases() == [(command[0], "error"), ("sqnr_db>=20", "skipped")]
    message = ET.parse("j.xml").find(".//error").get("message")
    assert done.message == f"int8cal: {message}"


def test_it_is_written_when_the_settings_are_wrong(here, pipeline):
    done = here(*CALIBRATE, "--gate", "sqn_db>=20", "--junit", "j.xml")
    assert done.code == 2
    assert cases() == [("calibrate", "error")]
    assert pipeline.calls == []


def test_a_bug_is_an_error_in_it_too(here, pipeline, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pipeline.error = ZeroDivisionError("division by zero")
    assert here(*CALIBRATE, "--junit", "j.xml").code == 1
    assert "a bug in int8cal" in ET.parse("j.xml").find(".//error").get("message")


@pytest.mark.parametrize("ending", [KeyboardInterrupt()])
def test_nothing_is_written_of_a_run_that_was_interrupted(here, pipeline, ending):
    pipeline.error = ending
    assert here(*CALIBRATE, "--junit", "j.xml").code == 130
    assert not Path("j.xml").exists()


def test_its_directory_may_be_the_one_of_the_results_which_is_not_there_yet(here, pipeline, gated):
    pipeline.report = gated(("sqnr_db>=20", 31.5, True))
    assert here(*EVALUATE, "--junit", "out/deep/j.xml").code == 0
    assert len(cases("out/deep/j.xml")) == 2


def test_an_existing_file_needs_overwrite_and_is_refused_before_any_work(here, pipeline):
    Path("j.xml").write_text("mine")
    done = here(*CALIBRATE, "--junit", "j.xml")
    assert done.code == 2
    assert done.message == "int8cal: output: j.xml: exists; give --overwrite, or another output path"
    assert Path("j.xml").read_text() == "mine"
    assert pipeline.calls == []
    assert here(*CALIBRATE, "--junit", "j.xml", "--overwrite").code == 0
    assert cases() == [("calibrate", "")]


def test_the_file_of_an_earlier_run_is_replaced(here, pipeline, gated):
    pipeline.report = gated(("sqnr_db>=20", 31.5, True))
    assert here(*EVALUATE, "--junit", "j.xml").code == 0
    assert here(*EVALUATE, "--junit", "j.xml").code == 0
    assert len(cases()) == 2
    mangled = Path("j.xml").read_text().replace('name="int8cal"', 'name="pytest"', 1)
    Path("j.xml").write_text(mangled)
    done = here(*EVALUATE, "--junit", "j.xml")
    assert (done.code, Path("j.xml").read_text()) == (2, mangled)


@pytest.mark.parametrize("name", ["m.onnx", "report.json", "j"])
def test_only_a_name_for_xml_is_taken_so_that_nothing_else_is_written_over(here, pipeline, name):
    done = here(*CALIBRATE, "--junit", name, "--overwrite")
    assert done.code == 2
    assert "give a path that ends in .xml" in done.message
    assert pipeline.calls == []


def test_the_error_of_the_job_is_what_counts_when_the_file_cannot_be_written(here, pipeline):
    Path("j.xml").write_text("mine")
    done = here(*CALIBRATE, "--gate", "sqn_db>=20", "--junit", "j.xml")
    assert done.code == 2
    first, second = done.err.splitlines()
    assert "so the error is not in it" in first
    assert 'did you mean "sqnr_db"' in second
    assert Path("j.xml").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_refused_before_any_work(here, pipeline):
    Path("locked").mkdir(mode=0o500)
    assert here(*CALIBRATE, "--junit", "locked/deep/j.xml").code == 2
    assert pipeline.calls == []


def test_the_sample_with_a_gate_that_fails_and_one_that_holds(call, sample, tmp_path):
    arguments = [
        "calibrate",
        sample / "model.onnx",
        "--data",
        sample / "calib",
        "--samples",
        "40",
        "--no-latency",
        "-q",
    ]
    gates = ["--gate", "sqnr_db_ci95.lo>=10", "--gate", "layers.worst_sqnr_db>=90"]
    done = call(*arguments, *gates, "-o", "out", "--junit", "out/junit.xml")
    assert done.code == 7
    path = tmp_path / "out" / "junit.xml"
    assert cases(path) == [
        ("calibrate", ""),
        ("sqnr_db_ci95.lo>=10", "system-out"),
        ("layers.worst_sqnr_db>=90", "failure"),
    ]
    junitparser = pytest.importorskip("junitparser")
    (suite,) = junitparser.JUnitXml.fromfile(str(path))
    assert (suite.name, suite.tests, suite.failures) == ("model", 3, 1)


@pytest.mark.slow
def test_a_batch_has_a_suite_per_job(call, sample, tmp_path):
    job = f"model: {sample}/model.onnx\ndata: {{path: {sample}/calib, samples: 40}}\n"
    gate = "evaluation: {latency: false, gates: ['sqnr_db>=90']}\n"
    (tmp_path / "good.yaml").write_text(f"{job}{gate}output: {{dir: good}}\n")
    (tmp_path / "bad.yaml").write_text(f"model: {sample}/model.onnx\ndata: nowhere\noutput: {{dir: bad}}\n")
    done = call("run", "good.yaml", "bad.yaml", "--keep-going", "-q", "--junit", "j.xml")
    assert done.code == 7
    suites = list(ET.parse(tmp_path / "j.xml").iter("testsuite"))
    told = [[(case.get("name"), [part.tag for part in case]) for case in suite.iter("testcase")] for suite in suites]
    assert [told[0][1], told[1]] == [
        ("sqnr_db>=90", ["failure"]),
        [("run", ["error"])],
    ]
    assert [suite.get("errors") for suite in suites] == ["0", "1"]
