"""Range equalization by powers of two: channels of very different size between two layers are brought together.

With factors 2**e the float function stays the same to the last bit, and a log-linear histogram only shifts by octaves,
so the statistics already collected stay exact: no second pass over the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from int8cal.graph.chains import Chain, find_chains, index_node
from int8cal.graph.index import Index

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.graph.plan import Layer, Plan

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

STRENGTHS = (0.25, 0.5, 0.75, 1.0)  # how far towards equal activations (1) rather than equal weights (0)
MAX_EXPONENT = 30


@dataclass(frozen=True)
class Equalization:
    """Factors of one chain: exponents (C,), and the predicted gain at the second layer's output in dB."""

    chain: Chain
    exponents: Int64
    gain_db: float


def choose_factors(
    model: onnx.ModelProto, plan: Plan, statistics: Statistics, *, least_gain_db: float
) -> tuple[Equalization, ...]:
    """Choose powers of two per channel for each chain where they pay.

    Args:
        model: The prepared model.
        plan: Its plan.
        statistics: With per-channel figures of every chain's tensor.
        least_gain_db: A chain is left alone below this predicted gain.

    Returns:
        Accepted chains, in graph order.
    """
    index = Index(model)
    weights = {layer.node: index.constant(layer.weight).astype(np.float64) for layer in plan.layers}
    accepted = []
    for chain in find_chains(model, plan):
        tensor = statistics.tensors.get(chain.tensor)
        if tensor is None or tensor.channels is None or tensor.count == 0:
            continue
        by_input = input_channels_first(weights[chain.second.node], chain.second)
        exponents, gain = _best_exponents(tensor, by_input)
        if gain < least_gain_db:
            continue
        accepted.append(Equalization(chain, exponents, gain))
        factors = np.exp2(exponents)
        weights[chain.first.node] = scale_outputs(weights[chain.first.node], chain.first, factors)
        weights[chain.second.node] = scale_inputs(weights[chain.second.node], chain.second, 1 / factors)
    return tuple(accepted)


def _best_exponents(tensor: TensorStatistics, by_input: list[Float64]) -> tuple[Int64, float]:
    channels = tensor.channels
    if channels is None:
        raise ValueError("no per-channel figures")
    amax, power = channels.amax, channels.mean_square
    signed = tensor.minimum < 0
    strength = np.array([np.abs(rows).max(initial=0.0) for rows in by_input])
    alive = (amax > 0) & (strength > 0)
    none = np.zeros(len(amax), np.int64)
    if alive.sum() < 2:
        return none, 0.0
    before = predicted_noise(amax, power, by_input, none, signed=signed)
    best, least = none, before
    for alpha in STRENGTHS:
        wish = np.zeros(len(amax))
        wish[alive] = (1 - alpha) * np.log2(strength[alive]) - alpha * np.log2(amax[alive])
        # the loudest channel stays where it is; dead channels are not moved
        wish[alive] -= wish[alive][np.argmax(amax[alive])]
        exponents = np.clip(np.rint(wish), -MAX_EXPONENT, MAX_EXPONENT).astype(np.int64)
        noise = predicted_noise(amax, power, by_input, exponents, signed=signed)
        if noise < least:
            best, least = exponents, noise
    return best, float(10 * np.log10(before / least)) if least > 0 else 0.0


def predicted_noise(amax: Float64, power: Float64, by_input: list[Float64], exponents: Int64, *, signed: bool) -> float:
    """Predict the squared error at the second layer's output per position, from rounding its input and its weights.

    Args:
        amax, power: Largest magnitude and mean square of each channel before rescaling, (C,).
        by_input: Per input channel the weights that read it, (outputs, taps) with the output's row index kept; see
            `input_channels_first`.
        exponents: Of the factors, (C,).
        signed: The tensor has negative values (its step is twice as wide).

    Numerics: a uniform rounding error has variance step**2 / 12.
    """
    factor = np.exp2(exponents.astype(np.float64))
    step = (amax * factor).max() * (2 if signed else 1) / 255
    energy = np.array([np.square(rows).sum() for rows in by_input])
    from_input = step**2 / 12 * (energy / factor**2).sum()
    outputs = by_input[0].shape[0]
    largest = np.zeros(outputs)
    spread = np.zeros(outputs)
    for channel, rows in enumerate(by_input):
        reads = np.abs(rows).max(axis=1)
        largest = np.maximum(largest, reads / factor[channel])
        spread += power[channel] * factor[channel] ** 2 * np.count_nonzero(rows, axis=1)
    from_weights = ((largest / 127) ** 2 / 12 * spread).sum()
    return float(from_input + from_weights)


def input_channels_first(weight: Float64, layer: Layer) -> list[Float64]:
    """Return, for each input channel, an array (output channels, taps) of the weights that read it, zeros elsewhere."""
    if layer.op_type != "Conv":
        matrix = weight if layer.axis == 1 else weight.T
        return [row.reshape(-1, 1) for row in matrix]
    outputs = weight.shape[0]
    per_group, inputs_per_group = outputs // layer.group, weight.shape[1]
    flat = weight.reshape(outputs, inputs_per_group, -1)
    if layer.group == 1:
        return [flat[:, channel] for channel in range(inputs_per_group)]
    result = []
    for channel in range(layer.channels):
        group = channel // inputs_per_group
        rows = slice(group * per_group, (group + 1) * per_group)
        full = np.zeros((outputs, flat.shape[2]))
        full[rows] = flat[rows, channel % inputs_per_group]
        result.append(full)
    return result


def scale_outputs(weight: Float64, layer: Layer, factors: Float64) -> Float64:
    """Multiply each output channel of a layer's weight by its factor."""
    shape = [1] * weight.ndim
    shape[layer.axis or 0] = -1
    return weight * factors.reshape(shape)


def scale_inputs(weight: Float64, layer: Layer, factors: Float64) -> Float64:
    """Multiply each input channel of a layer's weight by its factor."""
    if layer.op_type != "Conv":
        return weight * (factors[:, None] if layer.axis == 1 else factors[None, :])
    outputs, inputs_per_group = weight.shape[:2]
    by_group = factors.reshape(layer.group, inputs_per_group)
    rows = np.repeat(by_group, outputs // layer.group, axis=0)
    return weight * rows.reshape(outputs, inputs_per_group, *[1] * (weight.ndim - 2))


def apply_factors(model: onnx.ModelProto, plan: Plan, factors: Mapping[str, Int64]) -> onnx.ModelProto:
    """Rescale the weights and biases of chains.

    Args:
        model: The prepared model; not changed.
        plan: Its plan.
        factors: Second layer's input tensor -> exponents (C,).

    Returns:
        A model that computes the same function; the named tensors (and those between the two layers) are scaled.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    index = Index(result)
    for chain in find_chains(model, plan):
        exponents = factors.get(chain.tensor)
        if exponents is None:
            continue
        factor = np.exp2(exponents.astype(np.float64))
        _replace(index, chain.first.weight, lambda w, c=chain, f=factor: scale_outputs(w, c.first, f))
        if chain.first.bias is not None:
            _replace(index, chain.first.bias, lambda b, f=factor: b * f)
        _replace(index, chain.second.weight, lambda w, c=chain, f=factor: scale_inputs(w, c.second, 1 / f))
    return result


def scaled_tensors(model: onnx.ModelProto, plan: Plan, factors: Mapping[str, Int64]) -> dict[str, Int64]:
    """Return the exponents of every tensor that `apply_factors` scales, planned or not."""
    index = Index(model)
    return {
        name: factors[chain.tensor]
        for chain in find_chains(model, plan)
        if chain.tensor in factors
        for name in (*chain.tensors, index_node(index, chain.first))
    }


def _replace(index: Index, name: str, change: object) -> None:
    tensor = index.initializers[name]
    array = numpy_helper.to_array(tensor)
    changed = change(array.astype(np.float64))  # type: ignore[operator]
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed.astype(array.dtype)), name))
