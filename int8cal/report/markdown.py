"""report.md: made for a comment on a pull request. The verdict and the figures are open, everything else is folded.

One fact per line and no durations, so that a diff of two reports is readable.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from int8cal.errors import printable
from int8cal.evaluation.gates import figure_named
from int8cal.phrases import counted
from int8cal.report import wording
from int8cal.report.advice import advice_below
from int8cal.report.document import LaidOut
from int8cal.report.reading import (
    evaluation_data,
    faults,
    gate_value,
    int8_name,
    name_of,
    origin_rows,
    own_metric,
    shown_settings,
    told_gates,
    verdict,
    version_rows,
)
from int8cal.report.tables import (
    DECISION_HEADS,
    GROUP_HEADS,
    HEADS,
    SPEED_HEADS,
    curve_heads,
    curve_rows,
    decision_rows,
    float_notes,
    group_rows,
    mixed_layer_rows,
    mixed_sentence,
    optimized_sentence,
    runtime_rows,
    shown_headlines,
    slowest_first,
    speed_rows,
    step_rows,
    why_nothing_clipped,
    worst_first,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from int8cal.evaluation.result import LayerMetrics, Report
    from int8cal.evaluation.result_parts import Gate
    from int8cal.report.document import Document
    from int8cal.report.reading import Headline, Phrase

# By which a workflow finds its comment again.
MARKER = "<!-- int8cal report -->"
_WORST = 10
_FLOAT_NODES = 20
_GATES = 40
_GATES_IN_CELL = 5
_SETTINGS = 60
# GitHub takes 65,536 characters; the rest is for what a workflow writes around it.
LIMIT = 64_000
_LONGEST = 300  # characters of a reason or a name, before escaping
_ROOM = 6_000  # characters of a table or list
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~$&]|^[-+=](?=[-+=\s]|$)|^\d+(?=[.)](?:\s|$)))")
_IN_CODE = re.compile(r"[\\`*_\[\]<>#|~$&@:!()]")
_PLAIN_CODE = re.compile(r"[^\\`|]*[^\\`| ]|")
T = TypeVar("T")


def report_to_markdown(report: Report, laid_out: LaidOut | None = None) -> str:
    """Write a report as GitHub-flavoured Markdown.

    Args:
        report: Any report.
        laid_out: What views show of it, where it is made already.

    Returns:
        Verdict, what was found about the data, failed gates, figures with intervals and gates; folded: the worst
        layers, what stayed in float, what can saturate, warnings, settings. Names and reasons are escaped. At most
        64,000 characters: long parts are cut and say by how much, since a comment on GitHub holds 65,536.
    """
    document = (laid_out or LaidOut(report)).document
    told = verdict(document, complete=not report.evaluation.failures)
    text = "; ".join(each.text for each in told)
    return joined_parts(
        [
            MARKER,
            f"## {_mark(told)}int8cal: {_models(document)}",
            f"**{escape(text[:1].upper() + text[1:])}**{_samples(document)}",
            bullets([f"⚠️ {escape(str(each))}" for each in document.findings], most=_FLOAT_NODES),
            _origin(document),
            bullets([f"❌ {escape(line)}" for line in faults(document)], most=_GATES),
            _failed(document),
            _headline(document),
            _groups(document),
            _runtimes(document),
            _speeds(document),
            folded_part("Decisions on the outputs", _decisions(document)),
            folded_part(
                counted(len(document.other_warnings), "warning"),
                bullets([escape(line) for line in document.other_warnings], most=_FLOAT_NODES),
            ),
            folded_part(_layers_summary(document), _worst_layers(document)),
            folded_part("What models of this kind are prone to", _families(document)),
            folded_part("Left in float", _float_nodes(document)),
            folded_part("Can saturate on x86 CPUs without VNNI", _unsafe_layers(document)),
            folded_part("What each step gave, on the validation samples", _steps(document)),
            folded_part("Optimized for latency", _optimized(document)),
            folded_part("Mixed precision", _mixed(document)),
            folded_part("Settings, data and versions", _settings(document)),
        ]
    )


def _mark(told: Sequence[Phrase]) -> str:
    """Mark what failed and what passed; being worse than FP32 is neither, where no gate is about it."""
    bands = {each.band for each in told if each.kind in ("fault", "gates")}
    return "❌ " if "poor" in bands else "✅ " if "good" in bands else ""


def _models(document: Document) -> str:
    name, int8 = code(name_of(document)), int8_name(document)
    return f"{code(int8)} against {name}" if int8 else name


def _samples(document: Document) -> str:
    if not document.samples:
        return ""
    path = next((value for name, value in evaluation_data(document) if name == "path"), "")
    where = f" of {code(path)}" if path else ""
    return f", measured on {counted(document.samples, 'sample')}{where}."


def _origin(document: Document) -> str:
    """Say when, where and by what it was made: one line each, since they differ between two runs of one job."""
    rows = origin_rows(document)
    return "<br>\n".join(f"{label}: {code(text) if label == 'Command' else escape(text)}" for label, text in rows)


def _failed(document: Document) -> str:
    lines = []
    for index, gate in told_gates(document):
        if not gate.passed:
            told = filter(None, (gate_value(document, index), advice_below(document, index)))
            lines.append(f"❌ {code(gate.gate)}: {'; '.join(map(escape, told))}")
    return bullets(lines, most=_GATES)


def _headline(document: Document) -> str:
    """Write the figures, each with the gates about it, and then gates about anything else."""
    gates = [(index, gate, figure_named(gate.gate, own_metric(document))) for index, gate in told_gates(document)]
    rows, told = [], set[int]()
    for figure in shown_headlines(document):
        about = [(index, gate) for index, gate, name in gates if _is_about(name, figure)]
        told |= {index for index, _ in about}
        rows.append(
            [
                escape(figure.label),
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
    return _with_table(table_of_figures, long_table(["other gates", "value"], others, most=_GATES))


def _groups(document: Document) -> str:
    """Write the groups of outputs that have several, worst first."""
    rows = [
        [code(name), escape(kind), channels, sqnr, cosine, largest, worst]
        for name, kind, channels, sqnr, cosine, largest, worst in group_rows(document)
    ]
    return long_table(GROUP_HEADS, rows, {3, 4, 5}, most=_FLOAT_NODES)


def _is_about(name: str, figure: Headline) -> bool:
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


def _worst_layers(document: Document) -> str:
    worst = worst_first(document)
    if not worst:
        return f"Not measured: {escape(document.why('layers'))}."
    rows = [_layer_row(document, index, layer) for index, layer in worst[:_WORST]]
    reason = why_nothing_clipped(document)
    if reason:
        rows = [row[:3] for row in rows]
    text = long_table(["tensor", "op", "SQNR", "clipped"][: len(rows[0])], rows, {2, 3}, most=_WORST)
    return text + (f"\n\nClipped share not measured: {escape(reason)}." if reason else "")


def _layer_row(document: Document, index: int, layer: LayerMetrics) -> list[str]:
    if layer.sqnr_db is None:
        sqnr = f"{wording.NOT_MEASURED}: {escape(document.why(f'layers.{index}.sqnr_db'))}"
    else:
        sqnr = wording.decibel(layer.sqnr_db)
    return [code(layer.tensor), escape(layer.op_type), sqnr, wording.small_fraction(layer.clipped)]


def _runtimes(document: Document) -> str:
    rows = [[escape(cell) for cell in row] for row in runtime_rows(document)]
    return "### Runtimes\n\n" + long_table(HEADS, rows, most=_FLOAT_NODES) if rows else ""


def _speeds(document: Document) -> str:
    rows = [[escape(cell) for cell in row] for row in speed_rows(document)]
    return "### Speed by runtime\n\n" + long_table(SPEED_HEADS, rows, most=_FLOAT_NODES) if rows else ""


def _families(document: Document) -> str:
    lines = [f"**{escape(each.family)}**: {escape(each.what)}. {escape(each.advice)}" for each in document.families]
    return bullets(lines, most=_FLOAT_NODES)


def _decisions(document: Document) -> str:
    rows = [[code(row[0]), *map(escape, row[1:])] for row in decision_rows(document)]
    return long_table(DECISION_HEADS, rows, {3, 4, 5}, most=_FLOAT_NODES)


def _float_nodes(document: Document) -> str:
    fusion = document.fusion
    if fusion is None:
        return f"Not measured: {escape(document.why('fusion'))}."
    rows = [[code(node.node), escape(node.op_type), escape(node.reason)] for node in fusion.nodes]
    text = f"{counted(fusion.integer, 'node')} run integer kernels, {fusion.float_} float."
    text = " ".join([text, *(f"{escape(each[:1].upper() + each[1:])}." for each in float_notes(document))])
    return _with_table(text, long_table(["node", "op", "why"], rows, most=_FLOAT_NODES))


def _unsafe_layers(document: Document) -> str:
    found = document.saturation
    rows = [
        [code(layer.node), escape(layer.op_type), str(layer.unsafe_channels), str(layer.channels)]
        for layer in found.layers
        if layer.unsafe_channels
    ]
    return long_table(["layer", "op", "channels that can saturate", "of"], rows, {2, 3}, most=_FLOAT_NODES)


def _steps(document: Document) -> str:
    rows = [[escape(name), sqnr, escape(gain)] for name, sqnr, gain in step_rows(document)]
    return long_table(["step", "SQNR", ""], rows, {1}, most=_FLOAT_NODES)


def _optimized(document: Document) -> str:
    found = document.optimize
    if not found:
        return ""
    rows = [
        [code(row.node), escape(row.op_type), f"{row.fp32_us:.1f}", f"{row.int8_us:.1f}", escape(row.decision)]
        for row in slowest_first(found.rows)
    ]
    heads = ["layer", "op", "float32 µs", "int8 µs", "decision"]
    return _with_table(escape(optimized_sentence(found)), long_table(heads, rows, {2, 3}, most=_FLOAT_NODES))


def _mixed(document: Document) -> str:
    found = document.mixed_precision
    if not found:
        return ""
    points = [[escape(cell) for cell in row] for row in curve_rows(found)]
    heads = [escape(head) for head in curve_heads(found)]
    text = _with_table(escape(mixed_sentence(found)), long_table(heads, points, most=_FLOAT_NODES))
    layers = [[code(row[0]), *(escape(cell) for cell in row[1:])] for row in mixed_layer_rows(found)]
    heads = ["layer", "op", "share of the noise", "estimated time", "decision"]
    return _with_table(text, long_table(heads, layers, {2, 3}, most=_FLOAT_NODES))


def _with_table(text: str, table_below: str) -> str:
    return f"{text}\n\n{table_below}" if table_below else text


def _settings(document: Document) -> str:
    versions = [(f"versions.{name}", version) for name, version in version_rows(document)]
    rows = [[code(name), code(value)] for name, value in [*shown_settings(document), *versions]]
    return long_table(["setting", "value"], rows, most=_SETTINGS, room=8_000)


def escape(text: str) -> str:
    """Keep any text from being read as Markdown, HTML, a table border or a mention of somebody; cut it where long."""
    shown = printable(text)
    if len(shown) > _LONGEST:
        shown = f"{shown[: _LONGEST - 1]}…"
    escaped = _SPECIAL.sub(_escaped, shown)
    return escaped.replace("@", "@\N{ZERO WIDTH SPACE}")


def _escaped(match: re.Match[str]) -> str:
    found = match[0]
    if found.isdigit():  # "1." would begin a list
        return f"{found[:-1]}&#{ord(found[-1])};"
    return {"&": "&amp;", "<": "&lt;"}.get(found, f"\\{found}")


def code(text: str) -> str:
    r"""Show a name as code, in a table cell or out of one; a long one loses its front.

    A code span cannot hold every name: in a table `\|` would show its backslash or end the cell. Such names are HTML.
    """
    shown = wording.shortened(printable(text), _LONGEST) or " "
    if _PLAIN_CODE.fullmatch(shown) and not shown.startswith(" "):
        return f"`{shown}`"
    return f"<code>{_IN_CODE.sub(lambda match: f'&#{ord(match[0])};', shown)}</code>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Write a table; cells are Markdown already.

    Args:
        heads: Of the columns.
        rows: Of cells.
        right: Columns that are aligned to the right.
    """
    rule = ["---:" if column in set(right) else "---" for column in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, rule, *rows])


def long_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Iterable[int] = (),
    *,
    most: int,
    rest: str = "in report.json",
    room: int = _ROOM,
) -> str:
    """Write a table of at most so many rows and characters, and say how many rows are left out; nothing without rows.

    Args:
        heads, rows, right: As for `table`.
        most: Rows at most.
        rest: Where the others are.
        room: Characters at most, from about which on rows are left out.
    """
    if not rows:
        return ""
    shown, left = _fitting(rows, most, room, lambda row: sum(len(cell) + 3 for cell in row))
    text = table(heads, shown, right)
    return f"{text}\n\nand {left} more, {rest}." if left else text


def bullets(lines: Sequence[str], *, most: int) -> str:
    """Write a list of lines that are Markdown already, as `long_table` writes a table."""
    shown, left = _fitting(lines, most, _ROOM, len)
    more = [f"and {left} more, in report.json."] if left else []
    return "\n".join(f"- {line}" for line in [*shown, *more])


def _fitting(rows: Sequence[T], most: int, room: int, size: Callable[[T], int]) -> tuple[list[T], int]:
    shown: list[T] = []
    for row in rows[:most]:
        room -= size(row)
        if room < 0:
            break
        shown.append(row)
    return shown, len(rows) - len(shown)


def folded_part(summary: str, body: str) -> str:
    """Fold a part away under its summary, which is text; "" for an empty part."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>" if body else ""


def joined_parts(parts: Iterable[str], limit: int = LIMIT) -> str:
    """Put parts under each other; those that would make the whole too long for a comment are left out, and counted."""
    kept: list[str] = []
    used, left = 100, 0  # for the line about what was left out
    for part in filter(None, parts):
        size = length(part) + 2
        if used + size > limit:
            left += 1
            continue
        used += size
        kept.append(part)
    if left:
        kept.append(f"{counted(left, 'part')} left out for length; see report.json.")
    return "\n\n".join(kept) + "\n"


def length(text: str) -> int:
    """Count characters as GitHub's interface does, in UTF-16 units: never fewer than code points."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
