"""The rows of the page's layer table: one quantized tensor each, with what is known of its weights and its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.report import wording
from int8cal.report.reading import worst_first
from int8cal.report.reasons import layer_paths, why

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.report.document import Document
    from int8cal.report.parts import LayerSaturation, Weights

# Bands of SQNR in dB: at 20 dB the error is a tenth of the signal, at 10 dB a third.
_POOR, _FAIR = 10.0, 20.0
_SATURATION = {
    "safe": ("good", "safe", "no sum of products can saturate, whatever the activations"),
    "exact": ("good", "exact", "no kernel adds pairs of products in 16 bits here"),
    "data": ("fair", "depends on data", "both operands are activations"),
}


@dataclass(frozen=True)
class Mark:
    """A word in a table with its band for the colour, and why."""

    band: str
    text: str
    why: str = ""


NOTHING = Mark("none", "")


@dataclass(frozen=True)
class LayerRow:
    """One layer, ready to show. What was not measured is None, with its reason beside it."""

    rank: int
    order: int
    tensor: str
    node: str
    op_type: str
    sqnr: float | None
    sqnr_text: str
    clipped: float | None
    clipped_text: str
    reason: str
    clipped_reason: str
    band: str
    histogram: int | None
    weights: int | None
    dtype: str
    method: str
    range_text: str
    width: float | None
    weight_text: str
    spread: float | None
    kernel: Mark
    saturation: Mark


def layer_rows(document: Document, histograms: Mapping[str, int]) -> list[LayerRow]:
    """Return the layers, worst first.

    Args:
        document: The report's document.
        histograms: Tensor -> its number on the page.
    """
    weights = {each.tensor: (index, each) for index, each in reversed(list(enumerate(document.weights)))}
    saturation = {layer.node: layer for layer in document.saturation.layers}
    fusion = document.fusion
    left = None if fusion is None else {node.node: node.reason for node in fusion.nodes}
    rows = []
    for rank, (index, layer) in enumerate(worst_first(document), start=1):
        place, of_weights = weights.get(layer.tensor, (None, None))
        nodes = [layer.node, *([of_weights.node] if of_weights else [])]
        sqnr, clipped = layer.sqnr_db, layer.clipped
        low, high = layer.low, layer.high
        width = None if low is None or high is None else high - low
        rows.append(
            LayerRow(
                rank=rank,
                order=index + 1,
                tensor=layer.tensor,
                node=layer.node,
                op_type=layer.op_type,
                sqnr=sqnr,
                sqnr_text=wording.decibel(sqnr),
                clipped=clipped,
                clipped_text=wording.small_percent(clipped),
                reason="" if sqnr is not None else why(document, *layer_paths(index, layer, "sqnr_db")),
                clipped_reason="" if clipped is not None else why(document, *layer_paths(index, layer, "clipped")),
                band="none" if sqnr is None else "poor" if sqnr < _POOR else "fair" if sqnr < _FAIR else "good",
                histogram=histograms.get(layer.tensor),
                weights=place,
                dtype=layer.dtype,
                method=layer.method,
                range_text="" if width is None else f"{low:.4g} to {high:.4g}",
                width=width,
                weight_text=_weight_text(of_weights),
                spread=_spread(of_weights),
                kernel=_kernel(nodes, left),
                saturation=next((_saturation(saturation[node]) for node in nodes if node in saturation), NOTHING),
            )
        )
    return rows


def _kernel(nodes: list[str], left: Mapping[str, str] | None) -> Mark:
    """Say whether the runtime left one of the nodes in float."""
    if left is None or not all(nodes):  # a node without a name could be any
        return NOTHING
    float_ = next((node for node in nodes if node in left), None)
    if float_ is None:
        return Mark("good", "integer", "not among the nodes that the runtime left in float")
    return Mark("fair", "float", left[float_])


def _saturation(layer: LayerSaturation) -> Mark:
    if layer.verdict == "unsafe":
        channels = wording.count(layer.channels, "channel")
        return Mark("poor", "can saturate", f"{layer.unsafe_channels} of {channels}, on x86 CPUs without VNNI")
    band, text, why_ = _SATURATION.get(layer.verdict, ("none", "", ""))
    return Mark(band, text, why_)


def _weight_text(weights: Weights | None) -> str:
    return "" if weights is None else f"{weights.dtype} {weights.range}"


def _spread(weights: Weights | None) -> float | None:
    """Return how many times the largest scale is the smallest."""
    if weights is None or not weights.scale_min or weights.scale_max is None:
        return None
    return weights.scale_max / weights.scale_min
