"""What nodes and tensors of an optimized graph are called in the user's model; the runtime's own names are not told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from int8cal.evaluation.optimized_ops import trait
from int8cal.graph.index import Index

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

_LINEAR = frozenset({"Conv", "Gemm", "MatMul"})
_LAYOUT_SUFFIX = "_nchwc"
# Names that the runtime makes up for what it adds.
_MADE_UP = re.compile(r"_token_\d+$|^(ReorderInput|ReorderOutput|split_output)$")


class OriginalNames:
    """The names of one model before and after the runtime optimized it.

    Args:
        optimized: The model as the runtime wrote it.
        original: The model before that; None to make do with the optimized one.
    """

    def __init__(self, optimized: onnx.ModelProto, original: onnx.ModelProto | None) -> None:
        self._after = Index(optimized)
        graph = None if original is None else original.graph
        self._before = {} if graph is None else {name: node for node in graph.node for name in node.output if name}
        self._nodes = {node.name for node in self._before.values() if node.name}
        self._tensors = set(self._before) | {value.name for value in (graph.input if graph is not None else ())}

    def node(self, node: onnx.NodeProto) -> str:
        """Name a node; a fused one after its convolution or product, not after its activation."""
        if node.name in self._nodes:
            return str(node.name)
        op = trait(node.op_type).twin or node.op_type
        same = next((self._before[name] for name in self._outputs(node) if name in self._before), None)
        while same is not None and op in _LINEAR and same.op_type != op and same.op_type not in _LINEAR and same.input:
            same = self._before.get(same.input[0])
        if same is not None and same.name:
            return str(same.name)
        named = [node.name.removesuffix(_LAYOUT_SUFFIX), *self._outputs(node)]
        return next((name for name in named if name and not _MADE_UP.search(name)), node.op_type)

    def tensor(self, name: str) -> str:
        """Name a tensor; one that the runtime made up after the tensor that it holds, or the node that gives it."""
        producer = self._after.producer.get(name)
        if producer is None or name in self._tensors:
            return name
        held = [each for each in self._outputs(producer) if each in self._tensors]
        if held:
            return held[0]
        return name if not self._tensors and not _MADE_UP.search(name) else f"from {self.node(producer)}"

    def _outputs(self, node: onnx.NodeProto) -> Iterator[str]:
        """Names that a node's outputs may have had: those it was made from first, then those behind layout changes."""
        if node.name.endswith(_LAYOUT_SUFFIX):  # the runtime names it after the tensor that it gave before
            yield node.name.removesuffix(_LAYOUT_SUFFIX)
        for name in node.output:
            if name:
                yield name
                for use in self._after.uses.get(name, []):
                    if use.slot == 0 and use.node.op_type == "ReorderOutput":
                        yield use.node.output[0]
