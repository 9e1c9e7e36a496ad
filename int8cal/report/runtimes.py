"""What the views show of an int8 model that ran in a second runtime: its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.report import wording

if TYPE_CHECKING:
    from int8cal.report.document import Document
    from int8cal.report.parts import Agreement, Fusion, Runtime

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


def title(name: str) -> str:
    """Say what a runtime is called."""
    return _TITLES.get(name, name)


def runtime_rows(document: Document) -> list[tuple[str, ...]]:
    """Return a row per runtime with the columns of HEADS; none where only onnxruntime ran."""
    return [_row(name, part) for name, part in document.runtimes.items()]


def _row(name: str, part: Runtime) -> tuple[str, ...]:
    metrics, latency, against = part.metrics, part.latency, part.against_onnxruntime
    times = (None, None, None) if latency is None else (latency.fp32, latency.int8, latency.speedup)
    return (
        title(name),
        wording.decibel(metrics.sqnr_db),
        wording.cosine(metrics.cosine),
        wording.percent(metrics.agreement),
        wording.points(None if metrics.top1 is None else metrics.top1.drop),
        _share(part.kernels),
        *map(wording.milliseconds, times[:2]),
        wording.times(times[2]),
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
            text += f", {wording.times(latency.speedup)} ({times})"
        lines.append((title(name), f"{text}; against onnxruntime's int8 {_agreement(part.against_onnxruntime)}"))
    return lines


def _agreement(against: Agreement) -> str:
    text = wording.decibel(against.sqnr_db)
    return text if against.agreement is None else f"{text}, agreement {wording.percent(against.agreement)}"


def _share(kernels: Fusion | None) -> str:
    if kernels is None:
        return wording.NOT_MEASURED
    return f"{kernels.integer} of {kernels.total}"
