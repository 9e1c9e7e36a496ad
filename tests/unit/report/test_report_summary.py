"""What stands on the terminal when a job has ended."""

from dataclasses import replace

import pytest

from int8cal.data.checks import Finding
from int8cal.evaluation.fusion import WEIGHT_ONLY
from int8cal.evaluation.result import NOT_QUANTIZED, Drop, FloatNode, Fusion, Latency, Saturation, Size
from int8cal.evaluation.result_parts import Gate
from int8cal.report.document import document_of
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown
from int8cal.report.screen import Screen
from int8cal.report.summary import LINES, summary_lines
from int8cal.report.terminal import report_lines

PAGE = "model-int8/report.html"
FINDING = Finding(
    "no-preprocess",
    'images go into float input "x" as pixel values 0..255; no preprocessing is declared',
    "declare scale, mean and std as the model was trained",
)


@pytest.fixture
def measured(report):
    """The report with other figures of its evaluation."""
    return lambda **figures: replace(report, evaluation=replace(report.evaluation, **figures))


def test_a_pipe_gets_whole_lines_the_verdict_first_and_the_page_last(report):
    lines = summary_lines(report, page=PAGE)
    assert lines[:4] == [
        "Result    1 of 2 accuracy gates failed (sqnr_db>=30, is 24.61)",
        "Accuracy  Top-1 drop 0.22 points (0.9811 to 0.9789), Agreement 0.9922, SQNR 24.61 dB",
        "Speedup   2.00x (4.812 ms to 2.411 ms per sample)",
        "Size      3.83x smaller (14.00 MB to 3.66 MB)",
    ]
    assert [line.split()[0] for line in lines[4:]] == ["Warning", "Worst", "Float", "Report"]
    assert lines[-1] == f"Report    {PAGE}"
    assert len(lines) == LINES


def test_without_files_the_last_line_says_how_to_get_them(report):
    assert summary_lines(report)[-1] == "Report    not written; -o DIR writes it"


@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_terminal_gets_at_most_eight_lines_of_its_width(report, empty_report, measured, width):
    screen = Screen(width=width)
    worst = replace(measured(latency=Latency(2.0, 2.5, 0.8, (0.75, 0.84))), findings=(FINDING,), warnings=("w",) * 9)
    for each in (report, empty_report, worst):
        lines = summary_lines(each, screen, PAGE)
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= width
        assert lines[-1] == f"Report    {PAGE}"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_worst_layer_and_what_stayed_in_float_are_told_at_any_width(report, width):
    cpu = "per sample on Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz, 2 threads"
    warned = replace(report, gates=(), warnings=(f"evaluated on the calibration data; {cpu}",))
    labels = [line.split()[0] for line in summary_lines(warned, Screen(width=width), PAGE)]
    assert labels == ["Result", "Accuracy", "Speedup", "Size", "Warning", "Worst", "Float", "Report"]


def test_rows_without_room_are_named(report):
    gates = tuple(Gate(f"outputs.a_long_name_of_an_output_{at}.sqnr_db>=30", 24.6, False) for at in range(3))
    lines = summary_lines(replace(report, gates=gates, findings=(FINDING,)), Screen(width=40), PAGE)
    assert len(lines) <= LINES
    shown = " ".join("\n".join(lines).split())
    assert "More Worst, Float: in the report Report" in shown


def test_a_speed_that_was_not_measured_is_not_said_to_be_in_the_report(measured, report):
    unmeasured = measured(latency=None, reasons={"latency": "latency was switched off"})
    gates = tuple(Gate(f"outputs.a_long_name_of_an_output_{at}.sqnr_db>=30", 24.6, False) for at in range(3))
    full = replace(unmeasured, gates=gates, findings=(FINDING,), warnings=(str(FINDING), "w"))
    lines = summary_lines(full, Screen(width=40), PAGE)
    assert len(lines) <= LINES
    assert not any("Speedup" in line for line in lines)
    assert any(line.startswith("More") for line in lines)
    assert "Speedup   not measured: latency was switched off" in summary_lines(unmeasured, page=PAGE)


def test_what_stayed_in_float_is_told_where_it_is_most_of_the_model(measured, report):
    mostly = replace(measured(fusion=Fusion(1, 9)), findings=(FINDING,), warnings=("w",) * 9)
    lines = summary_lines(mostly, Screen(width=40), PAGE)
    assert len(lines) <= LINES
    assert "Float     9 of 10 compute nodes" in lines
    few = replace(mostly, evaluation=replace(mostly.evaluation, fusion=Fusion(9, 1)))
    assert not any(line.startswith("Float") for line in summary_lines(few, Screen(width=40), PAGE))


@pytest.mark.parametrize("target", ["openvino", "tensorrt"])
def test_a_model_for_another_runtime_is_not_said_to_stay_in_float_there(measured, target):
    elsewhere = measured(fusion=Fusion(1, 9), saturation=Saturation(target, 0))
    assert not any(line.startswith("Float") for line in summary_lines(elsewhere))
    told = f"these are the kernels of onnxruntime: {target} has others"
    assert told in "\n".join(report_lines(document_of(elsewhere)))
    assert told in report_to_markdown(elsewhere).replace("These", "these")
    assert "9 left in float in onnxruntime" in report_to_html(elsewhere)


def test_a_part_that_could_not_be_evaluated_stands_in_the_verdict_of_every_view(report, measured):
    failed = measured(failures=(ValueError("no"),))
    assert summary_lines(failed)[0].startswith("Result    not everything could be evaluated; 1 of 2 accuracy gates")
    assert "**Not everything could be evaluated; 1 of 2 accuracy gates failed**" in report_to_markdown(failed)
    assert '<span class="pill fail">! not everything could be evaluated</span>' in report_to_html(failed)


def test_what_is_worse_than_fp32_stands_in_the_verdict(measured, report):
    metrics = replace(report.evaluation.metrics, top1=Drop(0.98, 0.94, 4.0, (1.5, 6.5), 900))
    slower = measured(metrics=metrics, latency=Latency(2.0, 2.5, 0.8, (0.75, 0.84)), size=Size(1000, 1500))
    verdict = summary_lines(replace(slower, gates=()))[0]
    assert verdict == (
        "Result    no accuracy gates set; top-1 loses 4.00 points; slower than FP32 (0.80x); "
        "larger than the float file (1.50x)"
    )
    as_large = measured(size=Size(100_000, 100_400))
    assert "larger" not in summary_lines(replace(as_large, gates=()))[0]


@pytest.mark.parametrize(
    ("latency", "told"),
    [
        (Latency(2.0, 2.1, 0.95, (0.85, 1.05)), "; no faster than FP32 (0.95x)"),
        (Latency(2.0, 2.1, 0.95), "; no faster than FP32 (0.95x)"),
        (Latency(2.0, 4.0, 0.5, (0.05, 4.0)), ""),
        (Latency(2.0, 1.9, 1.05, (0.95, 1.15)), ""),
    ],
)
def test_noise_is_not_called_slower(measured, latency, told):
    assert summary_lines(replace(measured(latency=latency), gates=()))[0] == f"Result    no accuracy gates set{told}"


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({"sqnr_db": 2.57}, "SQNR 2.57 dB"),
        ({"sqnr_db": -1.0, "agreement": 0.71, "agreement_ci95": (0.62, 0.79)}, "SQNR -1.00 dB, agreement 0.7100"),
        ({"agreement": 0.5, "agreement_ci95": (0.4, 0.6)}, "agreement 0.5000"),
        ({"sqnr_db": 3.1, "agreement": 0.5, "agreement_ci95": (0.1, 0.9)}, ""),
        ({"sqnr_db": None}, ""),
    ],
)
def test_outputs_that_are_not_those_of_the_fp32_model_stand_in_the_verdict(measured, report, figures, told):
    found = replace(measured(metrics=replace(report.evaluation.metrics, **figures)), gates=())
    doubt = f"the int8 model's outputs are not the FP32 model's ({told}); " if told else ""
    assert summary_lines(found)[0].startswith(f"Result    {doubt}no accuracy gates set")


@pytest.mark.parametrize(
    ("fusion", "doubt"),
    [
        (Fusion(0, 1, (FloatNode("a", "Conv", NOT_QUANTIZED),)), "the second model holds no int8 layer; "),
        (Fusion(1, 1, (FloatNode("a", "Conv", NOT_QUANTIZED),)), ""),
        (Fusion(0, 1, (FloatNode("a", "Conv", WEIGHT_ONLY),)), ""),
        (Fusion(0, 0), ""),
        (None, ""),
    ],
)
def test_a_second_model_without_an_int8_layer_stands_in_the_verdict(measured, fusion, doubt):
    verdict = summary_lines(replace(measured(fusion=fusion), gates=()))[0]
    assert verdict == f"Result    {doubt}no accuracy gates set"


def test_a_figure_that_misses_its_gate_by_little_is_told_with_the_digits_that_differ(report):
    close = replace(report, gates=(Gate("sqnr_db>=24.61", 24.6079, False),))
    assert summary_lines(close)[0] == "Result    the accuracy gate failed (sqnr_db>=24.61, is 24.6079)"


def test_a_gate_that_fails_though_its_figure_would_hold_says_why(report):
    chance = replace(report, gates=(Gate("top1.drop<=1", 0.0, False, why="the FP32 model itself is near chance"),))
    told = "Result    the accuracy gate failed (top1.drop<=1, since the FP32 model itself is near chance)"
    assert summary_lines(chance)[0] == told


@pytest.mark.parametrize(
    ("latency", "told"),
    [
        (Latency(2.0, 1.0, 2.0), "2.00x (2.000 ms to 1.000 ms per sample)"),
        (Latency(2.0, 1.0, 2.0, (1.9, 2.1)), "2.00x (2.000 ms to 1.000 ms per sample)"),
        (Latency(2.0, 1.0, 2.0, rounds=1), "2.00x (2.000 ms to 1.000 ms per sample)"),
        (Latency(2.0, 1.0, 2.0, rounds=5), "perhaps 2.00x (a guess; 2.000 ms to 1.000 ms per sample)"),
        (Latency(2.0, 1.0, 2.0, (1.6, 2.4)), "2.00x (95 % interval 1.60x to 2.40x, 2.000 ms to 1.000 ms per sample)"),
        (Latency(2.0, 1.9, 1.05, (0.95, 1.1)), "1.05x (95 % interval 0.95x to 1.10x, 2.000 ms to 1.900 ms per sample)"),
        (
            Latency(2.0, 1.3, 1.52, (0.08, 47.01)),
            "too noisy to say on this machine now (95 % interval 0.08x to 47.01x; measure again)",
        ),
    ],
)
def test_a_speedup_is_told_no_more_surely_than_it_was_measured(measured, latency, told):
    why = {"latency.speedup_ci95": "a guess"}
    assert f"Speedup   {told}" in summary_lines(measured(latency=latency, reasons=why))


def test_no_part_of_the_page_states_a_speedup_that_is_a_guess(measured):
    guess = measured(latency=Latency(2.0, 1.0, 2.0, rounds=5), reasons={"latency.speedup_ci95": "a guess"})
    page = report_to_html(guess)
    card = page[page.index("<h3>Latency</h3>") :]
    assert "perhaps 2.00x" in card[: card.index("<h3>Saturation</h3>")]


def test_findings_about_the_data_stand_in_the_verdict_and_below_it(report):
    lines = summary_lines(replace(report, findings=(FINDING, FINDING), warnings=(str(FINDING), str(FINDING))))
    assert lines[0].startswith("Result    check the data; 1 of 2 accuracy gates failed")
    assert lines[1] == f"Data      {FINDING} (and 1 more, in the report)"


def test_a_terminal_has_colours_that_say_how_it_went(report, measured):
    colours = Screen(colour=True)
    assert summary_lines(report, colours)[0].startswith("\x1b[31mResult")
    passed = replace(report, gates=(Gate("cosine>0.9", 0.99, True),))
    assert summary_lines(passed, colours)[0].startswith("\x1b[32mResult")
    assert summary_lines(replace(report, gates=()), colours)[0].startswith("\x1b[1mResult")
    slower = measured(latency=Latency(2.0, 2.5, 0.8, (0.75, 0.84)))
    assert summary_lines(replace(slower, gates=passed.gates), colours)[0].startswith("\x1b[31mResult")
    assert "\x1b" not in "\n".join(summary_lines(report, Screen()))
