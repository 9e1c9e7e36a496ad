"""`int8cal compare`."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from int8cal.evaluation.result import Drop, UserMetric
from int8cal.evaluation.result_parts import Gate
from int8cal.report.document import report_to_json


@pytest.fixture
def reports(here, gated, tmp_path):
    """Two reports on disk: the new one has lost 3 dB."""
    old = replace(gated(("sqnr_db>=30", 31.5, True)), model={"name": "net.onnx", "sha256": "ab"})
    metrics = replace(old.evaluation.metrics, sqnr_db=28.5)
    evaluation = replace(old.evaluation, metrics=metrics)
    new = replace(old, evaluation=evaluation, gates=(Gate("sqnr_db>=30", 28.5, passed=False),))
    for name, report in (("old.json", old), ("new.json", new)):
        Path(name).write_text(report_to_json(report), encoding="utf-8")
    return "old.json", "new.json"


def test_both_sides_and_the_difference_are_shown(here, reports):
    done = here("compare", *reports)
    assert (done.code, done.err) == (0, "")
    assert "SQNR               31.50 dB     28.50 dB     -3.00 dB     worse" in done.out
    assert done.out.endswith("Verdict  no limits set\n")


@pytest.mark.parametrize("columns", [30, 40, 80])
def test_lines_fit_the_terminal(here, reports, terminal, columns):
    terminal(columns)
    lines = here("compare", *reports).out.splitlines()
    assert max(map(len, lines)) <= columns
    row = (
        "SQNR 31.50 dB 28.50 dB -3.00 dB worse"
        if columns == 80
        else ("SQNR: old 31.50 dB, new 28.50 dB, change -3.00 dB, worse")
    )
    assert row in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(("limit", "code"), [("sqnr_db.drop<=3", 0), ("sqnr_db.drop<=2.9", 7)])
def test_a_limit_decides_the_exit_code(here, reports, limit, code):
    done = here("compare", *reports, "--limit", limit, "-q")
    assert (done.code, done.out) == (code, "")
    if code:
        assert done.message.startswith("int8cal: gate: 1 of 1 failed: sqnr_db.drop<=2.9 (3); see what changed")


def test_without_limits_a_regression_fails_only_when_asked_for(here, reports):
    assert here("compare", *reports).code == 0
    done = here("compare", *reports, "--fail-on-regression", "-q")
    assert done.code == 7
    assert "gate sqnr_db>=30 (fails now)" in done.message


def test_files_are_written_when_a_limit_fails(here, reports):
    done = here("compare", *reports, "--limit", "sqnr_db.drop<=1", "-o", "c.md", "--junit", "c.xml")
    assert done.code == 7
    assert "wrote c.md" in done.out
    assert "❌ `sqnr_db.drop<=1`: 3" in Path("c.md").read_text(encoding="utf-8")
    cases = [(case.get("name"), [part.tag for part in case]) for case in ET.parse("c.xml").iter("testcase")]
    assert cases == [("compare", []), ("sqnr_db.drop<=1", ["failure"])]


def test_json_is_alone_on_stdout(here, reports):
    done = here("compare", *reports, "--json", "-o", "c.md")
    document = json.loads(done.out)
    assert document["figures"][0]["worse_by"] == 3.0
    assert done.err == "int8cal: wrote c.md\n"


def test_a_directory_stands_for_the_report_in_it(here, reports):
    for name in reports:
        Path(name.removesuffix(".json")).mkdir()
        Path(name).rename(Path(name.removesuffix(".json"), "report.json"))
    assert "old  old/report.json: net.onnx" in here("compare", "old", "new").out


def test_the_directory_of_a_batch_is_said_to_be_one(here, reports):
    Path("results").mkdir()
    Path("results/summary.json").write_text('{"format": "int8cal/summary", "version": 1, "jobs": []}')
    done = here("compare", "results", reports[1])
    assert done.code == 2
    assert done.message.endswith(
        "results/summary.json: is the summary of a batch, not a report; give the directory of one job of it"
    )


def test_other_models_are_compared_with_a_warning(here, reports):
    document = json.loads(Path("new.json").read_text(encoding="utf-8"))
    document["model"]["sha256"] = "cd"
    Path("new.json").write_text(json.dumps(document), encoding="utf-8")
    done = here("compare", *reports, "--limit", "sqnr_db.drop<=1")
    assert done.code == 7
    assert done.out.splitlines()[2] == "warning: the float models differ: sha256 ab… and cd…"
    assert "note that the float models differ" in done.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist"),
        ("{", "is not valid JSON"),
        ('{"format": "int8cal/table"}', 'is not a report: "format" is not "int8cal/report"'),
        ('{"format": "int8cal/report", "version": 9}', "report version is 9"),
        ('{"format": "int8cal/report", "version": 1}', "metrics is missing"),
    ],
)
def test_what_is_no_report_is_refused_with_its_name(here, reports, text, message):
    Path("bad.json").write_text(text, encoding="utf-8") if text is not None else None
    for arguments in (("bad.json", "new.json"), ("old.json", "bad.json")):
        done = here("compare", *arguments)
        assert done.code == 2
        assert done.message.startswith("int8cal: config: bad.json: ")
        assert message in done.message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "sqnr_db<=1"), "write sqnr_db.drop or sqnr_db.rise or sqnr_db.ratio"),
        (("--limit", "sqnr.drop<=1"), 'did you mean "sqnr_db.drop"?'),
        (("-o", "old.json"), "old.json: exists; give --overwrite"),
        (("-o", "old.json", "--overwrite"), "old.json: is also an input"),
        (("-o", "no/such/c.md"), "no/such does not exist"),
        (("--junit", "c.json"), "give a path that ends in .xml"),
    ],
)
def test_a_command_line_that_cannot_work_is_refused_and_nothing_is_written(here, reports, arguments, message):
    before = Path("old.json").read_bytes()
    done = here("compare", *reports, *arguments)
    assert done.code == 2
    assert message in done.message
    assert Path("old.json").read_bytes() == before
    assert sorted(path.name for path in Path().iterdir()) == ["new.json", "old.json"]


def test_an_existing_comparison_is_replaced_with_overwrite(here, reports):
    Path("c.md").write_text("old")
    assert here("compare", *reports, "-o", "c.md").code == 2
    assert here("compare", *reports, "-o", "c.md", "--overwrite").code == 0
    assert "int8cal" in Path("c.md").read_text(encoding="utf-8")


def test_two_reports_of_the_sample_in_a_process_of_its_own(call, sample_run):
    done = call("compare", sample_run, sample_run, "--fail-on-regression")
    assert (done.code, done.err) == (0, "")
    assert "Verdict  no regression" in done.out


def test_a_gate_that_has_gone_fails_without_being_asked(here, reports):
    without = {**json.loads(Path("new.json").read_text(encoding="utf-8")), "gates": []}
    Path("new.json").write_text(json.dumps(without), encoding="utf-8")
    done = here("compare", *reports, "-q", "--junit", "c.xml")
    assert done.code == 7
    expected = (
        "1 of 1 failed: gate sqnr_db>=30 (is not in the new report); make the new report with --gate 'sqnr_db>=30'"
    )
    assert done.message == f"int8cal: gate: {expected}"
    assert "gate sqnr_db&gt;=30" in Path("c.xml").read_text(encoding="utf-8")
    assert here("compare", *reversed(reports)).code == 0  # more gates than before


@pytest.fixture
def retrain(gated):
    """Write two reports of float models of which int8 loses nothing; what the second one has is given."""

    def write(top1, metric=None, **of_new):
        old = replace(gated(("top1.drop<=1.0", 0.0, True)), model={"name": "net.onnx", "sha256": "ab"})
        top = Drop(0.985, 0.985, 0.0, (-0.8, 0.8), 597)
        first = replace(old.evaluation, metrics=replace(old.evaluation.metrics, top1=top, top5=None))
        figures = replace(first.metrics, top1=Drop(top1, top1, 0.0, (-0.8, 0.8), 597))
        second = replace(first, metrics=figures, **of_new)
        if metric:
            own = UserMetric(name="f1", fp32=0.9, int8=0.9, drop=0.0)
            first, second = replace(first, metric=own), replace(second, metric=replace(own, fp32=metric, int8=metric))
        new = replace(old, evaluation=second, model={"name": "net.onnx", "sha256": "cd"})
        for name, report in (("old.json", replace(old, evaluation=first)), ("new.json", new)):
            Path(name).write_text(report_to_json(report), encoding="utf-8")
        return "old.json", "new.json"

    return write


@pytest.mark.parametrize(("top1", "code"), [(0.95, 7), (0.98, 0), (1.0, 0)])
def test_a_retrained_model_that_classifies_worse_is_a_regression_though_int8_loses_nothing(here, retrain, top1, code):
    done = here("compare", *retrain(top1), "--fail-on-regression")
    assert done.code == code
    assert f"Top-1 of int8 0.9850 {top1:.4f}" in " ".join(done.out.split())
    assert ("FAIL     top1.int8 not worse" in done.out) == (code == 7)
    assert "top1.drop not worse  (unchanged)" in done.out


def test_a_retrained_model_with_a_worse_metric_is_a_regression(here, retrain):
    done = here("compare", *retrain(0.985, metric=0.8), "--fail-on-regression")
    assert done.code == 7
    assert "FAIL     metric.int8 not worse  (worse by 0.1)" in done.out


def test_accuracy_on_other_data_says_nothing_of_the_retrained_model(here, retrain):
    done = here("compare", *retrain(0.9, samples=300), "--fail-on-regression")
    assert done.code == 0
    assert "Top-1 of int8" not in done.out
