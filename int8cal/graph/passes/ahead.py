"""A factor behind a gate goes into the layers ahead: a hard swish that was float16 once keeps one of 0.9998.

f(x·c) = f(x)·c        (x·c) y = (x y)·c        (x·c) W = x (c·W)

Behind a layer a factor goes into it (see `passes.affine`); behind a gate there is none, and in front of codes it would
keep the product in float.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.edit import Rewrite
from int8cal.graph.ops import is_standard, op_of
from int8cal.graph.passes.affine import DEEPEST
from int8cal.graph.passes.steps import as_float32, scaled
from int8cal.protos import copied

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index, Use
    from int8cal.graph.passes.steps import AffineStep
    from int8cal.numerics import Float32


def factors_ahead(index: Index, names: Names) -> Iterator[Rewrite]:
    """Find single factors above 0 behind a HardSigmoid, or what it multiplies, of which all readers lead to layers.

    Must not touch what is given out, or read inside a body; a product of two tensors that both have the factor; weights
    that several layers share.
    """
    for node in index.graph.node:
        step = scaled(index, node)
        if step is not None and _is_gated(index, step.data):
            rewrite = _Ahead(index, names, step).rewrite()
            if rewrite is not None:
                yield rewrite


def _is_gated(index: Index, tensor: str) -> bool:
    """Whether a tensor is a HardSigmoid's, or a product with one."""
    node = index.producer.get(tensor)
    if node is None or node.op_type not in ("HardSigmoid", "Mul"):
        return False
    makers = [node] if node.op_type == "HardSigmoid" else [index.producer.get(name) for name in node.input]
    return any(each is not None and each.op_type == "HardSigmoid" for each in makers)


class _Ahead:
    """Takes one factor out of its place and into the layers behind it."""

    def __init__(self, index: Index, names: Names, step: AffineStep) -> None:
        self._index, self._names, self._step = index, names, step
        self._without = {step.output: step.data}  # tensors -> those without the factor
        self._nodes: dict[str, onnx.NodeProto] = {}
        self._weights: dict[str, Float32] = {}

    def rewrite(self) -> Rewrite | None:
        """Return what is to change; None where the factor reaches anything but layers."""
        waiting = [self._step.output]
        while waiting:
            tensor = waiting.pop()
            uses = self._index.uses.get(tensor, [])
            if not uses or tensor in self._index.outputs or len(self._nodes) > DEEPEST:
                return None
            for use in uses:
                if not (self._into_layer(use, tensor) or self._through(use, tensor, waiting)):
                    return None
        if any(sum(name in self._without for name in self._index.nodes[node].input) > 1 for node in self._nodes):
            return None
        like = {new: old for old, new in self._without.items() if old not in (self._step.output, new)}
        nodes = {name: (node,) for name, node in self._nodes.items()}
        return Rewrite({self._step.node.name: (), **nodes}, dict(self._weights), like)

    def _into_layer(self, use: Use, tensor: str) -> bool:
        """Multiply the weights of a layer that reads the tensor; returns whether it is one whose weights can be."""
        node = use.node
        if use.slot != 0 or not is_standard(node) or not op_of(node).channel_axis:
            return False
        weight = str(node.input[1])
        if not self._index.is_float_constant(weight) or self._index.only_reader(weight) is not node:
            return False
        values = as_float32(self._index.constant(weight).astype(np.float64) * self._step.factor.item())
        if values is None:
            return False
        result = self._nodes.setdefault(node.name, copied(node))
        result.input[0], result.input[1] = self._without[tensor], self._names.beside(weight, "constant")
        self._weights[result.input[1]] = values
        return True

    def _through(self, use: Use, tensor: str, waiting: list[str]) -> bool:
        """Let a reader's output come without the factor, too; returns whether the reader lets it pass."""
        node = use.node
        if use.slot < 0 or not is_standard(node) or any(node.output[1:]) or op_of(node).channel_axis:
            return False
        product = node.op_type == "Mul" and not any(self._index.is_constant(name) for name in node.input)
        passes = use.slot == 0 and (op_of(node).passage is not None or node.op_type == "GlobalAveragePool")
        if not product and not passes:
            return False
        result = self._nodes.setdefault(node.name, copied(node))
        result.input[use.slot] = self._without[tensor]
        output = str(node.output[0])
        if output not in self._without:
            self._without[output] = result.output[0] = self._names.changed(output)
            waiting.append(output)
        return True
