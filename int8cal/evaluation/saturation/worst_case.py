"""Which output channels of an int8 model can saturate on a target, whatever the activations (NUMERICS 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from int8cal.evaluation.result import LayerSaturation, Saturation
from int8cal.evaluation.saturation.layers import KERNEL, read_layers, with_names
from int8cal.numerics.pairs import Links, Rows, link, worst_anywhere, worst_linked
from int8cal.runtime.targets import TARGETS, any_two_meet, links_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

    from int8cal.evaluation.result import Fusion
    from int8cal.evaluation.saturation.linear import Linear
    from int8cal.numerics.pairs import Order


ANYWHERE = "any two weights may meet under oneDNN"
ONLY_ONEDNN = "only oneDNN runs it on integers"


@dataclass(frozen=True)
class Judged:
    """A layer, its rows in the order of reduction, which neighbours meet, and the verdict on it.

    Attributes:
        anywhere: Any two weights of a row may meet, whatever the links.
        unsafe: (scales, outputs per scale): outputs with a pair that can saturate; None where nothing adds pairs.
    """

    layer: Linear
    rows: Rows | None
    links: Links | None
    anywhere: bool
    unsafe: npt.NDArray[np.bool_] | None
    result: LayerSaturation


def audit_saturation(model: onnx.ModelProto, target: str, fusion: Fusion | None) -> Saturation:
    """Audit a model for a target.

    Args:
        model: An int8 model of any tool.
        target: A name in runtime.targets.TARGETS.
        fusion: Its fusion audit; None where there is none (see `read_layers`).

    Returns:
        The figures of the report. A float model has no layers and no unsafe channels.
    """
    return saturation_of(target, judge_layers(model, target, fusion))


def saturation_of(target: str, judged: list[Judged]) -> Saturation:
    """Add up the verdicts on the layers that multiply integers; float layers are left out."""
    layers = tuple(each.result for each in judged if each.result.verdict != "float")
    return Saturation(
        target,
        sum(layer.unsafe_channels for layer in layers),
        channels=sum(layer.channels for layer in layers),
        unsafe_pairs=sum(layer.unsafe_pairs for layer in layers),
        layers=layers,
    )


def judge_layers(model: onnx.ModelProto, target: str, fusion: Fusion | None) -> list[Judged]:
    """Judge every node that multiplies by weights, in graph order.

    Args:
        model, target, fusion: As in `audit_saturation`; the fusion audit must have been made with the names of
            `with_names(model)` where nodes have none of their own.
    """
    return [_judge(layer, target) for layer in read_layers(model, with_names(model), fusion)]


def orders_of(layer: Linear, target: str) -> tuple[Order, ...]:
    """Return the orders in which neighbours may meet in a layer on a target; empty where all sums are exact."""
    known = TARGETS[target].orders
    if "onednn" in layer.runtimes and "channels" in known:
        # only oneDNN runs transposed convolutions on integers; its others may take either order
        return ("channels",) if layer.form.kind == "ConvTranspose" else known
    return tuple(order for order in known if order == "flat" and "onnxruntime" in layer.runtimes)


def links_for(layer: Linear, rows: Rows, target: str) -> Links | None:
    """Flag the neighbours that may meet in a layer on a target; None where all sums are exact."""
    orders = orders_of(layer, target)
    if not orders:
        return None
    if orders == TARGETS[target].orders:
        return links_of(target, rows.positions, rows.channels, depthwise=False)
    return link(orders, rows.positions, rows.channels)


def _judge(layer: Linear, target: str) -> Judged:
    if not layer.integer:
        return Judged(layer, None, None, False, None, _result(layer, "float", layer.why))
    if layer.weight is None:
        depends = "data" if orders_of(layer, target) else "exact"
        why = layer.why or ("both operands are activations" if depends == "data" else _sums_exactly(target))
        return Judged(layer, None, None, False, None, _result(layer, depends, why))
    rows = layer.rows()
    links = links_for(layer, rows, target)
    channels = rows.values.shape[0] * rows.values.shape[1]
    if links is None:
        if TARGETS[target].orders and not layer.onnxruntime:
            return Judged(layer, None, None, False, None, _result(layer, "float", "onnxruntime computes it in float"))
        why = layer.why or (KERNEL if TARGETS[target].orders else _sums_exactly(target))
        return Judged(layer, rows, None, False, None, _result(layer, "exact", why, channels))
    worst, unsafe = worst_linked(rows.values, links)
    outputs, pairs = np.any(unsafe, axis=-1), int(unsafe.sum())
    anywhere = layer.form.kind == "Conv" and "onednn" in layer.runtimes
    anywhere = anywhere and any_two_meet(target, rows.kernel, rows.channels, depthwise=False)
    if anywhere:
        worst, counts = worst_anywhere(rows.values)
        outputs, pairs = counts > 0, int(counts.sum())
    result = _result(
        layer,
        "unsafe" if outputs.any() else "safe",
        ANYWHERE if anywhere else "" if layer.onnxruntime else ONLY_ONEDNN,
        channels,
        unsafe_channels=int(outputs.sum()),
        unsafe_pairs=pairs,
        worst_sum=worst,
    )
    return Judged(layer, rows, links, anywhere, outputs, result)


def _sums_exactly(target: str) -> str:
    return f"{target} sums products exactly"


def _result(
    layer: Linear,
    verdict: str,
    why: str,
    channels: int = 0,
    *,
    unsafe_channels: int = 0,
    unsafe_pairs: int = 0,
    worst_sum: int | None = None,
) -> LayerSaturation:
    return LayerSaturation(
        node=layer.name,
        op_type=layer.op_type,
        weight=layer.weight.name if layer.weight else "",
        verdict=verdict,
        why=why,
        channels=channels,
        unsafe_channels=unsafe_channels,
        unsafe_pairs=unsafe_pairs,
        worst_sum=worst_sum,
    )
