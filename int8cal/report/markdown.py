"""report.md: short enough for a comment on a pull request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from int8cal.report import wording
from int8cal.report.document import document_of, gate_paths, layer_paths
from int8cal.report.mixed import curve_heads, curve_rows, layer_rows, sentence
from int8cal.report.reading import (
    evaluation_data,
    headline,
    int8_name,
    name_of,
    optimized_sentence,
    slowest_first,
    step_rows,
    verdict,
    versions,
    why,
    why_nothing_clipped,
    worst_first,
)
from int8cal.report.runtimes import HEADS, runtime_rows

if TYPE_CHECKING:
    from int8cal.evaluation.result import Report
    from int8cal.report.document import Document

_WORST = 10
_FLOAT_NODES = 20
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~$&]|^[-+=])")


def report_to_markdown(report: Report) -> str:
    """Write a report as GitHub-flavoured Markdown.

    Args:
        report: Any report.

    Returns:
        Models, data, headline, gates, the ten worst layers, what stayed in float, warnings, versions; names and
        reasons are escaped.
    """
    document = document_of(report)
    parts = [
        f"## int8cal: {_models(document)}",
        f"**{_escape(verdict(document).capitalize())}**{_samples(document)}",
        _listed("Evaluation data", evaluation_data(document)),
        _headline(document),
        _gates(document),
        _worst_layers(document),
        _runtimes(document),
        _float_nodes(document),
        _unsafe_layers(document),
        _steps(document),
        _optimized(document),
        _mixed(document),
        _bullets("Warnings", document["warnings"]),
        _listed("Made with", versions(document)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _models(document: Document) -> str:
    name, int8 = _code(name_of(document)), int8_name(document)
    return f"{_code(int8)} against {name}" if int8 else name


def _listed(title: str, rows: list[tuple[str, str]]) -> str:
    return f"{title}: {', '.join(f'{_escape(name)} {_code(value)}' for name, value in rows)}." if rows else ""


def _samples(document: Document) -> str:
    return f", measured on {wording.count(document['samples'], 'sample')}." if document["samples"] else ""


def _headline(document: Document) -> str:
    rows = [[figure.label, figure.text, _escape(figure.note)] for figure in headline(document)]
    return _table(["", "int8 against float32", ""], rows)


def _gates(document: Document) -> str:
    if not document["gates"]:
        return ""
    rows = [
        [_code(gate["gate"]), _value(document, gate["value"], gate_paths(index, gate)), _mark(gate["passed"])]
        for index, gate in enumerate(document["gates"])
    ]
    return "### Gates\n\n" + _table(["gate", "value", "verdict"], rows)


def _mark(passed: bool) -> str:
    return "✅ pass" if passed else "❌ **fail**"


def _worst_layers(document: Document) -> str:
    worst = worst_first(document)
    if not worst:
        return f"### Worst layers\n\nNot measured: {_escape(why(document, 'layers'))}."
    rows = [_layer_row(document, index, layer) for index, layer in worst[:_WORST]]
    title = "Worst layers" if len(worst) <= _WORST else f"The {_WORST} worst of {len(worst)} layers"
    reason = why_nothing_clipped(document)
    if reason:
        rows = [row[:3] for row in rows]
    table = _table(["tensor", "op", "SQNR", "clipped"][: len(rows[0])], rows, right={2, 3})
    return f"### {title}\n\n{table}" + (f"\n\nClipped share not measured: {_escape(reason)}." if reason else "")


def _layer_row(document: Document, index: int, layer: dict[str, Any]) -> list[str]:
    if layer["sqnr_db"] is None:
        sqnr = f"{wording.NOT_MEASURED}: {_escape(why(document, *layer_paths(index, layer, 'sqnr_db')))}"
    else:
        sqnr = wording.decibel(layer["sqnr_db"])
    return [_code(layer["tensor"]), _escape(layer["op_type"]), sqnr, wording.small_percent(layer["clipped"])]


def _runtimes(document: Document) -> str:
    rows = [[_escape(cell) for cell in row] for row in runtime_rows(document)]
    return "### Runtimes\n\n" + _table(list(HEADS), rows) if rows else ""


def _float_nodes(document: Document) -> str:
    fusion = document["fusion"]
    if fusion is None:
        return f"### Left in float\n\nNot measured: {_escape(why(document, 'fusion'))}."
    nodes = fusion["nodes"]
    rows = [[_code(node["node"]), _escape(node["op_type"]), _escape(node["reason"])] for node in nodes[:_FLOAT_NODES]]
    text = (
        f"### Left in float\n\n{wording.count(fusion['integer'], 'node')} run integer kernels, {fusion['float']} float."
    )
    if rows:
        text += "\n\n" + _table(["node", "op", "why"], rows)
    if len(nodes) > _FLOAT_NODES:
        text += f"\n\nand {len(nodes) - _FLOAT_NODES} more, in report.json."
    return text


def _unsafe_layers(document: Document) -> str:
    found = document["saturation"]
    rows = [
        [_code(layer["node"]), _escape(layer["op_type"]), str(layer["unsafe_channels"]), str(layer["channels"])]
        for layer in found.get("layers", [])
        if layer["unsafe_channels"]
    ]
    if not rows:
        return ""
    table = _table(["layer", "op", "channels that can saturate", "of"], rows[:_FLOAT_NODES], right={2, 3})
    more = f"\n\nand {len(rows) - _FLOAT_NODES} more, in report.json." if len(rows) > _FLOAT_NODES else ""
    return f"### Can saturate on x86 CPUs without VNNI\n\n{table}{more}"


def _steps(document: Document) -> str:
    rows = [[_escape(name), sqnr, _escape(gain)] for name, sqnr, gain in step_rows(document)]
    return (
        "### What each step gave, on kept samples\n\n" + _table(["step", "SQNR", ""], rows, right={1}) if rows else ""
    )


def _optimized(document: Document) -> str:
    found = document.get("optimize")
    if not found:
        return ""
    rows = [
        [_code(row["node"]), _escape(row["op_type"]), *_times(row), _escape(row["decision"])]
        for row in slowest_first(found["rows"])[:_FLOAT_NODES]
    ]
    table = _table(["layer", "op", "float32 µs", "int8 µs", "decision"], rows, right={2, 3})
    text = f"### Optimized for latency\n\n{_escape(optimized_sentence(found))}"
    if rows:
        text += f"\n\n{table}"
    if len(found["rows"]) > _FLOAT_NODES:
        text += f"\n\nand {len(found['rows']) - _FLOAT_NODES} more, in report.json."
    return text


def _mixed(document: Document) -> str:
    found = document.get("mixed_precision")
    if not found:
        return ""
    points = [[_escape(cell) for cell in row] for row in curve_rows(found)]
    heads = [_escape(head) for head in curve_heads(found)]
    text = f"### Mixed precision\n\n{_escape(sentence(found))}\n\n{_table(heads, points)}"
    layers = [[_code(row[0]), *(_escape(cell) for cell in row[1:])] for row in layer_rows(found)]
    if layers:
        table = _table(["layer", "op", "share of the noise", "time", "decision"], layers[:_FLOAT_NODES], right={2, 3})
        text += f"\n\n{table}"
    if len(layers) > _FLOAT_NODES:
        text += f"\n\nand {len(layers) - _FLOAT_NODES} more, in report.json."
    return text


def _times(row: dict[str, Any]) -> list[str]:
    return [f"{row[key]:.1f}" for key in ("fp32_us", "int8_us")]


def _bullets(title: str, lines: list[str]) -> str:
    return f"### {title}\n\n" + "\n".join(f"- {_escape(line)}" for line in lines) if lines else ""


def _value(document: Document, value: float | None, paths: tuple[str, ...]) -> str:
    return f"{wording.NOT_MEASURED}: {_escape(why(document, *paths))}" if value is None else wording.plain(value)


def _table(heads: list[str], rows: list[list[str]], right: set[int] | None = None) -> str:
    rule = ["---:" if column in (right or set()) else "---" for column in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, rule, *rows])


def _escape(text: str) -> str:
    """Keep any text from being read as Markdown, HTML, a table border or a mention of somebody."""
    escaped = _SPECIAL.sub(r"\\\1", wording.printable(text)).replace("\\&", "&amp;").replace("\\<", "&lt;")
    return escaped.replace("@", "@\N{ZERO WIDTH SPACE}")


def _code(text: str) -> str:
    """Put a name in a code span that no backtick in it can close, and whose bars do not end the table cell."""
    shown = wording.printable(text) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}".replace("|", r"\|")
