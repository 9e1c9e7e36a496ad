"""Clips that clip nothing go, Max and Min with a constant become Clip, and a Clip behind a Clip takes both bounds.

A Relu or Clip whose layer is in front of a Squeeze, Reshape or Transpose goes in front of these too: the layer's
integer kernel takes it along. Keras writes a one-dimensional convolution as Conv, Squeeze, Add, Relu.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import onnx

from int8cal.graph.edit import Rewrite, dropped, instead
from int8cal.graph.ops import is_standard, op_of
from int8cal.graph.passes.steps import fits
from int8cal.protos import copied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index

Bounds = tuple[float, float]
_EVERYTHING: Bounds = (-math.inf, math.inf)
_INTEGERS: dict[int, Bounds] = {
    onnx.TensorProto.UINT8: (0.0, 255.0),
    onnx.TensorProto.INT8: (-128.0, 127.0),
    onnx.TensorProto.BOOL: (0.0, 1.0),
}


def fold_clips(index: Index, names: Names) -> Iterator[Rewrite]:
    """Find clips that can go, in graph order.

    Must not touch bounds that are not constant or not single float32 values; Max and Min that widen their input; a
    first clip whose result is read by others or given out; two clips whose ranges do not overlap.
    """
    ranges = value_ranges(index)
    for node in index.graph.node:
        bounds = _bounds(index, node)
        if bounds is None:
            continue
        data = _data(index, node)
        low, high = ranges.get(data, _EVERYTHING)
        if bounds[0] <= low and high <= bounds[1]:
            rewrite = dropped(index, node, data)
        else:
            rewrite = _merged(index, names, node, bounds)
        if rewrite is not None:
            yield rewrite


def clips_before_moves(index: Index, names: Names) -> Iterator[Rewrite]:
    """Find clips that can go in front of what moves values between their layer and them.

    Must not touch values that anything else reads, or that are given out, on the way.
    """
    for node in index.graph.node:
        bounded = all(not name or index.is_constant(name) for name in node.input[1:])
        if not (op_of(node).clips and bounded):
            continue
        moves = list[onnx.NodeProto]()
        data = str(node.input[0])
        while index.only_reader(data) is not None and _moves(producer := index.producer.get(data)):
            moves.insert(0, producer)
            data = str(producer.input[0])
        layer = index.producer.get(data)
        if not moves or layer is None or index.only_reader(data) is None:
            continue
        if not (op_of(layer).channel_axis and index.is_constant(layer.input[1])):
            continue
        clip, first = copied(node), names.beside(data, "clipped")
        clip.input[0], clip.output[0] = data, first
        rewrite = Rewrite({moves[0].name: (clip,), node.name: ()}, {}, {first: data})
        for move in moves:
            rebuilt, output = copied(move), str(move.output[0])
            rebuilt.input[0] = first
            first = rebuilt.output[0] = str(node.output[0]) if move is moves[-1] else names.changed(output)
            rewrite.like[first] = output
            rewrite.nodes[move.name] = (*rewrite.nodes.get(move.name, ()), rebuilt)
        yield rewrite


def _moves(node: onnx.NodeProto | None) -> TypeGuard[onnx.NodeProto]:
    """Whether a node hands on all values of its first input, and nothing else."""
    return node is not None and is_standard(node) and (op_of(node).reshapes or node.op_type == "Transpose")


def value_ranges(index: Index) -> dict[str, Bounds]:
    """Return bounds that no finite value of a tensor can pass, as far as the ops before it tell; all others are absent.

    Args:
        index: Of the graph; its nodes are in topological order.
    """
    found: dict[str, Bounds] = {}
    for node in index.graph.node:
        if is_standard(node) and node.output:
            bounds = _range(index, node, found)
            if bounds != _EVERYTHING:
                found[node.output[0]] = bounds
    return found


def _range(index: Index, node: onnx.NodeProto, found: dict[str, Bounds]) -> Bounds:
    if node.op_type == "Cast":
        return _INTEGERS.get(index.elem_type(str(node.input[0])), _EVERYTHING)
    facts = op_of(node)
    if facts.keeps_range:
        return found.get(node.input[0], _EVERYTHING)
    if node.op_type == "Round":
        low, high = found.get(node.input[0], _EVERYTHING)
        return float(np.rint(low)), float(np.rint(high))
    if node.op_type == "Concat":
        ranges = [found.get(name, _EVERYTHING) for name in node.input]
        return min(low for low, _ in ranges), max(high for _, high in ranges)
    bounds = _bounds(index, node)
    if bounds is None:
        return facts.range or _EVERYTHING
    low, high = found.get(_data(index, node), _EVERYTHING)
    return min(max(low, bounds[0]), bounds[1]), max(min(high, bounds[1]), bounds[0])


def _bounds(index: Index, node: onnx.NodeProto) -> Bounds | None:
    """Return what a Relu, Clip, Max or Min keeps its input between; None for other nodes and bounds."""
    bounds = _limits(index, node)
    # infinity as the wrong bound makes a constant of everything
    return None if bounds is None or bounds[0] == math.inf or bounds[1] == -math.inf else bounds


def _limits(index: Index, node: onnx.NodeProto) -> Bounds | None:
    if not is_standard(node) or not index.may_be_float(node.output[0]):
        return None
    if all(not name or index.is_constant(name) for name in node.input):
        return None
    if node.op_type == "Relu":
        return 0.0, math.inf
    if node.op_type == "Clip":
        low, high = (
            _bound(index, str(node.input[slot])) if slot < len(node.input) and node.input[slot] else default
            for slot, default in ((1, -math.inf), (2, math.inf))
        )
        return None if low is None or high is None or low > high else (low, high)
    if node.op_type in ("Max", "Min") and len(node.input) == 2:
        names = [str(name) for name in node.input if index.is_constant(name)]
        limit = _bound(index, names[0]) if len(names) == 1 else None
        if limit is None or not fits(index, _data(index, node), tuple(index.initializers[names[0]].dims)):
            return None
        return (limit, math.inf) if node.op_type == "Max" else (-math.inf, limit)
    return None


def _bound(index: Index, name: str) -> float | None:
    if not index.is_float_constant(name):
        return None
    values = index.constant(name)
    return float(values.reshape(-1)[0]) if values.size == 1 and not np.isnan(values).any() else None


def _data(index: Index, node: onnx.NodeProto) -> str:
    return next(str(name) for name in node.input if not index.is_constant(name))


def _merged(index: Index, names: Names, node: onnx.NodeProto, bounds: Bounds) -> Rewrite | None:
    data = _data(index, node)
    first = index.producer.get(data)
    inner = None if first is None or index.only_reader(data) is None else _bounds(index, first)
    if first is None or inner is None:
        return _clip(names, node, data, bounds) if node.op_type in ("Max", "Min") else None
    low, high = max(bounds[0], inner[0]), min(bounds[1], inner[1])
    if low > high:
        return None
    rewrite = _clip(names, node, _data(index, first), (low, high))
    rewrite.nodes[first.name] = ()
    return rewrite


def _clip(names: Names, node: onnx.NodeProto, data: str, bounds: Bounds) -> Rewrite:
    """Write a Relu or Clip in place of a node."""
    output = str(node.output[0])
    if bounds == (0.0, math.inf):
        return Rewrite({node.name: (instead(node, "Relu", [data]),)})
    inputs, constants = [data], {}
    for name, bound in zip(("min", "max"), bounds, strict=True):
        inputs.append("" if math.isinf(bound) else names.beside(output, name))
        if inputs[-1]:
            constants[inputs[-1]] = np.array(bound, np.float32)
    while not inputs[-1]:
        inputs.pop()
    return Rewrite({node.name: (instead(node, "Clip", inputs),)}, constants)
