"""The content of report.json, typed: what is written, read back, compared, and what every view shows.

Its parts are the dataclasses of `evaluation.result`. Numbers that are not finite become null here, once, so that no
view can show one that another view hides.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections import deque
from dataclasses import dataclass, field, fields, is_dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, StrictBool, TypeAdapter

from int8cal.data.checks import Finding  # noqa: TC001 - pydantic reads the fields of Document
from int8cal.evaluation.figures import decided_on
from int8cal.evaluation.gates import figure_named
from int8cal.evaluation.measured import how_measured
from int8cal.evaluation.result import (
    Fusion,
    Latency,
    LayerMetrics,
    Measurements,
    Metrics,
    MixedPrecision,
    Optimization,
    Origin,
    OutputMetrics,
    Saturation,
)
from int8cal.evaluation.result_parts import FIRST, Count, Fastest, Gate, Number, RuntimeAgreement
from int8cal.evaluation.weak_families import FamilyFinding  # noqa: TC001 - pydantic reads the fields of Document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from int8cal.evaluation.result import Evaluation, LayerScales, Report

FORMAT = "int8cal/report"
VERSION = 1
# Beyond these no figure is, and arithmetic on what is read could overflow.
_DIGITS = 300
_LARGEST = 1e300
STATIONS = ("prepare", "calibrate", "thresholds", "quantize", "evaluate")
NO_REASON = "no reason was recorded"
_NO_DECISION = "the values of this output are not known to be of a kind that has such a figure"
# Keys that only some reports have.
_OPTIONAL = (
    "metric",
    "weights",
    "findings",
    "families",
    "steps",
    "optimize",
    "mixed_precision",
    "runtimes",
    "latencies_ms",
    "fastest",
    "measured",
    "origin",
)
# Parts in which each null has a reason.
_MEASURED = (
    "metrics",
    "metric",
    "outputs",
    "layers",
    "fusion",
    "latency_ms",
    "gates",
    "runtimes",
    "latencies_ms",
    "fastest",
)


@dataclass(frozen=True, kw_only=True)
class WeightScales:
    """One weight tensor: how it is quantized, and how far its scales are apart."""

    node: str
    op_type: str
    weight: str
    tensor: str
    dtype: str
    range: str
    axis: Count | None = None
    scales: Count
    scale_min: Number | None
    scale_median: Number | None
    scale_max: Number | None

    @property
    def spread(self) -> float | None:
        """How many times the largest scale is the smallest."""
        return self.scale_max / self.scale_min if self.scale_min and self.scale_max is not None else None


@dataclass(frozen=True)
class StepGain:
    """What a step of the recipe gave: dB on the holdout without and with it, and whether it was kept."""

    step: str
    before_db: Number | None
    sqnr_db: Number | None
    kept: StrictBool


@dataclass(frozen=True)
class RuntimeFigures:
    """The int8 model in one of several runtimes; `against_onnxruntime` in all but onnxruntime itself."""

    metrics: Metrics
    outputs: dict[str, OutputMetrics]
    kernels: Fusion | None
    latency: Annotated[Latency | None, Field(alias="latency_ms")]
    against_onnxruntime: RuntimeAgreement | None = None


@dataclass(frozen=True, kw_only=True)
class Document(Measurements):
    """The content of report.json; each null among the measurements has a reason.

    Attributes:
        model, settings: Whatever was recorded of both: nested mappings, lists, text, numbers.
        runtimes: By name.
        latencies_ms: By name of each runtime whose speed was measured; none where that is only onnxruntime.
        fastest: Where the int8 model is fastest.
        measured: Dotted key path of a figure, or of a part with figures -> how it was measured.
        origin: When, by what and where it was made; reports of earlier versions have none.
        reasons: Dotted key path of a null, or of a part that it belongs to -> why.
    """

    format: Literal["int8cal/report"]
    version: Literal[1]
    model: dict[str, object]
    settings: dict[str, object]
    samples: Count | None = None
    weights: tuple[WeightScales, ...] = ()
    timing_s: dict[str, Number | None]
    gates: tuple[Gate, ...]
    findings: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    families: tuple[FamilyFinding, ...] = ()
    steps: tuple[StepGain, ...] = ()
    optimize: Optimization | None = None
    mixed_precision: MixedPrecision | None = None
    runtimes: dict[str, RuntimeFigures] = field(default_factory=dict)
    latencies_ms: dict[str, Latency | None] = field(default_factory=dict)
    fastest: Fastest | None = None
    measured: dict[str, str] = field(default_factory=dict)
    origin: Origin | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def other_warnings(self) -> tuple[str, ...]:
        """Warnings without the findings, which lead them, and without what stands elsewhere: faults, budgets."""
        told = {line for output in self.outputs.values() for line in output.faults}
        told |= {self.mixed_precision.outcome} if self.mixed_precision else set()
        return tuple(line for line in self.warnings[len(self.findings) :] if line not in told)

    def why(self, path: str) -> str:
        """Find the reason for a null by its dotted path ("layers.3.clipped")."""
        own = self.metric.name if self.metric else ""
        names = _names(path, lambda index: self.layers[index].tensor, lambda index: self.gates[index].gate, own)
        return find_reason(self.reasons, *names) or NO_REASON


def find_reason(reasons: Mapping[str, str], *paths: str) -> str | None:
    """Find why a value is null: by one of its own dotted paths first, then by the parts these belong to.

    Args:
        reasons: The document's "reasons".
        paths: Names of the same value, the most telling first ("layers.3.sqnr_db", "layers.conv1_out.sqnr_db").
    """
    # an interval is missing for the reason that its figure is, if for none of its own
    paths = (*paths, *(path.removesuffix("_ci95") for path in paths if path.endswith("_ci95")))
    for path in paths:
        if path in reasons:
            return reasons[path]
    for path in paths:
        part = path
        while "." in part:
            part = part.rpartition(".")[0]
            if part in reasons:
                return reasons[part]
    return None


def _names(path: str, tensor: Callable[[int], str], gate: Callable[[int], str], metric: str) -> tuple[str, ...]:
    """Name all the paths that the reason for a null may be filed under.

    Args:
        path: Its own.
        tensor, gate: The tensor of a layer and the text of a gate, by place.
        metric: What the user's metric is called; "" without one.
    """
    part, _, rest = path.partition(".")
    if part == "layers" and rest:
        index, _, key = rest.partition(".")
        return path, f"layers.{tensor(int(index))}.{key}"
    if part == "gates":
        figure = figure_named(gate(int(rest.partition(".")[0])), metric)
        return path, f"metrics.{figure}", figure
    if part == "latency_ms":
        return path, path.replace("latency_ms", "latency", 1)
    if part == "runtimes":
        _, _, key = rest.partition(".")
        part, dot, rest = key.partition(".")
        first = {"against_onnxruntime": "metrics", "kernels": "fusion", "latency_ms": "latency"}.get(part, part)
        return path, f"{first}{dot}{rest}"
    return (path,)


class LaidOut:
    """What views show of a report, made once for all of them."""

    def __init__(self, report: Report) -> None:
        self._report = report

    @functools.cached_property
    def content(self) -> dict[str, Any]:
        """What report.json holds, as JSON knows it."""
        return _json_of(self._report)

    @functools.cached_property
    def document(self) -> Document:
        """The same, typed."""
        return document_from(self.content)


def report_to_json(report: Report, laid_out: LaidOut | None = None) -> str:
    """Write a report as the text of report.json.

    Args:
        report: Any report; its histograms are left out.
        laid_out: What views show of it, where it is made already.

    Returns:
        JSON in the contract's key order, indented by 1, with a final newline. Floats are the shortest text that reads
        back as the same double. Equal reports give equal text.
    """
    content = (laid_out or LaidOut(report)).content
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document_of(report: Report) -> Document:
    """Turn a report into the document that report.json holds.

    Args:
        report: Any report; NaN, infinities, tuples, paths and numpy scalars are allowed anywhere in it.

    Returns:
        Numbers in it are finite. Each null among the measurements has a reason, keyed by its own dotted path or by that
        of a part it belongs to.
    """
    return document_from(_json_of(report))


def document_from(content: object) -> Document:
    """Make a document of what report.json holds.

    Raises:
        pydantic.ValidationError: Says what is wrong where.
    """
    return _reader().validate_python(content)


@functools.cache
def _reader() -> TypeAdapter[Document]:
    return TypeAdapter(Document)


def figures_from(text: str) -> Any:
    """Parse JSON whose numbers are figures: finite, and of a size that arithmetic on them does not overflow.

    Raises:
        ValueError: It is no JSON, or has another number.
        RecursionError: It is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_float)


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if abs(value) > _LARGEST:
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def part_as_json(part: object) -> Any:
    """Return a part of a document as report.json has it."""
    return _plain(part, "", {})


def _json_of(report: Report) -> dict[str, Any]:
    """Lay out report.json: its keys in their order, what was measured as JSON knows it, and a reason for each null."""
    evaluation = report.evaluation
    raw: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "model": _sorted(report.model),
        "settings": _sorted(report.settings),
        "samples": evaluation.samples,
        "metrics": evaluation.metrics,
        "metric": evaluation.metric,
        "outputs": evaluation.outputs,
        "layers": _layers(report),
        "fusion": evaluation.fusion,
        "saturation": _saturation(evaluation.saturation),
        "size": evaluation.size,
        "latency_ms": evaluation.latency,
        "weights": [scales_of(each) for each in report.weights],
        "timing_s": _timing(report.timing_s),
        "gates": report.gates,
        "findings": report.findings,
        "warnings": report.warnings,
        "decisions": report.decisions,
        "families": evaluation.families,
        "steps": [StepGain(step.name, step.before_db, step.after_db, step.kept) for step in report.steps],
        "optimize": report.optimize,
        "mixed_precision": report.mixed,
        "runtimes": _runtimes(evaluation),
        "latencies_ms": evaluation.latencies if len(evaluation.latencies) > 1 else {},
        "fastest": evaluation.fastest,
        "measured": how_measured(evaluation),
        "origin": report.origin,
    }
    raw = {key: value for key, value in raw.items() if value or key not in _OPTIONAL}
    reasons = {str(path): str(reason) for path, reason in evaluation.reasons.items()}
    plain = {key: _plain(value, key, reasons) for key, value in raw.items()}
    own = evaluation.metric.name if evaluation.metric else ""
    for path in _nulls(plain):
        names = _names(path, lambda at: plain["layers"][at]["tensor"], lambda at: plain["gates"][at]["gate"], own)
        if find_reason(reasons, *names) is None:
            reasons[path] = _NO_DECISION if decided_on(names[-1]) else NO_REASON
    return plain | {"reasons": _plain(_sorted(reasons), "reasons", {})}


def _nulls(plain: dict[str, Any]) -> Iterator[str]:
    """Find the paths of all measurements that are null; outer ones first, since their reasons hold for inner ones."""
    left = deque[tuple[str, object]]((key, plain.get(key, {})) for key in _MEASURED)
    left.append(("saturation.unsafe_channels", plain["saturation"]["unsafe_channels"]))
    while left:
        path, value = left.popleft()
        if value is None:
            yield path
        elif isinstance(value, dict):
            left.extend((f"{path}.{key}", each) for key, each in value.items())
        elif isinstance(value, list):
            left.extend((f"{path}.{index}", each) for index, each in enumerate(value))


def _layers(report: Report) -> list[LayerMetrics]:
    """Add the type of each layer's tensor, its clip range and what chose that, where a table is known."""
    entries = ((layer, report.tensors.get(layer.tensor)) for layer in report.evaluation.layers)
    return [
        layer if at is None else replace(layer, dtype=at.dtype, low=at.low, high=at.high, method=at.method)
        for layer, at in entries
    ]


def _saturation(found: Saturation) -> object:
    if found.channels is not None:
        return found
    return {"target": found.target, "unsafe_channels": found.unsafe_channels}


def scales_of(weights: LayerScales) -> WeightScales:
    """Sum up the scales of one weight: all of them are in the table, report.json has their spread."""
    scales, entry = weights.entry.told_scales, weights.entry
    return WeightScales(
        node=weights.node,
        op_type=weights.op_type,
        weight=weights.weight,
        tensor=weights.tensor,
        dtype=entry.dtype,
        range=entry.range,
        axis=entry.axis,
        scales=len(entry.scales),
        scale_min=min(scales, default=None),
        scale_median=statistics.median(scales) if scales else None,
        scale_max=max(scales, default=None),
    )


def _runtimes(evaluation: Evaluation) -> dict[str, object]:
    """Lay out each runtime, onnxruntime first, which repeats the evaluation's part; nothing where it ran alone."""
    if not evaluation.runtimes:
        return {}
    fusion = evaluation.fusion
    found: dict[str, object] = {
        FIRST: {
            "metrics": evaluation.metrics,
            "outputs": evaluation.outputs,
            "kernels": fusion and {"integer": fusion.integer, "float": fusion.float_},
            "latency_ms": evaluation.latency,
        }
    }
    for each in evaluation.runtimes:
        latency = each.latency
        found[each.name] = {
            "metrics": each.metrics,
            "outputs": {name: {"sqnr_db": at.sqnr_db, "cosine": at.cosine} for name, at in each.outputs.items()},
            "kernels": each.kernels,
            "latency_ms": latency and {"fp32": latency.fp32, "int8": latency.int8, "speedup": latency.speedup},
            "against_onnxruntime": each.against,
        }
    return found


def _timing(timing: Mapping[str, float]) -> dict[str, float]:
    """Order the stations as a model passes them, then whatever else was timed."""
    names = [name for name in STATIONS if name in timing]
    return {name: timing[name] for name in [*names, *sorted(set(timing) - set(names))]}


def _sorted(value: object) -> object:
    """Order the keys of free-form settings, so that equal settings give equal bytes."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=str)}
    return value


def _plain(value: object, path: str, reasons: dict[str, str]) -> Any:
    """Reduce a value to what JSON knows; a number that is not finite becomes None, and `reasons` says so."""
    if is_dataclass(value):
        # an underscore at a name's end only keeps it apart from Python's own
        value = {
            each.name.removesuffix("_"): getattr(value, each.name)
            for each in fields(value)
            if not each.metadata or getattr(value, each.name) != each.default
        }
    if isinstance(value, dict):
        return {_text(key): _plain(item, f"{path}.{_text(key)}", reasons) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}.{index}", reasons) for index, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return _plain(sorted(value, key=str), path, reasons)
    if value is None or isinstance(value, bool | np.bool_):
        return value if value is None else bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        if math.isfinite(number):
            return number
        reasons.setdefault(path, _not_finite(number, path))
        return None
    return _text(value)


def _not_finite(number: float, path: str) -> str:
    if math.isnan(number):
        return "the computation gave NaN"
    if number > 0 and path.endswith("sqnr_db"):
        return "infinite: both models give exactly the same values"
    return f"the computation gave {number}"


def _text(value: object) -> str:
    """Text that UTF-8 can hold: file names may carry bytes that it cannot."""
    return str(value).encode("utf-8", "replace").decode("utf-8")
