"""The user's own metric in every view of a report, in comparisons, and in gates."""

import json
from dataclasses import replace

import pytest
from made_reports import compared, json_of

from int8cal.errors import ConfigError, GateError
from int8cal.evaluation.figures import figure_name, metric_name
from int8cal.evaluation.gates import check_gates, parse_gates
from int8cal.evaluation.result import Metrics, UserMetric
from int8cal.gating import require_gates
from int8cal.report.comparison_views import cells
from int8cal.report.document import document_of
from int8cal.report.html import report_to_html
from int8cal.report.junit import suite_of_report
from int8cal.report.markdown import report_to_markdown
from int8cal.report.regressions import judge_limits, judge_regressions, parse_limit
from int8cal.report.summary import summary_lines
from int8cal.report.terminal import report_lines

F1 = UserMetric(name="f1", fp32=0.93, int8=0.91, drop=0.02, drop_ci95=(0.005, 0.035), samples=400)
ERROR = UserMetric(name="wer", fp32=0.10, int8=0.12, drop=0.02, samples=400, higher_is_better=False)
BROKEN = UserMetric(name="f1", fp32=None, int8=None, drop=None)


@pytest.fixture
def judged(report):
    """A report with a metric and gates about it."""

    def judged(metric, *gates, why=""):
        evaluation = replace(report.evaluation, metric=metric, reasons=report.evaluation.reasons | {"metric": why})
        return replace(report, evaluation=evaluation, gates=check_gates(parse_gates(gates, metric.name), evaluation))

    return judged


@pytest.mark.parametrize(
    ("gate", "value", "passed"),
    [
        ("f1>=0.9", 0.91, True),
        ("f1.fp32>=0.94", 0.93, False),
        ("f1.int8>0.91", 0.91, False),
        ("f1.drop<=0.02", 0.02, True),
        ("f1.drop_ci95.hi<=0.02", 0.035, False),
        ("metric.drop_ci95.lo>=0", 0.005, True),
        ("metric.int8>=0.9", 0.91, True),
    ],
)
def test_a_gate_has_the_metrics_own_name_or_the_general_one(judged, gate, value, passed):
    (found,) = judged(F1, gate).gates
    assert (found.gate, found.value, found.passed) == (gate, value, passed)


@pytest.mark.parametrize(
    ("gate", "metric", "told"),
    [
        ("f1.dorp<=1", "f1", 'unknown figure "f1.dorp"; did you mean "f1.drop"?'),
        ("f2>=0.9", "f1", 'unknown figure "f2"; did you mean "f1"?'),
        ("metric.drop<=1", "", "is about a metric of your own, and there is none; give --metric"),
        ("f1.drop<=1", "", "unknown figure"),
    ],
)
def test_a_gate_on_another_metric_is_refused(gate, metric, told):
    with pytest.raises(ConfigError) as caught:
        parse_gates([gate], metric)
    assert told in str(caught.value)


def test_a_metric_is_called_as_its_function():
    assert [metric_name(text) for text in ("a.b:c.d", "a:f", "mean_ap", None)] == ["d", "f", "mean_ap", ""]
    assert figure_name("f1", "f1") == "metric.int8"
    assert figure_name("f1.drop", "") == "f1.drop"


def test_every_view_shows_it_first(judged):
    report = judged(F1, "f1.drop<=0.01")
    result, accuracy = summary_lines(report)[:2]
    assert result == "Result    the accuracy gate failed (f1.drop<=0.01, is 0.02); f1 loses 0.02"
    assert accuracy.startswith("Accuracy  f1 drop 0.02 (0.93 to 0.91), ")
    told = "0.02 (0.93 to 0.91, 95 % interval 0.005 to 0.035)"
    assert any(line.startswith("f1 drop") and told in line for line in report_lines(document_of(report)))
    assert "| f1 drop | 0.02 | 0.005 to 0.035 | 0.93 to 0.91 | ❌ `f1.drop<=0.01` |" in report_to_markdown(report)
    assert "f1 drop" in report_to_html(report)
    content = json_of(report)
    assert list(content)[list(content).index("metrics") + 1] == "metric"
    assert content["metric"] == {
        "name": "f1",
        "fp32": 0.93,
        "int8": 0.91,
        "drop": 0.02,
        "drop_ci95": [0.005, 0.035],
        "samples": 400,
        "higher_is_better": True,
    }
    with pytest.raises(GateError, match=r"f1.drop<=0.01 \(is 0.02, 95 % interval 0.005 to 0.035\)"):
        require_gates(report)
    assert any("lower is better" in line for line in summary_lines(judged(ERROR)))


def test_junit_has_its_figures_and_a_case_for_each_gate(judged):
    suite = suite_of_report("net", judged(F1, "f1>=0.95"), action="evaluate")
    assert {("f1.fp32", "0.93"), ("f1.int8", "0.91"), ("f1.drop", "0.02")} <= set(suite.properties)
    assert [(case.name, case.outcome) for case in suite.cases] == [("evaluate", "passed"), ("f1>=0.95", "failure")]


def test_a_metric_that_failed_says_why_in_the_report_and_fails_its_gates(judged):
    report = judged(BROKEN, "f1>=0.5", why="it could not be computed: raises ValueError: no")
    document = document_of(report)
    assert (
        document.why("gates.0.value")
        == document.why("metric.drop")
        == "it could not be computed: raises ValueError: no"
    )
    assert not report.gates[0].passed
    assert summary_lines(report)[0] == "Result    the accuracy gate failed (f1>=0.5, not measured)"


def test_where_nothing_was_measured_the_reason_is_that_of_the_metric_which_was_asked_for(judged):
    report = judged(BROKEN, why="it could not be computed: raises ValueError: no")
    nothing = Metrics(sqnr_db=None, cosine=None, max_abs_error=None, agreement=None, top1=None, top5=None)
    reasons = report.evaluation.reasons | {f"metrics.{key}": "none can be compared" for key in vars(nothing)}
    evaluation = replace(report.evaluation, metrics=nothing, outputs={}, reasons=reasons)
    why = "f1 not measured: it could not be computed: raises ValueError: no"
    assert f"Accuracy  {why}" in summary_lines(replace(report, evaluation=evaluation))
    evaluation = replace(evaluation, metric=None)
    assert "Accuracy  SQNR not measured: none can be compared" in summary_lines(replace(report, evaluation=evaluation))


def test_a_name_out_of_a_file_is_shown_as_text(judged):
    report = judged(replace(F1, name="<blink>`\x1b[31m"))
    assert "<blink>" not in report_to_html(report)
    assert "<blink>" not in report_to_markdown(report)
    assert "\x1b" not in "\n".join(summary_lines(report))


def both(old, first, second):
    """The report of before with one metric and another."""
    reports = []
    for metric in (first, second):
        content = json.loads(json.dumps(old))
        content["metric"] = json.loads(json.dumps(metric and vars(metric)))
        if metric is None:
            del content["metric"]
        reports.append(content)
    return compared(*reports)


def verdict_of(found):
    return next((each for each in judge_regressions(found) if each.gate == "metric.drop not worse"), None)


def test_compare_shows_which_way_a_metric_went(old):
    found = both(old, ERROR, replace(ERROR, int8=0.15, drop=0.05))
    shown = {change.figure: cells(change) for change in found.figures}
    assert shown["metric.int8"][1:3] == ("0.12", "0.15")
    assert (shown["metric.int8"][-1], shown["metric.drop"][-1]) == ("worse", "worse")


@pytest.mark.parametrize(
    ("first", "second", "passed"),
    [
        (F1, F1, True),
        (F1, replace(F1, drop=0.03, drop_ci95=(0.015, 0.045)), True),  # within noise
        (F1, replace(F1, drop=0.08, drop_ci95=(0.065, 0.095)), False),
        (ERROR, replace(ERROR, drop=0.0209), True),  # without an interval 1 % of 0.1 is allowed
        (ERROR, replace(ERROR, drop=0.0211), False),
        (F1, BROKEN, False),
        (F1, None, False),
        (F1, replace(F1, name="map"), False),
    ],
)
def test_a_metric_that_got_worse_is_a_regression(old, first, second, passed):
    assert verdict_of(both(old, first, second)).passed == passed


def test_different_metrics_are_warned_about_and_not_compared(old):
    found = both(old, F1, replace(F1, name="map"))
    assert "the metrics differ: f1 and map" in found.warnings
    assert verdict_of(both(old, None, None)) is None


def test_a_limit_may_use_the_metrics_own_name(old):
    found = both(old, F1, replace(F1, int8=0.90, drop=0.03))
    texts = ("f1.drop<=0.005", "f1.drop.rise<=0.02", "metric.int8.drop<=0.02", "f1.fp32.drop<=0")
    limits = [parse_limit(text, "f1") for text in texts]
    assert [limit.name for limit in limits[:2]] == ["metric.int8.drop", "metric.drop.rise"]
    assert [gate.passed for gate in judge_limits(limits, found)] == [False, True, True, True]
    with pytest.raises(ConfigError, match="unknown figure"):
        parse_limit("f1.drop.rise<=0.02")
