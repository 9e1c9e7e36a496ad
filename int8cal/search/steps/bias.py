"""Bias correction: weight rounding shifts the mean of each output channel; the bias takes the shift back.

E[(W_hat - W) x] = (W_hat - W) E[x] per output channel, with E[x] from the statistics already collected; no second pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from int8cal.graph.index import Index
from int8cal.graph.window import window_of
from int8cal.quantization.corrections.rescale import input_channels_first
from int8cal.quantization.corrections.residual_codes import first_plane
from int8cal.quantization.uint8_input import pixel_affine
from int8cal.quantization.uint8_table import pixel_statistics
from int8cal.search.steps.layers import propose_layers

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.graph.plan import Layer, Plan
    from int8cal.numerics.weights import QuantizedLayer
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State

Float64 = npt.NDArray[np.float64]


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer biases corrected for the mean shift that rounded weights make."""
    if inputs.holdout.scorer is None:
        return
    model, plan, figures = state.candidate.model, state.plan, state.candidate.tensors
    if inputs.uint8 is not None:  # the statistics of the model behind the fold of pixels
        affine = pixel_affine(inputs.uint8.layers)
        figures = figures | pixel_statistics(inputs.uint8, affine, figures, state.built.wide)
        model, plan = state.built.floats, state.built.plan
    deltas = bias_deltas(model, plan, figures, state.built.layers)
    if deltas:
        found = {node: delta.tolist() for node, delta in deltas.items()}
        table = replace(state.table, corrections={**state.table.corrections, "bias": found})
        yield from propose_layers(state, inputs, "bias correction", table, ("bias",))


def bias_deltas(
    model: onnx.ModelProto,
    plan: Plan,
    statistics: Mapping[str, TensorStatistics],
    layers: Mapping[str, QuantizedLayer],
) -> dict[str, Float64]:
    """Compute what to add to each bias.

    Args:
        model: The prepared (and equalized) model.
        plan: Its plan.
        statistics: Per planned tensor, equalized likewise.
        layers: The layers' integers without correction.

    Returns:
        Node name -> (output channels,) in real units, for Conv and Gemm with a bias; others are left alone.
    """
    index = Index(model)
    result = {}
    for layer in plan.layers:
        seen = statistics[layer.input].channels
        if (
            layer.bias is None
            or layer.axis is None
            or layer.op_type == "ConvTranspose"
            or seen is None
            or not seen.count
        ):
            continue
        weight = index.constant(layer.weight).astype(np.float64)
        integers = layers[layer.node]
        shape = [1] * weight.ndim
        shape[layer.axis] = -1
        codes = integers.weight
        if codes.shape != weight.shape:  # what the second plane of an input holds has the mean 0
            codes = first_plane(codes, layer.reduction)
        shift = codes * integers.scales.reshape(shape) - weight
        if layer.op_type == "Conv":
            shift *= tap_coverage(index, layer)
        delta = np.zeros(weight.shape[layer.axis])
        for mean, rows in zip(seen.mean, input_channels_first(shift, layer), strict=True):
            delta -= rows.sum(axis=1) * mean
        result[layer.node] = delta
    return result


def tap_coverage(index: Index, layer: Layer) -> Float64:
    """Fraction of output positions at which each kernel tap reads the input and not the padding.

    Returns:
        float64, kernel shape (kh, kw), broadcasts against the weight; ones where the input's size is not known.
    """
    kernel = tuple(index.initializers[layer.weight].dims[2:])
    dims = _spatial_dims(index, layer.input, len(kernel))
    coverage = np.ones(kernel)
    if dims is None:
        return coverage
    window = window_of(index.nodes[layer.node], kernel, dims)
    for axis, (size, outputs) in enumerate(zip(dims, window.outputs(dims), strict=True)):
        positions = np.arange(outputs) * window.strides[axis] - window.pads[axis]
        reads = positions[:, None] + np.arange(kernel[axis])[None] * window.dilations[axis]
        share = ((reads >= 0) & (reads < size)).mean(axis=0)
        coverage *= share.reshape([-1 if other == axis else 1 for other in range(len(kernel))])
    return coverage


def _spatial_dims(index: Index, tensor: str, count: int) -> list[int] | None:
    sizes = (index.dims(tensor) or ())[2:]
    known = [size for size in sizes if size]
    return known if len(known) == len(sizes) == count else None
