"""What the views show of a budget that was spent: its rows, and the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.report import wording
from int8cal.report.charts import Dot, Picture, picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.report.parts import MixedGate, MixedPoint, MixedPrecision


@dataclass(frozen=True)
class MixedView:
    """What report.html shows; `chart` is None where fewer than two models have an SQNR, `noise` without layers."""

    sentence: str
    points: list[tuple[str, ...]]
    heads: list[str]
    layers: list[tuple[str, ...]]
    chart: Picture | None
    noise: Picture | None


def layer_rows(found: MixedPrecision) -> list[tuple[str, ...]]:
    """Return a row per layer: node, op, share of the noise, estimated time, decision; the loudest first."""
    return [
        (
            row.node,
            row.op_type,
            f"{100 * row.contribution:.1f} %",
            f"{row.estimated_percent:+.1f} %",
            row.decision,
        )
        for row in found.layers
    ]


def curve_heads(found: MixedPrecision) -> list[str]:
    """Return the heads of the columns of `curve_rows`."""
    gates = list(found.curve[0].gates) if found.curve else []
    planes = ["second planes"] if any(point.planes for point in found.curve) else []
    return ["layers in float", *planes, "estimated time", "SQNR", *gates, ""]


def curve_rows(found: MixedPrecision) -> list[tuple[str, ...]]:
    """Return a row per model that was evaluated, by estimated time."""
    planes = any(point.planes for point in found.curve)
    return [
        (
            str(point.layers_left),
            *([str(point.planes)] if planes else []),
            f"{point.estimated_percent:+.1f} %",
            wording.decibel(point.sqnr_db),
            *(f"{wording.plain(gate.value)}, {_verdict(gate)}" for gate in point.gates.values()),
            "kept" if point.kept else "",
        )
        for point in found.curve
    ]


def mixed_view(found: MixedPrecision) -> MixedView:
    """Prepare the part for the template."""
    return MixedView(
        sentence(found), curve_rows(found), curve_heads(found), layer_rows(found), _chart(found.curve), _noise(found)
    )


def sentence(found: MixedPrecision) -> str:
    """Say how the search ended, as a sentence."""
    text = found.outcome
    return f"{text[:1].upper()}{text[1:]}."


def _verdict(gate: MixedGate) -> str:
    return "passed" if gate.passed else "failed"


def _chart(curve: Sequence[MixedPoint]) -> Picture | None:
    dots = [
        Dot(point.estimated_percent, point.sqnr_db, "", _told(point), point.kept)
        for point in curve
        if point.sqnr_db is not None
    ]
    if len(dots) < 2:
        return None
    label = "estimated time beside the int8 model"
    return picture(dots, x_label=label, y_label="SQNR, dB", x_text="+{:g} %", joined=True)


def _noise(found: MixedPrecision) -> Picture | None:
    """Draw what each layer costs in float over what it adds to the noise; layers that cost nothing stay at 0."""
    dots = [
        Dot(
            max(layer.estimated_percent, 0.0),
            100 * layer.contribution,
            "",
            f"{layer.node}: {100 * layer.contribution:.1f} % of the noise, "
            f"{layer.estimated_percent:+.1f} % estimated time, {layer.decision}",
        )
        for layer in found.layers
    ]
    label = "estimated time that float adds"
    return picture(dots, x_label=label, y_label="share of the noise, %", x_text="+{:g} %") if len(dots) > 1 else None


def _told(point: MixedPoint) -> str:
    left = wording.count(point.layers_left, "layer")
    kept = ", kept" if point.kept else ""
    return f"{left} in float, {point.estimated_percent:+.1f} % by estimate: {wording.decibel(point.sqnr_db)}{kept}"
