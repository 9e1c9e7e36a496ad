"""The Plan: which nodes run on integers and which tensors get Q/DQ. Taps, emitter, audit and report all read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from int8cal.graph.bodies import full_name
from int8cal.graph.ops import OpTable, op_table

if TYPE_CHECKING:
    from int8cal.graph.bodies import Body
    from int8cal.graph.embeddings import Embedding
    from int8cal.graph.layers import (
        Layer,
        Recurrent,
    )


@dataclass(frozen=True)
class QuantizedTensor:
    """A quantized activation tensor.

    Attributes:
        tensor: Its name.
        group: Tensors of one group share scale and zero point; the group is named after its first one.
        source: Its own values count for the group's range (False where an op only passes values of another tensor on).
        exclusive: Every reader takes the dequantized value; otherwise only the integer readers do.
        node, op_type: The producer ("" and "Input" for a graph input).
        channel_axis: 1 (N, C, ...) or -1 (..., C) where a layer reads it, with `channels`; None where none does,
            or where several have them on different axes.
    """

    tensor: str
    group: str
    source: bool
    exclusive: bool
    node: str
    op_type: str
    channel_axis: int | None = None
    channels: int = 0


@dataclass(frozen=True)
class Unquantized:
    """A node that could have an integer kernel and stays float, and why."""

    node: str
    op_type: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """Everything that is quantized, in graph order.

    Recurrent nodes and embeddings are apart, and so are layers without a calibrated range: their inputs get no Q and
    DQ, and the table says how each is quantized.

    Attributes:
        unranged: Layers with int8 weights whose input has no calibrated range; `Layer.form` says what it has.
        ops: The op table that it was made with.
        bodies: Bodies of If, Loop and Scan that hold a layer, by path; one comes behind the one that it is in.
    """

    tensors: tuple[QuantizedTensor, ...]
    layers: tuple[Layer, ...]
    integer_nodes: frozenset[str]
    unquantized: tuple[Unquantized, ...]
    recurrent: tuple[Recurrent, ...] = ()
    ops: OpTable = field(default_factory=lambda: op_table(""), repr=False)
    embeddings: tuple[Embedding, ...] = ()
    unranged: tuple[Layer, ...] = ()
    bodies: dict[str, PlannedBody] = field(default_factory=dict, repr=False)

    def tensor(self, name: str) -> QuantizedTensor | None:
        """Return a quantized tensor by its name, None where it stays float."""
        return self._by_tensor.get(name)

    def members(self, group: str) -> tuple[QuantizedTensor, ...]:
        """Return the tensors that share one scale."""
        return tuple(self._by_group.get(group, ()))

    def weight_key(self, node: str, weight: str) -> str:
        """Return a table's key for a weight of a node: its name, or "name@node" where several nodes read it."""
        return weight if self._readers.get(weight) == [node] else f"{weight}@{node}"

    @cached_property
    def graphs(self) -> dict[str, Plan]:
        """The main graph's plan under "", and those of bodies by path."""
        return {"": self} | {path: each.plan for path, each in self.bodies.items()}

    @cached_property
    def ranged_layers(self) -> dict[str, tuple[str, Layer]]:
        """Layers with a calibrated range, those of bodies too: full name -> path of the graph, and the layer."""
        found: dict[str, tuple[str, Layer]] = {}
        for path, plan in self.graphs.items():
            for layer in plan.layers:
                found.setdefault(full_name(path, layer.node), (path, layer))
        return found

    @cached_property
    def weighted_nodes(self) -> dict[str, tuple[str, str]]:
        """Nodes with int8 weights but tables, those of bodies too: full name -> path of the graph, and node."""
        found: dict[str, tuple[str, str]] = {}
        for path, plan in self.graphs.items():
            nodes = (*(layer.node for layer in plan.weighted), *(each.node for each in plan.recurrent))
            found |= {full_name(path, node): (path, node) for node in nodes}
        return found

    @cached_property
    def weighted(self) -> tuple[Layer, ...]:
        """All layers with int8 weights, those without a calibrated range last."""
        return (*self.layers, *self.unranged)

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Group names in graph order."""
        return tuple(self._by_group)

    @cached_property
    def _by_tensor(self) -> dict[str, QuantizedTensor]:
        return {each.tensor: each for each in self.tensors}

    @cached_property
    def _by_group(self) -> dict[str, list[QuantizedTensor]]:
        found: dict[str, list[QuantizedTensor]] = {}
        for each in self.tensors:
            found.setdefault(each.group, []).append(each)
        return found

    @cached_property
    def _readers(self) -> dict[str, list[str]]:
        """The nodes that read each weight."""
        found: dict[str, list[str]] = {}
        for layer in self.weighted:
            found.setdefault(layer.weight, []).append(layer.node)
        for each in self.recurrent:
            for weight in dict.fromkeys(each.tensors):
                found.setdefault(weight, []).append(each.node)
        for table in self.embeddings:
            found.setdefault(table.weight, []).append(table.node)
        return found


@dataclass(frozen=True, eq=False)
class PlannedBody:
    """The body of an If, Loop or Scan, and what is quantized in it; bodies inside it are not part of its plan."""

    body: Body
    plan: Plan
