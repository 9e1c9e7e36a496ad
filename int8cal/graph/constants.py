"""Constant tensors of a quantized graph, wherever a tool put them: behind Constant, layout ops, Q and DQ."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.graph.index import attribute
from int8cal.stored import values_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from int8cal.graph.index import Index
    from int8cal.numerics import Array, Float32, Int64

LAYOUT_OPS = frozenset({"Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


@dataclass(frozen=True)
class Codes:
    """A constant tensor of 8-bit codes.

    Attributes:
        name: The initializer that they come from.
        values: int8 or uint8, in the layout that the op reads.
        scale: float32: (), or one per position of `axis`; None where the op is given none.
        zero_point: int64, shaped as scale.
        axis: Axis of `values` that scale belongs to; None for one scale.
        plain: What is between the initializer and the op is a DequantizeLinear or nothing.
    """

    name: str
    values: Array
    scale: Float32 | None
    zero_point: Int64
    axis: int | None
    plain: bool


_Place = tuple["Constants", str]  # a tensor's name, and the graph that defines it


class Constants:
    """Values of a graph that do not depend on its inputs.

    Args:
        index: The graph.
        outer: The graph around it, for one in a node's attribute.
    """

    def __init__(self, index: Index, outer: Constants | None = None) -> None:
        self.index, self.outer = index, outer

    def value(self, name: str) -> Array | None:
        """Return a tensor's value; None where it is not constant, or needs an op that is not followed."""
        if not name:
            return None
        first = self.place(name)
        # of a long way that begins at an input nothing is followed
        if first is None or (self.outer is None and name not in self.index.derived):
            return None
        found: dict[_Place, Array | None] = {}
        waiting, entered = [first], set()
        while waiting:
            place = waiting[-1]
            needed = [] if place in entered else [each for each in self._needed(place) if each not in entered]
            entered.add(place)  # a tensor that needs itself has no value
            if needed:
                waiting += needed
                continue
            waiting.pop()
            if place not in found:
                found[place] = place[0].computed(place[1], found)
        return found[first]

    def place(self, name: str) -> _Place | None:
        """Return the graph that defines a tensor: this one or one around it; None where none does."""
        scope: Constants | None = self
        while scope is not None and name not in scope.index.initializers and name not in scope.index.producer:
            # a graph input hides what the graph around has under that name
            scope = None if name in scope.index.inputs else scope.outer
        return None if scope is None else (scope, name)

    def _needed(self, place: _Place) -> list[_Place]:
        """Return what a tensor is computed from, where it is made by an op that is followed."""
        scope, name = place
        node = None if name in scope.index.initializers else scope.index.producer.get(name)
        if node is None or node.op_type not in LAYOUT_OPS | {"QuantizeLinear"}:
            return []
        return [found for each in node.input if each and (found := scope.place(each)) is not None]

    def computed(self, name: str, known: Mapping[_Place, Array | None]) -> Array | None:
        """Compute a tensor of this graph from the values of what it needs; None where that cannot be."""
        if name in self.index.initializers:
            return values_of(self.index.initializers[name])
        node = self.index.producer[name]
        if node.op_type == "Constant":
            value = attribute(node, "value", None)
            return None if value is None else values_of(value)
        places = [self.place(each) if each else None for each in node.input]
        inputs = [None if place is None else known.get(place) for place in places]
        if node.op_type == "QuantizeLinear":
            return _quantized(node, inputs)
        if node.op_type in LAYOUT_OPS and inputs[0] is not None:
            return _laid_out(node, inputs[0], inputs[1] if len(inputs) > 1 else None)
        return None

    def source(self, name: str) -> str:
        """Name the initializer or Constant output at the beginning of a chain."""
        node = self.index.producer.get(name)
        while node is not None and node.op_type != "Constant" and node.input:
            name = node.input[0]
            node = self.index.producer.get(name)
        return name

    def laid_out_from(self, name: str) -> tuple[onnx.NodeProto | None, list[onnx.NodeProto]]:
        """Return the node that makes a tensor's values, and the nodes of LAYOUT_OPS behind it, the last one first."""
        path: list[onnx.NodeProto] = []
        node = self.index.producer.get(name)
        while node is not None and node.op_type in LAYOUT_OPS and node.input:
            path.append(node)
            node = self.index.producer.get(node.input[0])
        return node, path

    def codes(self, name: str) -> Codes | None:
        """Follow a tensor back to constant codes behind a DequantizeLinear.

        Returns:
            The codes in the layout of the tensor; None where there are none, or not of 8 bits, or scaled by blocks.
        """
        node, path = self.laid_out_from(name)
        found = None
        if node is not None and node.op_type == "DequantizeLinear" and node.input:
            found = self._behind(node)
        while path and found is not None:
            found = self._moved(found, path.pop())
        return found

    def _moved(self, codes: Codes, node: onnx.NodeProto) -> Codes | None:
        """Apply a node of LAYOUT_OPS to codes; None where their scales would no longer lie along one axis."""
        values = self.laid_out(node, codes.values)
        if values is None:
            return None
        axis = None if codes.axis is None else _moved_axis(node, codes.values.shape, values.shape, codes.axis)
        if codes.axis is not None and axis is None:
            return None
        return replace(codes, values=values, axis=axis, plain=False)

    def raw_codes(self, name: str, scale: str, zero_point: str, axis: int) -> Codes | None:
        """Read codes that an op takes directly, with its own scale and zero point (names, "" for none).

        Args:
            name, scale, zero_point: Tensors.
            axis: Axis of the codes that a scale of several values belongs to.
        """
        values = self.value(name)
        if values is None or values.dtype not in _BYTES:
            return None
        found = self.value(scale) if scale else None
        zero = self.value(zero_point) if zero_point else None
        scales = None if found is None else _one_or_row(found.astype(np.float32))
        zeros = _one_or_row(np.zeros((), np.int64) if zero is None else zero.astype(np.int64))
        several = zeros.ndim > 0 or (scales is not None and scales.ndim > 0)
        if scales is not None and scales.shape != zeros.shape:
            scales, zeros = np.broadcast_arrays(scales, zeros)
        plain = name in self.index.initializers
        return Codes(self.source(name), values, scales, zeros, axis % values.ndim if several else None, plain)

    def laid_out(self, node: onnx.NodeProto, data: Array) -> Array | None:
        """Apply a node of LAYOUT_OPS to its data; None where its other inputs are not constant."""
        return _laid_out(node, data, self.value(node.input[1]) if len(node.input) > 1 else None)

    def _behind(self, node: onnx.NodeProto) -> Codes | None:
        if attribute(node, "block_size", 0):
            return None
        zero_point = node.input[2] if len(node.input) > 2 else ""
        found = self.raw_codes(node.input[0], node.input[1], zero_point, attribute(node, "axis", 1))
        return None if found is None or found.scale is None or found.scale.ndim > 1 else found


def _laid_out(node: onnx.NodeProto, data: Array, given: Any) -> Array | None:
    """Apply a node of LAYOUT_OPS; `given` is the value of its second input, None where it is not constant."""
    if node.op_type == "Identity":
        return data
    if node.op_type == "Transpose":
        return data.transpose(attribute(node, "perm", None))
    if node.op_type == "Flatten":
        axis = attribute(node, "axis", 1)
        return data.reshape(math.prod(data.shape[:axis]), -1) if data.size else None
    if len(node.input) <= 1:
        given = attribute(node, "axes", None)
    if given is None:
        return data.squeeze() if node.op_type == "Squeeze" else None
    sizes = [int(size) for size in given]
    if node.op_type == "Squeeze":
        return data.squeeze(tuple(sizes))
    if node.op_type == "Unsqueeze":
        return np.expand_dims(data, tuple(sizes))
    return data.reshape([data.shape[i] if size == 0 else size for i, size in enumerate(sizes)])


def _quantized(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> Array | None:
    data, scale = inputs[:2]
    zero = inputs[2] if len(inputs) > 2 else np.zeros((), np.uint8)
    if data is None or scale is None or zero is None or zero.dtype not in _BYTES or not (scale > 0).all():
        return None
    shape = [1] * data.ndim
    if scale.size > 1:
        shape[attribute(node, "axis", 1)] = -1
    limits = np.iinfo(zero.dtype)
    quotient = data.astype(np.float32) / scale.astype(np.float32).reshape(shape)
    codes = np.rint(quotient) + zero.astype(np.float32).reshape(shape if zero.size > 1 else [1] * data.ndim)
    result: Array = np.clip(codes, limits.min, limits.max).astype(zero.dtype)
    return result


def _one_or_row(values: Array) -> Array:
    return values.reshape(()) if values.size == 1 else values


def _moved_axis(node: onnx.NodeProto, before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    """Where an axis goes in a change of layout; None where it is split or joined."""
    if node.op_type == "Identity":
        return axis
    if node.op_type == "Transpose":
        order = attribute(node, "perm", None) or tuple(reversed(range(len(before))))
        return list(order).index(axis)
    ahead = math.prod(before[:axis])
    found = (i for i, size in enumerate(after) if size == before[axis] and math.prod(after[:i]) == ahead)
    return next(found, None)
