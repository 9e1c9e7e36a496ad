"""The figures of a report that a batch tells of each job, under the names that gates use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from int8cal.report.document import Document
    from int8cal.report.parts import Drop


def figures_of(document: Document) -> dict[str, Any]:
    """Take the key figures from report.json's document; None where one was not measured."""
    metrics, latency = document.metrics, document.latency
    return {
        "sqnr_db": metrics.sqnr_db,
        "cosine": metrics.cosine,
        "max_abs_error": metrics.max_abs_error,
        "agreement": metrics.agreement,
        **_drop("top1", metrics.top1),
        **_drop("top5", metrics.top5),
        "size.fp32_bytes": document.size.fp32_bytes,
        "size.int8_bytes": document.size.int8_bytes,
        "latency.fp32": latency and latency.fp32,
        "latency.int8": latency and latency.int8,
        "latency.speedup": latency and latency.speedup,
        "saturation.unsafe_channels": document.saturation.unsafe_channels,
    }


def _drop(name: str, drop: Drop | None) -> dict[str, Any]:
    low, high = (None, None) if drop is None else drop.drop_ci95
    return {
        f"{name}.fp32": drop and drop.fp32,
        f"{name}.int8": drop and drop.int8,
        f"{name}.drop": drop and drop.drop,
        f"{name}.drop_ci95.lo": low,
        f"{name}.drop_ci95.hi": high,
    }
