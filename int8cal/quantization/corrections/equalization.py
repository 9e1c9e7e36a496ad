"""Equalization: channels of chains rescaled, constants in front times 2**e, weights behind divided by it.

The function stays the same.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from onnx import helper

from int8cal.errors import TableError
from int8cal.graph.chains import find_chains
from int8cal.graph.edit import Names, constant, refill
from int8cal.graph.index import Index
from int8cal.graph.planner import make_plan
from int8cal.numerics.channels import along
from int8cal.protos import without_weights
from int8cal.quantization.corrections.correction import NamedValues, Rescaled, read_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from int8cal.graph.chains import Chain
    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.numerics import Array, Float64
    from int8cal.quantization.corrections.correction import Draft
    from int8cal.quantization.table import CalibrationTable


STEPS = 16  # exponents are whole or multiples of 1 / 16: bins of the per-channel histogram per octave
LARGEST = 64.0  # exponent that a table may hold
EQUALIZATION_KEY = "int8cal.equalization"


class Equalization(NamedValues[tuple[float, ...]]):
    """Float64 of the channels of chains, (C,) by the chain's tensor."""

    key = "equalization"

    @classmethod
    def chosen(cls, factors: Mapping[str, Float64]) -> Self:
        """Make the record of exponents."""
        return cls({name: as_numbers(values) for name, values in factors.items()})

    @classmethod
    def _read_value(cls, value: Any, place: str) -> tuple[float, ...]:
        return read_numbers(value, LARGEST, place, step=1 / STEPS)

    @property
    def exponents(self) -> dict[str, Float64]:
        """The exponents as arrays, float64 (C,)."""
        return {name: np.array(values, np.float64) for name, values in self.values.items()}

    def apply(self, draft: Draft) -> Draft:
        """Rescale the float model, and say in the int8 model which tensors are scaled, see `Correction.apply`."""
        plan = draft.rescaling_plan
        chains = find_chains(draft.index, plan)
        scaled = self.exponents_by_tensor(chains)
        axes = {name: axis for chain in chains for name, axis in zip(chain.tensors, chain.axes, strict=True)}
        told = {name: {"axis": axes[name], "exponents": as_numbers(each)} for name, each in sorted(scaled.items())}
        known = draft.rescaled
        if known is None or known.source is not draft.model or known.plan is not plan or known.exponents != self.values:
            result = apply_factors(draft.index, chains, self.exponents)
            known = Rescaled(draft.model, plan, self.values, result)
        return replace(
            draft,
            index=known.index,
            rescaled=known,
            metadata={**draft.metadata, EQUALIZATION_KEY: json.dumps(told)},
        )

    def exponents_by_tensor(self, chains: Sequence[Chain]) -> dict[str, Float64]:
        """Return the exponents of every tensor that is scaled, planned or not.

        Raises:
            TableError: The record is for another model or plan.
        """
        channels = {chain.tensor: chain.channels for chain in chains}
        for name, values in self.values.items():
            if channels.get(name) != len(values):
                raise TableError(
                    f"corrections.equalization of {name!r} has {len(values)} exponents, "
                    f"the model expects {channels.get(name, 0)}",
                    do="calibrate again",
                    tensor=name,
                )
        return scaled_tensors(chains, self.exponents)


def apply_factors(
    model: onnx.ModelProto | Index, chains: Sequence[Chain], factors: Mapping[str, Float64]
) -> onnx.ModelProto:
    """Rescale the constants of chains.

    Args:
        model: The prepared model, which is not changed, or its index.
        chains: Of it.
        factors: A chain's tensor -> exponents (C,).

    Returns:
        A model that computes the same function, to the last bit where all exponents are whole and nothing leaves the
        normal float32 numbers. The chains' tensors are scaled. Where a chain is `inserted`, float readers see the
        unscaled tensor, under another name.
    """
    index = Index.of(model)
    result, names = without_weights(index.model), Names(index.graph)
    # by constant, in the order of the chains
    changes: dict[str, list[Callable[[Array], Array]]] = {}
    inserted = []
    for chain in chains:
        exponents = factors.get(chain.tensor)
        if exponents is None:
            continue
        factor = np.exp2(exponents)
        for carrier in chain.carriers:
            along_rows = factor.reshape(-1, *[1] * carrier.trailing)
            changes.setdefault(carrier.name, []).append(partial(_scaled, factors=along_rows))
        for layer in chain.readers:
            changes.setdefault(layer.weight, []).append(partial(scale_inputs, layer=layer, factors=1 / factor))
        if chain.inserted:
            inserted.append((chain, factor))
    # one weight in memory at a time, and each written once: a message keeps the memory of what is overwritten in it
    for tensor in index.graph.initializer:
        if tensor.name not in changes:
            result.graph.initializer.append(tensor)
            continue
        value = index.constant(tensor.name)
        for change in changes[tensor.name]:
            value = change(value)
        result.graph.initializer.append(constant(tensor.name, value))
    for chain, factor in inserted:
        _insert(result.graph, chain, factor, names)
    return result


def rescaling_plan(model: onnx.ModelProto | Index, plan: Plan, table: CalibrationTable) -> Plan:
    """Return the plan under which channels were rescaled: from before layers lost their range, or were left for gates.

    They stay rescaled between an int8 and a float layer: the function is the same, and the int8 layers were calibrated
    so.

    Args:
        model: The prepared model, or its index.
        plan: The table's plan.
        table: The table.
    """
    settings = table.settings
    if not (settings.left("left_for_gates") or settings.forms) or not Equalization.of(table):
        return plan
    return make_plan(model, settings.with_left("left_for_gates", {}).with_forms({}).selection)


def scaled_tensors(chains: Sequence[Chain], factors: Mapping[str, Float64]) -> dict[str, Float64]:
    """Return the exponents of every tensor that `apply_factors` scales, planned or not."""
    return {name: factors[chain.tensor] for chain in chains if chain.tensor in factors for name in chain.tensors}


def as_numbers(exponents: Float64) -> tuple[float, ...]:
    """Return exponents as a table holds them: whole ones as integers."""
    return tuple(int(value) if value == int(value) else value for value in exponents.tolist())


def by_input_channel(weight: Array, layer: Layer) -> Array:
    """Return a view of a layer's weight, (groups, input channels / groups, output channels / groups, taps)."""
    if layer.op_type != "Conv":
        return (weight if layer.axis == 1 else weight.T)[np.newaxis, :, :, np.newaxis]
    outputs, per_group = weight.shape[:2]
    grouped = weight.reshape(layer.group, outputs // layer.group, per_group, -1)
    return grouped.transpose(0, 2, 1, 3)


def scale_outputs(weight: Array, layer: Layer, factors: Float64) -> Array:
    """Multiply each output channel of a layer's weight by its factor, in float64; the result has the weight's dtype."""
    return _scaled(weight, factors.reshape(along(layer.axis or 0, weight.ndim)))


def scale_inputs(weight: Array, layer: Layer, factors: Float64) -> Array:
    """Multiply each input channel of a layer's weight by its factor, likewise."""
    if layer.op_type != "Conv":
        return _scaled(weight, factors[:, None] if layer.axis == 1 else factors[None, :])
    outputs, inputs_per_group = weight.shape[:2]
    by_group = factors.reshape(layer.group, inputs_per_group)
    rows = np.repeat(by_group, outputs // layer.group, axis=0)
    return _scaled(weight, rows.reshape(outputs, inputs_per_group, *[1] * (weight.ndim - 2)))


def _scaled(values: Array, factors: Float64) -> Array:
    # each product is computed in float64 and rounded once, without a copy of a large weight in float64
    result: Array = np.empty(np.broadcast_shapes(values.shape, factors.shape), values.dtype)
    np.multiply(values, factors, out=result, casting="same_kind")
    return result


def _insert(graph: onnx.GraphProto, chain: Chain, factor: Float64, names: Names) -> None:
    """Put a Mul behind a tensor; the scaled values keep its name, since that is the planned one."""
    plain, factors = names.tensor(f"{chain.tensor}_unscaled"), names.tensor(f"{chain.tensor}_factors")
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
            scaling = names.node(f"{chain.tensor}_scaling")
            nodes.append(helper.make_node("Mul", [plain, factors], [chain.tensor], name=scaling))
    refill(graph.node, nodes)
    graph.initializer.append(constant(factors, factor.astype(np.float32)))
    for value in graph.value_info:
        if value.name == chain.tensor:
            graph.value_info.add().CopyFrom(value)
            graph.value_info[-1].name = plain
            break
