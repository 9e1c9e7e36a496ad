"""What gates, views and comparisons make of the decisions on outputs."""

import re
from dataclasses import replace

import pytest
from made_reports import compared, json_of

from int8cal.evaluation.figures import DECISIONS, figure_of, interval_of, value_of
from int8cal.evaluation.gates import check_gates, parse_gate
from int8cal.evaluation.result import OutputMetrics
from int8cal.evaluation.result_parts import DecisionFigure
from int8cal.report.document import document_from, document_of
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown
from int8cal.report.reading import gate_value
from int8cal.report.regressions import judge_regressions
from int8cal.report.summary import summary_lines
from int8cal.report.tables import decision_rows, decision_sentences
from int8cal.report.terminal import report_lines

HOW = "share of something; interval exact, of a proportion of samples"


def decision(figure, value, ci95=None, kind="probabilities", channels=None):
    return DecisionFigure(figure=figure, kind=kind, channels=channels, value=value, ci95=ci95, samples=48, how=HOW)


BOXES = [
    decision("box_recall", 0.9873, (0.98, 0.994), "boxes", (0, 3)),
    decision("box_iou", 0.97, (0.968, 0.9736), "boxes", (0, 3)),
    decision("decision_f1", 0.9, (0.85, 0.95), channels=(4, 4)),
    decision("decision_f1", 0.8, (0.7, 0.9), channels=(5, 8)),
    decision("threshold_crossings", 0.01, (0.0, 0.02), channels=(4, 4)),
    decision("threshold_crossings", 0.02, (0.01, 0.03), channels=(5, 8)),
]


def without_classes(evaluation):
    return replace(evaluation, metrics=replace(evaluation.metrics, agreement=None, top1=None, top5=None))


@pytest.fixture
def detector(report):
    outputs = {"out": OutputMetrics(sqnr_db=20.0, cosine=0.9, sqnr_db_ci95=(19.0, 21.0), decisions=tuple(BOXES))}
    return replace(report, evaluation=replace(report.evaluation, outputs=outputs))


def test_every_figure_is_a_gate_with_an_interval_and_a_better_way(detector):
    for name, (unit, _, better) in DECISIONS.items():
        for text in (name, f"{name}_ci95.lo", f"{name}_ci95.hi"):
            assert parse_gate(f"outputs.a.b.{text}>=0.5").name == f"outputs.a.b.{text}"
            assert figure_of(f"outputs.a.b.{text}").unit == unit
        assert figure_of(f"outputs.out.{name}").better == better
    (gate,) = check_gates([parse_gate("outputs.out.box_recall>=0.98")], detector.evaluation)
    assert (gate.passed, gate.value, gate.ci95) == (True, 0.9873, (0.98, 0.994))
    assert value_of("outputs.out.box_recall_ci95.lo", detector.evaluation) == 0.98


def test_the_worst_group_of_an_output_decides(detector):
    assert value_of("outputs.out.decision_f1", detector.evaluation) == 0.8
    assert interval_of("outputs.out.decision_f1", detector.evaluation) == (0.7, 0.9)
    assert value_of("outputs.out.threshold_crossings", detector.evaluation) == 0.02


def test_what_decides_stands_in_the_page_where_agreement_would(detector):
    text = report_to_html(replace(detector, evaluation=without_classes(detector.evaluation)))
    cards = text[text.index("Is it good enough?") : text.index("Is it faster")]
    assert cards.index("Boxes found again") < cards.index("0.9873") < cards.index("SQNR")
    assert not any(each in cards for each in ("Agreement", "Top-1 drop", "not measured"))


def test_the_largest_value_of_an_embedding_is_no_class_where_the_samples_have_no_labels(report):
    neighbours = (decision("neighbour_recall1", 0.97, (0.96, 0.98), "embedding"),)
    outputs = {"e": OutputMetrics(sqnr_db=20.0, cosine=0.9, sqnr_db_ci95=(19.0, 21.0), decisions=neighbours)}
    metrics = replace(report.evaluation.metrics, agreement=0.5, agreement_ci95=(0.4, 0.6), top1=None, top5=None)
    found = replace(report, evaluation=replace(report.evaluation, metrics=metrics, outputs=outputs))
    (accuracy,) = (line for line in summary_lines(found) if line.startswith("Accuracy"))
    assert accuracy.startswith("Accuracy  Nearest neighbour kept 0.9700, SQNR ")
    assert "outputs are not the FP32 model's" not in summary_lines(found)[0]
    cards = report_to_html(found).partition("Is it good enough?")[2].partition("Is it faster")[0]
    assert cards.index("Nearest neighbour kept") < cards.index("SQNR")
    assert "Agreement" not in cards
    for text in (report_to_markdown(found), "\n".join(report_lines(document_of(found)))):
        assert text.index("Nearest neighbour kept") < text.index("Cosine")
        assert not re.search("Agreement|Top-1 drop", text)
    labelled = replace(found, evaluation=replace(found.evaluation, metrics=report.evaluation.metrics))
    assert any("Agreement" in line for line in summary_lines(labelled))


def test_decisions_are_read_back_as_written(detector):
    content = json_of(detector)
    assert content["outputs"]["out"]["decisions"][0] == {
        "figure": "box_recall",
        "kind": "boxes",
        "channels": [0, 3],
        "value": 0.9873,
        "ci95": [0.98, 0.994],
        "samples": 48,
        "how": HOW,
    }
    assert document_from(content).outputs["out"].decisions == tuple(BOXES)


def test_a_terminal_shows_the_most_telling_figure_of_each_group(detector):
    told = decision_sentences(document_of(detector))
    assert told == [
        ("Boxes found again", "0.9873 (out, channels 0..3, 95 % interval 0.9800 to 0.9940)"),
        ("F1 of decisions", "0.9000 (out, channel 4, 95 % interval 0.8500 to 0.9500)"),
        ("F1 of decisions", "0.8000 (out, channels 5..8, 95 % interval 0.7000 to 0.9000)"),
    ]
    assert any(line.startswith("Accuracy  Boxes found again 0.9873, ") for line in summary_lines(detector))


@pytest.fixture
def two_images(report):
    outputs = {
        name: OutputMetrics(
            sqnr_db=36.0, cosine=1.0, decisions=(decision("psnr_db", value, (value - 1, value), "image"),)
        )
        for name, value in (("depth", 51.69), ("clean", 46.19))
    }
    return replace(report, evaluation=replace(without_classes(report.evaluation), outputs=outputs))


def test_the_figure_of_several_outputs_is_that_of_the_worst_one_and_says_so(two_images):
    (accuracy,) = (line for line in summary_lines(two_images) if line.startswith("Accuracy"))
    assert "PSNR 46.19 dB (at clean, the worst of 2), " in accuracy
    assert "51.69" not in accuracy
    cards = report_to_html(two_images).partition("Is it good enough?")[2].partition("Is it faster")[0]
    assert "46.19 dB" in cards
    assert "at clean, the worst of 2, 95 % interval 45.19 dB to 46.19 dB" in " ".join(cards.split())
    assert "51.69" not in cards


@pytest.mark.parametrize(
    "found", [decision("argmax_agreement", 0.9922, kind="class scores"), decision("psnr_db", 40.0, kind="values")]
)
def test_a_terminal_does_not_repeat_what_the_headline_tells(report, found):
    outputs = {"logits": replace(report.evaluation.outputs["logits"], decisions=(found,))}
    known = replace(report, evaluation=replace(report.evaluation, outputs=outputs))
    assert decision_sentences(document_of(known)) == []
    assert len(decision_rows(document_of(known))) == 1


def test_a_figure_of_which_less_is_better_cannot_be_taken_for_a_failure(report):
    plain = OutputMetrics(sqnr_db=20.0, cosine=0.9, decisions=(decision("threshold_crossings", 0.0),))
    known = document_of(replace(report, evaluation=replace(report.evaluation, outputs={"aux": plain})))
    assert decision_sentences(known) == [("Threshold crossed", "by 0.0000 of the values (aux)")]


@pytest.mark.parametrize(("crossed", "lines"), [(0.0, 0), (0.01, 1)])
def test_nothing_is_said_of_values_that_no_model_decides(report, crossed, lines):
    found = (decision("decision_f1", None), decision("threshold_crossings", crossed))
    outputs = {"aux": OutputMetrics(sqnr_db=20.0, cosine=0.9, decisions=found)}
    known = document_of(replace(report, evaluation=replace(report.evaluation, outputs=outputs)))
    assert len(decision_sentences(known)) == lines
    assert len(decision_rows(known)) == 2


def test_many_outputs_take_few_lines_of_a_terminal(report):
    plain = OutputMetrics(sqnr_db=20.0, cosine=0.9, decisions=(decision("decision_f1", 0.5),))
    outputs = {f"out{at}": plain for at in range(12)}
    known = document_of(replace(report, evaluation=replace(report.evaluation, outputs=outputs)))
    assert decision_sentences(known)[8:] == [("", "and 4 more, in report.json")]


def test_pages_show_every_figure_and_how_it_was_measured(detector):
    page, text = report_to_html(detector), report_to_markdown(detector)
    for label in ("Boxes found again", "IoU of boxes", "Threshold crossed", HOW, "0.9700"):
        assert label in page
        assert label in text
    plain = replace(detector, evaluation=replace(detector.evaluation, outputs={}))
    assert "Decisions on the outputs" not in report_to_html(plain) + report_to_markdown(plain)


def test_a_figure_that_is_missing_has_its_reason(detector):
    outputs = {"out": replace(detector.evaluation.outputs["out"], decisions=(decision("box_iou", None, kind="boxes"),))}
    missing = ("decisions.0", "box_iou", "box_iou_ci95")
    reasons = {f"outputs.out.{name}": "nothing found" for name in missing}
    evaluation = replace(detector.evaluation, outputs=outputs, reasons=detector.evaluation.reasons | reasons)
    gates = [parse_gate(f"outputs.out.{name}>=0") for name in ("box_iou", "box_iou_ci95.lo", "psnr_db")]
    known = document_of(replace(detector, evaluation=evaluation, gates=check_gates(gates, evaluation)))
    assert decision_rows(known)[0][3] == "not measured: nothing found"
    assert [gate_value(known, at).partition(": ")[2] for at in range(2)] == ["nothing found"] * 2
    assert "not known to be of a kind" in gate_value(known, 2)


def changed(detector, **values):
    decisions = tuple(replace(each, **values.get(each.figure, {})) for each in BOXES)
    outputs = {"out": replace(detector.evaluation.outputs["out"], decisions=decisions)}
    return json_of(replace(detector, evaluation=replace(detector.evaluation, outputs=outputs)))


@pytest.mark.parametrize(
    ("values", "failed"),
    [
        ({"box_recall": {"value": 0.985, "ci95": (0.975, 0.992)}}, []),
        ({"box_recall": {"value": 0.9, "ci95": (0.88, 0.92)}}, ["outputs.out.box_recall not worse"]),
        ({"box_recall": {"value": 1.0, "ci95": (0.999, 1.0)}}, []),
        ({"threshold_crossings": {"value": 0.3, "ci95": (0.2, 0.4)}}, ["outputs.out.threshold_crossings not worse"]),
        ({"box_iou": {"value": None, "ci95": None}}, ["outputs.out.box_iou not worse"]),
        ({"box_iou": {"value": 0.5, "ci95": None}}, []),
    ],
)
def test_comparisons_know_which_way_is_better(detector, values, failed):
    found = judge_regressions(compared(json_of(detector), changed(detector, **values)))
    assert [each.gate for each in found if not each.passed and "out." in each.gate] == failed
