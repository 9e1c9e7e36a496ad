"""What the reports say of a second runtime."""

import json
from dataclasses import replace

import pytest
from made_reports import json_of

from int8cal.errors import ConfigError
from int8cal.evaluation.result import (
    FloatNode,
    Fusion,
    Latency,
    Metrics,
    OutputMetrics,
    RuntimeAgreement,
    RuntimeResult,
)
from int8cal.report.document import document_of, report_to_json
from int8cal.report.files import load_report
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown
from int8cal.report.screen import Screen
from int8cal.report.terminal import report_lines, summary_lines


@pytest.fixture
def beside(report):
    other = RuntimeResult(
        "openvino",
        Metrics(sqnr_db=25.125, cosine=0.9987, max_abs_error=1.25, agreement=0.99, top1=None, top5=None),
        {"logits": OutputMetrics(sqnr_db=25.125, cosine=0.9987)},
        Fusion(50, 1, (FloatNode("Softmax_7", "Softmax", "runs jit_avx512_f32"),)),
        Latency(4.5, 2.25, 2.0),
        RuntimeAgreement(40.5, 0.9999, 0.25, 0.9955),
    )
    reasons = {**report.evaluation.reasons, "runtimes.openvino.metrics.top1": "the samples have no labels"}
    return replace(report, evaluation=replace(report.evaluation, runtimes=(other,), reasons=reasons))


def test_the_document_holds_both_runtimes(beside):
    document = json_of(beside)
    first, second = document["runtimes"].values()
    assert list(document["runtimes"]) == ["onnxruntime", "openvino"]
    assert first["metrics"] == document["metrics"]
    assert first["kernels"] == {"integer": 53, "float": 2}
    assert second["against_onnxruntime"]["sqnr_db"] == 40.5
    assert second["kernels"]["nodes"][0]["op_type"] == "Softmax"
    assert second["latency_ms"] == {"fp32": 4.5, "int8": 2.25, "speedup": 2.0}


def test_each_null_has_a_reason(beside):
    reasons = document_of(beside).reasons
    assert reasons["runtimes.openvino.metrics.top1"] == "the samples have no labels"
    # that of onnxruntime says why, for both
    assert "runtimes.openvino.metrics.top5" not in reasons
    assert reasons["metrics.top5"]


def test_a_report_of_one_runtime_has_no_such_part(report):
    assert "runtimes" not in json_of(report)
    assert "### Runtimes" not in report_to_markdown(report)
    assert 'id="runtimes"' not in report_to_html(report)


def test_every_view_shows_both(beside):
    said = "SQNR 25.12 dB, 50 of 51 layers on integers, 2.00x (4.500 ms to 2.250 ms)"
    agreement = "40.50 dB, agreement 0.9955"
    for lines in (summary_lines(beside), report_lines(document_of(beside), Screen(width=200))):
        assert any(line.startswith("OpenVINO") and said in line and agreement in line for line in lines)
    for text in (report_to_markdown(beside), report_to_html(beside)):
        assert agreement in text
        assert "50 of 51" in text
        assert "53 of 55" in text


def test_it_reads_back(beside, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(report_to_json(beside))
    assert load_report(path).runtimes == document_of(beside).runtimes


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("metrics",), None, "runtimes.openvino.metrics"),
        (("against_onnxruntime",), [], "runtimes.openvino.against_onnxruntime"),
        (("against_onnxruntime", "sqnr_db"), "loud", "against_onnxruntime.sqnr_db"),
        (("kernels", "integer"), None, "kernels.integer"),
    ],
)
def test_a_malformed_part_is_refused(beside, tmp_path, keys, value, said):
    document = json.loads(report_to_json(beside))
    part = document["runtimes"]["openvino"]
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=said):
        load_report(path)
