"""A budget in the reports: one curve, one table, in every view; a damaged part is refused."""

import json
from dataclasses import replace

import pytest

from int8cal.errors import ConfigError
from int8cal.evaluation.result import MixedGate, MixedLayer, MixedPoint, MixedPrecision
from int8cal.report.charts import curve_picture
from int8cal.report.document import document_of, report_to_json
from int8cal.report.files import load_report
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown
from int8cal.report.summary import summary_lines
from int8cal.report.tables import curve_heads, curve_rows
from int8cal.report.terminal import report_lines

GATE = "sqnr_db>=30"


def point(layers, percent, sqnr, *, kept=False, planes=0):
    return MixedPoint(
        layers_left=layers,
        planes=planes,
        estimated_percent=percent,
        gates={GATE: MixedGate(sqnr, sqnr is not None and sqnr >= 30)},
        sqnr_db=sqnr,
        cosine=0.99,
        agreement=1.0,
        kept=kept,
    )


MIXED = MixedPrecision(
    budget_percent=20.0,
    fallback="float",
    layers=(MixedLayer("a<b>|*", "Conv", 0.6, 5.5, "float"), MixedLayer("c", "Gemm", 0.1, 3.0, "int8, no need")),
    curve=(point(0, 0.0, 25.0), point(1, 5.5, 31.0, kept=True), point(2, 8.5, 32.0)),
    needed_percent=None,
    outcome="the gates hold with 1 layer in float, an estimated 5.5 % more time",
)


@pytest.fixture
def report(build):
    return replace(build(3), mixed=MIXED)


def test_every_view_tells_it(report):
    for text in (report_to_html(report), report_to_markdown(report)):
        assert "1 layer in float, an estimated 5.5 % more time" in text
    assert "1 layer (a node with weights) in float, an estimated 5.5 % more time" in "\n".join(summary_lines(report))
    lines = report_lines(document_of(report))
    assert any(line.startswith("1 ") and line.endswith("kept") for line in lines)
    assert any(line.split()[:4] == ["layer", "op", "noise", "estimated"] for line in lines)
    assert "| estimated time | decision |" in report_to_markdown(report)
    assert "Estimated time</th>" in report_to_html(report)
    assert "a<b>" not in report_to_html(report)
    assert "a&lt;b&gt;" in report_to_html(report)


def test_the_picture_shows_every_model_and_which_was_kept(report):
    chart = curve_picture(document_of(report).mixed_precision.curve)
    assert chart is not None
    assert [dot.chosen for dot in chart.dots] == [False, True, False]
    xs, ys = [dot.x for dot in chart.dots], [dot.y for dot in chart.dots]
    assert xs == sorted(xs)
    assert ys == sorted(ys, reverse=True)
    curve = report_to_html(report).partition("Mixed precision</h3>")[2].partition("</figure>")[0]
    assert curve.count('class="kept-point"') == 1


def test_there_is_no_picture_without_an_sqnr(report):
    silent = replace(report, mixed=replace(MIXED, curve=(point(0, 0.0, None), point(1, 5.5, None, kept=True))))
    assert curve_picture(document_of(silent).mixed_precision.curve) is None
    assert "not measured" in report_to_markdown(silent)
    assert curve_rows(document_of(replace(report, mixed=replace(MIXED, curve=()))).mixed_precision) == []


def test_residual_codes_have_a_column_where_there_are_any(report):
    curve = (point(0, 0.0, 25.0), point(0, 2.0, 31.0, planes=2, kept=True))
    found = document_of(replace(report, mixed=replace(MIXED, curve=curve))).mixed_precision
    assert curve_heads(found)[1] == "residual codes"
    assert [row[1] for row in curve_rows(found)] == ["0", "2"]


def test_it_reads_back(report, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(report_to_json(report), encoding="utf-8")
    assert load_report(path).mixed_precision.curve[1].kept is True


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("curve",), 3),
        (("layers", 0, "contribution"), "much"),
        (("curve", 1, "gates"), {"other": {"value": 1, "passed": True}}),
        (("curve", 1, "gates", GATE), 3),
        (("curve", 0, "kept"), 1),
    ],
)
def test_a_damaged_part_is_refused(report, tmp_path, place, value):
    document = json.loads(report_to_json(report))
    part = document["mixed_precision"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError, match="mixed_precision"):
        load_report(path)
