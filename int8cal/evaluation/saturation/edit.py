"""Changing constants of a graph where they are, and beside them where others read them too."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from int8cal.evaluation.saturation.constants import LAYOUT_OPS
from int8cal.graph.index import outer_references
from int8cal.protos import copied
from int8cal.quantization.emit import free_name, tensor_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

_CONSTANT_OPS = LAYOUT_OPS | {"Constant", "QuantizeLinear", "DequantizeLinear"}


class Editor:
    """A model that is changed in place: only what is asked for, everything else keeps its bytes.

    Args:
        model: The model.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.taken = tensor_names(model.graph)
        self.initializers = {tensor.name: tensor for tensor in self.graph.initializer}
        self.producer: dict[str, onnx.NodeProto] = {
            name: node for node in self.graph.node for name in node.output if name
        }
        self.fixed = {value.name for value in (*self.graph.input, *self.graph.output)}
        self.readers: Counter[str] = Counter()
        for node in self.graph.node:
            self.readers.update(name for name in node.input if name)
            self.readers.update(outer_references(node))
        self.left: list[str] = []
        self.inserted: dict[str, list[onnx.NodeProto]] = {}  # first output of a node -> the new ones before it

    def set_constant(self, node: onnx.NodeProto, slot: int, value: npt.NDArray[Any]) -> None:
        """Let an input of a node be this value; an initializer that others read as well stays, and gets a copy."""
        name = node.input[slot]
        alone = name in self.initializers and self.readers[name] == 1 and name not in self.fixed
        fresh = name if alone else free_name(f"{name or node.output[0]}_safe", self.taken)
        tensor = numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), fresh)
        if alone:
            self.initializers[name].CopyFrom(tensor)
            return
        self.graph.initializer.append(tensor)
        self.initializers[fresh] = self.graph.initializer[-1]
        self.rewire(node, slot, fresh)

    def rewire(self, node: onnx.NodeProto, slot: int, name: str) -> None:
        """Let an input of a node be another tensor."""
        before = node.input[slot]
        node.input[slot] = name
        self.readers[name] += 1
        if before:
            self.readers[before] -= 1
            self.left.append(before)

    def own_dequantize(self, node: onnx.NodeProto, slot: int) -> onnx.NodeProto:
        """Return the DequantizeLinear behind an input; a copy of it where others read it too."""
        name = node.input[slot]
        producer = self.producer[name]
        if self.readers[name] == 1 and name not in self.fixed:
            return producer
        copy = copied(producer)
        copy.output[0] = free_name(f"{name}_safe", self.taken)
        copy.name = f"{producer.name}_safe" if producer.name else ""
        return self._insert(copy, node, slot)

    def new_dequantize(
        self, node: onnx.NodeProto, slot: int, values: Mapping[str, npt.NDArray[Any]], axis: int | None
    ) -> onnx.NodeProto:
        """Put a DequantizeLinear of new constants (in order, by name) before an input of a node."""
        names = []
        for stem, value in values.items():
            names.append(free_name(stem, self.taken))
            self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), names[-1]))
            self.graph.initializer[-1].dims[:] = np.shape(value)
            self.initializers[names[-1]] = self.graph.initializer[-1]
        output = free_name(f"{names[0]}_dequantized", self.taken)
        made = helper.make_node("DequantizeLinear", names, [output])
        if axis is not None:
            set_axis(made, axis)
        return self._insert(made, node, slot)

    def _insert(self, made: onnx.NodeProto, node: onnx.NodeProto, slot: int) -> onnx.NodeProto:
        self.inserted.setdefault(node.output[0], []).append(made)
        self.readers.update(name for name in made.input if name)
        self.producer[made.output[0]] = made
        self.rewire(node, slot, made.output[0])
        return made

    def finish(self) -> None:
        """Put the new nodes in their places; remove constants that are not read any more, with what made them."""
        if self.inserted:
            rebuilt = onnx.GraphProto()
            for node in self.graph.node:
                rebuilt.node.extend([*self.inserted.pop(_first(node), ()), node])
            del self.graph.node[:]
            self.graph.node.extend(rebuilt.node)
        self._clear()

    def _clear(self) -> None:
        gone_nodes: set[str] = set()
        gone: set[str] = set()
        while self.left:
            name = self.left.pop()
            if self.readers[name] > 0 or name in self.fixed:
                continue
            if name in self.initializers:
                gone.add(name)
            producer = self.producer.get(name)
            if producer is None or producer.op_type not in _CONSTANT_OPS or len(producer.output) != 1:
                continue
            gone_nodes.add(name)
            for each in filter(None, producer.input):
                self.readers[each] -= 1
                self.left.append(each)
        _keep(self.graph.node, lambda node: not (node.output and node.output[0] in gone_nodes))
        _keep(self.graph.initializer, lambda tensor: tensor.name not in gone)


def _first(node: onnx.NodeProto) -> str:
    return str(node.output[0]) if node.output else ""


def set_axis(node: onnx.NodeProto, axis: int) -> None:
    """Set a node's attribute `axis`."""
    for item in node.attribute:
        if item.name == "axis":
            item.i = axis
            return
    node.attribute.append(helper.make_attribute("axis", axis))


def _keep(items: Any, wanted: Any) -> None:
    for index in reversed(range(len(items))):
        if not wanted(items[index]):
            del items[index]
