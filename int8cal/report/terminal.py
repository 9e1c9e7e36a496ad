"""What the command line prints of a report: a few lines after a job, and the longer text of `inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.report import wording
from int8cal.report.document import document_of
from int8cal.report.layer_lines import layer_lines, weight_lines
from int8cal.report.mixed import curve_heads, curve_rows, layer_rows
from int8cal.report.reading import (
    evaluation_data,
    foreign_ops,
    gate_value,
    headline,
    int8_name,
    name_of,
    optimized_sentence,
    step_rows,
    verdict,
    versions,
    worst_first,
)
from int8cal.report.reasons import layer_paths, why
from int8cal.report.runtimes import runtime_sentences
from int8cal.report.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.evaluation.result import Report
    from int8cal.report.document import Document

_Row = tuple[str, str]
WIDE = Screen()


def summary_lines(report: Report) -> list[str]:
    """Say in a few lines where a model stands.

    Args:
        report: Any report.

    Returns:
        Aligned plain text: accuracy, size, speed, the worst layer, what stayed in float, gates, warnings.
    """
    document = document_of(report)
    return wording.aligned(
        [
            *_headline_rows(document),
            *_runtime_rows(document),
            *_layer_rows(document),
            *_float_rows(document),
            *_step_rows(document),
            *_optimized_rows(document),
            *_mixed_rows(document),
            *_verdict_rows(document),
        ]
    )


def report_lines(document: Document, screen: Screen = WIDE) -> list[str]:
    """Show a whole report.json in a terminal.

    Args:
        document: What `load_report` gave.
        screen: Where.

    Returns:
        The verdict of gates and the headline, then a bar for each layer's SQNR, the scales of weights, the nodes left
        in float, what the recipe and a budget did, and decisions.
    """
    samples = document.samples
    title = f"{wording.printable(name_of(document))}, {verdict(document)}"
    band = "poor" if any(not gate.passed for gate in document.gates) else "strong"
    lines = [screen.paint(f"{title}, {wording.count(samples, 'sample')}" if samples else title, band), ""]
    gates = screen.aligned(_verdict_rows(document), _verdict_bands(document))
    lines += [*gates, ""] if gates else []
    lines += screen.aligned([*_origin_rows(document), *_headline_rows(document), *_runtime_rows(document)])
    lines += ["", *layer_lines(document, screen)]
    weights = weight_lines(document, screen)
    lines += ["", *weights] if weights else []
    fusion = document.fusion
    lines += ["", *screen.aligned(_float_rows(document))]
    if fusion:
        left = [f"  {_clean(n.op_type)} {_clean(n.node)}: {_clean(n.reason)}" for n in fusion.nodes]
        lines += _wrapped(screen.cut(left, "node"), screen)
    lines += _mixed_lines(document, screen)
    rows = [*_step_rows(document), *_optimized_rows(document), *_mixed_rows(document)]
    lines += ["", *screen.aligned(rows)] if rows else []
    if document.decisions:
        decisions = screen.cut([f"  {_clean(line)}" for line in document.decisions], "decision")
        lines += ["", "decisions", *_wrapped(decisions, screen)]
    return lines


def _wrapped(lines: list[str], screen: Screen) -> list[str]:
    return [part for line in lines for part in screen.wrap(line, 4)]


def _origin_rows(document: Document) -> list[_Row]:
    rows = [
        ("Int8 model", int8_name(document)),
        ("Evaluated on", ", ".join(f"{name} {value}" for name, value in evaluation_data(document))),
        ("Made with", ", ".join(f"{name} {value}" for name, value in versions(document))),
    ]
    return [(label, _clean(text)) for label, text in rows if text]


def _headline_rows(document: Document) -> list[_Row]:
    rows: list[_Row] = []
    for figure in headline(document):
        text = f"{figure.text}: {_clean(figure.note)}" if not figure.measured else figure.text
        rows.append((figure.label, f"{text} ({figure.note})" if figure.measured and figure.note else text))
    return rows


def _layer_rows(document: Document) -> list[_Row]:
    layers = worst_first(document)
    if not layers or layers[0][1].sqnr_db is None:
        return [("Worst layer", f"{wording.NOT_MEASURED}: {_clean(_layers_reason(document))}")]
    layer = layers[0][1]
    return [
        (
            "Worst layer",
            f"{wording.decibel(layer.sqnr_db)} at {_clean(layer.tensor)} ({_clean(layer.op_type)})",
        )
    ]


def _float_rows(document: Document) -> list[_Row]:
    fusion = document.fusion
    if fusion is None:
        return [("Left in float", f"{wording.NOT_MEASURED}: {_clean(why(document, 'fusion'))}")]
    kinds: dict[str, int] = {}
    for node in fusion.nodes:
        kinds[node.op_type] = kinds.get(node.op_type, 0) + 1
    listed = ", ".join(
        f"{number} {_clean(kind)}" for kind, number in sorted(kinds.items(), key=lambda kv: (-kv[1], kv[0]))
    )
    rows = [("Left in float", f"{fusion.float_} of {fusion.total} compute nodes{f' ({listed})' if listed else ''}")]
    return rows + [("", _clean(line)) for line in foreign_ops(fusion.nodes)]


def _runtime_rows(document: Document) -> list[_Row]:
    return [(_clean(name), _clean(text)) for name, text in runtime_sentences(document)]


def _step_rows(document: Document) -> list[_Row]:
    rows = step_rows(document)
    wide = max((len(name) for name, _, _ in rows), default=0)
    told = [f"{_clean(name):<{wide}}  {sqnr:>9}  {gain}".rstrip() for name, sqnr, gain in rows]
    return [("Steps" if index == 0 else "", line) for index, line in enumerate(told)]


def _optimized_rows(document: Document) -> list[_Row]:
    found = document.optimize
    return [] if found is None else [("Optimized", _clean(optimized_sentence(found).rstrip(".")))]


def _mixed_rows(document: Document) -> list[_Row]:
    found = document.mixed_precision
    return [] if found is None else [("Mixed precision", _clean(found.outcome))]


def _mixed_lines(document: Document, screen: Screen) -> list[str]:
    """Show what was evaluated in search of a model for which the gates hold, and the loudest layers."""
    found = document.mixed_precision
    if found is None:
        return []
    lines = ["", *_columns([curve_heads(found), *curve_rows(found)])]
    if found.layers:
        head, *rows = _columns([("layer", "op", "noise", "estimated time", "decision"), *layer_rows(found)])
        lines += ["", head, *screen.cut(rows, "layer")]
    return lines


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    shown = [[_clean(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*shown, strict=True)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]


def _verdict_rows(document: Document) -> list[_Row]:
    gates = document.gates
    rows: list[_Row] = [("Gates", verdict(document))] if gates else []
    for index, gate in enumerate(gates):
        value = _clean(gate_value(document, index))
        rows.append(("", f"{'pass' if gate.passed else 'FAIL'}  {_clean(gate.gate)}  (value {value})"))
    for index, line in enumerate(document.warnings):
        rows.append(("Warnings" if index == 0 else "", _clean(line)))
    return rows


def _verdict_bands(document: Document) -> list[str]:
    """Choose a colour for each row of the gates and warnings: gates that failed, and the first warning, have one."""
    gates = ["" if gate.passed else "poor" for gate in document.gates]
    return [*([""] if gates else []), *gates, *(["fair"] if document.warnings else [])]


def _layers_reason(document: Document) -> str:
    if not document.layers:
        return why(document, "layers")
    return why(document, *layer_paths(0, document.layers[0], "sqnr_db"))


def _clean(text: str) -> str:
    return wording.printable(str(text))
