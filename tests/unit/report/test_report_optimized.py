"""What the reports say of `optimize: latency`."""

from dataclasses import replace

import pytest

from int8cal.evaluation.result import FloatNode, Fusion, Optimization, OptimizedLayer
from int8cal.report.document import document_of
from int8cal.report.summary import summary_lines
from int8cal.report.terminal import report_lines

REASON = "slower in int8: 20.4 µs against 6.0 µs"


@pytest.fixture
def optimized(report):
    nodes = (FloatNode("/stem/Conv", "Conv", "not quantized"), FloatNode("/mul", "Mul", "not quantized"))
    rows = (OptimizedLayer("/stem/Conv", "Conv", 6.0, 20.4, "float"), OptimizedLayer("/fc", "Gemm", 3.0, 1.0, "int8"))
    return replace(
        report,
        evaluation=replace(report.evaluation, fusion=Fusion(3, 2, nodes)),
        optimize=Optimization(41.4, 46.1, 40.2, {"/stem/Conv": REASON}, rows),
    )


def _told_in(report):
    """Lines, the label of the search's, and what they say of the word layer where it comes first."""
    yield summary_lines(report), "Search", " (a node with weights)"
    yield report_lines(document_of(report)), "Optimized", ""


def test_the_terminal_says_what_was_gained(optimized):
    gained = "float32 41.4 µs, every layer{} in int8 46.1 µs, with 1 layer in float 40.2 µs"
    for lines, label, layer in _told_in(optimized):
        assert any(line.startswith(label) and gained.format(layer) in line for line in lines)


def test_the_terminal_says_what_was_not_kept_since_it_was_not_surely_faster(optimized):
    found = Optimization(209.2, 83.8, 83.8, {}, (), given_up=("/stem/Conv", "/mul"), given_up_us=97.0)
    kept = replace(optimized, optimize=found)
    told = (
        "float32 209.2 µs, every layer{} in int8 83.8 µs, with 2 layers in float 97.0 µs: not surely faster, so every "
        "layer stays in int8"
    )
    for lines, label, layer in _told_in(kept):
        assert f"{label} {told.format(layer)}" in " ".join("\n".join(lines).split())


def test_the_terminal_says_that_nothing_was_faster_than_float(optimized):
    left = {"/stem/Conv": REASON, "/fc": "the whole model is slower in int8"}
    found = replace(optimized.optimize, left=left, int8_us=41.4, given_up=("/stem/Conv",), given_up_us=44.0)
    told = (
        "float32 41.4 µs, every layer{} in int8 46.1 µs, with 1 layer in float 44.0 µs: float32 is surely faster, so "
        "every layer stays in float"
    )
    for lines, label, layer in _told_in(replace(optimized, optimize=found)):
        assert f"{label} {told.format(layer)}" in " ".join("\n".join(lines).split())


def test_without_it_the_terminal_has_no_such_line(report):
    for lines in (summary_lines(report), report_lines(document_of(report))):
        assert not any(line.startswith(("Search", "Optimized")) for line in lines)
