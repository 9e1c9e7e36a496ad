"""An audit as lines and as JSON."""

import json
from dataclasses import replace

import pytest
from made_reports import CLEAN, FOUND, SAFE, UNSAFE, layer_saturation

from int8cal.audit.audit import Audit, AuditedLayer, Repaired
from int8cal.audit.on_data import LayerOnData, OnData, RuntimeOnData
from int8cal.audit.repair import Repair
from int8cal.audit.report import audit_lines, audit_to_json
from int8cal.evaluation.result import Fusion
from int8cal.evaluation.result_parts import Gate
from int8cal.report.screen import Screen

FLOAT = layer_saturation("rnn\x1b", "LSTM", verdict="float", why="computes in float")
LAYERS = (AuditedLayer(UNSAFE, (-127, 127), 0.25), AuditedLayer(SAFE, (-60, 60), 0.01), AuditedLayer(FLOAT, None, None))
AUDIT = Audit("net.onnx", "portable", LAYERS, FOUND, Fusion(2, 1, ()))
ON_DATA = OnData(
    4,
    False,
    (LayerOnData("conv|1", (RuntimeOnData("onnxruntime", 100, 9, (1, 2), 400, 2.5), RuntimeOnData("onednn", 90, 2, (1,), 9, 0.1))),),
)  # fmt: skip


def test_an_audit_is_a_table_with_totals_and_a_verdict():
    lines = audit_lines(AUDIT)
    assert lines[2].split()[:4] == ["unsafe", "channels", "pairs", "worst"]
    assert lines[3].split() == ["3", "16", "7", "254/128", "-127..127", "0.2500", "conv|1", "(Conv)"]
    text = "\n".join(lines)
    assert "3 of 26 channels can saturate, in 1 of 2 integer layers; 7 pairs" in text
    assert "1 (1 LSTM); they cannot saturate" in text
    assert "onnxruntime runs 2 of 3 compute nodes on integers" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("columns", [30, 80])
def test_an_audit_fits_the_terminal(columns):
    lines = audit_lines(AUDIT, Screen(width=columns))
    assert max(map(len, lines[2:])) <= columns
    row = "unsafe 3, channels 16, pairs 7, worst sum 254/128, codes -127..127, s32 used 0.2500"
    assert (f"conv|1 (Conv): {row}" in " ".join(" ".join(lines).split())) == (columns == 30)


def test_an_audit_shows_data_repairs_and_gates():
    repairs = (Repair("conv|1", "scales", 3, 41.0), Repair("in", None, 0, None, "inside"))
    after = replace(AUDIT, saturation=CLEAN, on_data=OnData(4, True, ()))
    repaired = Repaired("out.onnx", repairs, after)
    audit = replace(
        AUDIT, on_data=replace(ON_DATA, skipped=2), repaired=repaired, gates=(Gate("unsafe_channels<=0", 0.0, True),)
    )
    text = "\n".join(audit_lines(audit))
    assert "9 pair sums saturated in 2 channels, over 4 samples" in text
    assert "2.5 steps" in text
    assert "has no VNNI" in text
    assert "3 channels quantized again; 0 can saturate in out.onnx" in text
    assert "conv|1: 3 channels, new scales and codes, weights kept to 41.00 dB" in text
    assert "in: not repaired, inside" in text
    assert "2 unreadable files left out" in text
    assert "on the same data 0 pair sums saturated" in text
    assert "pass  unsafe_channels<=0  (value 0)" in text
    assert text.endswith("safe whatever the activations")
    document = json.loads(audit_to_json(audit))
    assert document["totals"]["saturated_on_data"] == 9
    assert document["layers"][0]["on_data"]["runtimes"]["onednn"]["saturated"] == 2
    assert document["totals"]["unsafe_channels"] == document["layers"][0]["unsafe_channels"] == 3
    assert document["fixed"]["layers"][1]["how"] is None
    assert (document["fixed"]["totals"]["unsafe_channels"], document["fixed"]["totals"]["saturated_on_data"]) == (0, 0)


def test_a_verdict_does_not_call_products_of_activations_safe_whatever_they_are():
    product = layer_saturation("mul", "MatMul", verdict="data", why="both operands are activations")
    found = replace(CLEAN, layers=(*CLEAN.layers, product))
    verdict = audit_lines(replace(AUDIT, saturation=found))[-1]
    assert "all products with weights are safe" in verdict
    assert "whether 1 product of two activations can saturate depends on the data" in verdict


def test_without_a_fusion_audit_it_is_said_what_counts():
    audit = replace(AUDIT, fusion=None, fusion_reason="it has an op that nobody knows")
    text = "\n".join(audit_lines(audit))
    assert "not measured: it has an op that nobody knows; every layer that could run on integers counts" in text
