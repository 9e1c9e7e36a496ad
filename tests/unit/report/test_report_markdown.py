from __future__ import annotations

import re
from dataclasses import replace

from int8cal.evaluation.result import FloatNode, LayerMetrics
from int8cal.report.markdown import report_to_markdown


def with_evaluation(report, **changes):
    return replace(report, evaluation=replace(report.evaluation, **changes))


def table_after(text, title):
    rows = [line for line in text[text.index(title) :].split("\n###")[0].splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\) \| ", row.strip("| ")) for row in rows]


def test_the_headline_tells_accuracy_size_and_speed(report):
    text = report_to_markdown(report)
    assert "| SQNR | 24.61 dB |" in text
    assert "0.22 points | 98.11 % to 97.89 %, 95 % interval -0.33 to 0.78" in text
    assert "3.83x smaller | 14.00 MB to 3.66 MB" in text
    assert "2.00x | 4.812 ms to 2.411 ms per sample" in text
    assert "**1 of 2 accuracy gates failed**" in text


def test_the_heading_names_both_models_and_the_text_the_data_and_versions(report, with_origin):
    text = report_to_markdown(with_origin(report))
    assert text.startswith("## int8cal: `mobilenetv2.int8.onnx` against `mobilenetv2`\n")
    assert "Evaluation data: path `photos/val`, labels `folders`, preprocess.resize `224`, samples `900`." in text
    assert text.endswith("Made with: int8cal `0.1.0`, onnxruntime `1.31.0`.\n")


def test_only_the_ten_worst_layers_are_shown_and_the_worst_is_first(build):
    rows = table_after(report_to_markdown(build(60)), "### The 10 worst of 60 layers")
    values = [float(row[2].removesuffix(" dB")) for row in rows[2:]]
    assert len(values) == 10
    assert values == sorted(values)


def test_a_missing_figure_shows_its_reason(empty_report):
    text = report_to_markdown(empty_report)
    assert "| Top-1 drop | not measured | no labels |" in text
    assert "| Speedup | not measured | switched off |" in text
    assert "None" not in text
    assert "nan" not in text


def test_a_name_cannot_break_out_of_its_table_cell(report):
    name = "a|b`c``d\n<script>alert(1)</script>"
    layer = LayerMetrics(name, "node", "Co|nv", -1.0, 0.0)
    rows = table_after(report_to_markdown(with_evaluation(report, layers=(layer,))), "### Worst layers")
    assert len(rows) == 3
    assert rows[2] == [
        "```a\\|b`c``d\N{REPLACEMENT CHARACTER}<script>alert(1)</script>```",
        "Co\\|nv",
        "-1.00 dB",
        "0 %",
    ]


def test_reasons_are_text_and_not_markup(report):
    node = FloatNode("n", "Op", "see [here](x) <b>*now*</b> @somebody | `x`")
    fusion = replace(report.evaluation.fusion, nodes=(node,))
    row = table_after(report_to_markdown(with_evaluation(report, fusion=fusion)), "### Left in float")[2]
    assert len(row) == 3
    assert "<b>" not in row[2]
    assert "@somebody" not in row[2]
    assert "\\[here\\]" in row[2]
    assert "\\`x\\`" in row[2]


def test_the_clipped_column_goes_when_no_layer_has_it(report):
    bare = tuple(replace(layer, clipped=None) for layer in report.evaluation.layers)
    text = report_to_markdown(with_evaluation(report, layers=bare, reasons={"layers": "no calibration statistics"}))
    assert "| tensor | op | SQNR |\n" in text
    assert "Clipped share not measured: no calibration statistics." in text


def test_it_is_short_even_when_much_stayed_in_float(report):
    nodes = tuple(FloatNode(f"n{i}", "Op", "why") for i in range(500))
    text = report_to_markdown(with_evaluation(report, fusion=replace(report.evaluation.fusion, nodes=nodes)))
    assert "and 480 more" in text
    assert len(text.splitlines()) < 80
