from __future__ import annotations

from dataclasses import replace

import pytest

from int8cal.evaluation.result import FloatNode, Fusion, Latency, Optimization, OutputMetrics
from int8cal.numerics.metrics import EXACT_DB
from int8cal.quantization.table import StepResult, WeightEntry
from int8cal.report.document import document_of
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown
from int8cal.report.screen import Screen
from int8cal.report.summary import summary_lines
from int8cal.report.terminal import report_lines, spread_lines, step_lines
from int8cal.report.words import WORDS, words_explained


def test_the_summary_is_plain_ascii(report, empty_report):
    assert "\n".join([*summary_lines(report), *summary_lines(empty_report)]).isascii()


def test_ops_that_the_users_model_lacks_are_explained(report):
    nodes = (
        FloatNode("a", "FusedMatMul", "its output is not quantized"),
        FloatNode("b", "NhwcFusedConv", "a constant input is float"),
        FloatNode("c", "Sub", "it computes the residual codes of x", residual=True),
        FloatNode("d", "Sub", "no integer kernel for Sub in the CPU provider"),
        FloatNode("e", "FastGelu", "no integer kernel for FastGelu in the CPU provider"),
    )
    found = replace(report, evaluation=replace(report.evaluation, fusion=Fusion(9, 5, nodes)))
    lines = report_lines(document_of(found))
    start = next(index for index, line in enumerate(lines) if line.startswith("Left in float"))
    assert [line.strip() for line in lines[start + 1 : start + 5]] == [
        "FastGelu: several nodes of the model, which onnxruntime merged into one",
        "FusedMatMul: a MatMul of the model with what onnxruntime merged into it",
        "NhwcFusedConv: a Conv of the model with what onnxruntime merged into it",
        "Sub: 1 node that int8cal added, for residual codes",
    ]
    assert not any("onnxruntime merged" in line for line in report_lines(document_of(report)))


def test_what_int8cal_added_is_said_where_float_nodes_are_counted(report):
    nodes = (FloatNode("c", "Sub", "it computes", residual=True), FloatNode("d", "Mul", "an operand is constant"))
    found = replace(report, evaluation=replace(report.evaluation, fusion=Fusion(9, 2, nodes)))
    float_line = next(line for line in summary_lines(found) if line.startswith("Float"))
    assert "2 of 11 compute nodes (1 Sub added for residual codes, 1 Mul)" in float_line
    for text in (report_to_markdown(found), report_to_html(found)):
        assert "Sub: 1 node that int8cal added, for residual codes" in text


def test_explained_steps_say_what_their_words_mean(report):
    steps = (StepResult("second-order rounding", 30.0, 31.0, kept=True),)
    text = " ".join(" ".join(step_lines(document_of(replace(report, steps=steps)))).split())
    assert "beside the model that a step was tried on, which need not be that of the line above" in text
    assert f"second-order rounding: {WORDS['second-order rounding']}" in text
    assert WORDS["residual codes"] not in text


@pytest.mark.parametrize(
    "step",
    [
        "nothing but ranges by max",
        "all ranges by max",
        "channels rescaled where much is promised",
        "channels rescaled in 2 of 7 places",
        "channels rescaled by measured strength, all ranges by max",
        "copies of channels",
        "ranges at run time for 3 layers",
        "second-order rounding of 2 of 4 layers",
        "ranges by output error",
        "residual codes of inputs",
        "float between layers",
        "float for layers between float nodes",
        "bias correction",
    ],
)
def test_every_step_has_words_that_are_explained(step):
    assert words_explained(step)


def test_words_are_explained_whole_and_where_they_stand():
    assert "scale" not in dict(words_explained("channels rescaled"))
    entry = WeightEntry("int8", 0, "paired", (1.0, 2.0))
    assert spread_lines([("conv", f"{entry.dtype} {entry.range}, 2 scales", 1.0, 1.5, 2.0)], Screen(width=200))[-1] == (
        f"  paired: {WORDS['paired']}"
    )


def test_a_summary_says_what_a_layer_is_where_it_names_one(report):
    found = Optimization(fp32_us=30.0, int8_us=12.0, plain_int8_us=14.0, left={"a": "slower", "b": "slower"}, rows=())
    lines = summary_lines(replace(report, optimize=found))
    (search,) = [line for line in lines if line.startswith("Search")]
    assert "every layer (a node with weights) in int8" in search
    assert search.count("with weights") == 1


def test_many_nodes_with_one_reason_take_one_line(report):
    reasons = ["its weights are not constant"] * 4 + [f"input x{number} is float" for number in range(9)] + ["excluded"]
    nodes = tuple(FloatNode(f"n{at}", "Conv" if at < 7 else "Add", why) for at, why in enumerate(reasons))
    document = document_of(replace(report, evaluation=replace(report.evaluation, fusion=Fusion(9, 14, nodes))))
    lines = report_lines(document)
    assert "  4 nodes, its weights are not constant: Conv 4 (n0, n1, n2 and 1 more)" in lines
    assert "  Add n13: excluded" in lines
    assert "  9 nodes, input is float: Add 6, Conv 3 (n4, n5, n6 and 6 more)" in lines
    for every in (Screen(every=True), Screen(only="*")):
        assert "  Conv n4: input x0 is float" in report_lines(document, every)


def test_a_missing_figure_is_named_with_its_reason(empty_report):
    text = "\n".join(report_lines(document_of(empty_report)))
    assert "Top-1 drop         not measured: no labels" in text
    assert "Left in float  not measured: no reason was recorded" in text
    assert "None" not in "\n".join([text, *summary_lines(empty_report)])


def test_inspect_shows_one_bar_per_layer_worst_first(build):
    lines = report_lines(document_of(build(60)))
    bars = [line for line in lines if "█" in line]
    values = [float(line.split()[0]) for line in bars]
    lengths = [line.count("█") for line in bars]
    assert len(bars) == 59
    assert values == sorted(values)
    assert lengths == sorted(lengths)
    assert any("not measured: the runtime fused this tensor away" in line for line in lines)


def test_inspect_can_show_a_report_in_which_nothing_was_measured(empty_report):
    text = "\n".join(report_lines(document_of(empty_report)))
    assert "None" not in text
    assert "conv1_out (Conv), not measured: no reason was recorded" in text


def test_inspect_draws_no_bar_below_zero_decibels(report):
    layers = tuple(replace(layer, sqnr_db=-3.0) for layer in report.evaluation.layers)
    document = document_of(replace(report, evaluation=replace(report.evaluation, layers=layers)))
    assert "█" not in "\n".join(report_lines(document))


def test_an_exact_layer_fills_its_bar_and_leaves_the_others_theirs(report):
    values = (30.0, 75.5, EXACT_DB)
    layers = tuple(replace(report.evaluation.layers[0], sqnr_db=value) for value in values)
    lines = report_lines(document_of(replace(report, evaluation=replace(report.evaluation, layers=layers))))
    bars = [line for line in lines if "█" in line]
    assert [line.count("█") for line in bars] == [12, 24, 24]
    assert [" ".join(line.split()[:2]) for line in bars[:2]] == ["30.00 dB", "75.50 dB"]
    assert bars[2].split()[0] == "exact"


def test_inspect_names_the_int8_model_the_data_and_the_versions(report, with_origin):
    text = "\n".join(report_lines(document_of(with_origin(report))))
    assert "mobilenetv2.int8.onnx" in text
    assert "path photos/val, labels folders, preprocess.resize 224, samples 900" in text
    assert "int8cal 0.1.0, onnxruntime 1.31.0" in text


def test_the_latencies_of_a_tiny_model_are_shown_with_digits_enough_for_their_ratio(report):
    fast = replace(report, evaluation=replace(report.evaluation, latency=Latency(0.0483, 0.0488, 0.0483 / 0.0488)))
    assert "0.99x (0.0483 ms to 0.0488 ms per sample)" in "\n".join(summary_lines(fast))


def test_terminal_commands_in_a_name_are_not_passed_on(report):
    layers = (replace(report.evaluation.layers[0], tensor="a\x1b[2Jb\nc"),)
    evil = replace(report, evaluation=replace(report.evaluation, layers=layers), warnings=("w\x1b]0;t\x07",))
    for line in [*summary_lines(evil), *report_lines(document_of(evil))]:
        assert line.isprintable()


def test_figures_and_gates_are_shown_with_their_intervals(report):
    text = "\n".join(report_lines(document_of(report), Screen(width=200)))
    assert "24.61 dB (95 % interval 24.10 dB to 25.12 dB)" in text
    assert "0.9922 (893 of 900, 95 % interval 0.9840 to 0.9968)" in text
    assert "2.00x (4.812 ms to 2.411 ms per sample, 95 % interval 1.90x to 2.10x)" in text
    assert "top1.drop<=1.0  (value 0.2222 points, 95 % interval -0.3333 to 0.7777 points)" in text


def test_an_exact_output_has_no_interval(report):
    metrics = replace(report.evaluation.metrics, sqnr_db=EXACT_DB, sqnr_db_ci95=(EXACT_DB, EXACT_DB))
    exact = replace(report, evaluation=replace(report.evaluation, metrics=metrics))
    text = "\n".join(report_lines(document_of(exact)))
    assert "SQNR               exact\n" in text


def test_the_sqnr_of_several_outputs_says_of_which_it_is_and_which_are_exact(report):
    outputs = {
        "logits": OutputMetrics(sqnr_db=24.61, cosine=0.99),
        "boxes": OutputMetrics(sqnr_db=40.0, cosine=0.999),
        "ids": OutputMetrics(sqnr_db=EXACT_DB, cosine=1.0),
    }
    metrics = replace(report.evaluation.metrics, sqnr_db=24.61, exact_outputs=("ids",))
    several = replace(report, evaluation=replace(report.evaluation, metrics=metrics, outputs=outputs))
    text = "\n".join(report_lines(document_of(several), Screen(width=200)))
    assert "SQNR 24.61 dB (at logits, the worst of 3 outputs; exact: ids)" in "\n".join(summary_lines(several))
    assert "24.61 dB (at logits, the worst of 3 outputs; exact: ids, 95 % interval" in text
    assert "at logits, the worst of 3 outputs; exact: ids" in report_to_markdown(several)
    assert "at logits, the worst of 3 outputs; exact: ids" in report_to_html(several)
