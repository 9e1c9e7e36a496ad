"""What `inspect` prints of a report."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from int8cal.errors import printable
from int8cal.phrases import counted, some
from int8cal.report import wording
from int8cal.report.advice import advice_below
from int8cal.report.charts import DECIBEL_CAP
from int8cal.report.reading import (
    evaluation_data,
    faults,
    gate_value,
    int8_name,
    name_of,
    origin_rows,
    told_gates,
    verdict,
    version_rows,
)
from int8cal.report.screen import Screen
from int8cal.report.tables import (
    LayerRow,
    curve_heads,
    curve_rows,
    decision_sentences,
    float_notes,
    group_rows,
    layer_rows,
    mixed_layer_rows,
    optimized_sentence,
    runtime_sentences,
    shown_headlines,
    step_rows,
    weight_names,
    why_nothing_clipped,
)
from int8cal.report.words import words_explained

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from int8cal.report.document import Document, WeightScales

_Row = tuple[str, str]
_FAMILIES = 2  # in a line
_LABEL = 8  # columns, as in a summary
_ALIKE = 3  # nodes of one reason that are named
_INPUT = re.compile(r"\binput .+ is float")
WIDE = Screen()


def report_lines(document: Document, screen: Screen = WIDE) -> list[str]:
    """Show a whole report.json in a terminal.

    Returns:
        What was found about the data, the verdict of gates and the headline, then a bar for each layer's SQNR, the
        scales of weights, the nodes left in float, what the recipe and a budget did, and decisions.
    """
    samples = document.samples
    phrases = verdict(document)
    title = f"{printable(name_of(document))}, {'; '.join(each.text for each in phrases)}"
    band = "poor" if any(each.band == "poor" for each in phrases) else "strong"
    lines = [screen.paint(f"{title}, {counted(samples, 'sample')}" if samples else title, band), ""]
    # what makes every figure below untrustworthy comes first
    for label, told in (("At fault", faults(document)), ("Check the data", map(str, document.findings))):
        rows = _labelled(label, told)
        lines += [*screen.aligned(rows, ["poor"] * len(rows)), ""] if rows else []
    gates = screen.aligned(*_verdict_rows(document))
    lines += [*gates, ""] if gates else []
    lines += screen.aligned([*_origin_rows(document), *_headline_rows(document)])
    lines += screen.aligned([*_group_rows(document), *decision_sentences(document), *runtime_sentences(document)])
    lines += ["", *layer_lines(document, screen)]
    weights = weight_lines(document, screen)
    lines += ["", *weights] if weights else []
    fusion = document.fusion
    lines += ["", *screen.aligned([*_family_rows(document), *_float_rows(document)])]
    if fusion:
        lines += _wrapped(float_lines([(n.op_type, n.node, n.reason) for n in fusion.nodes], screen), screen)
    lines += _mixed_lines(document, screen)
    searched = screen.aligned(_search_rows(document))
    lines += ["", *searched] if searched else []
    if document.decisions:
        decisions = screen.cut([f"  {printable(line)}" for line in document.decisions], "decision")
        lines += ["", "decisions", *_wrapped(decisions, screen)]
    return lines


def float_lines(nodes: Sequence[tuple[str, str, str]], screen: Screen, width: int = 0) -> list[str]:
    """List nodes that are float, and why; many with one reason in one line that names the first of them.

    Args:
        nodes: Op, name and reason of each, in the order to show.
        screen: Where; who asked for every row, or for some names, gets a line per node.
        width: Columns of the ops, 0 for as many as each takes.
    """
    together: dict[str, list[tuple[str, str, str]]] = {}
    for op_type, node, reason in nodes:
        # which input it is tells nothing of many nodes
        key = reason if screen.every or screen.only else _INPUT.sub("input is float", reason)
        together.setdefault(key, []).append((op_type, node, reason))
    lines = []
    for reason, alike in together.items():
        if screen.every or screen.only or len(alike) <= _ALIKE:
            lines += [f"  {op_type:<{width}} {node}: {why}" for op_type, node, why in alike]
            continue
        ops = Counter(op_type for op_type, _, _ in alike)
        named = some((wording.shortened(node) for _, node, _ in alike), _ALIKE)
        kinds = wording.kinds_text(ops, len(ops))
        lines.append(f"  {counted(len(alike), 'node')}, {reason}: {kinds} ({named})")
    return screen.cut([printable(line) for line in lines], "node")


def _wrapped(lines: list[str], screen: Screen) -> list[str]:
    return [part for line in lines for part in screen.wrap(line, 4)]


def _origin_rows(document: Document) -> list[_Row]:
    data = evaluation_data(document)
    rows = [
        ("Int8 model", int8_name(document)),
        ("Evaluated on", ", ".join(f"{name} {value}" for name, value in data if not name.endswith("_sha256"))),
        ("Made with", ", ".join(f"{name} {value}" for name, value in version_rows(document))),
        *origin_rows(document),
    ]
    return [(label, text) for label, text in rows if text]


def _headline_rows(document: Document) -> list[_Row]:
    rows = []
    for figure in shown_headlines(document):
        note = f" ({figure.note})" if figure.note else ""
        rows.append((figure.label, figure.text + (note if figure.measured else f": {figure.note}")))
    return rows


def _family_rows(document: Document) -> list[_Row]:
    """Name the families that show in the figures, in one line; the other views say what to look at."""
    told = [f"{each.family}: {printable(each.what)}" for each in document.families[:_FAMILIES]]
    more = len(document.families) - len(told)
    return [("Kind of model", "; ".join(told) + (f"; and {more} more" if more else ""))] if told else []


def _labelled(label: str, lines: Iterable[str]) -> list[_Row]:
    """Put a label before the first of several lines."""
    return [("" if index else label, line) for index, line in enumerate(lines)]


def _group_rows(document: Document) -> list[_Row]:
    """Show the groups of outputs that have several, each output's worst first."""
    rows = group_rows(document)
    told = []
    for name, kind, channels, sqnr, cosine, _, worst in rows:
        alone = channels.isdecimal()  # its worst channel is itself
        of = f", channel{'' if alone else 's'} {channels}" if channels else ""
        channel = f", channel {worst}" if worst and not alone else ""
        told.append((f"{printable(name)}: {printable(kind)}{of}", f"{sqnr}, cosine {cosine}{channel}"))
    return _labelled("Groups", wording.aligned(told))


def _float_rows(document: Document) -> list[_Row]:
    fusion = document.fusion
    if fusion is None:
        return [("Left in float", f"{wording.NOT_MEASURED}: {document.why('fusion')}")]
    kinds = Counter(node.op_type for node in fusion.nodes)
    listed = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    rows = [("Left in float", f"{fusion.float_} of {fusion.total} compute nodes{f' ({listed})' if listed else ''}")]
    return rows + [("", line) for line in float_notes(document)]


def _search_rows(document: Document) -> list[_Row]:
    """Say what the steps of the recipe, measured latencies and a budget led to."""
    rows, optimized, mixed = _step_rows(document), document.optimize, document.mixed_precision
    rows += [("Optimized", optimized_sentence(optimized).rstrip("."))] if optimized else []
    return rows + ([("Mixed precision", mixed.outcome)] if mixed else [])


def _step_rows(document: Document) -> list[_Row]:
    steps = step_rows(document)
    wide = max((len(name) for name, _, _ in steps), default=0)
    return _labelled("Steps", (f"{printable(name):<{wide}}  {sqnr:>9}  {gain}".rstrip() for name, sqnr, gain in steps))


def step_lines(document: Document, screen: Screen = WIDE) -> list[str]:
    """Show what each step of the recipe gave, and what their words mean, for who asked for it; else nothing."""
    rows = _step_rows(document)
    said = (
        "SQNR on the validation samples, beside the model that a step was tried on, which need not be that of the line "
        "above; why a step was dropped: Decisions in the report"
    )
    words = [("", f"{word}: {means}") for word, means in words_explained(*(step.step for step in document.steps))]
    told = [(f"{label:{_LABEL}}", text) for label, text in [*rows, ("", said), *words]]
    return screen.aligned(told) if rows else []


def _mixed_lines(document: Document, screen: Screen) -> list[str]:
    """Show what was evaluated in search of a model for which the gates hold, and the loudest layers."""
    found = document.mixed_precision
    if found is None:
        return []
    lines = ["", *screen.table([curve_heads(found), *curve_rows(found)])]
    if found.layers:
        rows = [("layer", "op", "noise", "estimated time", "decision"), *mixed_layer_rows(found)]
        lines += ["", *screen.table(rows, "layer")]
    return lines


def layer_lines(document: Document, screen: Screen) -> list[str]:
    """Show one line per layer; the bars share one axis, from 0 dB to the best layer, at most the cap."""
    rows = layer_rows(document, {})
    if not rows:
        return [f"layers {wording.NOT_MEASURED}: {printable(document.why('layers'))}"]
    top = min(max((each.sqnr_db for each in document.layers if each.sqnr_db is not None), default=0.0), DECIBEL_CAP)
    shown = screen.chosen(rows, lambda row: row.layer.tensor, lambda row: row.rank)
    if screen.sort == "order":
        shown.sort(key=lambda row: row.order)
    order = {"order": "in network order", "name": "by name"}.get(screen.sort, "worst first")
    lines = [f"{'SQNR':>10}  {'':{screen.bar_width}}  {'clipped':>10}  layer, {order}"]
    reason = why_nothing_clipped(document)
    if reason:
        lines.append(f"clipped {wording.NOT_MEASURED}: {printable(reason)}")
    return lines + screen.cut([_layer(row, top, screen) for row in shown], "layer")


def _layer(row: LayerRow, top: float, screen: Screen) -> str:
    layer, sqnr = row.layer, row.layer.sqnr_db
    clipped = "-" if layer.clipped is None else wording.small_fraction(layer.clipped)
    notes = [
        screen.paint(text, band)
        for text, band in (
            (f"float: {printable(row.kernel.why)}" if row.kernel.text == "float" else "", "fair"),
            (f"can saturate: {row.saturation.why}" if row.saturation.band == "poor" else "", "poor"),
        )
        if text
    ]
    told = f" ({printable(layer.op_type)})"
    name = screen.name(layer.tensor, 26 + screen.bar_width + len(told))
    if sqnr is None:
        notes.insert(0, f"{wording.NOT_MEASURED}: {printable(row.reason)}")
        figure, bar = f"{'-':>10}", " " * screen.bar_width
    else:
        figure = screen.paint(f"{wording.decibel(sqnr):>10}", row.band)
        bar = screen.paint(screen.bar(sqnr / top if top > 0 else 0.0), row.band)
    return ", ".join([f"{figure}  {bar}  {clipped:>10}  {name}{told}", *notes])


def spread_lines(weights: list[tuple[str, str, float, float, float]], screen: Screen) -> list[str]:
    """Show the scales of weights on one logarithmic axis, widest spread first.

    Args:
        weights: (name, kind, smallest, median, largest scale) of each, scales above 0.
        screen: Where.

    Returns:
        A line per weight, and what the words of their kinds mean.
    """
    if not weights:
        return []
    low, high = math.log(min(row[2] for row in weights)), math.log(max(row[4] for row in weights))
    width = (high - low) or 1.0

    def place(scale: float) -> float:
        return (math.log(scale) - low) / width

    shown = screen.chosen(weights, lambda row: row[0], lambda row: -row[4] / row[2])
    if not screen.sort:
        shown.sort(key=lambda row: -row[4] / row[2])
    order = {"order": "in the file's order", "name": "by name"}.get(screen.sort, "most uneven first")
    head = f"{'max/min':>11}  {'scales':{screen.bar_width}}  {'median':>10}  weight, {order}"
    lines = [
        f"{wording.ratio(top / bottom):>11}  {screen.part(place(bottom), place(top), middle=place(middle))}  "
        f"{middle:10.4g}  {screen.name(name, 29 + screen.bar_width + len(kind))}  {kind}"
        for name, kind, bottom, middle, top in shown
    ]
    words = [
        line
        for word, means in words_explained(*(kind for _, kind, *_ in shown))
        for line in screen.wrap(f"  {word}: {means}", 4)
    ]
    return [head, *screen.cut(lines, "weight"), *words]


def weight_lines(document: Document, screen: Screen) -> list[str]:
    """Show the weights of a report; nothing where it knows none."""
    named = zip(weight_names(document), document.weights, strict=True)
    return spread_lines([_weight(name, each) for name, each in named if each.scale_min], screen)


def _weight(name: str, each: WeightScales) -> tuple[str, str, float, float, float]:
    kind = f"{each.dtype} {each.range}, {counted(each.scales, 'scale')}"
    return name, kind, each.scale_min or 0.0, each.scale_median or 0.0, each.scale_max or 0.0


def _verdict_rows(document: Document) -> tuple[list[_Row], list[str]]:
    """Tell of gates and warnings, with a colour for each row: gates that failed, and the first warning, have one."""
    rows, bands = list[_Row](), list[str]()
    for index, gate in told_gates(document):
        told = f"{'pass' if gate.passed else 'FAIL'}  {gate.gate}  (value {gate_value(document, index)})"
        rows.append(("" if rows else "Gates", told))
        bands.append("" if gate.passed else "poor")
        if below := advice_below(document, index):
            rows.append(("", f"      {below}"))
            bands.append("")
    warnings = _labelled("Warnings", document.other_warnings)
    return rows + warnings, [*bands, *["fair"] * bool(warnings)]
