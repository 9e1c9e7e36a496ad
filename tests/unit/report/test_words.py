"""How reports put things: names that fit, ratios without exponents, decisions in the order of a reader's questions."""

from dataclasses import replace
from pathlib import Path

import pytest

from int8cal.evaluation.result import FloatNode, Fusion, LayerScales, MixedPoint, MixedPrecision
from int8cal.quantization.table import WeightEntry
from int8cal.report.document import document_of
from int8cal.report.html import report_to_html
from int8cal.report.tables import decision_groups, weight_names
from int8cal.report.wording import headed, ratio, shortened
from int8cal.report.words import WORDS

LONG = "/model/encoder/layers.11/self_attn/rotary_embedding/first_half/Unsqueeze_output_0"


def test_a_long_name_is_cut_in_its_middle_and_keeps_most_of_its_end():
    cut = shortened(LONG, 40)
    assert len(cut) == 40
    front, end = cut.split("…")
    assert LONG.startswith(front)
    assert LONG.endswith(end)
    assert len(front) == 13
    assert shortened("short") == "short"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "\N{MULTIPLICATION SIGN}1"),
        (4.4444, "\N{MULTIPLICATION SIGN}4.44"),
        (12345.6, "\N{MULTIPLICATION SIGN}12,300"),
        (554_321.0, "\N{MULTIPLICATION SIGN}554,000"),
        (8.23e16, ">\N{MULTIPLICATION SIGN}1,000,000"),
    ],
)
def test_a_ratio_has_no_exponent(value, text):
    assert ratio(value) == text


@pytest.mark.parametrize(
    ("head", "shown"),
    [
        ("runtime", "Runtime"),
        ("top-1 drop", "Top-1 drop"),
        ("int8 against float32", "int8 against float32"),
        ("sqnr_db>=60", "sqnr_db>=60"),
        ("SQNR", "SQNR"),
    ],
)
def test_heads_of_columns_begin_alike_but_for_names(head, shown):
    assert headed(head) == shown


def test_a_page_shows_long_names_cut_with_all_of_them_in_the_title(report):
    fusion = Fusion(1, 1, (FloatNode(LONG, "Unsqueeze", "no kernel"),))
    page = report_to_html(replace(report, evaluation=replace(report.evaluation, fusion=fusion)))
    assert f'<span title="{LONG}">{shortened(LONG, 60)}</span>' in page


def test_what_was_done_comes_first_and_what_was_not_kept_is_apart(report):
    lines = (
        "all ranges by max dropped: SQNR on the validation samples 30.00 dB without, 29.00 dB with it; …",
        "residual codes for x would take away 31 % of the noise, for an estimated 2.9 % more time: tried",
        "residual codes for y would take away 1 % of the noise, for an estimated 2.9 % more time: too little to be tried",
        "residual codes of inputs kept: SQNR on the validation samples 30.00 dB without, 32.00 dB with it; …",
        "body: not quantized: Add a: its input b is float",
    )
    groups = dict(decision_groups(document_of(replace(report, decisions=lines))))
    assert list(groups.values()) == [[lines[1], lines[3]], [lines[0], lines[2]], [lines[4]]]


def test_what_a_budget_came_to_is_no_warning_beside_its_own_line(report):
    point = MixedPoint(layers_left=0, planes=0, estimated_percent=0.0, gates={}, sqnr_db=30.0, kept=True)
    mixed = MixedPrecision(
        budget_percent=5.0, fallback="float", outcome="a budget of 5 % does not suffice", layers=(), curve=(point,)
    )
    whole = document_of(replace(report, mixed=mixed, warnings=("a budget of 5 % does not suffice", "other")))
    assert whole.other_warnings == ("other",)


def test_the_glossary_has_every_word_of_the_page_in_the_same_words():
    glossary = Path(__file__).parents[3] / "docs/reference/glossary.md"
    rows = [line.split(" | ") for line in glossary.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    known = {row[0].removeprefix("| ").partition(" (`")[0]: row[1] for row in rows}
    assert WORDS.items() <= known.items()


def test_a_page_explains_its_words_where_they_stand_and_at_its_end(report):
    page = report_to_html(report)
    assert '<abbr title="signal power over the power of the difference' in page
    assert page.count("What the words on this page mean") == 1


def test_lines_that_lead_to_a_step_go_where_its_verdict_goes(report):
    tried = "residual codes for x would take away 69 % of the noise, for an estimated 5.1 % more time: tried"
    kept, dropped = (
        f"residual codes of inputs {verdict}: SQNR on the validation samples …" for verdict in ("kept", "dropped")
    )
    assert decision_groups(document_of(replace(report, decisions=(tried, kept)))) == [("done", [tried, kept])]
    ((_, lines),) = decision_groups(document_of(replace(report, decisions=(tried, dropped))))
    assert lines == [tried, dropped]


def test_a_node_with_several_weights_has_each_named(report):
    entry = WeightEntry("int8", 0, "s8", (1.0, 2.0))
    weights = [LayerScales("lstm", "LSTM", name, "", entry) for name in ("W", "R")]
    document = document_of(replace(report, weights=(*weights, LayerScales("conv", "Conv", "K", "c", entry))))
    assert weight_names(document) == ["lstm (W)", "lstm (R)", "conv"]
