"""What a folding pass changes: nodes by name, constants, names of tensors. Applying it rebuilds the graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx
from onnx import numpy_helper

from int8cal.graph.index import outer_references
from int8cal.protos import copied

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

    from int8cal.graph.index import Index


@dataclass(frozen=True)
class Rewrite:
    """One change that leaves the model's outputs as they are.

    Attributes:
        nodes: Node name -> what stands in its place, none for nothing.
        constants: Initializers by name, float32; one that exists is replaced.
        like: New tensor -> the tensor whose type and shape it has.
        renamed: Tensor that is gone -> the tensor that its readers read instead.
    """

    nodes: dict[str, tuple[onnx.NodeProto, ...]]
    constants: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    like: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)


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
    instead = {name: nodes for rewrite in rewrites for name, nodes in rewrite.nodes.items()}
    renamed = {gone: name for rewrite in rewrites for gone, name in rewrite.renamed.items()}
    constants = {name: array for rewrite in rewrites for name, array in rewrite.constants.items()}
    like = {name: other for rewrite in rewrites for name, other in rewrite.like.items()}
    rebuilt = onnx.GraphProto()
    for node in model.graph.node:
        for each in instead.get(node.name, (node,)):
            copy = copied(each)
            copy.input[:] = [renamed.get(name, name) for name in copy.input]
            rebuilt.node.append(copy)
    read = {name for node in rebuilt.node for name in (*node.input, *outer_references(node))} | index.outputs
    made = {name for node in rebuilt.node for name in node.output}
    rebuilt.value_info.extend(value for value in model.graph.value_info if value.name in made - like.keys())
    rebuilt.value_info.extend(
        onnx.ValueInfoProto(name=name, type=index.types[other])
        for name, other in like.items()
        if other in index.types and name in made - index.outputs
    )
    for values, fresh in ((model.graph.node, rebuilt.node), (model.graph.value_info, rebuilt.value_info)):
        del values[:]
        values.extend(fresh)
    initializers = model.graph.initializer  # weights of any size: only those that go are touched
    for position in range(len(initializers) - 1, -1, -1):
        name = initializers[position].name
        if name in constants or (name in index.uses and name not in read):
            del initializers[position]
    initializers.extend(numpy_helper.from_array(array, name) for name, array in constants.items() if name in read)
