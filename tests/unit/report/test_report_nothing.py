"""A report of a model whose outputs are zero says that nothing was compared, in every view."""

from __future__ import annotations

from dataclasses import replace

import pytest

from int8cal.evaluation.result import OutputMetrics
from int8cal.report.document import document_of
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown
from int8cal.report.reading import NOTHING
from int8cal.report.summary import summary_lines
from int8cal.report.terminal import report_lines

VIEWS = {
    "summary": lambda report: "\n".join(summary_lines(report)),
    "inspect": lambda report: "\n".join(report_lines(document_of(report))),
    "markdown": report_to_markdown,
    "page": lambda report: report_to_html(report).partition("<body>")[2],
}


@pytest.fixture
def zero(report):
    why = "output y is zero everywhere"
    evaluation = replace(
        report.evaluation,
        metrics=replace(
            report.evaluation.metrics, sqnr_db=None, cosine=None, max_abs_error=0.0, agreement=1.0, sqnr_db_ci95=None
        ),
        outputs={"y": OutputMetrics(sqnr_db=None, cosine=None)},
        reasons={**report.evaluation.reasons, "metrics": why, "outputs.y": why},
    )
    return replace(report, evaluation=evaluation)


@pytest.mark.parametrize("view", VIEWS)
def test_outputs_that_are_all_zero_are_nothing_to_compare(zero, view):
    text = " ".join(VIEWS[view](zero).split())
    assert NOTHING in text
    assert "Agreement" not in text.split("Worst layer")[0]
    assert "exact" not in text.split("Worst layer")[0].replace("exactly", "")


@pytest.mark.parametrize("view", VIEWS)
def test_where_there_is_something_to_compare_nobody_says_so(report, view):
    assert NOTHING not in " ".join(VIEWS[view](report).split())
