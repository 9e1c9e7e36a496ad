"""How a report shows itself to whoever names it in Python or in a notebook."""

from __future__ import annotations

from dataclasses import replace

from int8cal.evaluation.result_parts import Gate


def test_a_report_prints_as_a_line_of_figures(report):
    text = repr(report)
    assert text.startswith("Report(model=")
    assert len(text) < 300
    assert f"sqnr_db={report.evaluation.metrics.sqnr_db:.6g}" in text


def test_a_notebook_shows_figures_with_units_gates_and_warnings_as_text(report):
    gates = (Gate("cosine>=0.9", 1.0, passed=True), Gate("top1.drop<=1", 2.0, passed=False))
    table = replace(report, gates=gates, warnings=("<b>few samples</b>",))._repr_html_()
    assert f"{report.evaluation.metrics.sqnr_db:.6g} (dB)" in table
    assert "<th>top1.drop&lt;=1</th><td>failed</td>" in table
    assert "&lt;b&gt;few samples&lt;/b&gt;" in table
    assert "warnings" not in replace(report, warnings=())._repr_html_()


def test_a_gate_that_is_always_on_is_counted_where_it_fails(report):
    for passed, told in ((True, "gates=1, failed=0"), (False, "gates=2, failed=1")):
        gates = (Gate("cosine>=0.9", 1.0, passed=True), Gate("outputs.dead<=0", 0.0, passed=passed))
        judged = replace(report, gates=gates)
        assert told in repr(judged)
        assert ("outputs.dead" in judged._repr_html_()) is not passed


def test_a_report_without_figures_prints_too(empty_report):
    assert "sqnr_db" not in repr(empty_report)
    assert empty_report._repr_html_().startswith("<table>")
