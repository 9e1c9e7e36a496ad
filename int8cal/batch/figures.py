"""The figures of a report that a batch tells of each job, under the names that gates use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.report.document import Document


def figures_of(document: Document) -> dict[str, Any]:
    """Take the key figures from report.json's document; None where one was not measured."""
    metrics, size, latency = document["metrics"], document["size"], document["latency_ms"]
    return {
        **{name: metrics[name] for name in ("sqnr_db", "cosine", "max_abs_error", "agreement")},
        **_drop("top1", metrics["top1"]),
        **_drop("top5", metrics["top5"]),
        **{f"size.{name}": size[name] for name in ("fp32_bytes", "int8_bytes")},
        **{f"latency.{name}": latency and latency[name] for name in ("fp32", "int8", "speedup")},
        "saturation.unsafe_channels": document["saturation"]["unsafe_channels"],
    }


def _drop(name: str, drop: Mapping[str, Any] | None) -> dict[str, Any]:
    keys = ("fp32", "int8", "drop")
    low, high = (None, None) if drop is None else drop["drop_ci95"]
    return {
        **{f"{name}.{key}": None if drop is None else drop[key] for key in keys},
        f"{name}.drop_ci95.lo": low,
        f"{name}.drop_ci95.hi": high,
    }
