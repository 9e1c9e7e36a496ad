"""Rescales the channels of chains: constants in front times 2**e, weights behind divided by it, the function kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from int8cal.graph.chains import find_chains
from int8cal.graph.index import Index
from int8cal.quantization.emit import free_name, tensor_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.graph.chains import Chain
    from int8cal.graph.plan import Layer, Plan

Float64 = npt.NDArray[np.float64]
Exponents = npt.NDArray[np.float64]

STEPS = 16  # exponents are whole or multiples of 1 / 16: bins of the per-channel histogram per octave


def apply_factors(model: onnx.ModelProto, plan: Plan, factors: Mapping[str, Exponents]) -> onnx.ModelProto:
    """Rescale the constants of chains.

    Args:
        model: The prepared model; not changed.
        plan: Its plan.
        factors: A chain's tensor -> exponents (C,).

    Returns:
        A model that computes the same function, to the last bit where all exponents are whole and nothing leaves the
        normal float32 numbers. The chains' tensors are scaled. Where a chain is `inserted`, float readers see the
        unscaled tensor, under another name.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    index = Index(result)
    taken, names = tensor_names(result.graph), {node.name for node in result.graph.node}
    for chain in find_chains(model, plan):
        exponents = factors.get(chain.tensor)
        if exponents is None:
            continue
        factor = np.exp2(exponents)
        for carrier in chain.carriers:
            shape = (-1, *[1] * carrier.trailing)
            _store(index, carrier.name, _stored(index, carrier.name) * factor.reshape(shape))
        for layer in chain.readers:
            _store(index, layer.weight, scale_inputs(_stored(index, layer.weight), layer, 1 / factor))
        if chain.inserted:
            _insert(result.graph, chain, factor, taken, names)
    return result


def scaled_tensors(model: onnx.ModelProto, plan: Plan, factors: Mapping[str, Exponents]) -> dict[str, Exponents]:
    """Return the exponents of every tensor that `apply_factors` scales, planned or not."""
    return {
        name: factors[chain.tensor]
        for chain in find_chains(model, plan)
        if chain.tensor in factors
        for name in chain.tensors
    }


def scaled_axes(model: onnx.ModelProto, plan: Plan) -> dict[str, int]:
    """Return where the channels are of every tensor that `apply_factors` might scale."""
    return {
        name: axis for chain in find_chains(model, plan) for name, axis in zip(chain.tensors, chain.axes, strict=True)
    }


def as_numbers(exponents: Exponents) -> list[int | float]:
    """Return exponents as a table holds them: whole ones as integers."""
    return [int(value) if value == int(value) else value for value in exponents.tolist()]


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


def _insert(graph: onnx.GraphProto, chain: Chain, factor: Float64, taken: set[str], names: set[str]) -> None:
    """Put a Mul behind a tensor; the scaled values keep its name, since that is the planned one."""
    plain, constant = free_name(f"{chain.tensor}_unscaled", taken), free_name(f"{chain.tensor}_factors", taken)
    quantized = {layer.node for layer in chain.readers}
    nodes = []
    for node in graph.node:
        if node.name not in quantized:
            for slot, name in enumerate(node.input):
                if name == chain.tensor:
                    node.input[slot] = plain
        nodes.append(node)
        if chain.tensor in node.output:
            node.output[list(node.output).index(chain.tensor)] = plain
            name = free_name(f"{chain.tensor}_scaling", names)
            nodes.append(helper.make_node("Mul", [plain, constant], [chain.tensor], name=name))
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.append(numpy_helper.from_array(factor.astype(np.float32), constant))
    for value in graph.value_info:
        if value.name == chain.tensor:
            graph.value_info.add().CopyFrom(value)
            graph.value_info[-1].name = plain
            break


def _stored(index: Index, name: str) -> Float64:
    return numpy_helper.to_array(index.initializers[name]).astype(np.float64)


def _store(index: Index, name: str, values: Float64) -> None:
    tensor = index.initializers[name]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values.astype(dtype)), name))
