"""Which output channels of an int8 model can saturate on a target, whatever the activations (docs/saturation.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.audit.read_layers import KERNEL, read_layers
from int8cal.evaluation.result import LayerSaturation, Saturation
from int8cal.numerics.pairs import Links, Rows, link, worst_anywhere, worst_linked
from int8cal.runtime.targets import TARGETS, any_two_meet

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

    from int8cal.audit.layer import Linear
    from int8cal.evaluation.result import Fusion
    from int8cal.numerics import Bools, Int64
    from int8cal.numerics.pairs import Order


ANYWHERE = "any two weights may meet under oneDNN"
ONLY_ONEDNN = "only oneDNN runs it on integers"
S32_MAX = 2**31 - 1


@dataclass(frozen=True)
class WorstCase:
    """A layer, and the verdict on it.

    Attributes:
        rows: Its weights in the order of reduction; None where it multiplies no integers by weights.
        links: Which neighbours meet; None where nothing adds pairs.
        unsafe: (scales, outputs per scale): outputs with a pair that can saturate; None where nothing adds pairs.
        anywhere: Any two weights of a row may meet, whatever the links.
    """

    layer: Linear
    result: LayerSaturation
    rows: Rows | None = None
    links: Links | None = None
    unsafe: Bools | None = None
    anywhere: bool = False


def audit_saturation(model: onnx.ModelProto, target: str, fusion: Fusion | None) -> Saturation:
    """Audit a model for a target.

    Args:
        model: An int8 model of any tool.
        target: A name in runtime.targets.TARGETS.
        fusion: Its fusion audit; None where there is none (see `read_layers`).

    Returns:
        The figures of the report. A float model has no layers and no unsafe channels.
    """
    return saturation_of(target, worst_cases(model, target, fusion))


def saturation_of(target: str, cases: list[WorstCase]) -> Saturation:
    """Add up the verdicts on the layers that multiply integers; float layers are left out."""
    layers = tuple(case.result for case in cases if case.result.verdict != "float")
    return Saturation(
        target,
        sum(layer.unsafe_channels for layer in layers),
        channels=sum(layer.channels for layer in layers),
        unsafe_pairs=sum(layer.unsafe_pairs or 0 for layer in layers),
        layers=layers,
    )


def worst_cases(model: onnx.ModelProto, target: str, fusion: Fusion | None) -> list[WorstCase]:
    """Look at every node that multiplies by weights, in graph order; arguments as in `audit_saturation`."""
    return [_worst_case(layer, target) for layer in read_layers(model, fusion)]


def orders_of(layer: Linear, target: str) -> tuple[Order, ...]:
    """Return the orders in which neighbours may meet in a layer on a target; empty where all sums are exact."""
    known = TARGETS[target].orders
    if "onednn" in layer.runtimes and "channels" in known:
        # only oneDNN runs transposed convolutions on integers; its others may take either order
        return ("channels",) if layer.form.kind == "ConvTranspose" else known
    return tuple(order for order in known if order == "flat" and "onnxruntime" in layer.runtimes)


def _worst_case(layer: Linear, target: str) -> WorstCase:
    orders = orders_of(layer, target)
    result = LayerSaturation(
        node=layer.name,
        op_type=layer.op_type,
        weight=layer.weight.name if layer.weight else "",
        verdict="float",
        why=layer.why,
        channels=0,
        unsafe_channels=0,
        unsafe_pairs=0,
    )
    if not layer.integer:
        return WorstCase(layer, result)
    if layer.weight is None:
        depends = "data" if orders else "exact"
        why = layer.why or ("both operands are activations" if orders else _sums_exactly(target))
        return WorstCase(layer, replace(result, verdict=depends, why=why))
    rows = layer.rows()
    channels = rows.values.shape[0] * rows.values.shape[1]
    if not orders:
        if TARGETS[target].orders and not layer.onnxruntime:
            return WorstCase(layer, replace(result, why="onnxruntime computes it in float"))
        why = layer.why or (KERNEL if TARGETS[target].orders else _sums_exactly(target))
        return WorstCase(layer, replace(result, verdict="exact", why=why, channels=channels), rows)
    links = link(orders, rows.positions, rows.channels)
    worst, unsafe = worst_linked(rows.values, links)
    outputs, pairs = np.any(unsafe, axis=-1), int(unsafe.sum())
    anywhere = layer.form.kind == "Conv" and "onednn" in layer.runtimes
    anywhere = anywhere and any_two_meet(target, rows.kernel, rows.channels, depthwise=False)
    if anywhere:
        worst, counts = worst_anywhere(rows.values)
        outputs, pairs = counts > 0, int(counts.sum())
    result = replace(
        result,
        verdict="unsafe" if outputs.any() else "safe",
        why=ANYWHERE if anywhere else "" if layer.onnxruntime else ONLY_ONEDNN,
        channels=channels,
        unsafe_channels=int(outputs.sum()),
        unsafe_pairs=pairs,
        worst_sum=worst,
    )
    return WorstCase(layer, result, rows, links, outputs, anywhere)


def _sums_exactly(target: str) -> str:
    return f"{target} sums products exactly"


def headroom(
    rows: npt.NDArray[np.integer],
    bias: npt.ArrayLike = 0,
    *,
    codes: tuple[int, int] = (0, 255),
    zero_point: int = 0,
    weight_zero_point: npt.ArrayLike = 0,
) -> Int64:
    """Tell how far the accumulator stays from wrapping around, whatever the data.

    Args:
        rows: int8 or uint8 (channels, K).
        bias: s32 (channels,), or one.
        codes: Smallest and largest code of the activation.
        zero_point: Of the activation, one of its codes.
        weight_zero_point: One, or (channels,).

    Returns:
        int64 (channels,): 2**31 - 1 - (largest possible |Σ (x - zero_point) (w - weight_zero_point)| + |bias|).
        Negative where a sum could wrap around.
    """
    weights = rows.astype(np.int64) - np.asarray(weight_zero_point, np.int64).reshape(-1, 1)
    ends = np.array(codes, np.int64) - zero_point
    most = np.maximum(weights * ends[0], weights * ends[1]).sum(axis=1)
    least = np.minimum(weights * ends[0], weights * ends[1]).sum(axis=1)
    left: Int64 = S32_MAX - (np.maximum(most, -least) + np.abs(np.asarray(bias, np.int64)))
    return left
