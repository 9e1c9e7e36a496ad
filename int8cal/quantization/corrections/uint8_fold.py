"""The declared preprocessing folded into the layers that read the image: x = gain * p + offset per channel.

With x' = (p - zero_point) * scale in place of x, a layer computes the same with W' = W * gain / scale and
b' = b + sum W * r, where r = zero_point * gain + offset. Zero padding stands for x' = 0, that is for x = r. Where r is
not 0, a convolution can take r as the weight of one more channel that is constant inside the image and 0 in the
padding; then its bias stays as it was, and padding means x = 0 again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from int8cal.errors import TableError
from int8cal.graph.index import Index
from int8cal.graph.plan import Plan, QuantizedTensor
from int8cal.protos import copied
from int8cal.quantization.uint8_input import Uint8Input, with_points
from int8cal.quantization.uint8_layers import ARITHMETIC, PixelLayer

if TYPE_CHECKING:
    from int8cal.graph.plan import Layer
    from int8cal.numerics.affine import Affine

Float64 = npt.NDArray[np.float64]


def fold_pixels(
    model: onnx.ModelProto, plan: Plan, uint8: Uint8Input, affine: Affine
) -> tuple[onnx.ModelProto, Plan, dict[str, str]]:
    """Make the float model of x', and its plan.

    Args:
        model: The prepared model of x; not changed.
        plan: Its plan.
        uint8: Layers, and what a pixel means.
        affine: Scale and zero point of the input's codes.

    Returns:
        A float model whose input, under the same name, is x', with Identity in place of a normalization; its plan, in
        which the input is quantized, layers that had none have a bias, and widened ones read a tensor with one more
        channel; and those tensors: name -> name without that channel.

    Raises:
        TableError: The channel of constant value would have the value 0.
    """
    if uint8.ones == affine.zero_point:
        raise TableError(
            f'the code of "ones" and the zero point of {uint8.pixels.input!r} are both {uint8.ones}',
            where="corrections.uint8_input",
            do="use different ones",
        )
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = _Folder(result, plan, uint8, affine)
    for item in uint8.layers:
        graph.fold(item)
    graph.drop_arithmetic()
    graph.insert_pads()
    return result, graph.plan(), graph.wide


class _Folder:
    def __init__(self, model: onnx.ModelProto, plan: Plan, uint8: Uint8Input, affine: Affine) -> None:
        self.graph, self.uint8, self.affine = model.graph, uint8, affine
        self.source = with_points(plan, uint8)
        self.index = Index(model)
        self.layers = {layer.node: layer for layer in plan.layers}
        self.taken = {*self.index.initializers, *self.index.producer, *self.index.inputs}
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
        constant = (weight * rest).sum(axis=axis, keepdims=True)
        folded = weight * gain / self.affine.scale
        shift = constant.reshape(weight.shape[0], -1).sum(axis=1) if layer.op_type == "Conv" else constant.reshape(-1)
        source = layer.input
        if self.uint8.widened(item) and self.uint8.ones is not None:
            value = (self.uint8.ones - self.affine.zero_point) * self.affine.scale
            folded = np.concatenate([folded, constant / value], axis=1)
            shift = np.zeros_like(shift)
            source = self._widened(layer.input)
            node.input[0] = source
        node.input[1] = self._replace(layer.weight, folded, layer.node)
        bias = layer.bias
        if shift.any() and layer.op_type == "MatMul" and layer.bias is None:
            raise TableError(
                f"MatMul {layer.node!r} has no bias that could take a zero point of {self.affine.zero_point}",
                where="corrections.uint8_input",
                do=f"undo the edit of {self.uint8.pixels.input!r}, or calibrate again",
            )
        if shift.any():
            bias = self._bias(layer, shift)
        channels = layer.channels + (source != layer.input)
        self.layers[layer.node] = replace(layer, weight=node.input[1], bias=bias, input=source, channels=channels)

    def _bias(self, layer: Layer, shift: Float64) -> str:
        node = self.index.nodes[layer.bias_add or layer.node]
        if layer.bias is None:
            new = self._fresh(f"{layer.node}_bias")
            self.graph.initializer.append(numpy_helper.from_array(shift.astype(np.float32), new))
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
            stored = np.ascontiguousarray(values.astype(np.float32))
        if not np.isfinite(stored).all() and np.isfinite(self.index.constant(name)).all():
            raise TableError(
                f"{name!r} of node {node!r} leaves float32 once pixels are folded into it",
                where="corrections.uint8_input",
                do=f"undo the edit of {self.uint8.pixels.input!r}, or calibrate again",
            )
        alone = self.index.only_reader(name) is not None
        target = name if alone else self._fresh(f"{name}@{node}")
        tensor = self.index.initializers[name] if alone else self.graph.initializer.add()
        tensor.CopyFrom(numpy_helper.from_array(stored, target))
        return target

    def _widened(self, tensor: str) -> str:
        """Return the tensor with one more channel, made by a Pad node in front of its first reader."""
        known = next((wide for wide, source in self.wide.items() if source == tensor), None)
        if known is not None or self.uint8.ones is None:
            return known or tensor
        wide = self._fresh(f"{tensor}_with_ones")
        pads, value = self._fresh(f"{wide}_pads"), self._fresh(f"{wide}_value")
        rank = len(self.index.initializers[self._reader(tensor)].dims)
        ends = [0] * rank + [0, 1] + [0] * (rank - 2)
        ones = (self.uint8.ones - self.affine.zero_point) * self.affine.scale
        self.graph.initializer.append(numpy_helper.from_array(np.array(ends, np.int64), pads))
        self.graph.initializer.append(numpy_helper.from_array(np.array(ones, np.float32), value))
        self.pads[tensor] = helper.make_node("Pad", [tensor, pads, value], [wide], name=wide)
        self._type(tensor, wide)
        self.wide[wide] = tensor
        return wide

    def drop_arithmetic(self) -> None:
        """Let what was normalized inside the graph be x' too: the layers know its gain and offset."""
        tensors = set(self.uint8.tensors)
        for node in self.graph.node:
            if node.op_type in ARITHMETIC and node.output[0] in tensors:
                data = next(name for name in node.input if name in tensors)
                node.CopyFrom(helper.make_node("Identity", [data], list(node.output), name=node.name))

    def insert_pads(self) -> None:
        """Put each Pad node behind the node that makes its input."""
        nodes = [self.pads[name] for name in self.index.inputs if name in self.pads]
        for node in self.graph.node:
            nodes.append(node)
            nodes += [self.pads[name] for name in node.output if name in self.pads]
        nodes = [copied(node) for node in nodes]
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def _reader(self, tensor: str) -> str:
        return next(item.layer.weight for item in self.uint8.layers if item.layer.input == tensor)

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

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def plan(self) -> Plan:
        points = []
        for point in self.source.tensors:
            points.append(point)
            points += [self._point(wide, point) for wide, source in self.wide.items() if source == point.tensor]
        layers = tuple(self.layers[layer.node] for layer in self.source.layers)
        return Plan(
            tuple(points), layers, self.source.integer_nodes, self.source.left, self.source.recurrent, self.source.ops
        )

    def _point(self, wide: str, source: QuantizedTensor) -> QuantizedTensor:
        return replace(
            source,
            tensor=wide,
            source=False,
            exclusive=True,
            node=wide,
            op_type="Pad",
            channel_axis=1,
            channels=next(layer.channels for layer in self.layers.values() if layer.input == wide),
        )


def _per_input(values: Float64, weight: Float64, axis: int, group: int) -> Float64:
    """Spread one value per input channel over a weight: (C,) -> an array that broadcasts against it.

    With groups, the output channels of group g see input channels g * C / group and on.
    """
    if group == 1:
        shape = [1] * weight.ndim
        shape[axis] = -1
        return values.reshape(shape)
    rows = np.repeat(values.reshape(group, -1), weight.shape[0] // group, axis=0)
    return rows.reshape(weight.shape[0], -1, *[1] * (weight.ndim - 2))
