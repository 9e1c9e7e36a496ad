"""The float model with a site at every planned tensor where an error can be added: what shows how errors travel.

A site is an optional graph input whose default is 0, so one model and one session show every single error by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

from int8cal.graph.ops import data_slots
from int8cal.graph.taps import tapped_model
from int8cal.protos import copied, graphs_within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from int8cal.graph.plan import Plan
    from int8cal.protos import ModelView

Readers = Literal["layers", "others", "output"]


@dataclass(frozen=True)
class ErrorSite:
    """Where an error enters.

    Attributes:
        tensor: The planned tensor; for "output" the layer's node.
        readers: "layers": what the layers read; "others": what everything else reads that takes quantized values;
            "output": what a layer writes, before its activation.
    """

    tensor: str
    readers: Readers


@dataclass(frozen=True)
class Injection:
    """The model.

    Attributes:
        inputs: Names of the optional inputs, by site.
        exact: Names under which it shows tensors that have an error of their own, without that.
    """

    model: ModelView
    inputs: dict[ErrorSite, str]
    exact: dict[str, str]


def make_injection(
    model: onnx.ModelProto,
    plan: Plan,
    *,
    behind_layers: bool = False,
    ends: Sequence[str] | None = None,
    shown: Sequence[str] = (),
) -> Injection:
    """Add sites to a model.

    Args:
        model: The prepared (and equalized) model; its weights are shared, not copied.
        plan: Its plan.
        behind_layers: Also behind each layer, which keeps the runtime from fusing its activation.
        ends: Tensors that become the outputs of the result; None for the model's own outputs.
        shown: Further tensors that become outputs, without the errors of their sites.
    """
    given = [value.name for value in model.graph.output] if ends is None else ends
    builder = _Builder(model.graph.node, plan, given, behind_layers=behind_layers)
    result = tapped_model(model, (*(ends or ()), *shown), keep_outputs=ends is None)
    builder.build(model.graph, result.shell.graph)
    exact = {name: builder.source(name) for name in shown if builder.source(name) != name}
    result.shell.graph.output.extend(onnx.ValueInfoProto(name=name) for name in exact.values())
    return Injection(result, builder.inputs, exact)


def sites_of(model: onnx.ModelProto, plan: Plan) -> frozenset[ErrorSite]:
    """Return where quantized values of a plan are read."""
    return sites_in(model.graph.node, plan, [value.name for value in model.graph.output])


def sites_in(
    nodes: Sequence[onnx.NodeProto], plan: Plan, ends: Sequence[str], *, behind_layers: bool = False
) -> frozenset[ErrorSite]:
    """Return the sites that `make_injection` adds to a model of some nodes, which give the ends."""
    return frozenset(_Builder(nodes, plan, ends, behind_layers=behind_layers).wanted())


def sites_among(sites: Collection[ErrorSite], tensor: str) -> tuple[ErrorSite, ...]:
    """Return the sites of one tensor, of a set of them."""
    return tuple(site for site in (ErrorSite(tensor, "layers"), ErrorSite(tensor, "others")) if site in sites)


class _Builder:
    def __init__(
        self, nodes: Sequence[onnx.NodeProto], plan: Plan, ends: Sequence[str], *, behind_layers: bool = False
    ) -> None:
        self.source_nodes, self.plan = nodes, plan
        self.layers = {layer.node for layer in plan.layers}
        self.behind = self.layers if behind_layers else set()
        # an output that an integer kernel writes has the error itself: its name is that of the noisy tensor
        exclusive = {each.tensor for each in plan.tensors if each.exclusive}
        self.ends = set(ends) & exclusive
        self.inputs: dict[ErrorSite, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.mark = ""

    def build(self, source: onnx.GraphProto, graph: onnx.GraphProto) -> None:
        self.mark = _mark(source)
        wanted = self.wanted()
        for value in source.input:
            self._after(value.name, wanted)
        for node in self.source_nodes:
            copy = copied(node)
            for slot, name in enumerate(node.input):
                site = self._site(node, slot, name)
                if site is not None:
                    copy.input[slot] = self._noisy(site)
            for slot, name in enumerate(node.output):
                copy.output[slot] = self.source(name)
            self.nodes.append(copy)
            if node.name in self.behind:
                raw = copy.output[0]
                copy.output[0] = f"{raw}{self.mark}product"
                self._add(ErrorSite(node.name, "output"), copy.output[0], raw)
            for name in node.output:
                self._after(name, wanted)
        del graph.node[:]
        graph.node.extend(self.nodes)
        zero = np.zeros((), np.float32)
        for name in self.inputs.values():
            graph.initializer.append(numpy_helper.from_array(zero, name))
            # an initializer that is an input too is a default; no shape is stated, any that broadcasts may come
            value = onnx.ValueInfoProto(name=name)
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            graph.input.append(value)

    def wanted(self) -> set[ErrorSite]:
        """Return the sites where quantized values are read, and those behind layers."""
        result = {ErrorSite(name, "others") for name in self.ends}
        for node in self.source_nodes:
            found = (self._site(node, slot, name) for slot, name in enumerate(node.input))
            result.update(site for site in found if site is not None)
            if node.name in self.behind:
                result.add(ErrorSite(node.name, "output"))
        return result

    def _site(self, node: onnx.NodeProto, slot: int, name: str) -> ErrorSite | None:
        point = self.plan.tensor(name) if name else None
        if point is None:
            return None
        if node.name in self.layers:
            if slot == 0:
                return ErrorSite(name, "layers")
            return ErrorSite(name, "others") if point.exclusive else None
        takes = node.name in self.plan.integer_nodes and slot in data_slots(node, self.plan.ops.rules[node.op_type])
        return ErrorSite(name, "others") if point.exclusive or takes else None

    def _after(self, tensor: str, wanted: set[ErrorSite]) -> None:
        for readers in ("layers", "others"):
            site = ErrorSite(tensor, readers)
            if site in wanted:
                self._add(site, self.source(tensor), self._noisy(site))

    def _add(self, site: ErrorSite, tensor: str, output: str) -> None:
        name = f"{site.tensor}{self.mark}{site.readers}{self.mark}error"
        self.inputs[site] = name
        self.nodes.append(helper.make_node("Add", [tensor, name], [output], name=f"{name}{self.mark}Add"))

    def source(self, tensor: str) -> str:
        """Return the name of a tensor as its node writes it."""
        return f"{tensor}{self.mark}exact" if tensor in self.ends else tensor

    def _noisy(self, site: ErrorSite) -> str:
        named = site.readers == "others" and site.tensor in self.ends
        return site.tensor if named else f"{site.tensor}{self.mark}{site.readers}{self.mark}noisy"


def _mark(graph: onnx.GraphProto) -> str:
    """Return slashes, more in a row than any name of the graph has: names with them are new."""
    names, mark = set(_names(graph)), "/"
    while any(mark in name for name in names):
        mark += "/"
    return mark


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    for each in graphs_within(graph):
        yield from (value.name for value in (*each.input, *each.initializer))
        for node in each.node:
            yield from (node.name, *node.input, *node.output)
