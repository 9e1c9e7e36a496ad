"""Bias correction: weight rounding shifts the mean of each output channel; the bias takes the shift back.

E[(W_hat - W) x] = (W_hat - W) E[x] per output channel, with E[x] from the statistics already collected; no second pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.layers import window_of
from int8cal.numerics.channels import along
from int8cal.quantization.corrections.channel_copies import merged
from int8cal.quantization.corrections.equalization import by_input_channel
from int8cal.quantization.corrections.integers import Bias
from int8cal.quantization.corrections.residual_codes import first_plane
from int8cal.search.search import propose_layers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.graph.index import Index
    from int8cal.graph.layers import Layer
    from int8cal.numerics import Array, Float64
    from int8cal.numerics.weights import QuantizedLayer
    from int8cal.quantization.corrections.correction import Draft
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State


_AT_ONCE, _FEWEST = 1 << 20, 16  # weights whose shift is in memory at once, and output channels of these at least


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer biases corrected for the mean shift that rounded weights make."""
    if inputs.holdout.scorer is None:
        return
    deltas = bias_deltas(state.built.draft, state.candidate.tensors, state.built.layers)
    if deltas:
        bias = Bias({node: tuple(delta.tolist()) for node, delta in deltas.items()})
        table = state.table.corrected(bias)
        yield from propose_layers(state, inputs, "bias correction", table, (Bias,), small=True)


def bias_deltas(
    draft: Draft, statistics: Mapping[str, TensorStatistics], layers: Mapping[str, QuantizedLayer]
) -> dict[str, Float64]:
    """Compute what to add to each bias.

    Args:
        draft: The float model that the integers stand for.
        statistics: Per planned tensor of the prepared model, equalized likewise.
        layers: The layers' integers without correction.

    Returns:
        Node name -> (output channels,) in real units, for Conv and Gemm with a bias; others are left alone.
    """
    index = draft.index
    result = {}
    for layer in draft.plan.weighted:
        read = draft.read.get(layer.input)
        observed = statistics.get(read.source if read else layer.input)
        if layer.form == "weights" or observed is None:
            continue
        seen = observed.channels
        if (
            layer.bias is None
            or layer.axis is None
            or layer.op_type == "ConvTranspose"
            or seen is None
            or not seen.count
        ):
            continue
        integers = layers[layer.node]
        codes = integers.weight
        if layer.node in draft.residual:  # what residual codes of an input stand for has the mean 0
            codes = first_plane(codes, layer.reduction)
        copies, means = draft.copies.get(layer.node, ()), read.mean(seen) if read else seen.mean
        result[layer.node] = -_shifts(index, layer, codes, integers.scales, copies, means)
    return result


def _shifts(
    index: Index, layer: Layer, codes: Array, scales: Float64, copies: Sequence[int], means: Float64
) -> Float64:
    """Return the mean shift of each output channel, some of them at a time.

    Args:
        index: Of the float model.
        layer: The layer.
        codes: Of its weights and of copies of channels.
        scales: (output channels,).
        copies: As `channel_copies.merged` takes them.
        means: Of each input channel, (input channels,).
    """
    weight: Array = index.constant(layer.weight)
    axis, taps = layer.axis or 0, tap_coverage(index, layer) if layer.op_type == "Conv" else None
    outputs = weight.shape[axis]
    step = outputs if layer.group > 1 else max(_AT_ONCE * outputs // max(weight.size, 1), _FEWEST)
    found = []
    for first in range(0, outputs, step):
        part = (slice(None),) * axis + (slice(first, first + step),)
        whole = merged(codes[part], copies, layer)
        shift: Float64 = whole * scales[first : first + step].reshape(along(axis, weight.ndim)) - weight[part]
        if taps is not None:
            shift *= taps
        taken = np.ascontiguousarray(by_input_channel(shift, layer).sum(axis=3))
        found.append((taken * means.reshape(*taken.shape[:2], 1)).sum(axis=1).reshape(-1))
    return np.concatenate(found)


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
