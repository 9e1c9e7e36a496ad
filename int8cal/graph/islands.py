"""Islands: layers on integers, with the nodes that they exchange codes with. What surrounds one is float.

Layers that share a weight are on one island: only together do they need it in another form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.graph.index import connected
from int8cal.graph.ops import data_slots

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from int8cal.graph.index import Index
    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan


@dataclass(frozen=True)
class Island:
    """Nodes on integers that write or read codes of the same scales, or share a weight, at least one of them a layer.

    Attributes:
        layers: Its layers, in graph order.
        others: Its nodes that are no layers, likewise.
        groups: Groups of tensors whose codes it writes or reads; no other island does.
    """

    layers: tuple[Layer, ...]
    others: tuple[str, ...]
    groups: tuple[str, ...]


def find_islands(index: Index, plan: Plan) -> tuple[Island, ...]:
    """Divide the layers of a plan into islands.

    What a MatMul or Gemm writes exists as float, so that it may be the shore of two islands.
    """
    touched: dict[str, list[str]] = {}  # by group, the nodes that write or read its codes
    for each in plan.tensors:
        nodes = touched.setdefault(each.group, [])
        if each.exclusive and (owner := owner_of(index, plan, each.tensor)):
            nodes.append(owner)
        nodes += _readers(index, plan, each.tensor)
    names = [node.name for node in index.graph.node if node.name in plan.integer_nodes]
    layers = {layer.node: layer for layer in plan.layers}
    together = [*touched.values(), *_by_weight(plan).values()]
    pairs = ((nodes[0], node) for nodes in together for node in nodes[1:])
    found = []
    for region in connected(names, pairs):
        inside = set(region)
        groups = tuple(group for group, nodes in touched.items() if nodes and nodes[0] in inside)
        if held := tuple(layers[node] for node in region if node in layers):
            found.append(Island(held, tuple(node for node in region if node not in layers), groups))
    return tuple(found)


def ends_in_codes(index: Index, plan: Plan, layer: Layer, staying: Collection[str]) -> tuple[bool, bool]:
    """Tell whether nodes on integers write the codes that a layer reads, and whether such nodes read what it writes.

    At an end where neither is so, Q and DQ are there for the layer alone, and go when it is left in float.

    Args:
        index: Of the prepared model.
        plan: Its plan.
        layer: The layer.
        staying: Nodes that stay on integers when the layer does not.
    """
    point = plan.tensor(layer.input)
    before = point is not None and point.exclusive and owner_of(index, plan, layer.input) in staying
    behind = plan.tensor(layer.output) is not None
    return before, behind and any(node in staying for node in _readers(index, plan, layer.output))


def owner_of(index: Index, plan: Plan, tensor: str) -> str:
    """Return the node on integers whose kernel writes a planned tensor, its activation included; "" for none."""
    producer = index.producer.get(tensor)
    if plan.tensor(tensor) is None or producer is None:
        return ""
    if producer.name in plan.integer_nodes:
        return str(producer.name)
    before = index.producer.get(producer.input[0]) if producer.input else None
    return str(before.name) if before is not None and before.name in plan.integer_nodes else ""


def _by_weight(plan: Plan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for layer in plan.layers:
        found.setdefault(layer.weight, []).append(layer.node)
    return found


def _readers(index: Index, plan: Plan, tensor: str) -> Iterator[str]:
    """Iterate over the nodes that read the codes of a planned tensor."""
    for use in index.uses.get(tensor, ()):
        node = use.node
        if node.name in plan.integer_nodes and use.slot in data_slots(node, plan.ops.rules[node.op_type]):
            yield str(node.name)
