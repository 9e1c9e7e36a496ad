"""What the views show of the saturation audit, and an audit of its own."""

import json
from dataclasses import replace

import pytest

from int8cal.errors import ConfigError
from int8cal.evaluation.result import Fusion, Gate, LayerSaturation, Saturation
from int8cal.evaluation.saturation.audit import Audit, AuditedLayer, Repaired
from int8cal.evaluation.saturation.on_data import LayerOnData, OnData, RuntimeOnData
from int8cal.evaluation.saturation.repair import Repair
from int8cal.report.audit import audit_lines, audit_to_json
from int8cal.report.document import report_to_json
from int8cal.report.html import report_to_html
from int8cal.report.load import load_report
from int8cal.report.markdown import report_to_markdown
from int8cal.report.terminal import report_lines, summary_lines

UNSAFE = LayerSaturation("conv|1", "Conv", "w", "unsafe", "", 16, 3, 7, 254)
SAFE = LayerSaturation("fc", "Gemm", "v", "safe", "", 10, 0, 0, 120)
FLOAT = LayerSaturation("rnn\x1b", "LSTM", "", "float", "computes in float", 0, 0, 0, None)
FOUND = Saturation("portable", 3, channels=26, unsafe_pairs=7, layers=(UNSAFE, SAFE))
CLEAN = Saturation(
    "portable", 0, channels=26, unsafe_pairs=0, layers=(replace(UNSAFE, verdict="safe", unsafe_channels=0), SAFE)
)
LAYERS = (AuditedLayer(UNSAFE, (-127, 127), 0.25), AuditedLayer(SAFE, (-60, 60), 0.01), AuditedLayer(FLOAT, None, None))
AUDIT = Audit("net.onnx", "portable", LAYERS, FOUND, Fusion(2, 1, ()))
ON_DATA = OnData(
    4,
    False,
    (LayerOnData("conv|1", (RuntimeOnData("onnxruntime", 100, 9, (1, 2), 400, 2.5), RuntimeOnData("onednn", 90, 2, (1,), 9, 0.1))),),
)  # fmt: skip


@pytest.fixture
def audited(report):
    return replace(report, evaluation=replace(report.evaluation, saturation=FOUND))


def test_every_view_shows_how_many_channels_can_saturate_and_where(audited, tmp_path):
    text = report_to_json(audited)
    found = json.loads(text)["saturation"]
    assert (found["unsafe_channels"], found["channels"], found["unsafe_pairs"]) == (3, 26, 7)
    assert [layer["node"] for layer in found["layers"]] == ["conv|1", "fc"]
    (tmp_path / "report.json").write_text(text)
    document = load_report(tmp_path / "report.json")
    for lines in (summary_lines(audited), report_lines(document)):
        assert any("Can saturate" in line and "3 of 26 channels" in line for line in lines)
    markdown = report_to_markdown(audited)
    assert "| <code>conv&#124;1</code> | Conv | 3 | 16 |" in markdown
    assert "fc" not in markdown.split("Can saturate on x86")[1].split("</details>")[0]
    assert "conv|1</code> (Conv): 3 of 16" in report_to_html(audited)


def test_a_clean_model_is_said_to_be_clean(audited):
    clean = replace(audited, evaluation=replace(audited.evaluation, saturation=CLEAN))
    assert any("Can saturate" in line and "no channel" in line for line in summary_lines(clean))
    assert "<summary>Can saturate" not in report_to_markdown(clean)


def test_a_malformed_layer_is_named(audited, tmp_path):
    document = json.loads(report_to_json(audited))
    del document["saturation"]["layers"][1]["unsafe_channels"]
    (tmp_path / "report.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"saturation\.layers\.1\.unsafe_channels is missing"):
        load_report(tmp_path / "report.json")


def test_an_audit_is_a_table_with_totals_and_a_verdict():
    lines = audit_lines(AUDIT)
    assert lines[2].split()[:4] == ["unsafe", "channels", "pairs", "worst"]
    assert lines[3].split() == ["3", "16", "7", "254/128", "-127..127", "25.00", "%", "conv|1", "(Conv)"]
    text = "\n".join(lines)
    assert "3 of 26 channels can saturate, in 1 of 2 integer layers; 7 pairs" in text
    assert "1 (1 LSTM); they cannot saturate" in text
    assert "onnxruntime runs 2 of 3 compute nodes on integers" in text
    assert "\x1b" not in text


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
    product = LayerSaturation("mul", "MatMul", "", "data", "both operands are activations", 0, 0, 0, None)
    found = replace(CLEAN, layers=(*CLEAN.layers, product))
    verdict = audit_lines(replace(AUDIT, saturation=found))[-1]
    assert "all products with weights are safe" in verdict
    assert "whether 1 product of two activations can saturate depends on the data" in verdict


def test_without_a_fusion_audit_it_is_said_what_counts():
    audit = replace(AUDIT, fusion=None, fusion_reason="it has an op that nobody knows")
    text = "\n".join(audit_lines(audit))
    assert "not measured: it has an op that nobody knows; every layer that could run on integers counts" in text
