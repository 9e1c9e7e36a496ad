"""Where a factor and a shift behind a tensor can go: through what lets them pass, into layers and other constants.

(x·A + B)·C = x·AC + BC        relu(x)·s = relu(x·s) for s > 0        (x + y)·s = x·s + y·s        (x y)·s = (x·s) y
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from int8cal.graph.folding.affine_step import fits, step_of
from int8cal.graph.folding.change import Change, added, as_float32
from int8cal.graph.folding.layer import LAYERS, into_layer
from int8cal.graph.folding.rewrite import Rewrite
from int8cal.protos import copied

if TYPE_CHECKING:
    import numpy.typing as npt

    from int8cal.graph.folding.affine_step import Step
    from int8cal.graph.folding.names import Names
    from int8cal.graph.index import Index


@dataclass(frozen=True)
class Passage:
    """How an op with one data input lets a change pass from its output to its input.

    Attributes:
        positive: Only factors above 0.
        shift: Shifts too.
        scalar: Only one value for all channels, because the op moves elements between channels.
        spatial: Channels are axis 1, whatever the rank.
    """

    positive: bool = False
    shift: bool = False
    scalar: bool = False
    spatial: bool = False


DEEPEST = 100  # nodes on the way from a factor to a layer
# Asks for the rewrite that makes a tensor come out changed under a name, is sent it, and returns its own.
Search = Generator[tuple[str, Change, str], "Rewrite | None", "Rewrite | None"]
_MOVES = Passage(shift=True, scalar=True)
_MOVERS = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Identity", "DepthToSpace")
PASSAGES: dict[str, Passage] = {
    "Relu": Passage(positive=True),
    "LeakyRelu": Passage(positive=True),
    "PRelu": Passage(positive=True),
    "MaxPool": Passage(positive=True, shift=True, spatial=True),
    "GlobalMaxPool": Passage(positive=True, shift=True, spatial=True),
    "AveragePool": Passage(spatial=True),  # zeros of the padding may count, so no shift
    "GlobalAveragePool": Passage(shift=True, spatial=True),
    "ReduceMean": _MOVES,
    **dict.fromkeys(_MOVERS, _MOVES),
}


class Absorber:
    """Finds the rewrite that makes a tensor come out changed.

    Must not change a tensor that anything else reads, or that the model gives out.

    Args:
        index: Of the graph.
        names: Of the model.
    """

    def __init__(self, index: Index, names: Names) -> None:
        self._index = index
        self.names = names

    def absorb(self, tensor: str, change: Change, output: str) -> Rewrite | None:
        """Move a change into whatever computes a tensor.

        Args:
            tensor: It has one reader.
            change: What is to happen to it.
            output: What the changed tensor is called.

        Returns:
            None where it cannot be moved.
        """
        ways = [self._absorb(tensor, change, output)]
        found: Rewrite | None = None
        while ways:
            try:
                asked = ways[-1].send(found)
            except StopIteration as done:
                found = done.value
                ways.pop()
            else:
                found = None
                if len(ways) < DEEPEST:
                    ways.append(self._absorb(*asked))
        return found

    def _absorb(self, tensor: str, change: Change, output: str) -> Search:
        node = self._index.producer.get(tensor)
        if node is None or node.domain not in ("", "ai.onnx") or self._index.only_reader(tensor) is None:
            return None
        if any(name for name in node.output[1:]):
            return None
        if node.op_type in LAYERS and self._index.is_constant(node.input[1]):
            return into_layer(self._index, self.names, node, change, output)
        step = step_of(self._index, node)
        if step is not None:
            return (yield from self._into_step(step, change, output))
        if node.op_type in PASSAGES:
            return (yield from self._through(node, PASSAGES[node.op_type], change, output))
        if node.op_type == "Clip":
            return (yield from self._through_clip(node, change, output))
        if node.op_type in ("Add", "Sub"):
            return (yield from self._into_sum(node, change, output))
        if node.op_type in ("Mul", "MatMul"):
            return (yield from self._into_product(node, change, output))
        return None

    def constant(self, tensor: str, values: npt.NDArray[np.float64]) -> tuple[str, npt.NDArray[np.float32]] | None:
        """Return a new constant beside a tensor, None where float32 does not hold it."""
        array = as_float32(values)
        return None if array is None else (self.names.fresh(tensor, "constant"), array)

    def _rebuilt(self, node: onnx.NodeProto, output: str, changes: dict[int, Change]) -> Search:
        """Rebuild a node whose inputs at some positions come changed, in place of its own output."""
        rebuilt = copied(node)
        rebuilt.output[0] = output
        whole = Rewrite({}, {}, {output: str(node.output[0])})
        for slot, change in changes.items():
            if not change.scales and not change.shifts:
                continue
            name = self.names.changed(str(node.input[slot]))
            part = yield str(node.input[slot]), change, name
            if part is None:
                return None
            rebuilt.input[slot] = name
            whole = _joined(whole, part)
        return _joined(whole, Rewrite({node.name: (rebuilt,)}))

    def _through(self, node: onnx.NodeProto, passage: Passage, change: Change, output: str) -> Search:
        if (passage.positive and not change.positive) or (change.shifts and not passage.shift):
            return None
        if not change.scalar:
            rank = self._index.rank(node.input[0])
            if passage.scalar or (passage.spatial and (rank is None or change.axis != 1 - rank)):
                return None
        return (yield from self._rebuilt(node, output, {0: change}))

    def _through_clip(self, node: onnx.NodeProto, change: Change, output: str) -> Search:
        # a shift would move the bound at zero, which the Q behind the Clip needs there
        if not change.scalar or not change.positive or change.shifts:
            return None
        rewrite = yield from self._rebuilt(node, output, {0: change})
        if rewrite is None:
            return None
        rebuilt = rewrite.nodes[node.name][0]
        for slot in range(1, len(node.input)):
            if not node.input[slot]:
                continue
            if not self._index.is_constant(node.input[slot]):
                return None
            bound = self._index.constant(node.input[slot]).astype(np.float64)
            made = self.constant(str(node.input[slot]), bound * change.factor[0])
            if made is None:
                return None
            rebuilt.input[slot] = made[0]
            rewrite.constants[made[0]] = made[1]
        return rewrite

    def _into_step(self, step: Step, change: Change, output: str) -> Search:
        if step.node.op_type == "BatchNormalization":
            return None
        factor = step.factor * change.reshaped(change.factor)
        moved = added(step.shift * change.reshaped(change.factor), change.reshaped(change.shift))
        if moved is None or not all(fits(self._index, step.data, each.shape) for each in (factor, moved)):
            return None
        if step.node.op_type in ("Mul", "Div", "Neg"):
            return None if change.shifts else self._replaced(step, "Mul", factor, step.data, output)
        # x * (1 or -1) + constant: the factor has to go further, into x
        wanted = replace(change.scaling(), factor=change.factor * step.factor.item())
        if not wanted.scales:
            return self._replaced(step, "Add", moved, step.data, output)
        name = self.names.changed(step.data)
        part = yield step.data, wanted, name
        rest = self._replaced(step, "Add", moved, name, output)
        return None if part is None or rest is None else _joined(part, rest)

    def _replaced(
        self, step: Step, op_type: str, values: npt.NDArray[np.float64], data: str, output: str
    ) -> Rewrite | None:
        made = self.constant(step.output, values)
        if made is None:
            return None
        node = helper.make_node(op_type, [data, made[0]], [output], name=step.node.name)
        return Rewrite({step.node.name: (node,)}, dict([made]), {output: step.output})

    def _into_sum(self, node: onnx.NodeProto, change: Change, output: str) -> Search:
        """Scale both sides, and shift the first that takes it."""
        other = replace(change.scaling(), shift=-change.shift) if node.op_type == "Sub" else change
        for changes in ({0: change, 1: change.scaling()}, {0: change.scaling(), 1: other}):
            found = yield from self._rebuilt(node, output, changes)
            if found is not None or not change.shifts:
                return found
        return None

    def _into_product(self, node: onnx.NodeProto, change: Change, output: str) -> Search:
        """Scale one side. Channels of a matrix product's side are not those of the product."""
        if change.shifts or (node.op_type == "MatMul" and not change.scalar):
            return None
        found = yield from self._rebuilt(node, output, {0: change})
        return found if found is not None else (yield from self._rebuilt(node, output, {1: change}))


def _joined(first: Rewrite, second: Rewrite) -> Rewrite:
    return Rewrite(
        first.nodes | second.nodes,
        first.constants | second.constants,
        first.like | second.like,
        first.renamed | second.renamed,
    )
