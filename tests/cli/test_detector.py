"""A detector whose scores one scale of boxes and scores has made a single value: every report says so first."""

import json

import numpy as np
import onnx
import pytest

from int8cal import evaluate
from tests.detection_head import BOXES, CLASSES, detector, pictures, with_one_scale

FAULT = (
    'output "out": 20 of 24 channels are constant in the int8 model and not in the FP32 model '
    "(probabilities, channels 4..23, from scores)"
)


@pytest.fixture
def files(tmp_path):
    model = detector()
    onnx.save(model, tmp_path / "head.onnx")
    onnx.save(with_one_scale(model), tmp_path / "other.onnx")
    np.savez(tmp_path / "data.npz", x=pictures())
    return tmp_path


def test_scores_that_became_one_value_fail_every_report(call, files):
    given = ("evaluate", "head.onnx", "other.onnx", "--data", "data.npz", "--no-latency")
    done = call(*given, "-o", "out", "--junit", "junit.xml")
    assert done.code == 7
    result, fault, *_ = done.out.splitlines()
    assert result.startswith("Result    1 output at fault; the accuracy gate failed (outputs.dead<=0, is ")
    assert fault == f"At fault  {FAULT}"
    assert FAULT in done.err
    report = json.loads((files / "out/report.json").read_text())
    assert report["metrics"]["sqnr_db"] > 25  # as if nothing were wrong
    output = report["outputs"]["out"]
    assert (output["dead"], output["faults"]) == (CLASSES, [FAULT])
    boxes, scores = output["groups"]
    assert (boxes["kind"], boxes["channels"], boxes["source"]) == ("boxes", [0, BOXES - 1], "boxes")
    assert (scores["kind"], scores["dead"]) == ("probabilities", [*range(BOXES, BOXES + CLASSES)])
    assert scores["sqnr_db"] == pytest.approx(0, abs=0.1)
    assert report["gates"] == [{"gate": "outputs.dead<=0", "value": CLASSES, "passed": False}]
    for name in ("report.md", "report.html"):
        text = (files / "out" / name).read_text()
        assert text.index("1 output at fault") < text.index("channels 4..23")
        assert text.index("channels 4..23") < text.index("Cosine")
    assert 'name="outputs.dead&lt;=0"' in (files / "junit.xml").read_text()
    shown = call("inspect", "out/report.json").out.splitlines()
    assert shown[2].split(maxsplit=2)[2] == FAULT

    assert call(*given, "--quiet", "--gate", "outputs.dead=off").code == 0
    assert call(*given, "--quiet", "--gate", "outputs.dead<=20").code == 0


def test_int8cals_own_model_of_it_has_no_fault(call, files):
    done = call("calibrate", "head.onnx", "--data", "data.npz", "--no-latency", "-o", "out")
    assert (done.code, done.err) == (0, "")
    report = json.loads((files / "out/report.json").read_text())
    assert [gate["passed"] for gate in report["gates"]] == [True]
    boxes, scores = report["outputs"]["out"]["groups"]
    assert min(boxes["sqnr_db"], scores["sqnr_db"]) > 25


def test_a_detector_is_not_told_of_shares_of_samples_that_it_has_none_of(call, files):
    np.savez(files / "few.npz", x=pictures()[:8])
    calibrated = call("calibrate", "head.onnx", "--data", "few.npz", "--no-latency", "-o", "out")
    judged = call("calibrate", "head.onnx", "--data", "data.npz", "--eval-data", "few.npz", "--no-latency", "-o", "two")
    evaluated = call("evaluate", "head.onnx", "out/head.int8.onnx", "--data", "few.npz", "--no-latency")
    for done in (calibrated, judged, evaluated):
        assert done.code == 0
        assert "agreement" not in done.out + done.err


@pytest.mark.newest
def test_onnxruntimes_default_quantization_makes_such_a_model(tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    data = [{"x": each[None]} for each in pictures()]
    model, quantized = tmp_path / "head.onnx", tmp_path / "int8.onnx"
    onnx.save(detector(), model)

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.feeds = iter(data)

        def get_next(self):
            return next(self.feeds, None)

    quantization.quantize_static(str(model), str(quantized), Reader())
    found = evaluate(model, quantized, data, latency=False).evaluation
    assert found.metrics.sqnr_db > 25
    assert found.outputs["out"].faults == (FAULT,)


def test_a_model_of_int8cals_own_is_not_advised_to_be_made_by_int8cal(call, files):
    (files / "job.yaml").write_text(
        "model: head.onnx\ndata: data.npz\nevaluation: {latency: false}\noutput: {dir: out}\n"
        "quantization: {ranges: {x: [-1.0e+6, 1.0e+6]}}\n"
    )
    done = call("calibrate", "--config", "job.yaml")
    assert done.code == 7
    assert "as int8cal calibrate does" not in done.err
    assert (
        "calibrate without the ranges that were given, on data in which these channels vary, or --exclude" in done.err
    )
