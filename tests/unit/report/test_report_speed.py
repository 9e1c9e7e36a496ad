from __future__ import annotations

from dataclasses import replace

import pytest

from int8cal.evaluation.result import Latency
from int8cal.report.charts import BOTTOM, LEFT, RIGHT, TOP, speed_picture
from int8cal.report.document import document_of
from int8cal.report.html import report_to_html


def drawn(report, **changes):
    return speed_picture(document_of(replace(report, evaluation=replace(report.evaluation, **changes))))


def without_labels(report):
    return replace(report.evaluation.metrics, top1=None)


def test_with_labels_both_models_are_points(report):
    picture, text = drawn(report)
    fp32, int8 = picture.dots
    assert (fp32.label, int8.label) == ("float32", "int8")
    assert LEFT < int8.x < fp32.x < RIGHT
    assert TOP < fp32.y < int8.y < BOTTOM  # less accurate, so lower
    assert int8.text == "int8: 0.9789, 2.411 ms"
    assert int8.span[0] > int8.y > int8.span[1]
    assert "95 %" in text


def test_without_labels_float32_is_a_line_since_it_is_the_reference(report):
    picture, text = drawn(report, metrics=without_labels(report))
    (dot,) = picture.dots
    assert dot.text == "int8: 24.61 dB, 2.411 ms"
    assert picture.marker.label == "float32, 4.812 ms"
    assert picture.marker.at > dot.x
    assert "float32 is a line" in text


@pytest.mark.parametrize("labels", [True, False])
def test_latencies_that_are_guesses_say_so(report, labels):
    metrics = report.evaluation.metrics if labels else without_labels(report)
    reasons = {"latency.speedup_ci95": "a guess, since the cores were busy"}
    picture, text = drawn(report, latency=Latency(4.812, 2.411, 2.0, rounds=5), metrics=metrics, reasons=reasons)
    assert text.startswith("Both latencies are a guess, since the cores were busy. ")
    assert picture.dots[-1].text.endswith(", perhaps 2.411 ms")
    assert "perhaps" not in drawn(report)[0].dots[-1].text


@pytest.mark.parametrize("latency", [None, Latency(float("nan"), 1.0, float("nan"))])
def test_without_latency_nothing_is_drawn(report, latency):
    assert drawn(report, latency=latency, reasons={"latency_ms": "switched off"}) == (None, "")
    evaluation = replace(report.evaluation, latency=latency)
    assert "Accuracy over latency" not in report_to_html(replace(report, evaluation=evaluation))
    assert "<h3>Accuracy over latency</h3>" in report_to_html(report)


def test_without_accuracy_nothing_is_drawn(report):
    metrics = replace(without_labels(report), sqnr_db=None)
    assert drawn(report, metrics=metrics, reasons={"metrics": "no float output"}) == (None, "")
