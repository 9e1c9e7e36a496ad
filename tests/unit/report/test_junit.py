import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.errors import DataError
from int8cal.report.junit import Case, Suite, junit_xml, suite_of_error, suite_of_report


def read(text):
    """What an independent reader makes of it."""
    junitparser = pytest.importorskip("junitparser")
    return junitparser.JUnitXml.fromstring(text.encode())


def test_every_gate_is_a_case_and_a_failure_tells_the_value(report):
    xml = read(junit_xml([suite_of_report("digits", report, action="calibrate")]))
    (suite,) = xml
    job, drop, sqnr = suite
    assert (suite.name, suite.tests, suite.failures, suite.errors, suite.skipped) == ("digits", 3, 1, 0, 0)
    assert (job.name, job.classname, job.is_passed) == ("calibrate", "int8cal.digits", True)
    assert job.time == pytest.approx(sum(report.timing_s.values()), abs=1e-3)
    assert (drop.name, drop.is_passed) == ("top1.drop<=1.0", True)
    assert drop.system_out == "value 0.2222 points, 95 % interval -0.3333 to 0.7777 points"
    (failure,) = sqnr.result
    assert (sqnr.name, failure.type) == ("sqnr_db>=30", "gate")
    assert failure.message.startswith("value 24.61 dB; SQNR falls most at ")
    assert "sqnr_db>=30: value 24.61 dB" in failure.text
    assert {each.name: each.value for each in suite.properties()}["sqnr_db"] == "24.613"


def test_a_gate_without_value_fails_with_the_reason(empty_report):
    xml = ET.fromstring(junit_xml([suite_of_report("m", empty_report, action="evaluate")]))
    assert xml.find(".//failure").get("message") == "value not measured: no labels"


def test_a_job_that_stopped_is_an_error_and_its_gates_were_not_judged():
    error = DataError("holds no images", where="photos", do="check the path")
    (suite,) = read(junit_xml([suite_of_error("digits", error, action="calibrate", gates=["sqnr_db>=30"])]))
    job, gate = suite
    (found,) = job.result
    assert (found.type, found.message) == ("DataError", "data: photos: holds no images; check the path")
    assert gate.is_skipped
    assert (suite.tests, suite.errors, suite.skipped, suite.failures) == (2, 1, 1, 0)


def test_a_bug_is_called_one():
    suite = suite_of_error("m", ZeroDivisionError("division by zero"), action="calibrate")
    assert suite.cases[0].message == "ZeroDivisionError: division by zero; this is a bug in int8cal"


def test_several_jobs_are_several_suites_and_the_totals_are_sums(report):
    suites = [suite_of_report(name, report, action="calibrate") for name in ("a", "b")]
    xml = ET.fromstring(junit_xml([*suites, Suite("c", (Case("calibrate", "error", "stopped", "ModelError"),))]))
    assert [suite.get("name") for suite in xml] == ["a", "b", "c"]
    totals = {key: xml.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert totals == {"tests": "7", "failures": "2", "errors": "1", "skipped": "0"}


def test_it_is_text_of_one_encoding_that_is_the_same_each_time(report):
    text = junit_xml([suite_of_report("m", report, action="calibrate")])
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites ')
    assert text.endswith("</testsuites>\n")
    assert text == junit_xml([suite_of_report("m", replace(report), action="calibrate")])


@given(text=st.text(st.characters()), outcome=st.sampled_from(["passed", "failure", "error", "skipped"]))
def test_any_text_gives_xml_that_can_be_read_back(text, outcome):
    suite = Suite(text, (Case(text, outcome, text, text),), ((text, text),))
    root = ET.fromstring(junit_xml([suite]).encode("utf-8"))
    case = root.find("testsuite/testcase")
    assert "\x00" not in case.get("name")
    kept = "".join(char for char in text if char.isalnum() and char < "\ud800")
    assert "".join(char for char in case.get("name") if char.isalnum() and char < "\ud800") == kept


def test_what_xml_cannot_hold_is_replaced_and_what_it_can_is_escaped():
    text = junit_xml([Suite("m", (Case('a<b>&"\x1b[31m\x00\ud800\ufffe', "failure", "x\ny"),))])
    assert 'name="a&lt;b&gt;&amp;&quot;\ufffd[31m\ufffd\ufffd\ufffd"' in text
    assert 'message="x y"' in text
