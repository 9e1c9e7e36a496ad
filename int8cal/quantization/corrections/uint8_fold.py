"""Raw pixels in graphs: preprocessing folded into the layers that read the image, then uint8 in place of float.

Before quantization, `fold_pixels` makes a float model of x' = (p - zero_point) * scale in place of
x = gain * p + offset per channel. A layer computes the same with W' = W * gain / scale and b' = b + sum W * r, where
r = zero_point * gain + offset. Zero padding stands for x' = 0, that is for x = r. Where r is not 0, a convolution can
take r as the weight of one more channel that is constant inside the image and 0 in the padding; then its bias stays as
it was, and padding means x = 0 again.

After quantization, `take_codes` lets the QDQ model take p.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from int8cal.errors import TableError
from int8cal.graph.edit import Names, constant, instead, refill
from int8cal.graph.index import Index
from int8cal.graph.plan import Plan, QuantizedTensor
from int8cal.numerics.channels import along
from int8cal.quantization.corrections.pixel_layers import ARITHMETIC, PixelLayer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.graph.layers import Layer
    from int8cal.numerics import Float64
    from int8cal.numerics.affine import Affine
    from int8cal.quantization.corrections.pixel_layers import PixelReaders


@dataclass(frozen=True, eq=False)
class Folded:
    """The float model of x', and its plan.

    Attributes:
        model: Its input, under the same name, is x'; Identity is in place of a normalization.
        plan: The input is quantized, layers that had none have a bias, and widened ones read a tensor with one more
            channel.
        wide: Tensors with one more channel, each with the one without.
    """

    model: onnx.ModelProto
    plan: Plan
    wide: dict[str, str]


def fold_pixels(model: onnx.ModelProto, plan: Plan, readers: PixelReaders, affine: Affine, ones: int | None) -> Folded:
    """Make the float model of x', and its plan.

    Args:
        model: The prepared model of x; not changed.
        plan: Its plan.
        readers: What reads the pixels.
        affine: Scale and zero point of the input's codes.
        ones: Code of a channel of constant value behind the image's; None for no such channel.

    Raises:
        TableError: The channel of constant value would have the value 0.
    """
    if ones == affine.zero_point:
        raise TableError(
            f'the code of "ones" and the zero point of {readers.tensors[0]!r} are both {ones}',
            where="corrections.uint8_input",
            do="use different ones",
        )
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = _Folder(result, plan, readers, affine, ones)
    for item in readers.layers:
        graph.fold(item)
    graph.drop_arithmetic()
    graph.insert_pads()
    return Folded(result, graph.plan(), graph.wide)


def with_pixel_tensors(plan: Plan, readers: PixelReaders) -> Plan:
    """Return the plan in which the input and all that is made of it are quantized, with one scale."""
    name = readers.tensors[0]
    held = []
    for tensor in readers.tensors:
        known = plan.tensor(tensor) or QuantizedTensor(
            tensor, name, False, False, "", "Input" if tensor == name else ""
        )
        held.append(replace(known, group=name, source=tensor == name))
    others = (each for each in plan.tensors if each.tensor not in readers.tensors)
    return replace(plan, tensors=(*held, *others))


class _Folder:
    def __init__(
        self, model: onnx.ModelProto, plan: Plan, readers: PixelReaders, affine: Affine, ones: int | None
    ) -> None:
        self.graph, self.readers, self.affine = model.graph, readers, affine
        self.ones = None if ones is None else (ones - affine.zero_point) * affine.scale  # as value of x'
        self.source = with_pixel_tensors(plan, readers)
        self.index = Index(model)
        self.layers = {layer.node: layer for layer in plan.layers}
        self.names = Names(model.graph)
        self.wide: dict[str, str] = {}
        self.pads: dict[str, onnx.NodeProto] = {}

    def fold(self, item: PixelLayer) -> None:
        layer = item.layer
        node = self.index.nodes[layer.node]
        weight = self.index.constant(layer.weight).astype(np.float64)
        # of the stored weight: where its input channels are
        axis = 1 if layer.op_type == "Conv" or layer.axis == 0 else weight.ndim - 2
        gain = _per_input(item.gain, weight, axis, layer.group)
        rest = _per_input(item.residual(self.affine.zero_point), weight, axis, layer.group)
        fixed = (weight * rest).sum(axis=axis, keepdims=True)
        folded = weight * gain / self.affine.scale
        shift = fixed.reshape(weight.shape[0], -1).sum(axis=1) if layer.op_type == "Conv" else fixed.reshape(-1)
        source = layer.input
        if item.can_be_widened and self.ones is not None:
            folded = np.concatenate([folded, fixed / self.ones], axis=1)
            shift = np.zeros_like(shift)
            source = self._widened(layer.input, weight.ndim, self.ones)
            node.input[0] = source
        node.input[1] = self._replace(layer.weight, folded, layer.node)
        bias = layer.bias
        if shift.any() and layer.op_type == "MatMul" and layer.bias is None:
            raise TableError(
                f"MatMul {layer.node!r} has no bias that could take a zero point of {self.affine.zero_point}",
                where="corrections.uint8_input",
                do=f"undo the edit of {self.readers.tensors[0]!r}, or calibrate again",
            )
        if shift.any():
            bias = self._bias(layer, shift)
        channels = layer.channels + (source != layer.input)
        self.layers[layer.node] = replace(layer, weight=node.input[1], bias=bias, input=source, channels=channels)

    def _bias(self, layer: Layer, shift: Float64) -> str:
        node = self.index.nodes[layer.bias_add or layer.node]
        if layer.bias is None:
            new = self.names.tensor(f"{layer.node}_bias")
            self.graph.initializer.append(constant(new, shift.astype(np.float32)))
            del node.input[2:]
            node.input.append(new)
            return new
        old = self.index.constant(layer.bias).astype(np.float64).reshape(-1)
        new = self._replace(layer.bias, old + shift, layer.node)
        for slot, name in enumerate(node.input):
            if name == layer.bias:
                node.input[slot] = new
        return new

    def _replace(self, name: str, values: Float64, node: str) -> str:
        """Store a changed weight or bias under its name, or under a new one where others read it too."""
        with np.errstate(over="ignore"):
            stored = values.astype(np.float32)
        if not np.isfinite(stored).all() and np.isfinite(self.index.constant(name)).all():
            raise TableError(
                f"{name!r} of node {node!r} leaves float32 once pixels are folded into it",
                where="corrections.uint8_input",
                do=f"undo the edit of {self.readers.tensors[0]!r}, or calibrate again",
            )
        alone = self.index.only_reader(name) is not None
        target = name if alone else self.names.tensor(f"{name}@{node}")
        tensor = self.index.initializers[name] if alone else self.graph.initializer.add()
        tensor.CopyFrom(constant(target, stored))
        return target

    def _widened(self, tensor: str, rank: int, ones: float) -> str:
        """Return the tensor with one more channel, made by a Pad node in front of its first reader."""
        known = next((wide for wide, source in self.wide.items() if source == tensor), None)
        if known is not None:
            return known
        wide = self.names.tensor(f"{tensor}_with_ones")
        pads, value = self.names.tensor(f"{wide}_pads"), self.names.tensor(f"{wide}_value")
        ends = [0] * rank + [0, 1] + [0] * (rank - 2)
        self.graph.initializer.extend([constant(pads, np.array(ends, np.int64)), constant(value, np.float32(ones))])
        self.pads[tensor] = helper.make_node("Pad", [tensor, pads, value], [wide], name=wide)
        self._type(tensor, wide)
        self.wide[wide] = tensor
        return wide

    def drop_arithmetic(self) -> None:
        """Let what was normalized inside the graph be x' too: the layers know its gain and offset."""
        tensors = set(self.readers.tensors)
        for node in self.graph.node:
            if node.op_type in ARITHMETIC and node.output[0] in tensors:
                data = next(name for name in node.input if name in tensors)
                node.CopyFrom(instead(node, "Identity", [data]))

    def insert_pads(self) -> None:
        """Put each Pad node behind the node that makes its input."""
        nodes = [self.pads[name] for name in self.index.inputs if name in self.pads]
        for node in self.graph.node:
            nodes.append(node)
            nodes += [self.pads[name] for name in node.output if name in self.pads]
        refill(self.graph.node, nodes)

    def _type(self, tensor: str, wide: str) -> None:
        known = self.index.types.get(tensor)
        if known is None or not known.tensor_type.HasField("shape"):
            return
        value = self.graph.value_info.add(name=wide)
        value.type.CopyFrom(known)
        channels = value.type.tensor_type.shape.dim[1]
        if channels.dim_value:
            channels.dim_value += 1
        else:
            channels.Clear()

    def plan(self) -> Plan:
        channels = {layer.input: layer.channels for layer in self.layers.values()}
        tensors = []
        for each in self.source.tensors:
            tensors.append(each)
            tensors += [
                replace(
                    each,
                    tensor=wide,
                    source=False,
                    exclusive=True,
                    node=wide,
                    op_type="Pad",
                    channel_axis=1,
                    channels=channels[wide],
                )
                for wide, source in self.wide.items()
                if source == each.tensor
            ]
        layers = tuple(self.layers[layer.node] for layer in self.source.layers)
        return replace(self.source, tensors=tuple(tensors), layers=layers)


def _per_input(values: Float64, weight: Float64, axis: int, group: int) -> Float64:
    """Spread one value per input channel over a weight: (C,) -> an array that broadcasts against it.

    With groups, the output channels of group g see input channels g * C / group and on.
    """
    if group == 1:
        return values.reshape(along(axis, weight.ndim))
    rows = np.repeat(values.reshape(group, -1), weight.shape[0] // group, axis=0)
    return rows.reshape(weight.shape[0], -1, *[1] * (weight.ndim - 2))


def take_codes(model: onnx.ModelProto, tensors: Mapping[str, int | None]) -> onnx.ModelProto:
    """Let a model take the codes of its input instead of their values.

    QuantizeLinear of these tensors disappears; the nodes that make one of the others work on codes. Nothing else
    changes, so the model must give the same outputs for p as before for (p - zero_point) * scale.
    It must not be called where a node in float reads one of the tensors, other than for its shape.

    Args:
        model: As emitted; the input is float. Not changed.
        tensors: The input, and the tensors that ops make of it which only rearrange; all of one scale. Pad may be among
            these ops, with the code that it fills in, and Identity, which goes. Without any the model stays as it is.

    Returns:
        The model whose input, under the same name, is uint8.
    """
    if not tensors:
        return model
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
    fills: dict[str, int] = {}
    for node in graph.node:
        if any(name in tensors for name in node.output):
            node.input[0] = values.get(node.input[0], node.input[0])
            code = tensors.get(node.output[0])
            if code is not None:
                fills[node.input[2]] = code
        elif node.input and node.input[0] in codes:
            node.input[0] = codes[node.input[0]]
    _skip_identities(graph, tensors)
    outputs = {value.name for value in graph.output}
    read = {name for node in graph.node for name in node.input} | outputs
    gone = codes.keys() | (values.keys() - read)
    nodes = [node for node in graph.node if gone.isdisjoint(node.output)]
    unread = read - {name for node in nodes for name in node.input} - outputs
    refill(graph.node, nodes)
    refill(graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in unread])
    for tensor in graph.initializer:
        if tensor.name in fills:
            tensor.CopyFrom(constant(tensor.name, np.uint8(fills[tensor.name])))
    for value in (*graph.input, *graph.value_info):
        if value.name in tensors:
            value.type.tensor_type.elem_type = onnx.TensorProto.UINT8
    return result


def _skip_identities(graph: onnx.GraphProto, tensors: Mapping[str, int | None]) -> None:
    """Let readers of a tensor that an Identity makes read what the Identity reads; graph order resolves chains."""
    source: dict[str, str] = {}
    for node in graph.node:
        for slot, name in enumerate(node.input):
            node.input[slot] = source.get(name, name)
        if node.op_type == "Identity" and node.output[0] in tensors:
            source[node.output[0]] = node.input[0]
    refill(graph.node, [node for node in graph.node if source.keys().isdisjoint(node.output)])
    refill(graph.value_info, [value for value in graph.value_info if value.name not in source])
