"""A Report as the document that report.json holds, and that every other view is drawn from.

Numbers that are not finite become null here, once, so that no view can show one that another view hides.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from int8cal.report import parts
from int8cal.report.reasons import NO_REASON, find_reason, missing
from int8cal.report.runtimes import FIRST
from int8cal.report.weights import weights_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.calibration.table import TensorEntry
    from int8cal.evaluation.result import (
        Evaluation,
        FloatNode,
        Fusion,
        LayerMetrics,
        MixedPoint,
        MixedPrecision,
        Optimization,
        Report,
        RuntimeResult,
        Saturation,
    )

FORMAT = "int8cal/report"
VERSION = 1
STATIONS = ("prepare", "calibrate", "thresholds", "quantize", "evaluate")


class Document(parts.Part):
    """The content of report.json; each null among the measurements has a reason.

    Attributes:
        model, settings: Whatever was recorded of both: nested mappings, lists, text, numbers.
        outputs, runtimes: By name.
        reasons: Dotted key path of a null, or of a part that it belongs to -> why.
    """

    format: Literal["int8cal/report"]
    version: Literal[1]
    model: dict[str, Any]
    settings: dict[str, Any]
    samples: parts.Count | None = None
    metrics: parts.Metrics
    outputs: dict[str, parts.Output]
    layers: tuple[parts.Layer, ...]
    fusion: parts.Fusion | None
    saturation: parts.Saturation
    size: parts.Size
    latency: parts.Latency | None = Field(alias="latency_ms")
    weights: tuple[parts.Weights, ...] = ()
    timing_s: dict[str, parts.Number | None]
    gates: tuple[parts.Gate, ...]
    warnings: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    steps: tuple[parts.Step, ...] = ()
    optimize: parts.Optimization | None = None
    mixed_precision: parts.MixedPrecision | None = None
    runtimes: dict[str, parts.Runtime] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)


def report_to_json(report: Report) -> str:
    """Write a report as the text of report.json.

    Args:
        report: Any report; its histograms are left out.

    Returns:
        JSON in the contract's key order, indented by 1, with a final newline. Floats are the shortest text that reads
        back as the same double. Equal reports give equal text.
    """
    return json.dumps(document_of(report).as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document_of(report: Report) -> Document:
    """Turn a report into the document that report.json holds.

    Args:
        report: Any report; NaN, infinities, tuples, paths and numpy scalars are allowed anywhere in it.

    Returns:
        Numbers in it are finite. Each null among the measurements has a reason, keyed by its own dotted path or by that
        of a part it belongs to.
    """
    evaluation = report.evaluation
    raw: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "model": _sorted(report.model),
        "settings": _sorted(report.settings),
        "samples": evaluation.samples,
        **_measurements(evaluation, _left(report), report.tensors),
        "timing_s": _timing(report.timing_s),
        "gates": [_without_none(gate, "ci95") for gate in report.gates],
        "warnings": report.warnings,
        "decisions": report.decisions,
    }
    if report.weights:
        raw["weights"] = [weights_json(each) for each in report.weights]
    if report.steps:
        raw["steps"] = [
            {"step": step.name, "before_db": step.before_db, "sqnr_db": step.after_db, "kept": step.kept}
            for step in report.steps
        ]
    if report.optimize is not None:
        raw["optimize"] = _optimization(report.optimize)
    if report.mixed is not None:
        raw["mixed_precision"] = _mixed(report.mixed)
    if evaluation.runtimes:
        raw["runtimes"] = _runtimes(evaluation)
    reasons = {str(path): str(reason) for path, reason in evaluation.reasons.items()}
    plain = {key: _plain(value, key, reasons) for key, value in raw.items()}
    document = Document.model_validate(plain)
    for paths in missing(document):
        if find_reason(reasons, *paths) is None:
            reasons[paths[0]] = NO_REASON
    return document.model_copy(update={"reasons": _plain(_sorted(reasons), "reasons", {})})


def _measurements(
    evaluation: Evaluation, left: Mapping[str, str], tensors: Mapping[str, TensorEntry]
) -> dict[str, object]:
    """Lay out what evaluation/ measured.

    Args:
        evaluation: What was measured.
        left: Nodes that were left in float -> the reason, which the runtime's graph does not show.
        tensors: The table's entries, for the ranges of layers; empty where no table is known.
    """
    return {
        "metrics": evaluation.metrics,
        "outputs": evaluation.outputs,
        "layers": [_layer(layer, tensors.get(layer.tensor)) for layer in evaluation.layers],
        "fusion": evaluation.fusion and _fusion(evaluation.fusion, left),
        "saturation": _saturation(evaluation.saturation),
        "size": {"fp32_bytes": evaluation.size[0], "int8_bytes": evaluation.size[1]},
        "latency_ms": evaluation.latency,
    }


def _layer(layer: LayerMetrics, entry: TensorEntry | None) -> dict[str, object]:
    """Lay out a layer, with its tensor's type, its clip range in real units, and what chose that."""
    if entry is None:
        return _fields(layer)
    return _fields(layer) | {"dtype": entry.dtype, "low": entry.low, "high": entry.high, "method": entry.method}


def _fusion(fusion: Fusion, left: Mapping[str, str]) -> dict[str, object]:
    return _fields(fusion) | {"nodes": [_node(node, left.get(node.node, node.reason)) for node in fusion.nodes]}


def _node(node: FloatNode, reason: str) -> dict[str, object]:
    """Lay out a float node; "residual" is written only where it is true."""
    known: dict[str, object] = {"node": node.node, "op_type": node.op_type, "reason": reason}
    return known | {"residual": True} if node.residual else known


def _runtimes(evaluation: Evaluation) -> dict[str, object]:
    """Lay out each runtime; onnxruntime's part repeats the evaluation's."""
    fusion = evaluation.fusion
    first = {
        "metrics": evaluation.metrics,
        "outputs": evaluation.outputs,
        "kernels": fusion and {"integer": fusion.integer, "float": fusion.float_},
        "latency_ms": evaluation.latency,
    }
    return {FIRST: first, **{runtime.name: _runtime(runtime) for runtime in evaluation.runtimes}}


def _runtime(runtime: RuntimeResult) -> dict[str, object]:
    latency = runtime.latency
    return {
        "metrics": runtime.metrics,
        "outputs": {
            name: {"sqnr_db": output.sqnr_db, "cosine": output.cosine} for name, output in runtime.outputs.items()
        },
        "kernels": _fusion(runtime.kernels, {}),
        "latency_ms": latency and {"fp32": latency.fp32, "int8": latency.int8, "speedup": latency.speedup},
        "against_onnxruntime": runtime.against,
    }


def _left(report: Report) -> dict[str, str]:
    """Return the nodes that measuring left in float, and why."""
    for_gates = report.settings.get("left_for_gates", {})
    left = dict(report.optimize.left) if report.optimize else {}
    return left | {str(node): str(why) for node, why in for_gates.items()} if isinstance(for_gates, dict) else left


def _saturation(found: Saturation) -> dict[str, object]:
    known = _fields(found)
    return known if found.channels is not None else {key: known[key] for key in ("target", "unsafe_channels")}


def _optimization(found: Optimization) -> dict[str, object]:
    return _fields(found) | {"plain_int8_us": found.plain_us, "rows": found.layers}


def _mixed(found: MixedPrecision) -> dict[str, object]:
    return _fields(found) | {"curve": [_mixed_point(point) for point in found.curve]}


def _mixed_point(point: MixedPoint) -> dict[str, object]:
    metrics = point.metrics
    return _fields(point) | {
        "gates": {gate.gate: gate for gate in point.gates},
        "sqnr_db": metrics.sqnr_db,
        "cosine": metrics.cosine,
        "agreement": metrics.agreement,
        "top1_drop": None if metrics.top1 is None else metrics.top1.drop,
    }


def _timing(timing: Mapping[str, float]) -> dict[str, float]:
    """Order the stations as a model passes them, then whatever else was timed."""
    names = [name for name in STATIONS if name in timing]
    return {name: timing[name] for name in [*names, *sorted(set(timing) - set(names))]}


def _fields(result: Any) -> dict[str, object]:
    """Return a dataclass by its fields; an underscore at a name's end only keeps it apart from Python's own."""
    return {each.name.removesuffix("_"): getattr(result, each.name) for each in fields(result)}


def _without_none(result: Any, *names: str) -> dict[str, object]:
    return {name: value for name, value in _fields(result).items() if value is not None or name not in names}


def _sorted(value: object) -> object:
    """Order the keys of free-form settings, so that equal settings give equal bytes."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=str)}
    return value


def _plain(value: object, path: str, reasons: dict[str, str]) -> Any:
    """Reduce a value to what JSON knows; a number that is not finite becomes None, and `reasons` says so."""
    if is_dataclass(value):
        value = _fields(value)
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
