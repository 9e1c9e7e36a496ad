"""What report.html shows, as one frozen object for the template: figures as text, charts as coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from int8cal.report import wording
from int8cal.report.charts import LogScale, Picture, Scale, decibel_scale, interval_scale
from int8cal.report.document import document_of
from int8cal.report.mixed import MixedView, mixed_view
from int8cal.report.page_layers import LayerRow, layer_rows
from int8cal.report.plots import (
    Range,
    WeightRow,
    histogram_data,
    ranges_of,
    weight_rows,
    weight_scale,
    weights_data,
)
from int8cal.report.reading import (
    Figure,
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
    versions,
    why_nothing_clipped,
)
from int8cal.report.reasons import why
from int8cal.report.runtimes import HEADS, runtime_rows
from int8cal.report.speed import speed_picture

if TYPE_CHECKING:
    from int8cal.evaluation.result import Report
    from int8cal.report.document import Document
    from int8cal.report.parts import Drop, Gate, OptimizedLayer, Output


@dataclass(frozen=True)
class Plot:
    """One tensor's histogram; `layer` is None for a tensor that no layer entry names, `drawn` False without counts."""

    anchor: int
    tensor: str
    method: str
    range_text: str
    observed_text: str
    drawn: bool
    ranges: list[Range]
    layer: LayerRow | None


@dataclass(frozen=True)
class Accuracy:
    """Top-k of both models, and the drop's interval on a small axis."""

    label: str
    fp32: str
    int8: str
    drop: str
    interval: str
    samples: int | None
    scale: Scale | None
    at: tuple[float, float, float, float]


@dataclass(frozen=True)
class Page:
    """Everything the template needs; `document` is the content of report.json."""

    title: str
    verdict: str
    state: str
    document: Document
    figures: list[tuple[str, list[Figure]]]
    gates: list[tuple[str, str, bool]]
    accuracy: list[Accuracy]
    outputs: list[tuple[str, str, str]]
    layers: list[LayerRow]
    in_order: list[LayerRow]
    scale: Scale
    plots: list[Plot]
    weights: list[WeightRow]
    weight_scale: LogScale | None
    speed: Picture | None
    speed_text: str
    data: dict[str, Any]
    latency: list[tuple[str, str]]
    timing: list[tuple[str, str, float]]
    int8: str
    judged_on: str
    settings: list[tuple[str, str]]
    versions: list[tuple[str, str]]
    model: list[tuple[str, str]]
    fusion_reason: str
    saturation_reason: str
    layers_reason: str
    clipped_reason: str
    steps: list[tuple[str, str, str]]
    optimized: str
    measured: list[OptimizedLayer]
    mixed: MixedView | None
    runtimes: list[tuple[str, ...]]
    runtime_heads: tuple[str, ...]


def page_of(report: Report) -> Page:
    """Prepare a report for the template.

    Args:
        report: Any report. Histograms are ordered like the layers, worst first.
    """
    document = document_of(report)
    gates = document.gates
    anchors = {histogram.tensor: index for index, histogram in enumerate(report.histograms)}
    layers = layer_rows(document, anchors)
    scale = weight_scale(report.weights)
    speed, speed_text = speed_picture(document)
    tops = (("Top-1", document.metrics.top1), ("Top-5", document.metrics.top5))
    optimize, mixed = document.optimize, document.mixed_precision
    return Page(
        title=wording.printable(name_of(document)),
        verdict=verdict(document),
        state="none" if not gates else "pass" if all(gate.passed for gate in gates) else "fail",
        document=document,
        figures=_grouped(document, layers),
        gates=[_gate(document, index, gate) for index, gate in enumerate(gates)],
        accuracy=[_accuracy(label, drop) for label, drop in tops if drop is not None],
        outputs=[_output(document, name, output) for name, output in document.outputs.items()],
        layers=layers,
        in_order=sorted(layers, key=lambda layer: layer.order),
        scale=decibel_scale([layer.sqnr for layer in layers if layer.sqnr is not None]),
        plots=_plots(report, layers),
        weights=weight_rows(report.weights, scale),
        weight_scale=scale,
        speed=speed,
        speed_text=speed_text,
        data={
            "histograms": [histogram_data(histogram) for histogram in report.histograms],
            "weights": [weights_data(weights) for weights in report.weights],
        },
        latency=_latency(document),
        timing=_timing(document.timing_s),
        int8=wording.printable(int8_name(document)),
        judged_on=dict(evaluation_data(document)).get("path", ""),
        settings=flat({key: value for key, value in document.settings.items() if key != "versions"}),
        versions=versions(document),
        model=flat(document.model),
        fusion_reason=why(document, "fusion"),
        saturation_reason=why(document, "saturation.unsafe_channels", "saturation"),
        layers_reason=why(document, "layers"),
        clipped_reason=why_nothing_clipped(document),
        steps=step_rows(document),
        optimized="" if optimize is None else optimized_sentence(optimize),
        measured=[] if optimize is None else slowest_first(optimize.rows),
        mixed=None if mixed is None else mixed_view(mixed),
        runtimes=runtime_rows(document),
        runtime_heads=HEADS,
    )


# Figures whose question is not whether the model is good enough.
_COST = ("Speedup", "Size")
_SAFETY = "Can saturate"


def _grouped(document: Document, layers: list[LayerRow]) -> list[tuple[str, list[Figure]]]:
    """Sort the headline figures by the question that they answer."""
    figures = headline(document)
    cost = sorted((item for item in figures if item.label in _COST), key=lambda item: _COST.index(item.label))
    return [
        ("Is it good enough?", [item for item in figures if item.label not in (*_COST, _SAFETY)]),
        ("Is it faster and smaller?", cost),
        ("Where to look", [*_places(document, layers), *(item for item in figures if item.label == _SAFETY)]),
    ]


def _places(document: Document, layers: list[LayerRow]) -> list[Figure]:
    """Name the worst layer, and say how much runs on integers."""
    fusion = document.fusion
    if not layers or layers[0].sqnr is None:
        reason = layers[0].reason if layers else why(document, "layers")
        worst = Figure("Worst layer", wording.NOT_MEASURED, reason, measured=False)
    else:
        worst = Figure("Worst layer", layers[0].sqnr_text, f"{layers[0].tensor} ({layers[0].op_type})")
    if fusion is None:
        return [worst, Figure("On integers", wording.NOT_MEASURED, why(document, "fusion"), measured=False)]
    left = f"{fusion.float_} left in float" if fusion.float_ else "none left in float"
    return [worst, Figure("On integers", f"{fusion.integer} of {wording.count(fusion.total, 'node')}", left)]


def _plots(report: Report, layers: list[LayerRow]) -> list[Plot]:
    """Every histogram, those of the worst layers first, tensors without a layer last."""
    by_tensor = {layer.tensor: layer for layer in reversed(layers)}
    plots = []
    for anchor, histogram in enumerate(report.histograms):
        edges = histogram.edges
        plots.append(
            Plot(
                anchor=anchor,
                tensor=histogram.tensor,
                method=histogram.method,
                range_text=f"{histogram.low:.5g} to {histogram.high:.5g}",
                observed_text=f"{edges[0]:.5g} to {edges[-1]:.5g}" if edges else wording.NOT_MEASURED,
                drawn=histogram_data(histogram) is not None,
                ranges=ranges_of(histogram),
                layer=by_tensor.get(histogram.tensor),
            )
        )
    return sorted(plots, key=lambda plot: plot.layer.rank if plot.layer else len(layers) + 1)


def _gate(document: Document, index: int, gate: Gate) -> tuple[str, str, bool]:
    return gate.gate, gate_value(document, index), gate.passed


def _accuracy(label: str, drop: Drop) -> Accuracy:
    low, high = drop.drop_ci95
    scale, at = None, (0.0, 0.0, 0.0, 0.0)
    if low is not None and high is not None and drop.drop is not None:
        scale = interval_scale([low, high, drop.drop])
        at = (scale.at(0.0), scale.at(low), scale.at(drop.drop), scale.at(high))
    return Accuracy(
        label=label,
        fp32=wording.percent(drop.fp32),
        int8=wording.percent(drop.int8),
        drop=wording.points(drop.drop),
        interval=wording.interval(drop.drop_ci95),
        samples=drop.samples,
        scale=scale,
        at=at,
    )


def _output(document: Document, name: str, output: Output) -> tuple[str, str, str]:
    def told(key: str, value: float | None, text: str) -> str:
        return f"{text}: {why(document, f'outputs.{name}.{key}')}" if value is None else text

    sqnr, cosine = wording.decibel(output.sqnr_db), wording.cosine(output.cosine)
    return name, told("sqnr_db", output.sqnr_db, sqnr), told("cosine", output.cosine, cosine)


def _latency(document: Document) -> list[tuple[str, str]]:
    latency = document.latency
    if latency is None:
        return [("latency", f"{wording.NOT_MEASURED}: {why(document, 'latency_ms', 'latency')}")]
    return [
        ("float32, per sample", wording.milliseconds(latency.fp32)),
        ("int8, per sample", wording.milliseconds(latency.int8)),
        ("speedup", wording.times(latency.speedup)),
    ]


def _timing(timing: dict[str, float | None]) -> list[tuple[str, str, float]]:
    """Each station with its duration and its share of the longest, in percent."""
    longest = max((value for value in timing.values() if value is not None), default=0.0)
    return [
        (name, wording.seconds(value), round(100 * (value or 0.0) / longest, 1) if longest > 0 else 0.0)
        for name, value in timing.items()
    ]
