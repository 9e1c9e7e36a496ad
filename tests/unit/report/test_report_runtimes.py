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
    RuntimeResult,
)
from int8cal.evaluation.result_parts import Fastest, RuntimeAgreement
from int8cal.report.document import document_of, report_to_json
from int8cal.report.files import load_report
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown
from int8cal.report.screen import Screen
from int8cal.report.summary import summary_lines
from int8cal.report.terminal import report_lines


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
    for lines, start in (
        (summary_lines(beside), "Runtime   OpenVINO: "),
        (report_lines(document_of(beside), Screen(width=200)), "OpenVINO"),
    ):
        assert any(line.startswith(start) and said in line and agreement in line for line in lines)
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


@pytest.fixture
def timed(report):
    """Make a report in which OpenVINO was timed; keyword arguments change what is said of the fastest."""

    def timed(there=None, **how):
        times = {"onnxruntime": report.evaluation.latency, "openvino": there or Latency(4.5, 2.25, 2.0, (1.9, 2.2))}
        fastest = Fastest(**{"runtime": "openvino", "against": "onnxruntime", "gain": 1.0716, **how})
        return replace(report, evaluation=replace(report.evaluation, latencies=times, fastest=fastest))

    return timed


def line_of(report, start="Fastest here"):
    (line,) = (line for line in report_lines(document_of(report), Screen(width=200)) if line.startswith(start))
    return line.removeprefix(start).strip()


def test_the_fastest_runtime_and_its_gain_are_one_line(timed):
    report = timed(gain_ci95=(1.05, 1.09))
    said = "OpenVINO: 2.250 ms against 2.411 ms in onnxruntime"
    assert line_of(report) == f"{said} (1.07x, 95 % interval 1.05x to 1.09x)"
    assert said in report_to_markdown(report)
    assert said.partition(": ")[2] in report_to_html(report)  # beside the runtime's name in large letters
    assert f"Fastest   {said} (1.07x)" in summary_lines(report)
    for text in (report_to_markdown(report), report_to_html(report)):
        assert "1.05x to 1.09x" in text
        assert "Speed by runtime" in text
        assert "1.90x to 2.20x" in text


def test_a_gain_within_the_noise_is_none(timed):
    assert line_of(timed(gain_ci95=(0.98, 1.2))) == "OpenVINO and onnxruntime alike (2.250 ms and 2.411 ms)"


def test_a_float_model_that_is_faster_still_is_told(timed):
    told = line_of(timed(Latency(1.5, 2.25, 0.667)))
    assert told == "OpenVINO: 2.250 ms against 2.411 ms in onnxruntime (1.07x, and the float32 model 1.500 ms)"


def test_a_runtime_that_could_not_be_timed_says_why_in_one_line(timed):
    report = timed()
    times = {**report.evaluation.latencies, "openvino": None}
    reasons = {**report.evaluation.reasons, "latencies_ms.openvino": "OpenVINO cannot load it: no Conv today"}
    report = replace(report, evaluation=replace(report.evaluation, latencies=times, fastest=None, reasons=reasons))
    assert line_of(report) == "not measured: OpenVINO cannot load it: no Conv today"
    assert json_of(report)["latencies_ms"]["openvino"] is None
    for text in (report_to_markdown(report), report_to_html(report)):
        assert "no Conv today" in text


def test_a_speedup_that_is_a_guess_is_told_so_in_the_table(timed):
    report = timed()
    times = {**report.evaluation.latencies, "openvino": Latency(4.5, 2.25, 2.0, None, 6)}
    report = replace(report, evaluation=replace(report.evaluation, latencies=times))
    for text in (report_to_markdown(report), report_to_html(report)):
        assert text.count("perhaps 2.00x") == 1


def test_the_fastest_runtime_is_a_guess_where_its_speed_is(timed):
    guess = timed(Latency(4.5, 2.25, 2.0, None, 6))
    assert line_of(guess) == "OpenVINO: 2.250 ms against 2.411 ms in onnxruntime (perhaps 1.07x)"
    assert "perhaps 1.07x" in report_to_html(guess)


def test_speeds_are_in_the_document_and_read_back(timed, report, tmp_path):
    document = json_of(timed(gain_ci95=(1.05, 1.09)))
    assert document["latencies_ms"]["onnxruntime"] == document["latency_ms"]
    assert document["latencies_ms"]["openvino"]["int8"] == 2.25
    assert document["fastest"]["gain_ci95"] == [1.05, 1.09]
    assert "runtimes" not in document
    path = tmp_path / "report.json"
    path.write_text(report_to_json(timed()))
    assert load_report(path) == document_of(timed())
    alone = replace(report, evaluation=replace(report.evaluation, latencies={"onnxruntime": Latency(4.5, 2.25, 2.0)}))
    assert {"latencies_ms", "fastest"}.isdisjoint(json_of(alone))
