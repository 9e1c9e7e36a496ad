"""The integers of each layer: weight codes within the range in force, and the s32 bias."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from int8cal.errors import NonFiniteError
from int8cal.graph.index import Index
from int8cal.numerics.weights import (
    WEIGHT_TYPES,
    QuantizedLayer,
    guard_bias,
    quantize_bias,
    quantize_weights,
    weight_scales,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

    from int8cal.graph.plan import Layer, Plan
    from int8cal.job import WeightRange
    from int8cal.numerics.affine import Affine

FloatT = TypeVar("FloatT", np.float32, np.float64)


def quantize_layers(
    model: onnx.ModelProto,
    plan: Plan,
    activations: dict[str, Affine],
    weights: WeightRange,
    *,
    scales: dict[str, npt.NDArray[np.float64]] | None = None,
    bias_deltas: dict[str, npt.NDArray[np.float64]] | None = None,
) -> dict[str, QuantizedLayer]:
    """Quantize the weights and biases of all planned layers.

    Args:
        model: The prepared (and equalized) model.
        plan: The plan.
        activations: Affine per planned tensor: a bias has scale input scale x weight scale.
        weights: Range of the codes.
        scales: Weight scales by node name that win over the computed ones (from a table).
        bias_deltas: Added to a node's float bias (from a correction).

    Returns:
        Integers by node name.

    Raises:
        NonFiniteError: A weight holds NaN or infinity; names it and its node.
    """
    index = Index(model)
    dtype = WEIGHT_TYPES[weights]
    result = {}
    for layer in plan.layers:
        weight = index.constant(layer.weight).astype(np.float32)
        if not np.isfinite(weight).all():
            raise NonFiniteError(
                f"weight {layer.weight!r} of node {layer.node!r} holds NaN or infinity",
                do="export the model again, or leave the node out with --exclude",
                tensor=layer.weight,
                node=layer.node,
            )
        given = (scales or {}).get(layer.node)
        chosen = given if given is not None else weight_scales(weight, layer.axis, dtype)
        bias = None
        raised = np.zeros(len(chosen), np.bool_)
        if layer.bias is not None:
            bias = index.constant(layer.bias).astype(np.float64).reshape(-1)
            delta = (bias_deltas or {}).get(layer.node)
            if delta is not None:
                bias = bias + delta
            input_scale = activations[layer.input].scale
            # groups of a ConvTranspose share the scales along its output axis: the largest bias of each decides
            largest = np.abs(bias).reshape(-1, len(chosen)).max(axis=0) if bias.size > len(chosen) else bias
            # the runtime adds bias and products in one s32 sum: both must fit at once
            reserve = 255 * dtype.qmax * (weight.size // len(scales_per_output(chosen, layer)))
            chosen, raised = guard_bias(chosen, largest, input_scale, reserve=reserve)
            bias_codes = quantize_bias(bias, input_scale, scales_per_output(chosen, layer))
        codes = quantize_weights(weight, chosen, layer.axis, dtype)
        result[layer.node] = QuantizedLayer(codes, chosen, bias_codes if bias is not None else None, int(raised.sum()))
    return result


def scales_per_output(scales: npt.NDArray[FloatT], layer: Layer) -> npt.NDArray[FloatT]:
    """Return the weight scale of each output channel, (OC,).

    Args:
        scales: (channels of the weight's axis,). A ConvTranspose with groups stores OC / group channels, and output
            channel g * (OC / group) + k has scale k.
        layer: The layer.
    """
    return np.tile(scales, layer.group) if layer.op_type == "ConvTranspose" else scales
