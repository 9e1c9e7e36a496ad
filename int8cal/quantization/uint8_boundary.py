"""The last step to raw pixels: in an emitted QDQ model, the input and what is made of it become uint8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import numpy_helper

from int8cal.protos import copied

if TYPE_CHECKING:
    from collections.abc import Collection


def take_codes(model: onnx.ModelProto, tensors: Collection[str], ones: dict[str, int]) -> onnx.ModelProto:
    """Let a model take the codes of its input instead of their values.

    QuantizeLinear of these tensors disappears; the nodes that make one of the others work on codes. Nothing else
    changes, so the model must give the same outputs for p as before for (p - zero_point) * scale.
    It must not be called where a node in float reads one of the tensors, other than for its shape.

    Args:
        model: As emitted; the input is float. Not changed.
        tensors: The input, and the tensors that ops make of it which only rearrange; all of one scale. Pad may be among
            these ops, and Identity, which goes.
        ones: Name of a Pad's output -> the code that it fills in.

    Returns:
        The model whose input, under the same name, is uint8.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    # quantized name -> the tensor, which holds codes from now on
    codes = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] in tensors
    }
    # what a maker reads: the values of another of these tensors, so its codes will do
    values = {
        node.output[0]: codes[node.input[0]]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in codes
    }
    constants: dict[str, int] = {}
    for node in graph.node:
        if any(name in tensors for name in node.output):
            node.input[0] = values.get(node.input[0], node.input[0])
            if node.output[0] in ones:
                constants[node.input[2]] = ones[node.output[0]]
        elif node.input and node.input[0] in codes:
            node.input[0] = codes[node.input[0]]
    _skip_identities(graph, tensors)
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    nodes = [copied(node) for node in graph.node if not _superfluous(node, codes, values, read)]
    unread = read - {name for node in nodes for name in node.input} - {value.name for value in graph.output}
    initializers = [tensor for tensor in model.graph.initializer if tensor.name not in unread]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(initializers)
    for tensor in graph.initializer:
        if tensor.name in constants:
            tensor.CopyFrom(numpy_helper.from_array(np.array(constants[tensor.name], np.uint8), tensor.name))
    for value in (*graph.input, *graph.value_info):
        if value.name in tensors:
            value.type.tensor_type.elem_type = onnx.TensorProto.UINT8
    return result


def _skip_identities(graph: onnx.GraphProto, tensors: Collection[str]) -> None:
    """Let readers of a tensor that an Identity makes read what the Identity reads; graph order resolves chains."""
    source: dict[str, str] = {}
    for node in graph.node:
        for slot, name in enumerate(node.input):
            node.input[slot] = source.get(name, name)
        if node.op_type == "Identity" and node.output[0] in tensors:
            source[node.output[0]] = node.input[0]
    nodes = [copied(node) for node in graph.node if not set(node.output) & source.keys()]
    values = [value for value in graph.value_info if value.name not in source]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.value_info.extend(values)


def _superfluous(node: onnx.NodeProto, codes: dict[str, str], values: dict[str, str], read: set[str]) -> bool:
    if node.op_type == "QuantizeLinear":
        return node.output[0] in codes
    return node.op_type == "DequantizeLinear" and node.output[0] in values and node.output[0] not in read
