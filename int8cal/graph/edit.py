"""Changing a graph: free names, new nodes and constants, and rewrites that leave the model's outputs as they are.

A node list is rebuilt, never edited while it is walked.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

from int8cal.graph.index import tensors_read
from int8cal.protos import copied, graphs_within
from int8cal.stored import stored

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from int8cal.graph.index import Index
    from int8cal.numerics import Array


_WORTH_SHARING = 1024  # bytes of a constant that several nodes read alike


class Names:
    """The names of a graph, its subgraphs included, and the way to new ones.

    Args:
        graph: The main graph as it is before anything is added.
        others: Graphs whose tensors' names are not free either.
    """

    def __init__(self, graph: onnx.GraphProto, *others: onnx.GraphProto) -> None:
        self._given = frozenset(name for each in (graph, *others) for name in tensor_names(each))
        self._tensors = set(self._given)
        self._nodes = {node.name for node in graph.node}

    def tensor(self, name: str) -> str:
        """Return a tensor name that nobody has, this one or this one with a number, and take it."""
        return _free(name, self._tensors)

    def node(self, name: str) -> str:
        """Return a node name that nobody has, this one or this one with a number, and take it."""
        return _free(name, self._nodes)

    def beside(self, tensor: str, what: str) -> str:
        """Return a name made of a tensor's and a word, and take it; numbers count from 2 here."""
        return _free(f"{tensor}_{what}", self._tensors, separator="", first=2)

    def changed(self, tensor: str) -> str:
        """Name what takes a tensor's place with other values; a tensor that was added keeps its name."""
        return tensor if tensor not in self._given else self.beside(tensor, "folded")


class Builder:
    """Nodes and constants in the order in which they are added, under names that nobody has.

    Args:
        names: Of the graph that they are for.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._known: dict[tuple[object, ...], str] = {}  # constants by their values

    def node(
        self, op_type: str, inputs: Sequence[str], output: str, *, after: str = "", **attributes: Any
    ) -> onnx.NodeProto:
        """Append a node with one output, named after it (or after another tensor) and the op; returns the node."""
        name = self.names.node(f"{after or output}_{op_type}")
        node = onnx.NodeProto(op_type=op_type, input=inputs, output=[output], name=name)
        # as helper.make_node does it, which takes several times as long
        for key in sorted(key for key, value in attributes.items() if value is not None):
            node.attribute.append(_attribute(key, attributes[key]))
        self.nodes.append(node)
        return node

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        """Add an initializer under a free name like this one; returns the name."""
        name = self.names.tensor(name)
        self.initializers[name] = constant(name, value)
        return name

    def integers(self, stem: str, codes: Array, scale: Array, *, axis: int = 0, output: str = "") -> str:
        """Append a DequantizeLinear of constant codes with zero point 0; returns its output.

        Args:
            stem: What names begin with.
            codes: The integers.
            scale: Float32: (), or one for each position of an axis.
            axis: That axis.
            output: The output's name; a free one is taken where none is given.
        """
        output = output or self.names.tensor(f"{stem}_dequantized")
        parts = {"quantized": codes, "scale": scale, "zero_point": np.zeros(scale.shape, codes.dtype)}
        names = [self.shared(f"{stem}_{part}", value) for part, value in parts.items()]
        self.node("DequantizeLinear", names, output, axis=axis if scale.shape else None)
        return output

    def shared(self, name: str, value: Array) -> str:
        """Add a constant, or name the one of the same values: layers that share a weight mostly have the same codes."""
        if value.nbytes < _WORTH_SHARING:
            return self.constant(name, value)
        key = value.dtype.name, value.shape, hashlib.sha256(value.tobytes()).digest()
        if key not in self._known:
            self._known[key] = self.constant(name, value)
        return self._known[key]


def _attribute(key: str, value: Any) -> onnx.AttributeProto:
    if type(value) is int:
        return onnx.AttributeProto(name=key, type=onnx.AttributeProto.INT, i=value)
    return helper.make_attribute(key, value)


# Whose values are raw bytes as numpy has them, on machines that begin with the lowest one.
_RAW = {
    np.dtype(each): getattr(onnx.TensorProto, each.upper().replace("FLOAT32", "FLOAT"))
    for each in ("float32", "int8", "uint8", "int32", "int64")
    if sys.byteorder == "little"
}


def constant(name: str, value: npt.ArrayLike) -> onnx.TensorProto:
    """Make an initializer of an array, 0-d ones included; it is stored where large ones are, see `int8cal.stored`."""
    array = np.asarray(value, order="C")
    kind = _RAW.get(array.dtype)
    if kind is None:
        return stored(numpy_helper.from_array(array, name))
    return stored(onnx.TensorProto(name=name, data_type=kind, dims=array.shape, raw_data=array.tobytes()))


def instead(
    node: onnx.NodeProto, op_type: str, inputs: Sequence[str], output: str = "", **attributes: Any
) -> onnx.NodeProto:
    """Make the node that takes another's place, under its name and, unless another is given, with its output."""
    return helper.make_node(op_type, inputs, [output or node.output[0]], name=node.name, **attributes)


def one_node_model(text: str, weight: npt.ArrayLike) -> onnx.ModelProto:
    """Make a model of opset 13 to see what the runtime makes of it.

    Args:
        text: Its inputs, outputs and node as ONNX text.
        weight: The value of its constant "w".
    """
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> probe {text}')
    model.graph.initializer.append(constant("w", weight))
    return model


def without_attribute(node: onnx.NodeProto, name: str) -> None:
    """Take an attribute off a node."""
    refill(node.attribute, [item for item in node.attribute if item.name != name])


def refill(values: Any, items: Iterable[Any]) -> None:
    """Let a repeated field hold these messages, which may be some of those that it holds."""
    wanted = list(items)
    del values[:]
    values.extend(wanted)


def without_initialized_inputs(graph: onnx.GraphProto) -> None:
    """Take off the inputs that have an initializer: models of before IR version 4 list every constant there."""
    initialized = {tensor.name for tensor in graph.initializer}
    refill(graph.input, [value for value in graph.input if value.name not in initialized])


def rebuild(model: onnx.ModelProto, built: Builder, replaced: Collection[str]) -> None:
    """Let a model have the nodes that were built in place of its own, and the constants that were added.

    Args:
        model: Changed in place.
        built: All nodes of its main graph.
        replaced: Initializers that go where no node reads them any more.
    """
    nodes = [copied(node) for node in built.nodes]  # some of them are the model's own
    read = {name for node in nodes for name in tensors_read(node)} | {value.name for value in model.graph.output}
    unread = set(replaced) - read
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in unread]
    refill(model.graph.node, nodes)
    refill(model.graph.initializer, [*kept, *built.initializers.values()])


def tensor_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Iterate over the names of tensors in a graph and in the graphs inside it, some of them several times."""
    for each in graphs_within(graph):
        yield from (value.name for value in (*each.input, *each.output, *each.value_info, *each.initializer))
        for node in each.node:
            yield from node.input
            yield from node.output


def _free(name: str, taken: set[str], *, separator: str = "_", first: int = 1) -> str:
    free = name if name not in taken else f"{name}{separator}{_free_number(f'{name}{separator}', taken, first)}"
    taken.add(free)
    return free


def _free_number(stem: str, taken: Collection[str], first: int) -> int:
    """Return a number that makes a name of a stem that is not taken: the lowest, where those below are all taken.

    A tensor may have thousands of readers with a name each, so the numbers are not tried one by one.
    """
    step = 1
    while f"{stem}{first + step - 1}" in taken:
        step *= 2
    low, high = first + step // 2 - 1, first + step - 1  # the lower one is taken, or before the first
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if f"{stem}{middle}" in taken else (low, middle)
    return high


@dataclass(frozen=True)
class Rewrite:
    """One change that leaves the model's outputs as they are.

    Attributes:
        nodes: Node name -> what stands in its place, none for nothing.
        constants: Initializers by name, float32 or int64; one that exists is replaced.
        like: New tensor -> the tensor whose type and shape it has.
        renamed: Tensor that is gone -> the tensor that its readers read instead.
    """

    nodes: dict[str, tuple[onnx.NodeProto, ...]]
    constants: dict[str, Array] = field(default_factory=dict)
    like: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)


def joined_rewrites(rewrites: Iterable[Rewrite]) -> Rewrite:
    """Return several as one; of two that speak of the same node the later one counts."""
    whole = Rewrite({})
    for each in rewrites:
        whole.nodes.update(each.nodes)
        whole.constants.update(each.constants)
        whole.like.update(each.like)
        whole.renamed.update(each.renamed)
    return whole


def dropped(index: Index, node: onnx.NodeProto, data: str) -> Rewrite | None:
    """Leave out a node that gives its input on as it is.

    Must not take away a name that the model gives out, or that a subgraph reads: then the input's producer takes it on,
    where nobody else knows the input.

    Args:
        index: Of the graph.
        node: It has one output.
        data: Its input.
    """
    output = str(node.output[0])
    if output not in index.outputs and not index.read_inside(output):
        return Rewrite({node.name: ()}, renamed={output: data})
    producer = index.producer.get(data)
    if producer is None or index.only_reader(data) is None:
        return None
    rebuilt = copied(producer)
    rebuilt.output[:] = [output if name == data else name for name in producer.output]
    return Rewrite({producer.name: (rebuilt,), node.name: ()})


def separate(rewrites: Iterable[Rewrite]) -> list[Rewrite]:
    """Keep those that do not touch what an earlier one touches; the others get their turn in the next round."""
    kept: list[Rewrite] = []
    taken: set[str] = set()
    for rewrite in rewrites:
        touched = {*rewrite.nodes, *rewrite.renamed, *rewrite.renamed.values()}
        if not touched & taken:
            taken |= touched
            kept.append(rewrite)
    return kept


def apply(model: onnx.ModelProto, index: Index, rewrites: Sequence[Rewrite]) -> None:
    """Rebuild a model's main graph with changes that do not touch each other; constants that nobody reads now go.

    Args:
        model: Its nodes, inner values and initializers are new ones afterwards.
        index: Of the model as it is.
        rewrites: See `separate`.
    """
    whole = joined_rewrites(rewrites)
    nodes = []
    for node in model.graph.node:
        for each in whole.nodes.get(node.name, (node,)):
            each.input[:] = [whole.renamed.get(name, name) for name in each.input]
            nodes.append(each)
    read = {name for node in nodes for name in tensors_read(node)} | index.outputs
    made = {name for node in nodes for name in node.output}
    same, fresh = made - whole.like.keys(), made - index.outputs
    kept = [value for value in model.graph.value_info if value.name in same]
    kept += [
        onnx.ValueInfoProto(name=name, type=index.types[other])
        for name, other in whole.like.items()
        if other in index.types and name in fresh
    ]
    refill(model.graph.node, nodes)
    refill(model.graph.value_info, kept)
    initializers = model.graph.initializer  # weights of any size: only those that go are touched
    for position in range(len(initializers) - 1, -1, -1):
        name = initializers[position].name
        if name in whole.constants or (name in index.uses and name not in read):
            del initializers[position]
    initializers.extend(constant(name, array) for name, array in whole.constants.items() if name in read)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give nodes without a name, or with another's name, one made of op type and first output."""
    seen = Counter(node.name for node in graph.node)
    for node in graph.node:
        if seen[node.name] > 1:
            node.name = ""
    unnamed = [node for node in graph.node if not node.name]
    if not unnamed:
        return
    names = Names(graph)
    for node in unnamed:
        node.name = names.node(f"{node.op_type}_{next((name for name in node.output if name), 'none')}")
