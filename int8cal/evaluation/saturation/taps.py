"""A model that hands out the codes going into its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from int8cal.protos import ModelView, copied, view_of
from int8cal.quantization.emit import free_name, tensor_names

if TYPE_CHECKING:
    from int8cal.evaluation.saturation.linear import Linear


class CodeTaps:
    """Outputs that are added to a model, so that it runs on integers as before.

    Args:
        model: An int8 model; not changed.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graft: ModelView = view_of(model)
        self.graph = self.graft.shell.graph
        self.taken = tensor_names(model.graph)
        self.outputs = {value.name for value in self.graph.output}
        self.inputs = {value.name for value in self.graph.input}
        self.names: set[str] = set()
        self.known: dict[tuple[str, ...], str] = {}

    def codes(self, layer: Linear) -> str:
        """Return the output that holds what a layer reads, in the layout in which it reads it."""
        name = layer.data
        for node in layer.path:
            key = (name, node.output[0])
            if key not in self.known:
                copy = copied(node)
                copy.name = f"{node.name or node.op_type}_of_codes"
                copy.input[0] = name
                copy.output[0] = self.known[key] = free_name(f"{node.output[0]}_codes", self.taken)
                self.graph.node.append(copy)
            name = self.known[key]
        return self.direct(name)

    def direct(self, name: str) -> str:
        """Return the output that holds a tensor; "" for none."""
        if not name:
            return ""
        if name in self.inputs:  # a graph input cannot be an output as well
            key = (name,)
            if key not in self.known:
                self.known[key] = free_name(f"{name}_codes", self.taken)
                self.graph.node.append(onnx.helper.make_node("Identity", [name], [self.known[key]]))
            name = self.known[key]
        if name not in self.outputs:
            self.graph.output.append(onnx.ValueInfoProto(name=name))
            self.outputs.add(name)
        self.names.add(name)
        return name
