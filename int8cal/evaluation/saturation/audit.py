"""The audit of one int8 model as frozen dataclasses, and the figures that gates may name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from int8cal.evaluation.saturation.repair import Repair, bias_codes
from int8cal.evaluation.saturation.simulate import zero_point
from int8cal.evaluation.saturation.worst_case import Judged, saturation_of
from int8cal.numerics.reference.dot import S32_MAX, headroom

if TYPE_CHECKING:
    from collections.abc import Callable

    from int8cal.evaluation.result import Fusion, Gate, LayerSaturation, Saturation
    from int8cal.evaluation.saturation.on_data import LayerOnData, OnData


@dataclass(frozen=True)
class AuditedLayer:
    """One layer.

    Attributes:
        saturation: Worst case of the pair sums.
        codes: Smallest and largest code of the weights; None without int8 weights.
        accumulator: Largest possible |sum| + |bias| as a fraction of 2^31 - 1, whatever the activations; above 1 the
            s32 sum could wrap around. None where it is not computed.
    """

    saturation: LayerSaturation
    codes: tuple[int, int] | None
    accumulator: float | None


@dataclass(frozen=True)
class Repaired:
    """The model that --fix wrote.

    Attributes:
        path: Where.
        repairs: What was changed, layer by layer.
        audit: The audit of that model, on the same data; gates judge it.
    """

    path: str
    repairs: tuple[Repair, ...]
    audit: Audit


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        model: The file.
        target: What it was audited for.
        layers: Every node that multiplies by weights, float ones too, in graph order.
        saturation: Figures over those that multiply integers.
        fusion: What onnxruntime really runs; None where it cannot tell, and `fusion_reason`.
        on_data: What samples showed; None without data.
        repaired: The model that was written; None without --fix.
        gates: Verdicts.
    """

    model: str
    target: str
    layers: tuple[AuditedLayer, ...]
    saturation: Saturation
    fusion: Fusion | None
    fusion_reason: str = ""
    on_data: OnData | None = None
    repaired: Repaired | None = None
    gates: tuple[Gate, ...] = ()

    def layer_on_data(self, node: str) -> LayerOnData | None:
        """Return what the samples showed of a layer; None where it was not simulated since it is safe."""
        found = self.on_data.layers if self.on_data else ()
        return next((layer for layer in found if layer.node == node), None)


def audit_of(model: str, target: str, judged: list[Judged], fusion: Fusion | None, fusion_reason: str) -> Audit:
    """Put verdicts together.

    Args:
        model: What to call the model.
        target: The target they are for.
        judged: All its layers.
        fusion, fusion_reason: The fusion audit, or why there is none.
    """
    layers = tuple(_audited(each) for each in judged)
    return Audit(model, target, layers, saturation_of(target, judged), fusion, fusion_reason)


def _audited(judged: Judged) -> AuditedLayer:
    layer, rows = judged.layer, judged.rows
    if rows is None or layer.weight is None or not rows.values.size:
        return AuditedLayer(judged.result, None, None)
    values = rows.values
    codes = (int(values.min()), int(values.max()))
    # one row per output channel, those of a group after another
    by_output = values.swapaxes(0, 1).reshape(-1, values.shape[2])
    zeros = layer.weight.zero_point.reshape(-1)
    zeros = np.tile(zeros, values.shape[1]) if zeros.size > 1 else zeros
    bias = bias_codes(layer)
    span = (-128, 127) if layer.activation == "int8" else (0, 255)
    added = None if bias is None or len(by_output) % bias.size else np.broadcast_to(bias.reshape(-1), len(by_output))
    left = headroom(by_output, added, codes=span, zero_point=zero_point(layer), weight_zero_point=zeros)
    return AuditedLayer(judged.result, codes, float(1 - left.min() / S32_MAX))


# What a gate of `int8cal audit` may name, also with "saturation." before it.
FIGURES: dict[str, Callable[[Audit], float | None]] = {
    "unsafe_channels": lambda audit: audit.saturation.unsafe_channels,
    "unsafe_pairs": lambda audit: audit.saturation.unsafe_pairs,
    "unsafe_layers": lambda audit: sum(layer.verdict == "unsafe" for layer in audit.saturation.layers),
    "channels": lambda audit: audit.saturation.channels,
    "layers": lambda audit: len(audit.saturation.layers),
    "data_dependent_layers": lambda audit: sum(layer.verdict == "data" for layer in audit.saturation.layers),
    "worst_sum": lambda audit: max((layer.worst_sum or 0 for layer in audit.saturation.layers), default=0),
    "accumulator": lambda audit: max((layer.accumulator or 0.0 for layer in audit.layers), default=0.0),
    "saturated_on_data": lambda audit: audit.on_data.saturated if audit.on_data else None,
    "saturated_channels_on_data": lambda audit: audit.on_data.channels if audit.on_data else None,
    "fusion.integer": lambda audit: audit.fusion.integer if audit.fusion else None,
    "fusion.float": lambda audit: audit.fusion.float_ if audit.fusion else None,
}
PREFIX = "saturation."
GATE_NAMES = (*FIGURES, *(f"{PREFIX}{name}" for name in FIGURES if "." not in name))
ON_DATA = frozenset({"saturated_on_data", "saturated_channels_on_data"})
