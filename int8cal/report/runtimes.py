"""What the views show of an int8 model that ran in a second runtime: the part of the document, and its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from int8cal.report import wording

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.evaluation.result import Latency, RuntimeResult
    from int8cal.report.document import Document

FIRST = "onnxruntime"
_TITLES = {FIRST: "onnxruntime", "openvino": "OpenVINO"}
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


def runtimes_document(measured: Document, found: tuple[RuntimeResult, ...], metrics: list[Document]) -> Document:
    """Lay out each runtime, as report.json has them under "runtimes".

    Args:
        measured: The document's parts of the evaluation in onnxruntime, which are repeated beside the others.
        found: The other runtimes.
        metrics: The metrics of each of these, as the document has metrics.
    """
    fusion = measured["fusion"]
    document: Document = {
        FIRST: {
            "metrics": measured["metrics"],
            "outputs": measured["outputs"],
            "kernels": fusion and {"integer": fusion["integer"], "float": fusion["float"]},
            "latency_ms": measured["latency_ms"],
        }
    }
    for runtime, values in zip(found, metrics, strict=True):
        document[runtime.name] = {
            "metrics": values,
            "outputs": {
                name: {"sqnr_db": output.sqnr_db, "cosine": output.cosine} for name, output in runtime.outputs.items()
            },
            "kernels": {
                "integer": runtime.kernels.integer,
                "float": runtime.kernels.float_,
                "nodes": [
                    {"node": node.node, "op_type": node.op_type, "reason": node.reason}
                    for node in runtime.kernels.nodes
                ],
            },
            "latency_ms": _latency(runtime.latency),
            "against_onnxruntime": {
                "sqnr_db": runtime.against.sqnr_db,
                "cosine": runtime.against.cosine,
                "max_abs_error": runtime.against.max_abs_error,
                "agreement": runtime.against.agreement,
            },
        }
    return document


def missing_of_runtimes(document: Document) -> Iterator[tuple[str, ...]]:
    """Name every measurement of the part that is null, with the paths its reason may be filed under."""
    for name, part in document.get("runtimes", {}).items():
        for section in ("metrics", "against_onnxruntime"):
            for key, value in part.get(section, {}).items():
                if value is None:
                    yield (f"runtimes.{name}.{section}.{key}", f"metrics.{key}")
        for output, values in part["outputs"].items():
            for key, value in values.items():
                if value is None:
                    yield (f"runtimes.{name}.outputs.{output}.{key}", f"outputs.{output}.{key}")
        for key, first in (("kernels", "fusion"), ("latency_ms", "latency")):
            if part[key] is None:
                yield (f"runtimes.{name}.{key}", first)


def title(name: str) -> str:
    """Say what a runtime is called."""
    return _TITLES.get(name, name)


def runtime_rows(document: Document) -> list[tuple[str, ...]]:
    """Return a row per runtime with the columns of HEADS; none where only onnxruntime ran."""
    return [_row(name, part) for name, part in document.get("runtimes", {}).items()]


def _row(name: str, part: dict[str, Any]) -> tuple[str, ...]:
    metrics, latency, kernels = part["metrics"], part["latency_ms"] or {}, part["kernels"]
    against, top1 = part.get("against_onnxruntime"), metrics["top1"] or {}
    return (
        title(name),
        wording.decibel(metrics["sqnr_db"]),
        wording.cosine(metrics["cosine"]),
        wording.percent(metrics["agreement"]),
        wording.points(top1.get("drop")),
        _share(kernels),
        *(wording.milliseconds(latency.get(key)) for key in ("fp32", "int8")),
        wording.times(latency.get("speedup")),
        "" if against is None else _agreement(against),
    )


def runtime_sentences(document: Document) -> list[tuple[str, str]]:
    """Say in a line how each further runtime compares: its title, and the line."""
    lines = []
    for name, part in document.get("runtimes", {}).items():
        if name == FIRST:
            continue
        latency = part["latency_ms"]
        text = f"SQNR {wording.decibel(part['metrics']['sqnr_db'])}, {_share(part['kernels'])} layers on integers"
        if latency is not None:
            times = f"{wording.milliseconds(latency['fp32'])} to {wording.milliseconds(latency['int8'])}"
            text += f", {wording.times(latency['speedup'])} ({times})"
        lines.append((title(name), f"{text}; against onnxruntime's int8 {_agreement(part['against_onnxruntime'])}"))
    return lines


def _agreement(against: dict[str, Any]) -> str:
    text = wording.decibel(against["sqnr_db"])
    return text if against["agreement"] is None else f"{text}, agreement {wording.percent(against['agreement'])}"


def _share(kernels: dict[str, Any] | None) -> str:
    if kernels is None:
        return wording.NOT_MEASURED
    return f"{kernels['integer']} of {kernels['integer'] + kernels['float']}"


def _latency(latency: Latency | None) -> Document | None:
    if latency is None:
        return None
    return {"fp32": latency.fp32, "int8": latency.int8, "speedup": latency.speedup}
