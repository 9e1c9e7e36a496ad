"""Why a value of a report is null: under which key paths the reason may be filed, and how it is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.evaluation.gates import figure_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from int8cal.report.document import Document
    from int8cal.report.parts import Gate, Layer

NO_REASON = "no reason was recorded"


def why(document: Document, *paths: str) -> str:
    """Find the reason for a null, by any of its dotted paths."""
    return find_reason(document.reasons, *paths) or NO_REASON


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
    if document.fusion is None:
        yield ("fusion",)
    if document.latency is None:
        yield ("latency_ms", "latency")
    elif document.latency.speedup_ci95 is None:
        yield ("latency_ms.speedup_ci95", "latency.speedup_ci95")
    yield from ((f"metrics.{key}",) for key in document.metrics.nulls())
    if document.saturation.unsafe_channels is None:
        yield ("saturation.unsafe_channels",)
    for name, output in document.outputs.items():
        yield from ((f"outputs.{name}.{key}",) for key in output.nulls())
    for index, layer in enumerate(document.layers):
        yield from (layer_paths(index, layer, key) for key in layer.nulls() if key in ("sqnr_db", "clipped"))
    for index, gate in enumerate(document.gates):
        if gate.value is None:
            yield gate_paths(index, gate)
    yield from _missing_of_runtimes(document)


def _missing_of_runtimes(document: Document) -> Iterator[tuple[str, ...]]:
    for name, runtime in document.runtimes.items():
        place = f"runtimes.{name}"
        for key in runtime.metrics.nulls():
            yield (f"{place}.metrics.{key}", f"metrics.{key}")
        for key in runtime.against_onnxruntime.nulls() if runtime.against_onnxruntime else ():
            yield (f"{place}.against_onnxruntime.{key}", f"metrics.{key}")
        for output, values in runtime.outputs.items():
            for key in values.nulls():
                yield (f"{place}.outputs.{output}.{key}", f"outputs.{output}.{key}")
        if runtime.kernels is None:
            yield (f"{place}.kernels", "fusion")
        if runtime.latency is None:
            yield (f"{place}.latency_ms", "latency")


def layer_paths(index: int, layer: Layer, key: str) -> tuple[str, ...]:
    """Name the paths under which the reason for a layer's null may be filed: by its place, or by its tensor."""
    return (f"layers.{index}.{key}", f"layers.{layer.tensor}.{key}")


def gate_paths(index: int, gate: Gate) -> tuple[str, ...]:
    """Name the paths under which the reason for a gate without value may be filed: its own, or its metric's."""
    metric = figure_named(gate.gate)
    return (f"gates.{index}.value", f"metrics.{metric}", metric)
