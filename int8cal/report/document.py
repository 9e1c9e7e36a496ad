"""A Report as the plain document that report.json holds, and that every other view is drawn from.

Numbers that are not finite become null here, once, so that no view can show one that another view hides.
"""

from __future__ import annotations

import json
import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from int8cal.evaluation.gates import figure_named
from int8cal.report.mixed import mixed_document
from int8cal.report.runtimes import missing_of_runtimes, runtimes_document
from int8cal.report.weights import weights_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from int8cal.calibration.table import Step, TensorEntry
    from int8cal.evaluation.result import (
        Drop,
        Evaluation,
        Gate,
        LayerSaturation,
        Metrics,
        Optimization,
        Report,
        Saturation,
    )

FORMAT = "int8cal/report"
VERSION = 1
STATIONS = ("prepare", "calibrate", "thresholds", "quantize", "evaluate")
NO_REASON = "no reason was recorded"

Document = dict[str, Any]


def report_to_json(report: Report) -> str:
    """Write a report as the text of report.json.

    Args:
        report: Any report; its histograms are left out.

    Returns:
        JSON in the contract's key order, indented by 1, with a final newline. Floats are the shortest text that reads
        back as the same double. Equal reports give equal text.
    """
    return json.dumps(document_of(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document_of(report: Report) -> Document:
    """Turn a report into the object that report.json holds.

    Args:
        report: Any report; NaN, infinities, tuples, paths and numpy scalars are allowed anywhere in it.

    Returns:
        Plain dicts, lists, strings and finite numbers. Each null among the measurements has a reason under "reasons",
        keyed by its own dotted path or by that of a part it belongs to.
    """
    evaluation = report.evaluation
    raw: Document = {
        "format": FORMAT,
        "version": VERSION,
        "model": _sorted(report.model),
        "settings": _sorted(report.settings),
        "samples": evaluation.samples,
        **_measurements(evaluation, _left(report), report.tensors),
        **({"weights": [weights_document(each) for each in report.weights]} if report.weights else {}),
        "timing_s": _timing(report.timing_s),
        "gates": [_gate(gate) for gate in report.gates],
        "warnings": report.warnings,
        "decisions": report.decisions,
        **({"steps": [_step(step) for step in report.steps]} if report.steps else {}),
        **({} if report.optimize is None else {"optimize": _optimization(report.optimize)}),
        **({} if report.mixed is None else {"mixed_precision": mixed_document(report.mixed)}),
    }
    if evaluation.runtimes:
        metrics = [_metrics(runtime.metrics) for runtime in evaluation.runtimes]
        raw["runtimes"] = runtimes_document(raw, evaluation.runtimes, metrics)
    reasons = {str(path): str(reason) for path, reason in evaluation.reasons.items()}
    document: Document = {key: _plain(value, key, reasons) for key, value in raw.items()}
    for paths in missing(document):
        if find_reason(reasons, *paths) is None:
            reasons[paths[0]] = NO_REASON
    document["reasons"] = _plain(_sorted(reasons), "reasons", {})
    return document


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


def missing(document: Document) -> Iterator[tuple[str, ...]]:
    """Name every measurement of a document that is null, with all the paths its reason may be filed under."""
    for key in ("fusion", "latency_ms"):
        if document[key] is None:
            yield (key, key.removesuffix("_ms"))
    if (document["latency_ms"] or {"speedup_ci95": ""})["speedup_ci95"] is None:
        yield ("latency_ms.speedup_ci95", "latency.speedup_ci95")
    yield from ((f"metrics.{key}",) for key, value in document["metrics"].items() if value is None)
    if document["saturation"]["unsafe_channels"] is None:
        yield ("saturation.unsafe_channels",)
    for name, output in document["outputs"].items():
        yield from ((f"outputs.{name}.{key}",) for key, value in output.items() if value is None)
    for index, layer in enumerate(document["layers"]):
        for key in ("sqnr_db", "clipped"):
            if layer[key] is None:
                yield layer_paths(index, layer, key)
    for index, gate in enumerate(document["gates"]):
        if gate["value"] is None:
            yield gate_paths(index, gate)
    yield from missing_of_runtimes(document)


def layer_paths(index: int, layer: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Name the paths under which the reason for a layer's null may be filed: by its place, or by its tensor."""
    return (f"layers.{index}.{key}", f"layers.{layer['tensor']}.{key}")


def gate_paths(index: int, gate: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the paths under which the reason for a gate without value may be filed: its own, or its metric's."""
    metric = figure_named(str(gate["gate"]))
    return (f"gates.{index}.value", f"metrics.{metric}", metric)


def _measurements(evaluation: Evaluation, left: Mapping[str, str], tensors: Mapping[str, TensorEntry]) -> Document:
    """Lay out what evaluation/ measured, in the contract's order.

    Args:
        evaluation: What was measured.
        left: Nodes that were left in float -> the reason, which the runtime's graph does not show.
        tensors: The table's entries, for the ranges of layers; empty where no table is known.
    """
    saturation, fusion, latency = evaluation.saturation, evaluation.fusion, evaluation.latency
    return {
        "metrics": _metrics(evaluation.metrics),
        "outputs": {
            name: {"sqnr_db": output.sqnr_db, "sqnr_db_ci95": output.sqnr_db_ci95, "cosine": output.cosine}
            for name, output in evaluation.outputs.items()
        },
        "layers": [
            {
                "tensor": layer.tensor,
                "node": layer.node,
                "op_type": layer.op_type,
                "sqnr_db": layer.sqnr_db,
                "clipped": layer.clipped,
                **_range(tensors.get(layer.tensor)),
            }
            for layer in evaluation.layers
        ],
        "fusion": fusion
        and {
            "integer": fusion.integer,
            "float": fusion.float_,
            "nodes": [
                {"node": node.node, "op_type": node.op_type, "reason": left.get(node.node, node.reason)}
                for node in fusion.nodes
            ],
        },
        "saturation": _saturation(saturation),
        "size": {"fp32_bytes": evaluation.size[0], "int8_bytes": evaluation.size[1]},
        "latency_ms": latency
        and {
            "fp32": latency.fp32,
            "int8": latency.int8,
            "speedup": latency.speedup,
            "speedup_ci95": latency.speedup_ci95,
        },
    }


def _metrics(metrics: Metrics) -> Document:
    return {
        "sqnr_db": metrics.sqnr_db,
        "sqnr_db_ci95": metrics.sqnr_db_ci95,
        "cosine": metrics.cosine,
        "max_abs_error": metrics.max_abs_error,
        "agreement": metrics.agreement,
        "agreement_ci95": metrics.agreement_ci95,
        "top1": _drop(metrics.top1),
        "top5": _drop(metrics.top5),
        "exact_outputs": metrics.exact_outputs,
    }


def _range(entry: TensorEntry | None) -> Document:
    """Lay out a tensor's type, its clip range in real units, and what chose it."""
    if entry is None:
        return {}
    return {"dtype": entry.dtype, "low": entry.low, "high": entry.high, "method": entry.method}


def _left(report: Report) -> dict[str, str]:
    """Return the nodes that measuring left in float, and why."""
    for_gates = report.settings.get("left_for_gates", {})
    left = dict(report.optimize.left) if report.optimize else {}
    return left | {str(node): str(why) for node, why in for_gates.items()} if isinstance(for_gates, dict) else left


def _saturation(found: Saturation) -> Document:
    document: Document = {"target": found.target, "unsafe_channels": found.unsafe_channels}
    if found.channels is not None:
        document |= {
            "channels": found.channels,
            "unsafe_pairs": found.unsafe_pairs,
            "layers": [layer_saturation(layer) for layer in found.layers],
        }
    return document


def layer_saturation(layer: LayerSaturation) -> Document:
    """Lay out whether a layer can saturate, as report.json and the audit have it."""
    return {
        "node": layer.node,
        "op_type": layer.op_type,
        "weight": layer.weight,
        "verdict": layer.verdict,
        "why": layer.why,
        "channels": layer.channels,
        "unsafe_channels": layer.unsafe_channels,
        "unsafe_pairs": layer.unsafe_pairs,
        "worst_sum": layer.worst_sum,
    }


def _gate(gate: Gate) -> Document:
    interval = {} if gate.ci95 is None else {"ci95": gate.ci95}
    return {"gate": gate.gate, "value": gate.value, "passed": gate.passed, **interval}


def _step(step: Step) -> Document:
    return {"step": step.name, "before_db": step.before_db, "sqnr_db": step.after_db, "kept": step.kept}


def _optimization(found: Optimization) -> Document:
    return {
        "fp32_us": found.fp32_us,
        "plain_int8_us": found.plain_us,
        "int8_us": found.int8_us,
        "left": found.left,
        "rows": [
            {
                "node": layer.node,
                "op_type": layer.op_type,
                "fp32_us": layer.fp32_us,
                "int8_us": layer.int8_us,
                "decision": layer.decision,
            }
            for layer in found.layers
        ],
    }


def _drop(drop: Drop | None) -> Document | None:
    if drop is None:
        return None
    return {
        "fp32": drop.fp32,
        "int8": drop.int8,
        "drop": drop.drop,
        "drop_ci95": drop.drop_ci95,
        "samples": drop.samples,
    }


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
    if isinstance(value, dict):
        return {_text(key): _plain(item, f"{path}.{_text(key)}", reasons) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}.{index}", reasons) for index, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return _plain(sorted(value, key=str), path, reasons)
    if value is None or isinstance(value, bool):
        return value
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
