from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_reports import json_of

from int8cal.evaluation.result import FloatNode, Fusion, Metrics, OutputMetrics
from int8cal.report.document import find_reason, report_to_json


def with_metrics(report, **changes):
    return replace(report, evaluation=replace(report.evaluation, metrics=replace(report.evaluation.metrics, **changes)))


def test_the_keys_are_the_contracts_in_its_order(report):
    document = json.loads(report_to_json(report))
    assert list(document) == [
        "format",
        "version",
        "model",
        "settings",
        "samples",
        "metrics",
        "outputs",
        "layers",
        "fusion",
        "saturation",
        "size",
        "latency_ms",
        "timing_s",
        "gates",
        "warnings",
        "decisions",
        "measured",
        "reasons",
    ]
    assert document["format"] == "int8cal/report"
    assert document["version"] == 1
    assert list(document["metrics"]) == [
        "sqnr_db",
        "sqnr_db_ci95",
        "cosine",
        "max_abs_error",
        "agreement",
        "agreement_ci95",
        "top1",
        "top5",
        "exact_outputs",
    ]
    assert list(document["metrics"]["top1"]) == ["fp32", "int8", "drop", "drop_ci95", "samples"]
    assert list(document["layers"][0]) == ["tensor", "node", "op_type", "sqnr_db", "clipped"]
    assert list(document["fusion"]) == ["integer", "float", "nodes"]
    assert document["saturation"] == {"target": "x86-vnni", "unsafe_channels": 0}
    assert document["size"] == {"fp32_bytes": 13_998_211, "int8_bytes": 3_655_120}
    assert document["latency_ms"] == {"fp32": 4.812, "int8": 2.411, "speedup": 1.996, "speedup_ci95": [1.9, 2.1]}
    assert list(document["timing_s"]) == ["prepare", "calibrate", "thresholds", "quantize", "evaluate"]
    drop = {"gate": "top1.drop<=1.0", "value": 0.2222, "passed": True, "ci95": [-0.3333, 0.7777]}
    assert document["gates"] == [drop, {"gate": "sqnr_db>=30", "value": 24.613, "passed": False}]


def test_histograms_stay_out_of_the_json(report):
    assert report_to_json(report) == report_to_json(replace(report, histograms=()))


def test_equal_reports_give_equal_bytes_whatever_the_order_of_their_settings(report):
    shuffled = replace(report, settings=dict(reversed(report.settings.items())))
    assert report_to_json(shuffled) == report_to_json(report)


def test_the_text_is_indented_by_one_and_ends_in_a_newline(report):
    lines = report_to_json(report).split("\n")
    assert lines[1] == ' "format": "int8cal/report",'
    assert lines[-1] == ""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the report is frozen
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_floats_round_trip(report, value):
    text = report_to_json(with_metrics(report, sqnr_db=value))
    assert json.loads(text)["metrics"]["sqnr_db"] == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "the computation gave NaN"),
        (math.inf, "infinite: both models give exactly the same values"),
        (-math.inf, "the computation gave -inf"),
    ],
)
def test_a_number_that_is_not_finite_becomes_null_with_a_reason(report, value, reason):
    text = report_to_json(with_metrics(report, sqnr_db=value))
    assert "NaN" not in text.replace(reason, "")
    assert "Infinity" not in text
    document = json.loads(text)
    assert document["metrics"]["sqnr_db"] is None
    assert document["reasons"]["metrics.sqnr_db"] == reason


def test_a_reason_the_evaluation_gave_is_kept_over_a_general_one(report):
    evaluation = replace(report.evaluation, reasons={"metrics.sqnr_db": "the output is constant"})
    broken = with_metrics(replace(report, evaluation=evaluation), sqnr_db=math.nan)
    assert json_of(broken)["reasons"]["metrics.sqnr_db"] == "the output is constant"


def test_not_finite_values_deep_in_settings_and_intervals_become_null(report):
    top1 = replace(report.evaluation.metrics.top1, drop_ci95=(math.nan, 1.0))
    document = json_of(replace(with_metrics(report, top1=top1), settings={"ranges": {"x": (-math.inf, 1.0)}}))
    assert document["metrics"]["top1"]["drop_ci95"] == [None, 1.0]
    assert document["settings"]["ranges"]["x"] == [None, 1.0]
    assert {"metrics.top1.drop_ci95.0", "settings.ranges.x.0"} <= set(document["reasons"])


def test_every_null_has_a_reason_even_when_the_evaluation_gave_none(empty_report):
    reasons = json_of(empty_report)["reasons"]
    assert reasons["metrics.top1"] == "no labels"
    for path in ("metrics.sqnr_db", "outputs.logits.cosine", "layers.0.clipped", "fusion", "latency_ms"):
        assert find_reason(reasons, path), path


def test_a_gate_without_value_takes_the_reason_of_its_metric(empty_report):
    reasons = json_of(empty_report)["reasons"]
    assert "gates.0.value" not in reasons
    assert find_reason(reasons, "gates.0.value", "metrics.top1.drop") == "no labels"


def test_a_layers_reason_may_be_filed_under_its_tensor(report):
    document = json_of(report)
    assert document["layers"][7]["clipped"] is None
    assert "layers.7.clipped" not in document["reasons"]


def test_paths_tuples_sets_and_numpy_scalars_become_plain_json(report):
    settings = {
        "dir": Path("out"),
        "glob": {"b", "a"},
        "n": np.int64(3),
        "f": np.float32(0.5),
        "ok": True,
        "numpy": np.bool_(1),
    }
    document = json.loads(report_to_json(replace(report, settings=settings)))
    assert document["settings"] == {"dir": "out", "f": 0.5, "glob": ["a", "b"], "n": 3, "numpy": True, "ok": True}


def test_names_that_are_not_valid_unicode_can_still_be_written(report):
    report_to_json(replace(report, settings={"path": "caf\udce9"})).encode("utf-8")


def test_outputs_keep_the_order_of_the_graph(report):
    outputs = {name: OutputMetrics(sqnr_db=1.0, cosine=1.0) for name in ("z", "a", "m")}
    assert list(json_of(replace(report, evaluation=replace(report.evaluation, outputs=outputs)))["outputs"]) == [
        "z",
        "a",
        "m",
    ]


def test_a_node_says_that_it_was_added_only_where_it_was(report):
    nodes = (FloatNode("a", "Sub", "its codes", residual=True), FloatNode("b", "Sub", "no kernel"))
    found = json_of(replace(report, evaluation=replace(report.evaluation, fusion=Fusion(1, 2, nodes))))
    assert found["fusion"]["nodes"] == [
        {"node": "a", "op_type": "Sub", "reason": "its codes", "residual": True},
        {"node": "b", "op_type": "Sub", "reason": "no kernel"},
    ]


def test_a_part_that_was_not_measured_at_all_is_null(empty_report):
    document = json_of(empty_report)
    assert document["fusion"] is None
    assert document["latency_ms"] is None
    assert document["metrics"] == {**dict.fromkeys(Metrics.__annotations__), "exact_outputs": []}
