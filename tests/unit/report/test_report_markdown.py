from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.evaluation.result import FloatNode, LayerMetrics
from int8cal.evaluation.result_parts import Gate
from int8cal.report.markdown import (
    LIMIT,
    MARKER,
    bullets,
    code,
    escape,
    joined_parts,
    length,
    long_table,
    report_to_markdown,
    table,
)


def with_evaluation(report, **changes):
    return replace(report, evaluation=replace(report.evaluation, **changes))


def test_settings_say_each_thing_once(report):
    image = {"resize": 224, "crop": None}
    data = {"path": "calib", "preprocess": image, "seed": 0}
    settings = {"data": data, "evaluation": {"data": dict(data), "metric": "f1"}, "preprocess": image, "exclude": []}
    text = report_to_markdown(replace(report, settings=settings))
    rows = [("data.path", "calib"), ("data.preprocess.resize", "224"), ("data.seed", "0")]
    rest = [("evaluation.metric", "f1"), ("exclude", "none")]

    def told(rows):
        return "\n".join(f"| `{name}` | `{value}` |" for name, value in rows)

    assert told([*rows, ("evaluation.data", "as data"), *rest]) in text
    settings["evaluation"]["data"] |= {"path": "eval"}
    text = report_to_markdown(replace(report, settings=settings))
    differing = [("evaluation.data", "as data, but for what follows"), ("evaluation.data.path", "eval")]
    assert told([*rows, *differing, *rest]) in text
    del settings["data"]
    text = report_to_markdown(replace(report, settings=settings))
    assert told([("evaluation.data.path", "eval"), ("evaluation.data.preprocess.resize", "224")]) in text
    assert told([("preprocess.resize", "224")]) in text


def table_after(text, title):
    part = text[text.index(f"<summary>{title}") :].split("</details>")[0]
    rows = [line for line in part.splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\) \| ", row.strip("| ")) for row in rows]


def test_the_headline_tells_accuracy_size_and_speed_with_intervals_and_gates(report):
    text = report_to_markdown(report)
    assert "| SQNR | 24.61 dB | 24.10 dB to 25.12 dB |  | ❌ `sqnr_db>=30` |" in text
    assert "| Agreement | 0.9922 | 0.9840 to 0.9968 | 893 of 900 |  |" in text
    assert "| Top-1 drop | 0.22 points | -0.33 to 0.78 | 0.9811 to 0.9789 | ✅ `top1.drop<=1.0` |" in text
    assert "| Size | 3.83x smaller |  | 14.00 MB to 3.66 MB |  |" in text
    assert "| Speedup | 2.00x | 1.90x to 2.10x | 4.812 ms to 2.411 ms per sample |  |" in text


def test_the_verdict_comes_first_with_the_gates_that_failed(report, with_origin):
    lines = report_to_markdown(with_origin(report)).splitlines()
    assert lines[6].startswith("- ❌ `sqnr_db>=30`: 24.61 dB; SQNR falls most at ")
    assert [*lines[:6], lines[7]] == [
        MARKER,
        "",
        "## ❌ int8cal: `mobilenetv2.int8.onnx` against `mobilenetv2`",
        "",
        "**1 of 2 accuracy gates failed**, measured on 900 samples of `photos/val`.",
        "",
        "",
    ]


def test_gates_that_hold_are_said_to_and_no_gates_are_no_success(report):
    passed = report_to_markdown(replace(report, gates=report.gates[:1]))
    assert "## ✅ int8cal" in passed
    assert "❌" not in passed
    none = report_to_markdown(replace(report, gates=()))
    assert "\n## int8cal" in none
    assert "✅" not in none
    assert "gates |" not in none


def test_gates_about_what_has_no_row_have_a_table_of_their_own(report):
    gates = (Gate("outputs.logits.sqnr_db>=20", 24.613, True, (24.1, 25.12)), Gate("fusion.float<=1", 2, False))
    text = report_to_markdown(replace(report, gates=gates))
    assert "| ✅ `outputs.logits.sqnr_db>=20` | 24.61 dB, 95 % interval 24.1 to 25.12 dB |" in text
    assert "| ❌ `fusion.float<=1` | 2 |" in text


def test_a_gate_on_an_end_of_an_interval_stands_beside_its_figure(report):
    gates = (Gate("drop_ci95.hi<=0.5", 0.7777, False), Gate("latency.speedup_ci95.lo>=1", 1.9, True))
    text = report_to_markdown(replace(report, gates=gates))
    assert "| 0.9811 to 0.9789 | ❌ `drop_ci95.hi<=0.5` |" in text
    assert "per sample | ✅ `latency.speedup_ci95.lo>=1` |" in text
    assert "other gates" not in text


def test_settings_data_and_versions_are_folded_away_at_the_end(report, with_origin):
    text = report_to_markdown(with_origin(report))
    rows = table_after(text, "Settings")
    assert ["`evaluation.data.path`", "`photos/val`"] in rows
    assert ["`versions.onnxruntime`", "`1.31.0`"] in rows
    assert text.endswith("</details>\n")


def test_nothing_in_it_changes_from_run_to_run_of_the_same_job(report):
    assert "31.4" not in report_to_markdown(report)  # seconds of a station
    assert report_to_markdown(report) == report_to_markdown(replace(report, timing_s={"evaluate": 99.0}))


def test_only_the_ten_worst_layers_are_shown_and_the_worst_is_first(build):
    rows = table_after(report_to_markdown(build(60)), "The 10 worst of 60 layers")
    values = [float(row[2].removesuffix(" dB")) for row in rows[2:]]
    assert len(values) == 10
    assert values == sorted(values)


def test_a_missing_figure_shows_its_reason(empty_report):
    text = report_to_markdown(empty_report)
    assert "| Top-1 drop | not measured |  | no labels | ❌ `top1.drop<=1.0` |" in text
    assert "| Speedup | not measured |  | switched off |  |" in text
    assert "None" not in text
    assert "nan" not in text


def test_a_name_cannot_break_out_of_its_table_cell(report):
    name = "a|b`c``d\n<script>alert(1)</script>"
    layer = LayerMetrics(name, "node", "Co|nv", -1.0, 0.0)
    rows = table_after(report_to_markdown(with_evaluation(report, layers=(layer,))), "Worst layers")
    assert len(rows) == 3
    assert rows[2] == [
        "<code>a&#124;b&#96;c&#96;&#96;d\N{REPLACEMENT CHARACTER}&#60;script&#62;alert&#40;1&#41;&#60;/script&#62;</code>",
        "Co\\|nv",
        "-1.00 dB",
        "0",
    ]


def test_reasons_are_text_and_not_markup(report):
    node = FloatNode("n", "Op", "see [here](x) <b>*now*</b> @somebody | `x`")
    fusion = replace(report.evaluation.fusion, nodes=(node,))
    row = table_after(report_to_markdown(with_evaluation(report, fusion=fusion)), "Left in float")[2]
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
    assert len(text.splitlines()) < 120


ODD = "a|b\\|c`<b>x</b>&amp;*_[y](z)$1$ @me #1 :+1: \u202e\n\x1b[31m" + "n" * 400


def test_however_much_there_is_to_tell_it_fits_into_a_comment(build):
    report = build(300)
    evaluation = report.evaluation
    odd = [ODD + str(index) for index in range(500)]
    report = replace(
        report,
        model={"name": ODD, "int8": ODD},
        settings={name: {"value": ODD} for name in odd},
        gates=tuple(Gate(f"outputs.{name}.sqnr_db>=30", 1.0, False, (0.5, 1.5)) for name in odd)
        + tuple(Gate(f"sqnr_db>={index}", 24.6, False) for index in range(500)),
        warnings=tuple(odd),
        evaluation=replace(
            evaluation,
            layers=tuple(LayerMetrics(name, ODD, ODD, None, None) for name in odd),
            fusion=replace(evaluation.fusion, nodes=tuple(FloatNode(name, ODD, ODD) for name in odd)),
            reasons={"layers": ODD},
        ),
    )
    text = report_to_markdown(report)
    assert length(text) <= LIMIT
    assert "❌ int8cal" in text
    assert "| SQNR | 24.61 dB |" in text
    assert "more, in report.json" in text


def test_parts_that_do_not_fit_are_left_out_and_counted():
    text = joined_parts(["a" * 50, "b" * 5000, "", "c" * 50], limit=300)
    assert text == f"{'a' * 50}\n\n{'c' * 50}\n\n1 part left out for length; see report.json.\n"


def test_rows_that_do_not_fit_are_left_out_and_counted():
    rows = [["x" * 40]] * 10
    assert long_table(["h"], rows, most=4).endswith("and 6 more, in report.json.")
    assert long_table(["h"], rows, most=99, room=100).endswith("and 8 more, in report.json.")
    assert "more" not in long_table(["h"], rows, most=10)
    assert bullets(["a", "b", "c"], most=1) == "- a\n- and 2 more, in report.json."


def test_astral_characters_count_twice_as_in_a_browser():
    assert length("a\N{GRINNING FACE}") == 3


def rendered(text):
    """What GitHub's own renderer makes of it, HTML in it allowed as GitHub allows <code> and <details>."""
    cmarkgfm = pytest.importorskip("cmarkgfm")
    options = cmarkgfm.cmark.Options.CMARK_OPT_UNSAFE
    return cmarkgfm.github_flavored_markdown_to_html(text, options=options)


class Cells(HTMLParser):
    """Collects the text of table cells, and every element."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.cells, self.elements, self.inside = [], set(), False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        if tag == "td":
            self.cells.append("")
            self.inside = True

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "td"

    def handle_data(self, data):
        if self.inside:
            self.cells[-1] += data


NAMES = st.text(
    st.sampled_from("ab.|\\`<>&*_[]()~$#@!:+-=0 1/\"'{}^") | st.characters(codec="utf-8"), min_size=1, max_size=30
)


@given(name=NAMES)
def test_any_name_is_shown_as_it_is_in_a_cell(name):
    found = Cells(rendered(table(["h", "k"], [[code(name), "end"]])))
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
    assert [cell.split() for cell in found.cells] == [shown.split(), ["end"]]
    assert found.elements <= {"table", "thead", "tbody", "tr", "th", "td", "code"}


@given(text=NAMES)
def test_any_reason_is_shown_as_it_is_in_a_cell_and_in_a_list(text):
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    found = Cells(rendered(table(["h", "k"], [[escape(text), "end"]])))
    assert [cell.replace("\N{ZERO WIDTH SPACE}", "").split() for cell in found.cells] == [shown.split(), ["end"]]
    assert found.elements <= {"table", "thead", "tbody", "tr", "th", "td"}
    assert Cells(rendered(bullets([escape(f"x {text}")], most=1))).elements == {"ul", "li"}


def test_the_whole_report_is_rendered_with_its_parts_folded(report, with_origin):
    html = rendered(report_to_markdown(with_origin(report)))
    assert html.count("<details>") == html.count("</details>") >= 4
    assert "|" not in "".join(Cells(html).cells)
    assert html.count("<table>") >= 4
