"""Accuracy over latency: what was measured of both, as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.report import wording
from int8cal.report.charts import Dot, Picture, picture
from int8cal.report.parts import ends
from int8cal.report.reasons import why

if TYPE_CHECKING:
    from int8cal.report.document import Document


def speed_picture(document: Document) -> tuple[Picture | None, str]:
    """Draw accuracy over latency of both models.

    Args:
        document: The report's document.

    Returns:
        The picture and a sentence below it; None and why there is nothing to draw where one of both was not measured.
        Top-1 accuracy where labels are known. Else the SQNR of the outputs, in which float32 is the reference and so
        has no point but a line at its latency.
    """
    latency, metrics = document.latency, document.metrics
    if latency is None or latency.fp32 is None or latency.int8 is None:
        reason = why(document, "latency_ms", "latency_ms.int8", "latency")
        return None, f"Nothing to draw: latency {wording.NOT_MEASURED}: {reason}"
    times = (wording.milliseconds(latency.fp32), wording.milliseconds(latency.int8))
    top1 = metrics.top1
    if top1 is not None and top1.fp32 is not None and top1.int8 is not None:
        floats, codes = 100 * top1.fp32, 100 * top1.int8
        low, high = top1.drop_ci95
        span = None if low is None or high is None else (max(floats - high, 0.0), min(floats - low, 100.0))
        dots = [
            Dot(latency.fp32, floats, "float32", f"float32: {floats:.2f} %, {times[0]}"),
            Dot(latency.int8, codes, "int8", f"int8: {codes:.2f} %, {times[1]}", chosen=True, span=span),
        ]
        told = "The bar of int8 is where its accuracy lies with 95 % confidence, beside float32 on the same samples."
        return _drawn(dots, "top-1, %"), told if span else ""
    if metrics.sqnr_db is None:
        reason = why(document, "metrics.sqnr_db")
        return None, f"Nothing to draw: accuracy {wording.NOT_MEASURED}: {reason}"
    told = f"{wording.decibel(metrics.sqnr_db)}, {times[1]}"
    span = ends(metrics.sqnr_db_ci95)
    dot = Dot(latency.int8, metrics.sqnr_db, "int8", f"int8: {told}", chosen=True, span=span)
    text = "SQNR is measured against float32, so float32 is a line, not a point."
    return _drawn([dot], "SQNR, dB", (latency.fp32, f"float32, {times[0]}")), text


def _drawn(dots: list[Dot], y_label: str, marker: tuple[float, str] | None = None) -> Picture:
    return picture(dots, x_label="ms per sample", y_label=y_label, marker=marker)
