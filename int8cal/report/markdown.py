"""report.md: made for a comment on a pull request. The verdict and the figures are open, everything else is folded.

One fact per line and no durations, so that a diff of two reports is readable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.evaluation.gates import figure_named
from int8cal.report import wording
from int8cal.report.document import document_of
from int8cal.report.markdown_text import bullets, code, escape, folded, joined, long_table, table
from int8cal.report.mixed import curve_heads, curve_rows, layer_rows, sentence
from int8cal.report.reading import (
    evaluation_data,
    flat,
    gate_value,
    headline,
    int8_name,
    name_of,
    optimized_sentence,
    slowest_first,
    step_rows,
    verdict,
    why_nothing_clipped,
    worst_first,
)
from int8cal.report.reasons import layer_paths, why
from int8cal.report.runtimes import HEADS, runtime_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.evaluation.result import Report
    from int8cal.report.document import Document
    from int8cal.report.parts import Gate, Layer, OptimizedLayer
    from int8cal.report.reading import Figure

# By which a workflow finds its comment again.
MARKER = "<!-- int8cal report -->"
_WORST = 10
_FLOAT_NODES = 20
_GATES = 40
_GATES_IN_CELL = 5
_SETTINGS = 60


def report_to_markdown(report: Report) -> str:
    """Write a report as GitHub-flavoured Markdown.

    Args:
        report: Any report.

    Returns:
        Verdict, failed gates, figures with intervals and gates; folded: the worst layers, what stayed in float, what
        can saturate, warnings, settings. Names and reasons are escaped. At most 64,000 characters: long parts are cut
        and say by how much, since a comment on GitHub holds 65,536.
    """
    document = document_of(report)
    return joined(
        [
            MARKER,
            f"## {_mark(document)}int8cal: {_models(document)}",
            f"**{escape(verdict(document).capitalize())}**{_samples(document)}",
            _failed(document),
            _headline(document),
            _runtimes(document),
            folded(_counted("warning", document.warnings), _lines(document.warnings)),
            folded(_layers_summary(document), _worst_layers(document)),
            folded("Left in float", _float_nodes(document)),
            folded("Can saturate on x86 CPUs without VNNI", _unsafe_layers(document)),
            folded("What each step gave, on the holdout", _steps(document)),
            folded("Optimized for latency", _optimized(document)),
            folded("Mixed precision", _mixed(document)),
            folded("Settings, data and versions", _settings(document)),
        ]
    )


def _mark(document: Document) -> str:
    gates = document.gates
    if not gates:
        return ""
    return "✅ " if all(gate.passed for gate in gates) else "❌ "


def _models(document: Document) -> str:
    name, int8 = code(name_of(document)), int8_name(document)
    return f"{code(int8)} against {name}" if int8 else name


def _samples(document: Document) -> str:
    if not document.samples:
        return ""
    path = next((value for name, value in evaluation_data(document) if name == "path"), "")
    where = f" of {code(path)}" if path else ""
    return f", measured on {wording.count(document.samples, 'sample')}{where}."


def _failed(document: Document) -> str:
    lines = [
        f"❌ {code(gate.gate)}: {escape(gate_value(document, index))}"
        for index, gate in enumerate(document.gates)
        if not gate.passed
    ]
    return bullets(lines, most=_GATES)


def _headline(document: Document) -> str:
    """Write the figures, each with the gates about it, and then gates about anything else."""
    gates = [(index, gate, figure_named(gate.gate)) for index, gate in enumerate(document.gates)]
    rows, told = [], set[int]()
    for figure in headline(document):
        about = [(index, gate) for index, gate, name in gates if _is_about(name, figure)]
        told |= {index for index, _ in about}
        rows.append(
            [
                figure.label,
                figure.text,
                figure.interval,
                escape(figure.aside),
                "<br>".join(_verdicts([gate for _, gate in about])),
            ]
        )
    table_of_figures = table(["", "int8 against float32", "95 % interval", "", "gates"], rows)
    if not gates:
        table_of_figures = table(["", "int8 against float32", "95 % interval", ""], [row[:4] for row in rows])
    others = [[_verdict(gate), escape(gate_value(document, index))] for index, gate, _ in gates if index not in told]
    if not others:
        return table_of_figures
    return f"{table_of_figures}\n\n{long_table(['other gates', 'value'], others, most=_GATES)}"


def _is_about(name: str, figure: Figure) -> bool:
    return bool(figure.about) and (
        name == figure.about or name.startswith((f"{figure.about}.", f"{figure.about}_ci95"))
    )


def _verdict(gate: Gate, most: int | None = None) -> str:
    return f"{'✅' if gate.passed else '❌'} {code(wording.shortened(gate.gate, most) if most else gate.gate)}"


def _verdicts(gates: list[Gate]) -> list[str]:
    """Write the gates of one cell: short and few, those that failed first, so that the figures are always there."""
    ordered = sorted(gates, key=lambda gate: gate.passed)
    shown = [_verdict(gate, most=80) for gate in ordered[:_GATES_IN_CELL]]
    left = len(ordered) - len(shown)
    return [*shown, f"and {left} more"] if left else shown


def _layers_summary(document: Document) -> str:
    count = len(document.layers)
    return f"The {_WORST} worst of {count} layers" if count > _WORST else "Worst layers"


def _counted(noun: str, lines: Sequence[str]) -> str:
    return wording.count(len(lines), noun)


def _lines(lines: Sequence[str]) -> str:
    return bullets([escape(line) for line in lines], most=_FLOAT_NODES)


def _worst_layers(document: Document) -> str:
    worst = worst_first(document)
    if not worst:
        return f"Not measured: {escape(why(document, 'layers'))}."
    rows = [_layer_row(document, index, layer) for index, layer in worst[:_WORST]]
    reason = why_nothing_clipped(document)
    if reason:
        rows = [row[:3] for row in rows]
    text = long_table(["tensor", "op", "SQNR", "clipped"][: len(rows[0])], rows, {2, 3}, most=_WORST)
    return text + (f"\n\nClipped share not measured: {escape(reason)}." if reason else "")


def _layer_row(document: Document, index: int, layer: Layer) -> list[str]:
    if layer.sqnr_db is None:
        sqnr = f"{wording.NOT_MEASURED}: {escape(why(document, *layer_paths(index, layer, 'sqnr_db')))}"
    else:
        sqnr = wording.decibel(layer.sqnr_db)
    return [code(layer.tensor), escape(layer.op_type), sqnr, wording.small_percent(layer.clipped)]


def _runtimes(document: Document) -> str:
    rows = [[escape(cell) for cell in row] for row in runtime_rows(document)]
    return "### Runtimes\n\n" + long_table(HEADS, rows, most=_FLOAT_NODES) if rows else ""


def _float_nodes(document: Document) -> str:
    fusion = document.fusion
    if fusion is None:
        return f"Not measured: {escape(why(document, 'fusion'))}."
    rows = [[code(node.node), escape(node.op_type), escape(node.reason)] for node in fusion.nodes]
    text = f"{wording.count(fusion.integer, 'node')} run integer kernels, {fusion.float_} float."
    return text + (f"\n\n{long_table(['node', 'op', 'why'], rows, most=_FLOAT_NODES)}" if rows else "")


def _unsafe_layers(document: Document) -> str:
    found = document.saturation
    rows = [
        [code(layer.node), escape(layer.op_type), str(layer.unsafe_channels), str(layer.channels)]
        for layer in found.layers
        if layer.unsafe_channels
    ]
    if not rows:
        return ""
    return long_table(["layer", "op", "channels that can saturate", "of"], rows, {2, 3}, most=_FLOAT_NODES)


def _steps(document: Document) -> str:
    rows = [[escape(name), sqnr, escape(gain)] for name, sqnr, gain in step_rows(document)]
    return long_table(["step", "SQNR", ""], rows, {1}, most=_FLOAT_NODES) if rows else ""


def _optimized(document: Document) -> str:
    found = document.optimize
    if not found:
        return ""
    rows = [
        [code(row.node), escape(row.op_type), *_times(row), escape(row.decision)] for row in slowest_first(found.rows)
    ]
    text = escape(optimized_sentence(found))
    if not rows:
        return text
    heads = ["layer", "op", "float32 µs", "int8 µs", "decision"]
    return f"{text}\n\n{long_table(heads, rows, {2, 3}, most=_FLOAT_NODES)}"


def _mixed(document: Document) -> str:
    found = document.mixed_precision
    if not found:
        return ""
    points = [[escape(cell) for cell in row] for row in curve_rows(found)]
    heads = [escape(head) for head in curve_heads(found)]
    text = f"{escape(sentence(found))}\n\n{long_table(heads, points, most=_FLOAT_NODES)}"
    layers = [[code(row[0]), *(escape(cell) for cell in row[1:])] for row in layer_rows(found)]
    if not layers:
        return text
    heads = ["layer", "op", "share of the noise", "estimated time", "decision"]
    return f"{text}\n\n{long_table(heads, layers, {2, 3}, most=_FLOAT_NODES)}"


def _settings(document: Document) -> str:
    """List what the figures depend on: settings by name, with data and versions."""
    rows = [[code(name), code(value)] for name, value in flat(document.settings)]
    return long_table(["setting", "value"], rows, most=_SETTINGS, room=8_000) if rows else ""


def _times(row: OptimizedLayer) -> list[str]:
    return [f"{row.fp32_us:.1f}", f"{row.int8_us:.1f}"]
