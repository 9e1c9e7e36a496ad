"""A graph as rules look at it: what makes a tensor, what is constant, what lies behind; one for each graph of a model.

Nothing here follows a graph further than `REACH` nodes from where it starts, so that a rule that asks it once a node
is linear in the nodes.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import onnx

from int8cal.graph.constants import Constants
from int8cal.graph.edit import refill
from int8cal.graph.index import Index, attribute, walk
from int8cal.graph.layers import GATES
from int8cal.graph.ops import op_of
from int8cal.protos import subgraphs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from int8cal.numerics import Array

# Ops whose output has values of their first input, in another shape, order or type, or only some of them.
MOVING = frozenset(
    {
        "Cast", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze",
        "Transpose", "Unsqueeze",
    }
)  # fmt: skip
# Ops of one data input that leave channels apart.
ACTIVATIONS = frozenset(
    {
        "BatchNormalization", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "Relu",
        "Sigmoid", "Softplus", "Swish", "Tanh",
    }
)  # fmt: skip
ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div"})
REACH = 16  # nodes of one way; the longest known, a hard sigmoid in front of a gate, has ten
_LARGEST = 1 << 22  # elements of a constant that is looked at


@dataclass(frozen=True, eq=False)
class Scope:
    """One graph of a model: the main one, one in a node's attribute, or the body of a function.

    Attributes:
        index: Of that graph.
        constants: Its constants, those of the graphs around it included.
        main: Whether it is the model's own graph.
    """

    index: Index
    constants: Constants
    main: bool

    @cached_property
    def nodes(self) -> list[onnx.NodeProto]:
        """Its nodes in graph order."""
        return list(self.index.graph.node)

    def read(self, name: str) -> Array | None:
        """Return a constant's value; None for anything else, and for one too large to be a factor or a mask."""
        tensor = self.index.initializers.get(name)
        if tensor is None:
            producer = self.index.producer.get(name)
            if producer is not None and producer.op_type != "Constant":
                return None
        elif math.prod(tensor.dims) > _LARGEST:
            return None
        return self.constants.value(name)

    def is_constant(self, name: str) -> bool:
        """Whether a tensor is a constant of this graph or of one around it."""
        place = self.constants.place(name) if name else None
        if place is None:
            return False
        scope, at = place
        return at in scope.index.initializers or scope.index.producer[at].op_type == "Constant"

    def variable(self, node: onnx.NodeProto) -> list[str]:
        """Return the inputs of a node that are not constant."""
        return [name for name in node.input if name and not self.is_constant(name)]

    def weight(self, node: onnx.NodeProto) -> str:
        """Return the weight of a node that multiplies by one; "" for any other node."""
        if not op_of(node).channel_axis or len(node.input) < 2 or not self.is_constant(node.input[1]):
            return ""
        return str(node.input[1])

    def weight_dims(self, node: onnx.NodeProto) -> tuple[int, ...]:
        """Return the shape of a node's weight; () where it has none."""
        place = self.constants.place(name) if (name := self.weight(node)) else None
        if place is None:
            return ()
        tensor = place[0].index.initializers.get(place[1])
        found = None if tensor is not None else self.constants.value(name)
        return tuple(tensor.dims) if tensor is not None else () if found is None else tuple(found.shape)

    def origin(self, name: str, through: Collection[str] = MOVING) -> tuple[str, onnx.NodeProto | None]:
        """Go back through nodes of some ops, and of ELEMENTWISE ops among them only where they have one variable.

        Returns:
            The tensor where the way ends, and the node that makes it; None for an input of the graph.
        """
        for _ in range(REACH):
            node = self.index.producer.get(name)
            if node is None or node.op_type not in through or not node.input:
                return name, node
            ahead = node.input[0]
            if node.op_type in ELEMENTWISE:
                variable = self.variable(node)
                if len(variable) != 1:
                    return name, node
                ahead = variable[0]
            name = ahead
        return name, self.index.producer.get(name)

    def end(self, name: str, through: Collection[str] = MOVING) -> str:
        """Go on through nodes of some ops that alone read a tensor; see `origin`."""
        for _ in range(REACH):
            node = self.index.only_reader(name)
            if node is None or node.op_type not in through or len(self.variable(node)) != 1:
                return name
            name = node.output[0]
        return name

    def readers(self, name: str, through: Collection[str] = ()) -> list[onnx.NodeProto]:
        """Return the nodes that read a tensor; those behind a node of some ops in its place."""
        found = []
        for use in self.index.uses.get(name, ()):
            if use.node.op_type in through and use.slot == 0:
                behind = self.end(use.node.output[0], through)
                found += [each.node for each in self.index.uses.get(behind, ())]
            else:
                found.append(use.node)
        return found

    @cached_property
    def final(self) -> frozenset[str]:
        """Tensors behind the last weights: only nodes without any lead from them to outputs. None inside of a node."""
        if not self.main:
            return frozenset()
        before: set[str] = set()
        for node in reversed(self.index.graph.node):
            weighted = (self.weight(node) and not self.projects(node)) or node.op_type in GATES
            if weighted or not before.isdisjoint(node.output):
                before.update(node.input)
        return frozenset(name for node in self.index.graph.node for name in node.output if name) - before

    @cached_property
    def computed(self) -> frozenset[str]:
        """Tensors that depend on a product: scores, features, all but inputs and what is made of them for masks."""
        found: set[str] = set()
        for node in self.index.graph.node:
            if op_of(node).channel_axis or node.op_type in GATES or not found.isdisjoint(node.input):
                found.update(node.output)
        return frozenset(found)

    def projects(self, node: onnx.NodeProto) -> bool:
        """Whether a node weighs with 0, 1, 2, ...: the mean of a distribution over as many places."""
        dims = self.weight_dims(node)
        name = node.input[1] if dims else ""
        if node.op_type == "Mul":
            name = next((each for each in node.input if self.is_constant(each)), "")
        value = self.read(name) if name else None
        if value is None or not 4 <= value.size <= 256:
            return False
        return all(place == each for place, each in enumerate(value.ravel().tolist()))


def scopes(model: onnx.ModelProto) -> Iterator[Scope]:
    """Iterate over the graphs of a model: its own, those in its nodes' attributes, and its functions' bodies.

    Args:
        model: Any model; shapes need not be known.
    """
    main = _scope(Index(model), None, main=True)
    waiting = deque([main])
    for function in model.functions:
        waiting.append(_scope(Index(onnx.ModelProto(graph=_body(function))), None, main=False))
    while waiting:
        scope = waiting.popleft()
        yield scope
        for node in scope.index.graph.node:
            for graph in subgraphs(node):
                waiting.append(_scope(Index(onnx.ModelProto(graph=graph)), scope.constants, main=False))


def _scope(index: Index, outer: Constants | None, *, main: bool) -> Scope:
    return Scope(index, Constants(index, outer), main)


def _body(function: onnx.FunctionProto) -> onnx.GraphProto:
    """Return a function's nodes as a graph; attributes that each call gives are unknown in it."""
    graph = onnx.GraphProto(name=function.name)
    graph.node.extend(function.node)
    for node in walk(graph):
        refill(node.attribute, [each for each in node.attribute if not each.ref_attr_name])
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in function.input)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in function.output)
    return graph


def is_depthwise(scope: Scope, node: onnx.NodeProto) -> bool:
    """Whether a node is a convolution of which each channel is a group."""
    group, dims = attribute(node, "group", 1), scope.weight_dims(node)
    return node.op_type == "Conv" and group > 1 and len(dims) > 2 and dims[1] == 1
