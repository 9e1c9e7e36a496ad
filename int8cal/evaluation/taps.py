"""Which tensors of the FP32 graph an int8 model quantizes, and copies of both models that show them.

Told from the structure alone (a QuantizeLinear that reads the tensor), so that it works for other tools' models too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from int8cal.evaluation.saturation.constants import Constants
from int8cal.graph.index import Index, attribute, derived_constants
from int8cal.graph.ops import CLIPPING
from int8cal.protos import ModelView, view_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

# Ops that quantizers leave out, because the range clips alike or the weights before them took them in.
_ABSORBED = CLIPPING | {"BatchNormalization"}


@dataclass(frozen=True)
class LayerTap:
    """One quantized tensor.

    Attributes:
        tensor: Its name in the FP32 graph.
        node, op_type: The FP32 node that produces it; "" and "Input" for a graph input.
        order: Position of that node in the FP32 graph, -1 for a graph input.
        quantize: The QuantizeLinear of the int8 graph.
    """

    tensor: str
    node: str
    op_type: str
    order: int
    quantize: onnx.NodeProto


def find_layers(fp32: onnx.ModelProto, int8: onnx.ModelProto) -> tuple[tuple[LayerTap, ...], tuple[str, ...]]:
    """Find the tensors of the FP32 graph that the int8 graph quantizes.

    A tensor keeps its name before the QuantizeLinear, or (a graph output) behind the DequantizeLinear. Where the int8
    graph has left out a Relu, Clip or BatchNormalization, the tensor compared is the one behind it.
    Weights are not layers. A tensor that is quantized twice counts once, with its first QuantizeLinear.

    Args:
        fp32: The FP32 model; it need not be the very graph that was quantized.
        int8: Any model with QuantizeLinear nodes in its main graph.

    Returns:
        The layers in the order of the FP32 graph, and the int8 names of quantized tensors that the FP32 graph lacks.
    """
    source, target = Index(fp32), Index(int8)
    constants = derived_constants(target)
    order = {id(node): position for position, node in enumerate(fp32.graph.node)}
    found: dict[str, LayerTap] = {}
    missing: list[str] = []
    for quantize in int8.graph.node:
        if quantize.op_type != "QuantizeLinear" or quantize.input[0] in constants:
            continue
        tensor = _reference(source, target, quantize)
        if tensor is None:
            if not _second_plane_of(target, quantize):
                missing.append(quantize.input[0])
        elif tensor not in found:
            producer = source.producer.get(tensor)
            found[tensor] = (
                LayerTap(tensor, "", "Input", -1, quantize)
                if producer is None
                else LayerTap(tensor, producer.name, producer.op_type, order[id(producer)], quantize)
            )
    return tuple(sorted(found.values(), key=lambda tap: tap.order)), tuple(missing)


def fp32_with_taps(
    model: onnx.ModelProto, taps: Sequence[LayerTap], names: Sequence[str]
) -> tuple[ModelView, tuple[str, ...]]:
    """Copy the FP32 model with each tapped tensor as an output; returns the names of these outputs too.

    They keep their names, since the runtime needs several times as long to open a graph with an Identity behind each of
    thousands of tensors. A graph input cannot be an output, so it gets an Identity and the given name.
    """
    nodes = [
        helper.make_node("Identity", [tap.tensor], [name])
        for tap, name in zip(taps, names, strict=True)
        if tap.op_type == "Input"
    ]
    outputs = [name if tap.op_type == "Input" else tap.tensor for tap, name in zip(taps, names, strict=True)]
    result = _with_outputs(model, nodes)
    given = {value.name for value in result.shell.graph.output}
    result.shell.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs if name not in given)
    return result, tuple(outputs)


def fp32_with_sizes(model: onnx.ModelProto, taps: Sequence[LayerTap], names: Sequence[str]) -> ModelView:
    """Copy the FP32 model with the element count of each tapped tensor as an output of the given name."""
    nodes = [helper.make_node("Size", [tap.tensor], [name]) for tap, name in zip(taps, names, strict=True)]
    return _with_outputs(model, nodes)


@dataclass(frozen=True)
class _Part:
    """An output of the tapped int8 model: real values, or codes with the scale and zero point of all or of an axis."""

    output: str
    scale: npt.NDArray[np.float32] | None = None
    zero_point: npt.NDArray[np.int32] | None = None

    def real(self, outputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        given = outputs[self.output]
        if self.scale is None or self.zero_point is None:
            return given
        result: npt.NDArray[Any] = (given.astype(np.int32) - self.zero_point).astype(np.float32) * self.scale
        return result


@dataclass(frozen=True)
class DequantizedTap:
    """How a quantized tensor comes out of the tapped int8 model: one part, or two planes whose sum it is."""

    parts: tuple[_Part, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the tapped model that it is made of."""
        return tuple(part.output for part in self.parts)

    def total(self, outputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the tensor's real values, float32, from outputs of the tapped model by name."""
        first, *rest = (part.real(outputs) for part in self.parts)
        return sum(rest, first)


def int8_with_taps(
    model: onnx.ModelProto, taps: Sequence[LayerTap], names: Sequence[str]
) -> tuple[ModelView, tuple[DequantizedTap, ...]]:
    """Copy the int8 model with the codes of each tapped tensor as outputs; says how real values are made of them.

    The graph's own Q and DQ nodes stay as they are, and with them the integer kernels that the runtime makes of their
    neighbours. Codes are dequantized outside, to the bit as the runtime does it, since it takes several times as long
    to open a graph with thousands of DequantizeLinear more. Only codes of other types, or with scales along an axis,
    get one.
    """
    index = Index(model)
    constants = Constants(index)
    rests = {tensor: node for node in model.graph.node if (tensor := _second_plane_of(index, node))}
    nodes: list[onnx.NodeProto] = []
    found = []
    for tap, name in zip(taps, names, strict=True):
        rest = rests.get(tap.quantize.input[0])
        parts = []
        for number, quantize in enumerate([tap.quantize] if rest is None else [tap.quantize, rest]):
            part = _codes(constants, quantize)
            if part is None:
                nodes.append(_dequantized(quantize, f"{name}.{number}"))
                part = _Part(f"{name}.{number}")
            parts.append(part)
        found.append(DequantizedTap(tuple(parts)))
    result = _with_outputs(model, nodes)
    given = {value.name for value in result.shell.graph.output}
    codes = dict.fromkeys(output for each in found for output in each.outputs if output not in given)
    result.shell.graph.output.extend(onnx.ValueInfoProto(name=output) for output in codes)
    return result, tuple(found)


def _codes(constants: Constants, quantize: onnx.NodeProto) -> _Part | None:
    """Return the output of a Q with one constant scale and 8-bit codes; None for any other."""
    scale = constants.value(quantize.input[1])
    named = len(quantize.input) > 2 and bool(quantize.input[2])
    zero = constants.value(quantize.input[2]) if named else np.zeros((), np.uint8)
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or scale.dtype != np.float32:
        return None
    if zero.dtype not in (np.dtype(np.uint8), np.dtype(np.int8)) or (
        not named and attribute(quantize, "output_dtype", 0)
    ):
        return None
    return _Part(quantize.output[0], scale.reshape(()), zero.reshape(()).astype(np.int32))


def _dequantized(quantize: onnx.NodeProto, output: str) -> onnx.NodeProto:
    codes, parameters = quantize.output[0], list(quantize.input[1:])
    node = helper.make_node("DequantizeLinear", [codes, *parameters], [output], domain=quantize.domain)
    # DequantizeLinear knows axis and block_size, but not QuantizeLinear's saturate, precision and output type
    node.attribute.extend(item for item in quantize.attribute if item.name in {"axis", "block_size"})
    return node


def _with_outputs(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> ModelView:
    result = view_of(model)
    result.shell.graph.node.extend(nodes)
    # the runtime infers type and shape of an output that states none
    result.shell.graph.output.extend(onnx.ValueInfoProto(name=node.output[0]) for node in nodes)
    return result


def _reference(source: Index, target: Index, quantize: onnx.NodeProto) -> str | None:
    """Find the FP32 tensor that the codes stand for."""
    behind: list[str] = [
        use.node.output[0]
        for use in target.uses.get(quantize.output[0], [])
        if use.slot == 0 and use.node.op_type == "DequantizeLinear"
    ]
    known = (name for name in (quantize.input[0], *behind) if name in source.producer or name in source.inputs)
    name: str | None = next(known, None)
    while name is not None:
        reader = source.only_reader(name)
        if reader is None or reader.op_type not in _ABSORBED or reader.input[0] != name:
            return name
        kept = target.producer.get(reader.output[0])
        if kept is not None and kept.op_type != "DequantizeLinear":
            return name
        name = reader.output[0]
    return None


def _second_plane_of(index: Index, quantize: onnx.NodeProto) -> str:
    """Return the tensor of which a Q writes the second plane, what its first code leaves; "" for any other node."""
    difference = index.producer.get(quantize.input[0]) if quantize.op_type == "QuantizeLinear" else None
    return remainder_of(index, difference) if difference is not None else ""


def remainder_of(index: Index, difference: onnx.NodeProto) -> str:
    """Return the tensor from which a node takes its own dequantized codes away; "" where it does something else."""
    if difference.op_type != "Sub":
        return ""
    known = index.producer.get(difference.input[1])
    first = None if known is None or known.op_type != "DequantizeLinear" else index.producer.get(known.input[0])
    if first is None or first.op_type != "QuantizeLinear" or first.input[0] != difference.input[0]:
        return ""
    return str(difference.input[0])
