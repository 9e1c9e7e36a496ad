"""Chains between which each channel may be rescaled without changing the function.

Something that writes channels with constants of their own -> ops that commute with a positive factor -> the layers that
read them, all of them. Multiplying the constants of channel c by f > 0 and dividing the input channel c of every reader
by f leaves the readers' outputs as they were.

Where no constants can take the factors, or where float nodes read the tensor too, a Mul in front of the quantized
readers can: then the chain is `inserted`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from int8cal.graph.index import Index, attribute
from int8cal.graph.ops import is_standard, op_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from int8cal.graph.index import Use
    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan

_SHIFTS = frozenset({"Add", "Sub"})
_LAYER_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
# what may lie between a graph input and a Mul that prepares raw pixels
_PREPARES = frozenset({"Mul", "Add", "Sub", "Div", "Cast", "Transpose", "Reshape", "Identity", "BatchNormalization"})


@dataclass(frozen=True)
class Carrier:
    """A constant that takes the factors: multiplied by them with `trailing` axes of length 1 behind."""

    name: str
    trailing: int


@dataclass(frozen=True)
class Chain:
    """The tensors that carry one set of channels, who writes and who reads them.

    Attributes:
        node: The node that writes the first tensor.
        layer: Its layer, None where it is a normalization, a Mul by constants or anything else in float.
        carriers: The constants that take the factors; () where a Mul has to be inserted.
        readers: The layers that read the channels, in graph order; their weights take the inverse factors.
        tensors, axes: Every tensor on the way and where its channels are (-1 for the last axis), in graph order.
    """

    node: str
    layer: Layer | None
    carriers: tuple[Carrier, ...]
    readers: tuple[Layer, ...]
    tensors: tuple[str, ...]
    axes: tuple[int, ...]

    @property
    def tensor(self) -> str:
        """The first reader's input, which names the chain in tables."""
        return self.readers[0].input

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.readers[0].channels

    @property
    def inserted(self) -> bool:
        """Whether the factors take a Mul of their own, in front of the readers."""
        return not self.carriers

    @property
    def axis(self) -> int:
        """Axis of the channels in `tensor`."""
        return self.axes[self.tensors.index(self.tensor)]


@dataclass
class _Way:
    """A walk down from a tensor: the constants that decide the size of its channels, then what is met behind it.

    Attributes:
        axis: Of the channels in the first tensor.
        channels: How many there are.
    """

    carriers: list[Carrier]
    axis: int
    channels: int
    readers: list[Layer] = field(default_factory=list)
    axes: dict[str, int] = field(default_factory=dict)


def find_chains(model: onnx.ModelProto | Index, plan: Plan) -> tuple[Chain, ...]:
    """Return all chains, in graph order of their first tensor; no tensor is in two of them.

    Must not find one where a weight or another constant has a second reader, where a tensor is a graph output or read
    inside a subgraph, where anything but a quantized layer or an op that commutes with the factors reads a tensor, or
    where the written channels are not the read ones (a Flatten between them). A Clip does not commute.

    A Mul is only inserted in front of matrix products that read the output of a float node.

    Args:
        model: The prepared model, or its index.
        plan: Its plan.
    """
    return _Finder(Index.of(model), plan).chains()


class _Finder:
    def __init__(self, index: Index, plan: Plan) -> None:
        self.index = index
        self.plan = plan
        self.layers = {layer.node: layer for layer in plan.layers}
        self.order = {node.name: number for number, node in enumerate(index.graph.node)}
        self.group_sizes = Counter(each.group for each in plan.tensors)
        self.preparing = _prepared_inputs(index)

    def chains(self) -> tuple[Chain, ...]:
        found = []
        taken: set[str] = set()
        for node in self.index.graph.node:
            chain = self._carried(node)
            if chain is not None and not taken.intersection(chain.tensors):
                found.append(chain)
                taken.update(chain.tensors)
        for node in self.index.graph.node:
            found += [
                chain
                for name in node.output
                if name and name not in taken and (chain := self._inserted(node, str(name))) is not None
            ]
        return tuple(sorted(found, key=lambda chain: self.order[chain.node]))

    def _carried(self, node: onnx.NodeProto) -> Chain | None:
        way = self._start(node)
        if way is None or not self._walk(str(node.output[0]), way) or not way.readers:
            return None
        if any(self.index.only_reader(carrier.name) is None for carrier in way.carriers):
            return None
        readers = tuple(sorted(way.readers, key=lambda layer: self.order[layer.node]))
        layer = self.layers.get(node.name)
        return Chain(node.name, layer, tuple(way.carriers), readers, tuple(way.axes), tuple(way.axes.values()))

    def _start(self, node: onnx.NodeProto) -> _Way | None:
        """Return the start of a way behind a node whose constants decide the size of its output channels."""
        layer = self.layers.get(node.name)
        if layer is not None:
            return self._layer_start(layer)
        if not is_standard(node):
            return None
        if node.op_type == "ConvTranspose":
            return self._transposed_start(node)
        if node.op_type in _LAYER_NORMS:
            rank = self.index.rank(node.output[0])
            last = attribute(node, "axis", -1) in {-1, (rank or 0) - 1}
            return self._norm_start(node, -1) if last else None
        if op_of(node).normalizes:
            return None if node.output[0] in self.preparing else self._norm_start(node, 1)
        if node.op_type == "Mul":
            return None if node.output[0] in self.preparing else self._mul_start(node)
        return None

    def _layer_start(self, layer: Layer) -> _Way | None:
        if layer.axis is None or (layer.op_type == "ConvTranspose" and layer.group > 1):
            return None
        dims = self.index.initializers[layer.weight].dims
        carriers = [Carrier(layer.weight, len(dims) - 1 - layer.axis)]
        if layer.bias is not None and not layer.bias_add:  # the walk meets an Add of its own accord
            carriers.append(Carrier(layer.bias, 0))
        return _Way(carriers, layer.channel_axis, int(dims[layer.axis]))

    def _transposed_start(self, node: onnx.NodeProto) -> _Way | None:
        """Return what `_start` does for a ConvTranspose in float."""
        names = [str(name) for name in node.input[1:] if name]
        if attribute(node, "group", 1) > 1 or not all(self.index.is_float_constant(name) for name in names):
            return None
        dims = self.index.initializers[names[0]].dims
        carriers = [Carrier(name, 0 if number else len(dims) - 2) for number, name in enumerate(names)]
        return _Way(carriers, 1, int(dims[1]))

    def _norm_start(self, node: onnx.NodeProto, axis: int) -> _Way | None:
        names = [str(name) for name in node.input[1:3] if name]
        if not names or not all(self.index.is_constant(name) for name in names):
            return None
        shapes = {tuple(self.index.initializers[name].dims) for name in names}
        if len(shapes) > 1 or len(next(iter(shapes))) != 1 or any(name in self.index.uses for name in node.output[1:]):
            return None
        ((channels,),) = shapes
        written = self._size(str(node.output[0]), axis)
        return _Way([Carrier(name, 0) for name in names], axis, channels) if written in (None, channels) else None

    def _mul_start(self, node: onnx.NodeProto) -> _Way | None:
        name = _constant_operand(self.index, node)
        rank = self.index.rank(node.output[0])
        if name is None or rank is None:
            return None
        dims = list(self.index.initializers[name].dims)
        wide = [axis for axis, size in enumerate(dims) if size != 1]
        # one factor for all is no place for many: a constant of a Gelu, which the runtime would no longer know
        if len(wide) != 1 or len(dims) > rank:
            return None
        trailing = len(dims) - 1 - wide[0]
        axis = rank - 1 - trailing
        if self._size(str(node.output[0]), axis) != dims[wide[0]]:
            return None
        return _Way([Carrier(name, trailing)], axis if trailing else -1, int(dims[wide[0]]))

    def _size(self, tensor: str, axis: int) -> int | None:
        dims = self.index.dims(tensor)
        return None if dims is None or not -len(dims) <= axis < len(dims) else dims[axis]

    def _walk(self, tensor: str, way: _Way) -> bool:
        """Go down all readers of a tensor; False where one of them would notice the factors."""
        path: list[tuple[str, int, Iterator[Use]]] = []
        ahead: tuple[str, int] | None = (tensor, way.axis)
        while ahead is not None or path:
            if ahead is not None:
                name, at = ahead
                if name in self.index.outputs:
                    return False
                way.axes[name] = at
                path.append((name, at, iter(self.index.uses.get(name, []))))
            name, at, uses = path[-1]
            ahead, use = None, next(uses, None)
            if use is None:
                path.pop()
                continue
            if use.slot < 0:
                return False
            layer = self.layers.get(use.node.name)
            if layer is not None:
                if not self._reads(layer, use.slot, at, name) or layer.channels != way.channels:
                    return False
                way.readers.append(layer)
            elif use.node.op_type != "Shape":
                behind = self._behind(use.node, use.slot, at, way)
                if behind is None:
                    return False
                ahead = (str(use.node.output[0]), behind)
        return True

    def _behind(self, node: onnx.NodeProto, slot: int, axis: int, way: _Way) -> int | None:
        """Return the axis of the channels behind a node that commutes with their factors, None for any other node."""
        if not is_standard(node) or any(name in self.index.uses for name in node.output[1:] if name):
            return None
        if node.op_type not in _SHIFTS:
            return _axis_behind(self.index, node, slot, axis, way.channels)
        name = _constant_operand(self.index, node)
        rank = self.index.rank(node.output[0])
        if name is None or rank is None or self.index.rank(name) is None:
            return None
        if axis != -1 and self.index.rank(node.input[slot]) != rank:
            return None
        if self._size(str(node.output[0]), axis) != way.channels:
            return None
        way.carriers.append(Carrier(name, 0 if axis == -1 else rank - 1 - axis))
        return axis

    def _reads(self, layer: Layer, slot: int, axis: int, tensor: str) -> bool:
        """Whether a layer reads a tensor's channels as its input channels, and its weight is its own."""
        if layer.op_type == "ConvTranspose" or slot != 0 or layer.axis is None:
            return False
        rank = self.index.rank(tensor)
        expected = {1} if layer.channel_axis == 1 else {-1, (rank or 0) - 1}
        return axis in expected and self.index.only_reader(layer.weight) is not None

    def _inserted(self, node: onnx.NodeProto, tensor: str) -> Chain | None:
        """Return the matrix products that read what a float node writes; other float nodes may read it too."""
        point = self.plan.tensor(tensor)
        if point is None or node.name in self.plan.integer_nodes or tensor in self.index.outputs:
            return None
        if self.group_sizes[point.group] > 1 or not self.index.rank(tensor):
            return None
        readers = []
        for use in self.index.uses.get(tensor, []):
            layer = self.layers.get(use.node.name)
            if use.slot < 0 or (layer is None and use.node.name in self.plan.integer_nodes):
                return None
            if layer is None:
                continue
            if layer.op_type == "Conv" or not self._reads(layer, use.slot, -1, tensor):
                return None
            readers.append(layer)
        if not readers or len({layer.channels for layer in readers}) > 1:
            return None
        return Chain(node.name, None, (), tuple(readers), (tensor,), (-1,))


def _prepared_inputs(index: Index) -> frozenset[str]:
    """Name what only prepares graph inputs: scale, mean and std, which raw pixels as input replace."""
    found: set[str] = set()
    for node in index.graph.node:
        if node.op_type in _PREPARES:
            variable = [name for name in node.input if name and not index.is_constant(name)]
            if len(variable) == 1 and (variable[0] in index.inputs or variable[0] in found):
                found.add(str(node.output[0]))
    return frozenset(found)


def _axis_behind(index: Index, node: onnx.NodeProto, slot: int, axis: int, channels: int) -> int | None:
    """Return where the channels of a node's input are in its output, -1 for the last axis.

    None where the op does not commute with a positive factor per channel, or where the channels are lost among other
    values. A Clip does not commute: its bounds do not scale.
    """
    if slot != 0:
        return None
    facts = op_of(node)
    if facts.passage is not None and not facts.passage.scalar:
        return axis if not facts.passage.spatial or axis == 1 else None
    if node.op_type == "Transpose":
        return _transposed(index, node, axis)
    return _reshaped(index, node, axis, channels) if facts.reshapes else None


def _constant_operand(index: Index, node: onnx.NodeProto) -> str | None:
    """Return the constant of an Add, Mul or Sub whose other operand is computed; None for Sub(constant, x)."""
    constants = [str(name) for name in node.input if index.is_constant(name)]
    if len(constants) != 1 or len(node.input) != 2 or (node.op_type == "Sub" and constants[0] == node.input[0]):
        return None
    return constants[0]


def _transposed(index: Index, node: onnx.NodeProto, axis: int) -> int | None:
    rank = index.rank(node.input[0])
    if rank is None:
        return None
    order = list(attribute(node, "perm", list(range(rank))[::-1]))
    behind = order.index(axis % rank)
    return -1 if behind == rank - 1 else behind


def _reshaped(index: Index, node: onnx.NodeProto, axis: int, channels: int) -> int | None:
    """Find the axis of the same length with as many values behind each of its entries: the same channels."""
    before, after = index.dims(node.input[0]), index.dims(node.output[0])
    if not before or not after or before[axis] != channels:
        return None
    inner = _count(before[axis % len(before) + 1 :])
    for behind, size in enumerate(after):
        if inner is not None and size == channels and _count(after[behind + 1 :]) == inner:
            return -1 if behind == len(after) - 1 else behind
    return None


def _count(dims: tuple[int | None, ...]) -> int | None:
    known = [size for size in dims if size is not None]
    return math.prod(known) if len(known) == len(dims) else None
