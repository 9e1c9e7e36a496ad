"""Which tensors of the FP32 graph an int8 model quantizes, and copies of both models that show them.

Told from the structure alone (a QuantizeLinear that reads the tensor), so that it works for other tools' models too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from int8cal.graph.index import Index
from int8cal.graph.ops import CLIPPING
from int8cal.protos import Graft, graft

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    order = {id(node): position for position, node in enumerate(fp32.graph.node)}
    found: dict[str, LayerTap] = {}
    missing: list[str] = []
    for quantize in int8.graph.node:
        if quantize.op_type != "QuantizeLinear" or _is_constant(target, quantize.input[0]):
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


def fp32_with_taps(model: onnx.ModelProto, taps: Sequence[LayerTap], names: Sequence[str]) -> Graft:
    """Copy the FP32 model with each tapped tensor as an output of the given name."""
    nodes = [helper.make_node("Identity", [tap.tensor], [name]) for tap, name in zip(taps, names, strict=True)]
    return _with_outputs(model, nodes)


def fp32_with_sizes(model: onnx.ModelProto, taps: Sequence[LayerTap], names: Sequence[str]) -> Graft:
    """Copy the FP32 model with the element count of each tapped tensor as an output of the given name."""
    nodes = [helper.make_node("Size", [tap.tensor], [name]) for tap, name in zip(taps, names, strict=True)]
    return _with_outputs(model, nodes)


def int8_with_taps(model: onnx.ModelProto, taps: Sequence[LayerTap], names: Sequence[str]) -> Graft:
    """Copy the int8 model with each dequantized tensor as an output of the given name.

    A DequantizeLinear of its own reads the codes: the graph's own Q and DQ nodes stay as they are, and with them the
    integer kernels that the runtime makes of their neighbours. A tensor in two planes is the sum of both.
    """
    index = Index(model)
    rests = {tensor: node for node in model.graph.node if (tensor := _second_plane_of(index, node))}
    nodes, outputs = [], []
    for tap, name in zip(taps, names, strict=True):
        rest = rests.get(tap.quantize.input[0])
        if rest is None:
            nodes.append(_dequantized(tap.quantize, name))
        else:
            parts = [f"{name}.first", f"{name}.second"]
            nodes += [_dequantized(tap.quantize, parts[0]), _dequantized(rest, parts[1])]
            nodes.append(helper.make_node("Add", parts, [name]))
        outputs.append(nodes[-1])
    return _with_outputs(model, nodes, outputs)


def _dequantized(quantize: onnx.NodeProto, output: str) -> onnx.NodeProto:
    codes, parameters = quantize.output[0], list(quantize.input[1:])
    node = helper.make_node("DequantizeLinear", [codes, *parameters], [output], domain=quantize.domain)
    # DequantizeLinear knows axis and block_size, but not QuantizeLinear's saturate, precision and output type
    node.attribute.extend(item for item in quantize.attribute if item.name in {"axis", "block_size"})
    return node


def _with_outputs(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], outputs: Sequence[onnx.NodeProto] | None = None
) -> Graft:
    result = graft(model)
    result.shell.graph.node.extend(nodes)
    # the runtime infers type and shape of an output that states none
    last = nodes if outputs is None else outputs
    result.shell.graph.output.extend(onnx.ValueInfoProto(name=node.output[0]) for node in last)
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


def _is_constant(index: Index, name: str) -> bool:
    """Whether a tensor depends on initializers alone."""
    if index.is_constant(name):
        return True
    producer = index.producer.get(name)
    if producer is None:
        return False
    return all(_is_constant(index, item) for item in producer.input if item)
