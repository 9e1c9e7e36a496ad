"""Layers of a report in the terminal: a bar for each SQNR, what runs in float, what can saturate, and weight scales."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from int8cal.report import wording
from int8cal.report.charts import DECIBEL_CAP
from int8cal.report.page_layers import LayerRow, layer_rows
from int8cal.report.reading import why_nothing_clipped
from int8cal.report.reasons import why

if TYPE_CHECKING:
    from int8cal.report.document import Document
    from int8cal.report.parts import Weights
    from int8cal.report.screen import Screen


def layer_lines(document: Document, screen: Screen) -> list[str]:
    """Show one line per layer; the bars share one axis, from 0 dB to the best layer, at most the cap."""
    rows = layer_rows(document, {})
    if not rows:
        return [f"layers {wording.NOT_MEASURED}: {wording.printable(why(document, 'layers'))}"]
    top = min(max((row.sqnr for row in rows if row.sqnr is not None), default=0.0), DECIBEL_CAP)
    shown = screen.chosen(rows, lambda row: row.tensor, lambda row: row.rank)
    if screen.sort == "order":
        shown.sort(key=lambda row: row.order)
    order = {"order": "in network order", "name": "by name"}.get(screen.sort, "worst first")
    lines = [f"{'SQNR':>10}  {'':{screen.bar_width}}  {'clipped':>10}  layer, {order}"]
    reason = why_nothing_clipped(document)
    if reason:
        lines.append(f"clipped {wording.NOT_MEASURED}: {wording.printable(reason)}")
    return lines + screen.cut([_layer(row, top, screen) for row in shown], "layer")


def _layer(row: LayerRow, top: float, screen: Screen) -> str:
    clipped = "-" if row.clipped is None else wording.small_percent(row.clipped)
    notes = [
        screen.paint(text, band)
        for text, band in (
            (f"float: {wording.printable(row.kernel.why)}" if row.kernel.text == "float" else "", "fair"),
            (f"can saturate: {row.saturation.why}" if row.saturation.band == "poor" else "", "poor"),
        )
        if text
    ]
    told = f" ({wording.printable(row.op_type)})"
    name = screen.name(row.tensor, 26 + screen.bar_width + len(told))
    if row.sqnr is None:
        notes.insert(0, f"{wording.NOT_MEASURED}: {wording.printable(row.reason)}")
        figure, bar = f"{'-':>10}", " " * screen.bar_width
    else:
        figure = screen.paint(f"{row.sqnr_text:>10}", row.band)
        bar = screen.paint(screen.bar(row.sqnr / top if top > 0 else 0.0), row.band)
    return ", ".join([f"{figure}  {bar}  {clipped:>10}  {name}{told}", *notes])


def spread_lines(weights: list[tuple[str, str, float, float, float]], screen: Screen) -> list[str]:
    """Show the scales of weights on one logarithmic axis, widest spread first.

    Args:
        weights: (name, kind, smallest, median, largest scale) of each, scales above 0.
        screen: Where.
    """
    if not weights:
        return []
    low, high = math.log(min(row[2] for row in weights)), math.log(max(row[4] for row in weights))
    width = (high - low) or 1.0

    def place(scale: float) -> float:
        return (math.log(scale) - low) / width

    shown = screen.chosen(weights, lambda row: row[0], lambda row: -row[4] / row[2])
    if not screen.sort:
        shown.sort(key=lambda row: -row[4] / row[2])
    order = {"order": "in the file's order", "name": "by name"}.get(screen.sort, "most uneven first")
    head = f"{'max/min':>9}  {'scales':{screen.bar_width}}  {'median':>10}  weight, {order}"
    lines = [
        f"{f'×{top / bottom:.3g}':>9}  {screen.part(place(bottom), place(top), middle=place(middle))}  "  # noqa: RUF001
        f"{middle:10.4g}  {screen.name(name, 27 + screen.bar_width + len(kind))}  {kind}"
        for name, kind, bottom, middle, top in shown
    ]
    return [head, *screen.cut(lines, "weight")]


def weight_lines(document: Document, screen: Screen) -> list[str]:
    """Show the weights of a report; nothing where it knows none."""
    return spread_lines([_weight(each) for each in document.weights if each.scale_min], screen)


def _weight(each: Weights) -> tuple[str, str, float, float, float]:
    kind = f"{each.dtype} {each.range}, {wording.count(each.scales, 'scale')}"
    return each.node or each.weight, kind, each.scale_min or 0.0, each.scale_median or 0.0, each.scale_max or 0.0
