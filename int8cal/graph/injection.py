"""The float model with a place at every planned tensor where an error can be added: what shows how errors travel.

A place is an optional graph input whose default is 0, so one model and one session show every single error by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

from int8cal.graph.plan import data_slots
from int8cal.graph.taps import Tap, tapped_model
from int8cal.protos import copied, graphs_within, view_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    """The model, and the name of the optional input of each place."""

    model: ModelView
    inputs: dict[ErrorSite, str]


def make_injection(
    model: onnx.ModelProto, plan: Plan, *, outputs: bool = False, ends: Sequence[str] | None = None
) -> Injection:
    """Add places to a model.

    Args:
        model: The prepared (and equalized) model; its weights are shared, not copied.
        plan: Its plan.
        outputs: Also behind each layer, which keeps the runtime from fusing its activation.
        ends: Tensors that become the outputs of the result; None for the model's own outputs.
    """
    builder = _Builder(model, plan, outputs=outputs, ends=ends)
    return Injection(builder.build(), builder.inputs)


def rounded_places(model: onnx.ModelProto, plan: Plan) -> frozenset[ErrorSite]:
    """Return where quantized values of a plan are read."""
    return frozenset(_Builder(model, plan, outputs=False, ends=None).wanted())


class _Builder:
    def __init__(self, model: onnx.ModelProto, plan: Plan, *, outputs: bool, ends: Sequence[str] | None) -> None:
        self.model, self.plan = model, plan
        self.layers = {layer.node for layer in plan.layers}
        self.behind = self.layers if outputs else set()
        # an output that an integer kernel writes has the error itself: its name is that of the noisy tensor
        exclusive = {each.tensor for each in plan.tensors if each.exclusive}
        self.outputs = ends
        self.ends = set([value.name for value in model.graph.output] if ends is None else ends) & exclusive
        self.inputs: dict[ErrorSite, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.mark = _mark(model.graph)

    def build(self) -> ModelView:
        taps = () if self.outputs is None else tuple(Tap(name) for name in self.outputs)
        result = view_of(self.model) if self.outputs is None else tapped_model(self.model, taps)
        graph = result.shell.graph
        wanted = self.wanted()
        for value in self.model.graph.input:
            self._after(value.name, wanted)
        for node in self.model.graph.node:
            copy = copied(node)
            for slot, name in enumerate(node.input):
                place = self._place(node, slot, name)
                if place is not None:
                    copy.input[slot] = self._noisy(place)
            for slot, name in enumerate(node.output):
                copy.output[slot] = self._source(name)
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
        return result

    def wanted(self) -> set[ErrorSite]:
        """Return the places where quantized values are read."""
        return {ErrorSite(name, "others") for name in self.ends} | {
            place
            for node in self.model.graph.node
            for slot, name in enumerate(node.input)
            if (place := self._place(node, slot, name)) is not None
        }

    def _place(self, node: onnx.NodeProto, slot: int, name: str) -> ErrorSite | None:
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
            place = ErrorSite(tensor, readers)
            if place in wanted:
                self._add(place, self._source(tensor), self._noisy(place))

    def _add(self, place: ErrorSite, tensor: str, output: str) -> None:
        name = f"{place.tensor}{self.mark}{place.readers}{self.mark}error"
        self.inputs[place] = name
        self.nodes.append(helper.make_node("Add", [tensor, name], [output], name=f"{name}{self.mark}Add"))

    def _source(self, tensor: str) -> str:
        return f"{tensor}{self.mark}exact" if tensor in self.ends else tensor

    def _noisy(self, place: ErrorSite) -> str:
        named = place.readers == "others" and place.tensor in self.ends
        return place.tensor if named else f"{place.tensor}{self.mark}{place.readers}{self.mark}noisy"


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
