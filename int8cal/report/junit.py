"""JUnit XML: verdicts as test cases, for the test reports of CI servers.

A suite is a job, its first case whether the job ended well, and every gate another case. Commands, comparisons and
batches make suites; `junit_xml` is the one that writes them.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from int8cal.errors import Int8calError
from int8cal.evaluation.result_parts import STANDING
from int8cal.report.advice import advice
from int8cal.report.document import document_of
from int8cal.report.reading import gate_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from int8cal.evaluation.result import Report
    from int8cal.evaluation.result_parts import Gate

    Outcome = Literal["passed", "failure", "error", "skipped"]

_ROOT = "int8cal"  # the name of the document, by which a later run knows it


@dataclass(frozen=True)
class Case:
    """One test case.

    Attributes:
        name: Of the case; a gate's text, or what the job did.
        outcome: "failure" for a verdict that went wrong, "error" for work that stopped, "skipped" for what was not
            judged.
        message: One line, except for a case that passed without anything to say.
        kind: Class of a failure or error.
        seconds: Duration.
    """

    name: str
    outcome: Outcome = "passed"
    message: str = ""
    kind: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Suite:
    """The cases of one job; `properties` are names and values that readers show beside them."""

    name: str
    cases: tuple[Case, ...]
    properties: tuple[tuple[str, str], ...] = ()


def suite_of_report(name: str, report: Report, *, action: str) -> Suite:
    """Make a suite of a job that ran to its end.

    Args:
        name: Of the job.
        report: Its report.
        action: What the job did, "calibrate" or "evaluate": the name of the case that tells it ended well.
    """
    document = document_of(report)
    values = [
        "; ".join(filter(None, (gate_value(document, index), advice(document, index))))
        for index in range(len(report.gates))
    ]
    metrics = {name: value for name, value in vars(document.metrics).items() if isinstance(value, float)}
    if document.metric is not None:
        own = {key: getattr(document.metric, key) for key in ("fp32", "int8", "drop")}
        metrics |= {f"{document.metric.name}.{key}": value for key, value in own.items() if value is not None}
    return Suite(
        name,
        (
            Case(action, seconds=sum(report.timing_s.values())),
            *cases_of_findings(report),
            *cases_of_gates(report.gates, values),
        ),
        tuple((key, f"{value:.6g}") for key, value in metrics.items()),
    )


def suite_of_error(name: str, error: BaseException, *, action: str, gates: Iterable[str] = ()) -> Suite:
    """Make a suite of a job that stopped: an error, and gates that nobody could judge."""
    own = isinstance(error, Int8calError)
    message = str(error) if own else f"{type(error).__name__}: {error}; this is a bug in int8cal"
    stopped = Case(action, "error", message, type(error).__name__)
    return Suite(name, (stopped, *skipped_gates(gates, f"{action} stopped")))


def cases_of_findings(report: Report) -> tuple[Case, ...]:
    """Make a case of every finding about the data: a failure where findings are errors, else one that only says it."""
    evaluation = report.settings.get("evaluation")
    strict = isinstance(evaluation, dict) and bool(evaluation.get("strict"))
    return tuple(
        Case(f"data: {each.check}", "failure" if strict else "passed", str(each), "data" if strict else "")
        for each in report.findings
    )


def cases_of_gates(gates: Sequence[Gate], values: Sequence[str]) -> tuple[Case, ...]:
    """Make a case of every gate that reports tell of; `values` say what each was held against."""
    judged = zip(gates, values, strict=True)
    return tuple(gate_case(gate.gate, value, passed=gate.passed) for gate, value in judged if gate.is_told)


def gate_case(gate: str, value: str, *, passed: bool, noun: str = "value") -> Case:
    """Make a case of a gate that was judged; `value` says what it was held against, "" for `noun` that it says all."""
    return Case(gate, "passed" if passed else "failure", f"{noun} {value}".lstrip(), "" if passed else "gate")


def skipped_gates(gates: Iterable[str], why: str) -> tuple[Case, ...]:
    """Make a case of every gate of a job that gave no results."""
    return tuple(Case(gate, "skipped", f"not judged: {why}") for gate in gates if gate not in STANDING)


def junit_xml(suites: Sequence[Suite]) -> str:
    """Write suites as JUnit XML, in the dialect that Jenkins, GitLab and the GitHub actions for it read.

    Returns:
        The document, indented, with its declaration and a final newline. Characters that XML cannot hold (controls,
        lone surrogates) become U+FFFD. Equal suites give equal text.
    """
    root = ET.Element("testsuites", {"name": _ROOT, **_counts([case for suite in suites for case in suite.cases])})
    for suite in suites:
        part = ET.SubElement(root, "testsuite", {"name": _xml_text(suite.name), **_counts(suite.cases)})
        if suite.properties:
            properties = ET.SubElement(part, "properties")
            for key, value in suite.properties:
                ET.SubElement(properties, "property", {"name": _xml_text(key), "value": _xml_text(value)})
        for case in suite.cases:
            _case(part, suite, case)
    ET.indent(root, " ")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def is_junit(path: Path) -> bool:
    """Tell a file that `junit_xml` made, which a later run may replace, by how it begins."""
    try:
        with path.open("rb") as stream:
            return f'<testsuites name="{_ROOT}"'.encode() in stream.read(200)
    except OSError:
        return False


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    outcomes = Counter(case.outcome for case in cases)
    return {
        "tests": str(len(cases)),
        "failures": str(outcomes["failure"]),
        "errors": str(outcomes["error"]),
        "skipped": str(outcomes["skipped"]),
        "time": f"{sum(case.seconds for case in cases):.3f}",
    }


def _case(part: ET.Element, suite: Suite, case: Case) -> None:
    names = {"name": _xml_text(case.name), "classname": _xml_text(f"int8cal.{suite.name}")}
    element = ET.SubElement(part, "testcase", {**names, "time": f"{case.seconds:.3f}"})
    if case.outcome == "passed":
        if case.message:
            ET.SubElement(element, "system-out").text = _xml_text(case.message)
        return
    found = ET.SubElement(element, case.outcome, {"message": _xml_text(case.message)})
    if case.outcome != "skipped":
        found.set("type", _xml_text(case.kind))
        # some readers show the attribute, others the text
        found.text = _xml_text(f"{case.name}: {case.message}")


def _xml_text(text: str) -> str:
    """Make text that XML 1.0 can hold (its production Char), on one line."""
    return "".join(
        char if "\x20" <= char <= "\ud7ff" or "\ue000" <= char <= "\ufffd" or char >= "\U00010000" else "\ufffd"
        for char in " ".join(text.splitlines())
    )
