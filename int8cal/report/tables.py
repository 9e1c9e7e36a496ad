"""Rows and sentences that several views show: layers, runtimes, steps, and what a budget was spent on."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.evaluation.figures import DECISIONS
from int8cal.evaluation.result_parts import TITLES, ends
from int8cal.phrases import counted
from int8cal.report import wording
from int8cal.report.reading import Headline, for_another_runtime, headlines, only_embeddings, speedup_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.evaluation.result import (
        FloatNode,
        Fusion,
        LayerMetrics,
        LayerSaturation,
        MixedPrecision,
        Optimization,
        OptimizedLayer,
    )
    from int8cal.evaluation.result_parts import DecisionFigure, GroupMetrics, RuntimeAgreement
    from int8cal.report.document import Document, RuntimeFigures, WeightScales

# Ops that only the runtime makes.
_MERGED = frozenset({"BiasGelu", "EmbedLayerNormalization", "FastGelu", "QuickGelu", "SkipLayerNormalization"})

# Kinds of outputs on which nothing is decided.
_PLAIN = frozenset({"values", "waveform", "signal"})
_DECISIONS = 8  # lines at most
_OF_CLASSES = ("agreement", "top1", "top5")

HEADS = (
    "runtime",
    "SQNR",
    "cosine",
    "agreement",
    "top-1 drop",
    "integer layers",
    "float32",
    "int8",
    "speedup",
    "int8 against onnxruntime's",
)
SPEED_HEADS = ("runtime", "float32", "int8", "speedup", "95 % interval")
GROUP_HEADS = ("output", "group", "channels", "SQNR", "cosine", "largest error", "worst channel")
DECISION_HEADS = ("output", "what it is", "figure", "int8 against float32", "95 % interval", "samples", "measured as")


def runtime_rows(document: Document) -> list[tuple[str, ...]]:
    """Return a row per runtime with the columns of HEADS; none where only onnxruntime ran."""
    return [_row(name, part) for name, part in document.runtimes.items()]


def _row(name: str, part: RuntimeFigures) -> tuple[str, ...]:
    metrics, latency, against = part.metrics, part.latency, part.against_onnxruntime
    times = (None, None) if latency is None else (latency.fp32, latency.int8)
    return (
        TITLES.get(name, name),
        wording.decibel(metrics.sqnr_db),
        wording.cosine(metrics.cosine),
        wording.fraction(metrics.agreement),
        wording.points(None if metrics.top1 is None else metrics.top1.drop),
        _share(part.kernels),
        *map(wording.milliseconds, times),
        wording.times(None) if latency is None else speedup_text(latency),
        "" if against is None else _agreement(against),
    )


def runtime_sentences(document: Document) -> list[tuple[str, str]]:
    """Say in a line how each further runtime compares: its title, and the line."""
    lines = []
    for name, part in document.runtimes.items():
        if part.against_onnxruntime is None:
            continue
        latency = part.latency
        text = f"SQNR {wording.decibel(part.metrics.sqnr_db)}, {_share(part.kernels)} layers on integers"
        if latency is not None:
            times = f"{wording.milliseconds(latency.fp32)} to {wording.milliseconds(latency.int8)}"
            text += f", {speedup_text(latency)} ({times})"
        lines.append(
            (TITLES.get(name, name), f"{text}; against onnxruntime's int8 {_agreement(part.against_onnxruntime)}")
        )
    return lines


def speed_rows(document: Document) -> list[tuple[str, ...]]:
    """Return a row per runtime whose speed was measured with the columns of SPEED_HEADS; none where that is but one."""
    rows: list[tuple[str, ...]] = []
    for name, found in document.latencies_ms.items():
        if found is None:
            why = document.why(f"latencies_ms.{name}")
            rows.append((TITLES.get(name, name), *[wording.NOT_MEASURED] * 3, why))
            continue
        interval = " to ".join(map(wording.times, ends(found.speedup_ci95) or ()))
        times = (*map(wording.milliseconds, (found.fp32, found.int8)), speedup_text(found))
        rows.append((TITLES.get(name, name), *times, interval))
    return rows


def _agreement(against: RuntimeAgreement) -> str:
    text = wording.decibel(against.sqnr_db)
    return text if against.agreement is None else f"{text}, agreement {wording.fraction(against.agreement)}"


def _share(kernels: Fusion | None) -> str:
    if kernels is None:
        return wording.NOT_MEASURED
    return f"{kernels.integer} of {kernels.total}"


def decision_rows(document: Document) -> list[tuple[str, ...]]:
    """Return a row per figure of the decisions on outputs, with the columns of DECISION_HEADS."""
    rows: list[tuple[str, ...]] = []
    for name, output in document.outputs.items():
        for index, each in enumerate(output.decisions):
            label, value, interval = _decision(each)
            if each.value is None:
                value = f"{wording.NOT_MEASURED}: {document.why(f'outputs.{name}.decisions.{index}.value')}"
            rows.append((_channels(name, each), each.kind, label, value, interval, str(each.samples), each.how))
    return rows


def telling_decisions(document: Document) -> list[tuple[str, DecisionFigure]]:
    """Return the most telling figure of each group of an output's channels, and of what it is.

    Groups of which the headline tells already are left out: one row of class scores has its agreement there, values
    without decisions their SQNR. So are those in which neither model decides anything: no value is on the other side.
    """
    told: set[str] = set()
    found: list[tuple[str, DecisionFigure]] = []
    for name, output in document.outputs.items():
        undecided = {
            _channels(name, each) for each in output.decisions if each.figure == "decision_f1" and each.value is None
        }
        for each in output.decisions:
            place = _channels(name, each)
            if place in undecided and not each.value:
                continue
            headline = each.figure == "argmax_agreement" and each.value == document.metrics.agreement
            if place in told or each.value is None or each.kind in _PLAIN:
                continue
            told.add(place)
            if not headline:
                found.append((place, each))
    return found


def decision_sentences(document: Document) -> list[tuple[str, str]]:
    """Say the most telling figure of each group of an output's channels: its label and the rest of the line."""
    lines: list[tuple[str, str]] = []
    for place, each in telling_decisions(document):
        label, value, interval = _decision(each)
        lines.append((label, f"{_of_which(each, value)} ({place}{f', 95 % interval {interval}' if interval else ''})"))
    left = len(lines) - _DECISIONS
    return [*lines[:_DECISIONS], ("", f"and {left} more, in report.json")] if left > 0 else lines


def decision_headline(document: Document) -> Headline | None:
    """Pick the most telling figure of decisions, at the output where it is worst; None where there is none."""
    found = telling_decisions(document)
    alike = [(place, each) for place, each in found if each.figure == found[0][1].figure]
    if not alike:
        return None
    way = _way(alike[0][1])
    place, worst = min(alike, key=lambda each: way * (each[1].value or 0.0))
    label, value, interval = _decision(worst)
    aside = f"at {place}, the worst of {len(alike)}" if len(alike) > 1 else place
    return Headline(label, _of_which(worst, value), aside, interval=interval)


def shown_headlines(document: Document) -> list[Headline]:
    """Pick the figures to show: decisions stand for agreement and top-k of outputs that are no row of class scores."""
    figures, embeddings = headlines(document), only_embeddings(document)
    decided = decision_headline(document) if embeddings or document.metrics.agreement is None else None
    if decided is None:
        return figures
    left = [item for item in figures if item.about not in _OF_CLASSES or (item.measured and not embeddings)]
    return [decided, *left]


def _way(found: DecisionFigure) -> int:
    return DECISIONS.get(found.figure, ("", "", 1))[2]


def _of_which(found: DecisionFigure, value: str) -> str:
    return f"by {value} of the values" if _way(found) < 0 else value  # among figures of which more is better


def _decision(found: DecisionFigure) -> tuple[str, str, str]:
    """Show a figure: its label, value and interval; a figure that only a later version knows by its own name."""
    unit, label, _ = DECISIONS.get(found.figure, ("", found.figure, 0))
    text = wording.OF_UNIT.get(unit, wording.plain)
    shown = text(found.value)
    return label, shown, "" if shown == wording.EXACT else " to ".join(map(text, ends(found.ci95) or ()))


def _channels(output: str, found: DecisionFigure) -> str:
    return output if found.channels is None else f"{output}, {wording.channels_text(found.channels)}"


def group_rows(document: Document) -> list[tuple[str, ...]]:
    """Return a row per group of channels with the columns of GROUP_HEADS, worst first; of outputs that have several."""
    groups = [(name, group) for name, output in document.outputs.items() for group in output.groups]
    groups.sort(key=lambda row: math.inf if row[1].sqnr_db is None else row[1].sqnr_db)
    groups.sort(key=lambda row: not row[1].at_fault)
    return [(name, *group_cells(group)) for name, group in groups]


def group_cells(group: GroupMetrics) -> tuple[str, ...]:
    """Say what a group is and how it fares: the columns of GROUP_HEADS behind the first."""
    worst = group.worst_channel
    return (
        group.kind + (f" from {wording.shortened(group.source)}" if group.source else ""),
        "" if group.channels is None else "..".join(str(each) for each in dict.fromkeys(group.channels)),
        wording.decibel(group.sqnr_db),
        wording.cosine(group.cosine),
        wording.plain(group.max_abs_error),
        "" if worst is None else f"{worst.channel} at {wording.decibel(worst.sqnr_db)}",
    )


def optimized_sentence(found: Optimization) -> str:
    """Say what `optimize: latency` gained."""
    fp32, best = found.fp32_us, found.int8_us
    times = f"float32 {fp32:.1f} µs, every layer in int8 {found.plain_int8_us:.1f} µs"
    if found.given_up and found.given_up_us is not None:
        times += f", with {counted(len(found.given_up), 'layer')} in float {found.given_up_us:.1f} µs"
    if found.all_float:
        return f"{times}: float32 is surely faster, so every layer stays in float."
    if found.given_up:
        return f"{times}: not surely faster, so every layer stays in int8."
    if not found.left:
        return f"{times}; no layer in float made it faster."
    kept = counted(len(found.left), "layer")
    return f"{times}, with {kept} in float {best:.1f} µs ({fp32 / best:.2f} times float32's speed)."


def slowest_first(rows: Sequence[OptimizedLayer]) -> list[OptimizedLayer]:
    """Order measured layers: those that lose most in int8 first."""
    return sorted(rows, key=lambda row: row.fp32_us - row.int8_us)


def step_rows(document: Document) -> list[tuple[str, str, str]]:
    """Say what each step of the recipe gave: its name, the SQNR with it, and the difference or that it was dropped."""
    rows = []
    for step in document.steps:
        before, after = step.before_db, step.sqnr_db
        gain = f"{after - before:+.2f} dB" if before is not None and after is not None else ""
        if not step.kept:
            little = before is not None and after is not None and after > before
            gain = f"dropped ({gain}{', not surely enough' if little else ''})" if gain else "dropped"
        rows.append((step.step, wording.decibel(after), gain))
    return rows


# What a line begins with that leads to a step: it goes where the step's verdict goes.
_LEADS_TO = {
    "residual codes for ": "residual codes of inputs dropped: ",
    "range of ": "ranges by output error dropped: ",
    "second-order rounding fitted to ": "second-order rounding dropped: ",
    "bias correction fitted to ": "second-order rounding dropped: ",
}
# What lines end with, or hold, that tell of something that was looked at and not kept.
_NOT_KEPT = (" dropped: ", " and was dropped, ", ": more than --latency-allowance leaves", ": too little to be tried")


def decision_groups(document: Document) -> list[tuple[str, list[str]]]:
    """Sort the decisions by what a reader wants to know first: what was done, what was not kept, what stays float."""
    groups: dict[str, list[str]] = {"done": [], "Tried or looked at, and not kept": [], "Stays in float, and why": []}
    done, rejected, floats = groups.values()
    dropped = [start for start, verdict in _LEADS_TO.items() if any(verdict in line for line in document.decisions)]
    for line in document.decisions:
        kept = not any(each in line for each in _NOT_KEPT) and not line.startswith(tuple(dropped))
        (floats if "not quantized: " in line else done if kept else rejected).append(line)
    return [(title, lines) for title, lines in groups.items() if lines]


def foreign_ops(nodes: Sequence[FloatNode]) -> list[str]:
    """Explain the ops of float nodes that the user's model does not have: merged by the runtime or added."""
    lines = []
    for kind in sorted({node.op_type for node in nodes}):
        plain = kind.removeprefix("Nhwc").removeprefix("Fused")
        if kind in _MERGED:
            lines.append(f"{kind}: several nodes of the model, which onnxruntime merged into one")
        elif plain != kind:
            lines.append(f"{kind}: a {plain} of the model with what onnxruntime merged into it")
    added = sum(node.residual for node in nodes)
    if added:
        lines.append(f"Sub: {counted(added, 'node')} that int8cal added, for residual codes")
    return lines


def float_notes(document: Document) -> list[str]:
    """Explain what is counted as float: ops that the user's model does not have, and nodes beside layers."""
    notes = foreign_ops(document.fusion.nodes) if document.fusion else []
    if document.fusion and for_another_runtime(document):
        notes.insert(0, f"these are the kernels of onnxruntime: {document.saturation.target} has others")
    if document.mixed_precision is not None or document.optimize is not None:
        notes.append("a layer is a node with weights; nodes beside one that is left in float may be float with it")
    return notes


def mixed_layer_rows(found: MixedPrecision) -> list[tuple[str, ...]]:
    """Return a row per layer: node, op, share of the noise, estimated time, decision; the loudest first."""
    return [
        (
            row.node,
            row.op_type,
            f"{row.contribution:.3f}",
            f"{row.estimated_percent:+.1f} %",
            row.decision,
        )
        for row in found.layers
    ]


def curve_heads(found: MixedPrecision) -> list[str]:
    """Return the heads of the columns of `curve_rows`."""
    gates = list(found.curve[0].gates) if found.curve else []
    planes = ["residual codes"] if any(point.planes for point in found.curve) else []
    return ["layers in float", *planes, "estimated time", "SQNR", *gates, ""]


def curve_rows(found: MixedPrecision) -> list[tuple[str, ...]]:
    """Return a row per model that was evaluated, by estimated time."""
    planes = any(point.planes for point in found.curve)
    return [
        (
            str(point.layers_left),
            *([str(point.planes)] if planes else []),
            f"{point.estimated_percent:+.1f} %",
            wording.decibel(point.sqnr_db),
            *(f"{wording.plain(each.value)}, {'passed' if each.passed else 'failed'}" for each in point.gates.values()),
            "kept" if point.kept else "",
        )
        for point in found.curve
    ]


def mixed_sentence(found: MixedPrecision) -> str:
    """Say how the search ended, as a sentence."""
    text = found.outcome
    return f"{text[:1].upper()}{text[1:]}."


# Bands of SQNR in dB: at 20 dB the error is a tenth of the signal, at 10 dB a third.
_POOR, _FAIR = 10.0, 20.0
_SATURATION = {
    "safe": ("good", "safe", "no sum of products can saturate, whatever the activations"),
    "exact": ("good", "exact", "no kernel adds pairs of products in 16 bits here"),
    "data": ("fair", "depends on data", "both operands are activations"),
}


@dataclass(frozen=True)
class Mark:
    """A word in a table with its band for the colour, and why."""

    band: str
    text: str
    why: str = ""


NOTHING = Mark("none", "")


@dataclass(frozen=True)
class LayerRow:
    """One layer with what else is known of it.

    Attributes:
        rank, order: Its place, worst first and in the network, from 1.
        layer, weights: Its figures, and the scales of its weights.
        reason, clipped_reason: Why its SQNR or its clipped share was not measured.
        band: Of its SQNR.
        histogram, weights_at: Numbers of its histogram and of its weights on the page.
        kernel, saturation: Whether it runs on integers, and whether it can saturate.
    """

    rank: int
    order: int
    layer: LayerMetrics
    weights: WeightScales | None
    reason: str
    clipped_reason: str
    band: str
    histogram: int | None
    weights_at: int | None
    kernel: Mark
    saturation: Mark


def weight_names(document: Document) -> list[str]:
    """Name each weight of the document after its node, and by itself too where the node has several."""
    of_node = Counter(each.node for each in document.weights)
    return [
        f"{each.node} ({each.weight})" if each.node and of_node[each.node] > 1 else each.node or each.weight
        for each in document.weights
    ]


def worst_first(document: Document) -> list[tuple[int, LayerMetrics]]:
    """Sort the layers, each with its place in the report: lowest SQNR first, unmeasured ones last."""
    layers = list(enumerate(document.layers))
    return sorted(layers, key=lambda item: (item[1].sqnr_db is None, item[1].sqnr_db or 0.0, item[0]))


def worst_layer(document: Document) -> Headline:
    """Say which layer has the lowest SQNR."""
    layers = worst_first(document)
    if not layers or layers[0][1].sqnr_db is None:
        reason = document.why("layers.0.sqnr_db" if layers else "layers")
        return Headline("Worst layer", wording.NOT_MEASURED, reason, measured=False)
    layer = layers[0][1]
    return Headline("Worst layer", wording.decibel(layer.sqnr_db), f"{layer.tensor} ({layer.op_type})")


def why_nothing_clipped(document: Document) -> str:
    """Find why no layer at all has a clipped share; empty when one has. Views then say it once, not on each line."""
    layers = document.layers
    if not layers or any(layer.clipped is not None for layer in layers):
        return ""
    return document.why("layers.0.clipped")


def layer_rows(document: Document, histograms: Mapping[str, int]) -> list[LayerRow]:
    """Return the layers, worst first.

    Args:
        document: The report's document.
        histograms: Tensor -> its number on the page.
    """
    weights = {each.tensor: (index, each) for index, each in reversed(list(enumerate(document.weights)))}
    saturation = {layer.node: layer for layer in document.saturation.layers}
    fusion = document.fusion
    left = None if fusion is None else {node.node: node.reason for node in fusion.nodes}
    rows = []
    for rank, (index, layer) in enumerate(worst_first(document), start=1):
        place, of_weights = weights.get(layer.tensor, (None, None))
        nodes = [layer.node, *([of_weights.node] if of_weights else [])]
        sqnr = layer.sqnr_db
        rows.append(
            LayerRow(
                rank=rank,
                order=index + 1,
                layer=layer,
                weights=of_weights,
                reason="" if sqnr is not None else document.why(f"layers.{index}.sqnr_db"),
                clipped_reason="" if layer.clipped is not None else document.why(f"layers.{index}.clipped"),
                band="none" if sqnr is None else "poor" if sqnr < _POOR else "fair" if sqnr < _FAIR else "good",
                histogram=histograms.get(layer.tensor),
                weights_at=place,
                kernel=_kernel(nodes, left),
                saturation=next((_saturation(saturation[node]) for node in nodes if node in saturation), NOTHING),
            )
        )
    return rows


def layer_columns(rows: Sequence[LayerRow]) -> dict[str, bool]:
    """Say which columns of the table of layers have anything in them."""
    return {
        "clipped": any(row.layer.clipped is not None for row in rows),
        "range": any(row.layer.dtype for row in rows),
        "weights": any(row.weights is not None for row in rows),
        "kernel": any(row.kernel != NOTHING for row in rows),
        "saturation": any(row.saturation != NOTHING for row in rows),
    }


def _kernel(nodes: list[str], left: Mapping[str, str] | None) -> Mark:
    """Say whether the runtime left one of the nodes in float."""
    if left is None or not all(nodes):  # a node without a name could be any
        return NOTHING
    float_ = next((node for node in nodes if node in left), None)
    if float_ is None:
        return Mark("good", "integer", "not among the nodes that the runtime left in float")
    return Mark("fair", "float", left[float_])


def _saturation(layer: LayerSaturation) -> Mark:
    if layer.verdict == "unsafe":
        channels = counted(layer.channels, "channel")
        return Mark("poor", "can saturate", f"{layer.unsafe_channels} of {channels}, on x86 CPUs without VNNI")
    band, text, why_ = _SATURATION.get(layer.verdict, ("none", "", ""))
    return Mark(band, text, why_)
