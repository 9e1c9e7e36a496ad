"""Every figure that has a name: where it is found, its unit, what it can be, its 95 % interval, which way is better.

Gates, comparisons and the command line's help read this table.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.numerics.metrics import EXACT_DB

if TYPE_CHECKING:
    from collections.abc import Callable

    from int8cal.evaluation.result import Measurements
    from int8cal.evaluation.result_parts import DecisionFigure, Interval

FRACTION = "fraction of 1"
_POINTS, _DECIBEL, _SPEEDUP = "percentage points", "dB", "fp32 / int8"
_COSINE = "similarity"
_OWN = "in the metric's own unit"
_GROUPS = "groups of channels"
_ENDS = {"lo": 0, "hi": 1}
_SIDES = {"lo": "Lower", "hi": "Upper"}
_ABOVE_0 = math.nextafter(0.0, 1.0)
# Unit -> the least and the largest value that a figure of it can take, whatever the models are.
_POSSIBLE: dict[str, tuple[float, float]] = {
    FRACTION: (0.0, 1.0),
    _POINTS: (-100.0, 100.0),
    _DECIBEL: (-math.inf, EXACT_DB),
    _COSINE: (-1.0, 1.0),
    "in the output's unit": (0.0, math.inf),
    "ms": (_ABOVE_0, math.inf),
    _SPEEDUP: (_ABOVE_0, math.inf),
    "bytes": (0.0, math.inf),
    "int8 / fp32": (_ABOVE_0, math.inf),
    "channels": (0.0, math.inf),
    _GROUPS: (0.0, math.inf),
    "nodes": (0.0, math.inf),
}


@dataclass(frozen=True)
class Figure:
    """A figure of an evaluation, or of a report.

    Attributes:
        read: Finds its value; None where it could not be computed.
        unit: Of the value, in words.
        label: For people, where comparisons show it.
        better: 1 where higher is better, -1 where lower is, 0 where a change alone decides nothing.
        interval: Finds its 95 % interval, where it has one.
        about: What it is, in a phrase.
    """

    read: Callable[[Measurements], float | None]
    unit: str
    label: str = ""
    better: int = 0
    interval: Callable[[Measurements], Interval | None] | None = None
    about: str = ""

    @property
    def possible(self) -> tuple[float, float]:
        """The least and the largest value that it can take, whatever the models are."""
        return _POSSIBLE.get(self.unit, (-math.inf, math.inf))

    @property
    def range_text(self) -> str:
        """What it can be, in words; empty where it can be anything."""
        low, high = self.possible
        if low == _ABOVE_0:
            return "above 0"
        if math.isfinite(low):
            return f"from {low:g} to {high:g}" if math.isfinite(high) else f"{low:g} or more"
        return f"at most {high:g}" if math.isfinite(high) else ""

    def end(self, end: str) -> Figure:
        """Return one end of the interval, which is a figure too."""

        def read(measured: Measurements) -> float | None:
            interval = self.interval(measured) if self.interval else None
            return interval[_ENDS[end]] if interval else None

        return Figure(read, self.unit, about=f"{_SIDES[end]} end of its 95 % interval")


def _figure(
    path: str, unit: str, label: str = "", better: int = 0, *, interval: bool = False, output: str | None = None
) -> Figure:
    """Make a figure of an attribute path, of an output where one is named; its interval is the attribute beside it."""

    def follow(measured: Measurements, path: str) -> object:
        value: object = measured if output is None else measured.outputs.get(output)
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        return value

    def read(measured: Measurements) -> float | None:
        value = follow(measured, path)
        return value if isinstance(value, int | float) else None

    def ends(measured: Measurements) -> Interval | None:
        found = follow(measured, f"{path}_ci95")
        return (found[0], found[1]) if isinstance(found, tuple) else None

    return Figure(read, unit, label, better, ends if interval else None)


def _worst_layer(measured: Measurements) -> float | None:
    return min((layer.sqnr_db for layer in measured.layers if layer.sqnr_db is not None), default=None)


def _over_outputs(key: str) -> Callable[[Measurements], float | None]:
    """Add what outputs have of something; None where none of them tells."""

    def read(measured: Measurements) -> float | None:
        counts = [getattr(output, key) for output in measured.outputs.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    return read


_MEASURED: dict[str, Figure] = {
    "sqnr_db": _figure("metrics.sqnr_db", _DECIBEL, "SQNR", 1, interval=True),
    "cosine": _figure("metrics.cosine", _COSINE, "Cosine similarity", 1),
    "max_abs_error": _figure("metrics.max_abs_error", "in the output's unit", "Largest error", -1),
    "agreement": _figure("metrics.agreement", FRACTION, "Agreement", 1, interval=True),
    "top1.fp32": _figure("metrics.top1.fp32", FRACTION),
    "top1.int8": _figure("metrics.top1.int8", FRACTION, "Top-1 of int8", 1),
    "top1.drop": _figure("metrics.top1.drop", _POINTS, "Top-1 drop", -1, interval=True),
    "top5.fp32": _figure("metrics.top5.fp32", FRACTION),
    "top5.int8": _figure("metrics.top5.int8", FRACTION, "Top-5 of int8", 1),
    "top5.drop": _figure("metrics.top5.drop", _POINTS, "Top-5 drop", -1, interval=True),
    "metric.fp32": _figure("metric.fp32", _OWN),
    "metric.int8": _figure("metric.int8", _OWN, "Metric"),
    "metric.drop": _figure("metric.drop", _OWN, "Metric drop", -1, interval=True),
    "layers.worst_sqnr_db": Figure(_worst_layer, _DECIBEL, "Worst layer", 1),
    "outputs.dead": Figure(_over_outputs("dead"), "channels", "Dead output channels", -1),
    "outputs.saturated": Figure(_over_outputs("saturated"), _GROUPS, "Saturated outputs", -1),
    "outputs.tied": Figure(_over_outputs("tied"), _GROUPS, "Outputs without order", -1),
    "latency.fp32": _figure("latency.fp32", "ms"),
    "latency.int8": _figure("latency.int8", "ms", "Int8 latency"),
    "latency.speedup": _figure("latency.speedup", _SPEEDUP, "Speedup", 1, interval=True),
    "size.fp32_bytes": Figure(lambda measured: float(measured.size.fp32_bytes), "bytes"),
    "size.int8_bytes": Figure(lambda measured: float(measured.size.int8_bytes), "bytes", "Int8 model", -1),
    "size.ratio": _figure("size.ratio", "int8 / fp32"),
    "saturation.unsafe_channels": _figure("saturation.unsafe_channels", "channels", "Channels that can saturate", -1),
    "fusion.integer": _figure("fusion.integer", "nodes"),
    "fusion.float": _figure("fusion.float_", "nodes", "Nodes left in float", -1),
}

_ABOUT = {
    "sqnr_db": "Signal over quantization noise at the outputs, of the worst output that has noise",
    "cosine": "Cosine similarity of the outputs of both models, of the worst output",
    "max_abs_error": "Largest difference between an FP32 and an int8 output value",
    "agreement": "Samples for which both models choose the same class",
    "top1.fp32": "Top-1 accuracy of the FP32 model; needs labels, as all of top1 and top5",
    "top1.int8": "Top-1 accuracy of the int8 model",
    "top1.drop": "Top-1 accuracy that int8 loses; negative where it gains",
    "top5.fp32": "Top-5 accuracy of the FP32 model",
    "top5.int8": "Top-5 accuracy of the int8 model",
    "top5.drop": "Top-5 accuracy that int8 loses; negative where it gains",
    "metric.fp32": "Your own metric (--metric) of the FP32 model",
    "metric.int8": "Your own metric of the int8 model; the metric's own name is short for it",
    "metric.drop": "What int8 loses of your own metric",
    "layers.worst_sqnr_db": "Signal over quantization noise of the worst layer",
    "outputs.dead": "Output channels that are constant in int8 only; outputs.dead<=0 is always on, outputs.dead=off "
    "switches it off",
    "outputs.saturated": "Outputs that stick at the largest or smallest value of the int8 model",
    "outputs.tied": "Outputs whose scores have lost their order",
    "latency.fp32": "Time of one inference of the FP32 model on this machine",
    "latency.int8": "Time of one inference of the int8 model on this machine",
    "latency.speedup": "How many times as fast the int8 model is; below 1 it is slower",
    "size.fp32_bytes": "Size of the FP32 model",
    "size.int8_bytes": "Size of the int8 model",
    "size.ratio": "Size of the int8 model as a part of the FP32 model's",
    "saturation.unsafe_channels": "Channels whose sums can overflow on CPUs of the target",
    "fusion.integer": "Compute nodes that run on integers",
    "fusion.float": "Compute nodes left in float",
}

# Those that count faults of outputs, for which outputs have a line in words.
OUTPUT_FAULTS = tuple(name for name in _MEASURED if name.startswith("outputs."))

# Those that follow from the power of the noise, so that a budget for them can be estimated.
TOLD_BY_NOISE = frozenset({"sqnr_db", "cosine", "max_abs_error"})


def faults_of(measured: Measurements, name: str) -> list[str]:
    """Return what is said of the outputs' faults, where a figure counts them; else nothing."""
    if name not in OUTPUT_FAULTS:
        return []
    return [line for output in measured.outputs.values() for line in output.faults]


# Every figure with a name of its own, with both ends of intervals; those of one output are OUTPUT_UNITS.
FIGURES: dict[str, Figure] = {
    each: each_figure
    for name, measured in _MEASURED.items()
    for figure in [replace(measured, about=_ABOUT[name])]
    for each, each_figure in (
        (name, figure),
        *((f"{name}_ci95.{end}", figure.end(end)) for end in _ENDS if figure.interval),
    )
}
_SHORTLY = ("sqnr_db", "agreement", "top1.drop", "metric.drop", "latency.speedup", "size.ratio", "fusion.float")
# What a short name stands for.
SHORT = {f"drop_ci95.{end}": f"top1.drop_ci95.{end}" for end in _ENDS}

# What a metric's own name, alone and with something behind it, stands for.
OWN = {"": "metric.int8"} | {name.removeprefix("metric"): name for name in FIGURES if name.startswith("metric.")}

# Of the decisions that an output is for (`evaluation.decision_metrics`): unit, label, which way is better.
DECISIONS: dict[str, tuple[str, str, int]] = {
    "equal_values": (FRACTION, "Equal values", 1),
    "argmax_agreement": (FRACTION, "Same largest score", 1),
    "rank_correlation": (_COSINE, "Rank correlation", 1),
    "top5_recall": (FRACTION, "Best 5 kept", 1),
    "decision_f1": (FRACTION, "F1 of decisions", 1),
    "threshold_crossings": (FRACTION, "Threshold crossed", -1),
    "box_recall": (FRACTION, "Boxes found again", 1),
    "box_precision": (FRACTION, "Boxes that are right", 1),
    "box_iou": (FRACTION, "IoU of boxes", 1),
    "neighbour_recall1": (FRACTION, "Nearest neighbour kept", 1),
    "neighbour_recall5": (FRACTION, "5 neighbours kept", 1),
    "embedding_cosine": (_COSINE, "Cosine of embeddings", 1),
    "psnr_db": (_DECIBEL, "PSNR", 1),
    "p5_sqnr_db": (_DECIBEL, "SQNR of the worst 5 %", 1),
}
# Figures of one output: "outputs.<its name>.<one of these>", or an end of the interval of one that has one.
OUTPUT_FIGURES = ("sqnr_db", "cosine", *DECISIONS)
OUTPUT_UNITS = {"sqnr_db": _DECIBEL, "sqnr_db_ci95.lo": _DECIBEL, "sqnr_db_ci95.hi": _DECIBEL, "cosine": _COSINE} | {
    name: unit for key, (unit, _, _) in DECISIONS.items() for name in (key, *(f"{key}_ci95.{end}" for end in _ENDS))
}
# An output's name may hold dots: the figure is what the last of them begins.
OUTPUT = re.compile(rf"outputs\.(.+)\.({'|'.join(map(re.escape, OUTPUT_UNITS))})", re.DOTALL)


def metric_name(setting: str | None) -> str:
    """Return what a metric is called, and gates about it begin with: the function's name; "" where there is none."""
    return re.split(r"[.:]", setting)[-1] if setting else ""


def figure_name(name: str, metric: str) -> str:
    """Return the name in FIGURES of what a user wrote; a metric's own name alone is its figure of the int8 model."""
    if metric and (name == metric or name.startswith(f"{metric}.")):
        return OWN.get(name.removeprefix(metric), name)
    return SHORT.get(name, name)


def output_of(name: str) -> str | None:
    """Return the output that a figure is about; None for a figure of the whole model."""
    match = OUTPUT.fullmatch(name)
    return None if match is None else match[1]


def decided_on(name: str) -> bool:
    """Whether a figure is one of the decisions on an output."""
    match = OUTPUT.fullmatch(name)
    return match is not None and match[2].partition("_ci95.")[0] in DECISIONS


def figure_of(name: str) -> Figure:
    """Find a figure: one of FIGURES, or of one output."""
    match = OUTPUT.fullmatch(name)
    if match is None:
        return FIGURES[name]
    output, key = match[1], match[2]
    if key == "cosine":
        return replace(_figure(key, OUTPUT_UNITS[key], output=output), about="Cosine similarity")
    name, _, end = key.partition("_ci95.")
    if name in DECISIONS:
        figure = _decision(output, name)
    else:
        plain = _figure(name, _DECIBEL, f"SQNR of {output}", 1, interval=True, output=output)
        figure = replace(plain, about="Signal over quantization noise")
    return figure.end(end) if end else figure


def _decision(output: str, name: str) -> Figure:
    """Make a figure of the decisions on an output; of several groups of its channels the worst one's counts."""
    unit, label, better = DECISIONS[name]

    def worst(measured: Measurements) -> DecisionFigure | None:
        found = measured.outputs[output].decisions if output in measured.outputs else ()
        known = [(each.value * better, each) for each in found if each.figure == name and each.value is not None]
        return min(known, key=lambda pair: pair[0])[1] if known else None

    def read(measured: Measurements) -> float | None:
        found = worst(measured)
        return None if found is None else found.value

    def ends(measured: Measurements) -> Interval | None:
        found = worst(measured)
        return None if found is None else found.ci95

    return Figure(read, unit, f"{label}, {output}", better, ends, label)


def value_of(name: str, measured: Measurements) -> float | None:
    """Look a figure up.

    Returns:
        The value in its unit; None where it could not be computed, or there is no such output.
    """
    return figure_of(name).read(measured)


def interval_of(name: str, measured: Measurements) -> tuple[float, float] | None:
    """Look up the 95 % interval of a figure; None where it has none, not both ends, or is itself an end."""
    figure = figure_of(name)
    low, high = (figure.interval(measured) if figure.interval else None) or (None, None)
    return None if low is None or high is None else (low, high)


def short_figures(measured: Measurements) -> dict[str, tuple[str, str]]:
    """Return name -> value and unit of the few figures that say how good a model is, of those that were measured."""
    values = {name: value_of(name, measured) for name in _SHORTLY}
    return {name: (f"{value:.6g}", FIGURES[name].unit) for name, value in values.items() if value is not None}
