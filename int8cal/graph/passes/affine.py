"""Mul, Div, Add, Sub, Neg and BatchNormalization with constants go into the layers and constants before them.

Their factor and shift pass through what lets them pass, into layers and other constants:

(x·A + B)·C = x·AC + BC        relu(x)·s = relu(x·s) for s > 0        (x + y)·s = x·s + y·s        (x y)·s = (x·s) y
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.edit import Rewrite, dropped, instead, joined_rewrites, without_attribute
from int8cal.graph.index import attribute
from int8cal.graph.ops import is_standard, op_of
from int8cal.graph.passes.steps import Change, added, as_float32, change_of, fits, step_of
from int8cal.protos import copied, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index
    from int8cal.graph.ops import Passage
    from int8cal.graph.passes.steps import AffineStep
    from int8cal.numerics import Float32, Float64

DEEPEST = 100  # nodes on the way from a factor to a layer


def fold_affine(index: Index, names: Names) -> Iterator[Rewrite]:
    """Find the steps that can go, in graph order.

    Must not fold a step whose shift the next one takes back, whose input has other readers or is given out, or whose
    constant varies along two axes. See `Absorber` for what a step can go into.
    """
    absorber = Absorber(index, names)
    for node in index.graph.node:
        step = absorber.step(node)
        change = None if step is None else change_of(step)
        if step is None or change is None or _is_taken_back(index, absorber, step):
            continue
        rewrite = _folded(index, absorber, step, change)
        if rewrite is not None:
            yield rewrite


def _is_taken_back(index: Index, absorber: Absorber, step: AffineStep) -> bool:
    """Whether the next node takes the shift away again: then the sum in between is there to round."""
    reader = index.only_reader(step.output) if step.shift.any() else None  # nothing is taken away of none
    after = None if reader is None else absorber.step(reader)
    return after is not None and added(step.shift * after.factor, after.shift) is None


def _folded(index: Index, absorber: Absorber, step: AffineStep, change: Change) -> Rewrite | None:
    if not change.scales and not change.shifts:
        return dropped(index, step.node, step.data)
    rewrite = absorber.absorb(step.data, change, step.output)
    if rewrite is not None:
        rewrite.nodes[step.node.name] = ()
        return rewrite
    if not (change.scales and change.shifts):
        return None
    name = absorber.names.changed(step.data)
    rewrite = absorber.absorb(step.data, change.scaling(), name)
    shift = absorber.constant(step.output, step.shift)
    if rewrite is None or shift is None:
        return None
    rewrite.nodes[step.node.name] = (instead(step.node, "Add", [name, shift[0]]),)
    rewrite.constants[shift[0]] = shift[1]
    return rewrite


class Absorber:
    """Finds the rewrite that makes a tensor come out changed.

    Must not change a tensor that anything else reads, or that the model gives out.
    """

    def __init__(self, index: Index, names: Names) -> None:
        self._index = index
        self.names = names
        self._depth = 0
        self._steps: dict[str, AffineStep | None] = {}
        self._constant_bytes = sum(map(tensor_bytes, index.initializers.values()))

    def step(self, node: onnx.NodeProto) -> AffineStep | None:
        """Read a node as a step, once: neighbours in a chain look at each other."""
        if node.name not in self._steps:
            self._steps[node.name] = step_of(self._index, node)
        return self._steps[node.name]

    def absorb(self, tensor: str, change: Change, output: str) -> Rewrite | None:
        """Move a change into whatever computes a tensor.

        Args:
            tensor: It has one reader.
            change: What is to happen to it.
            output: What the changed tensor is called.

        Returns:
            None where it cannot be moved.
        """
        if self._depth == DEEPEST:
            return None
        self._depth += 1
        try:
            return self._absorb(tensor, change, output)
        finally:
            self._depth -= 1

    def _absorb(self, tensor: str, change: Change, output: str) -> Rewrite | None:
        node = self._index.producer.get(tensor)
        if node is None or not is_standard(node) or self._index.only_reader(tensor) is None:
            return None
        if any(name for name in node.output[1:]):
            return None
        facts = op_of(node)
        if facts.channel_axis and self._index.is_constant(node.input[1]):
            if change.scales and self._shared_too_often(str(node.input[1])):
                return None
            return _into_layer(self._index, self.names, node, change, output)
        step = self.step(node)
        if step is not None:
            return self._into_step(step, change, output)
        if facts.passage is not None:
            return self._through(node, facts.passage, change, output)
        if node.op_type == "Clip":
            return self._through_clip(node, change, output)
        if node.op_type in ("Add", "Sub"):
            return self._into_sum(node, change, output)
        if node.op_type in ("Mul", "MatMul"):
            return self._into_product(node, change, output)
        if node.op_type == "Concat":
            return self._into_concat(node, change, output)
        return None

    def _shared_too_often(self, weight: str) -> bool:
        """Whether a copy of a weight for each of its readers would double what constants take: the int8 file grows."""
        copies = len(self._index.uses[weight]) - 1
        return copies * tensor_bytes(self._index.initializers[weight]) > self._constant_bytes

    def constant(self, tensor: str, values: Float64) -> tuple[str, Float32] | None:
        """Return a new constant beside a tensor, None where float32 does not hold it."""
        array = as_float32(values)
        return None if array is None else (self.names.beside(tensor, "constant"), array)

    def _rebuilt(self, node: onnx.NodeProto, output: str, changes: dict[int, Change]) -> Rewrite | None:
        """Rebuild a node whose inputs at some positions come changed, in place of its own output."""
        rebuilt = copied(node)
        rebuilt.output[0] = output
        whole = Rewrite({}, {}, {output: str(node.output[0])})
        for slot, change in changes.items():
            if not change.scales and not change.shifts:
                continue
            name = self.names.changed(str(node.input[slot]))
            part = self.absorb(str(node.input[slot]), change, name)
            if part is None:
                return None
            rebuilt.input[slot] = name
            whole = joined_rewrites((whole, part))
        return joined_rewrites((whole, Rewrite({node.name: (rebuilt,)})))

    def _through(self, node: onnx.NodeProto, passage: Passage, change: Change, output: str) -> Rewrite | None:
        if (passage.positive and not change.positive) or (change.shifts and not passage.shift):
            return None
        if not change.scalar:
            rank = self._index.rank(node.input[0])
            if rank is None and (passage.scalar or passage.spatial):
                return None
            if passage.scalar:
                axis = _axis_before(self._index, node, rank or 0, change.axis)
                if axis is None:
                    return None
                change = replace(change, axis=axis)
            elif passage.spatial and change.axis != 1 - (rank or 0):
                return None
        return self._rebuilt(node, output, {0: change})

    def _through_clip(self, node: onnx.NodeProto, change: Change, output: str) -> Rewrite | None:
        # a shift would move the bound at zero, which the Q behind the Clip needs there
        if not change.scalar or not change.positive or change.shifts:
            return None
        rewrite = self._rebuilt(node, output, {0: change})
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

    def _into_step(self, step: AffineStep, change: Change, output: str) -> Rewrite | None:
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
        part = self.absorb(step.data, wanted, name)
        rest = self._replaced(step, "Add", moved, name, output)
        return None if part is None or rest is None else joined_rewrites((part, rest))

    def _replaced(self, step: AffineStep, op_type: str, values: Float64, data: str, output: str) -> Rewrite | None:
        made = self.constant(step.output, values)
        if made is None:
            return None
        node = instead(step.node, op_type, [data, made[0]], output)
        return Rewrite({step.node.name: (node,)}, dict([made]), {output: step.output})

    def _into_sum(self, node: onnx.NodeProto, change: Change, output: str) -> Rewrite | None:
        """Scale both sides, and shift the first that takes it."""
        other = replace(change.scaling(), shift=-change.shift) if node.op_type == "Sub" else change
        for changes in ({0: change, 1: change.scaling()}, {0: change.scaling(), 1: other}):
            found = self._rebuilt(node, output, changes)
            if found is not None or not change.shifts:
                return found
        return None

    def _into_concat(self, node: onnx.NodeProto, change: Change, output: str) -> Rewrite | None:
        """Change every part; where they are joined along the channels, each by its own values."""
        rank = self._index.rank(node.output[0])
        if len(set(node.input)) < len(node.input) or (rank is None and not change.scalar):
            return None
        axis = int(attribute(node, "axis", 0))
        if change.scalar or (axis if axis < 0 else axis - (rank or 0)) != change.axis:
            return self._rebuilt(node, output, dict.fromkeys(range(len(node.input)), change))
        changes, first = {}, 0
        for slot, name in enumerate(node.input):
            dims = self._index.dims(name)
            width = dims[axis] if dims is not None else None
            if width is None:
                return None
            changes[slot] = change.part(slice(first, first + width))
            first += width
        return self._rebuilt(node, output, changes)

    def _into_product(self, node: onnx.NodeProto, change: Change, output: str) -> Rewrite | None:
        """Scale one side. Channels of a matrix product's side are not those of the product."""
        if change.shifts or (node.op_type == "MatMul" and not change.scalar):
            return None
        found = self._rebuilt(node, output, {0: change})
        return found if found is not None else self._rebuilt(node, output, {1: change})


def _axis_before(index: Index, node: onnx.NodeProto, rank: int, axis: int) -> int | None:
    """Return where an axis of a node's output lies in its input, both counted from the right; None where that is moot.

    Args:
        index: Of the graph.
        node: What moves axes: a Transpose, a Squeeze or an Unsqueeze. Anything else mixes them.
        rank: Of its input.
        axis: Of its output.
    """
    if node.op_type == "Transpose":
        order: list[int] = list(attribute(node, "perm", None) or reversed(range(rank)))
        return order[axis] - rank
    if node.op_type not in ("Squeeze", "Unsqueeze"):
        return None
    if len(node.input) < 2 or not index.is_constant(node.input[1]):
        return None
    named = [int(each) for each in index.constant(node.input[1]).reshape(-1)]
    whole = rank if node.op_type == "Squeeze" else rank + len(named)
    alone = {each % whole for each in named}
    kept = [place for place in range(whole) if place not in alone]
    if node.op_type == "Squeeze":
        return kept[axis] - rank
    return kept.index(whole + axis) - rank if whole + axis in kept else None


def _into_layer(index: Index, names: Names, node: onnx.NodeProto, change: Change, output: str) -> Rewrite | None:
    """Fold a change of a layer's output into the layer.

    Must not touch a layer whose weights or bias are not float32 constants, a Gemm with alpha or beta, a MatMul where
    there is a shift (it has no bias), or where folded values leave float32.

    Args:
        index: Of the graph.
        names: Of the model.
        node: A Conv, ConvTranspose, Gemm or MatMul.
        change: Of its output.
        output: The layer's new output.
    """
    weight = str(node.input[1])
    if not index.is_float_constant(weight):
        return None
    array = index.constant(weight).astype(np.float64)
    laid = _factor_of_weights(node, array, change)
    if laid is None:
        return None
    factor, bias_factor, shift = laid
    rebuilt = copied(node)
    rebuilt.output[0] = output
    constants = {}
    if change.scales:
        rebuilt.input[1] = _name(index, names, weight)
        constants[rebuilt.input[1]] = as_float32(array * factor)
    bias = str(node.input[2]) if len(node.input) > 2 else ""
    if node.op_type == "MatMul":
        if change.shifts:
            return None
    elif bias or change.shifts:
        if bias and not index.is_float_constant(bias):
            return None
        held = index.constant(bias).astype(np.float64) if bias else np.zeros(())
        del rebuilt.input[2:]
        rebuilt.input.append(_name(index, names, bias) if bias else names.beside(node.name, "bias"))
        constants[rebuilt.input[2]] = as_float32(np.atleast_1d(held * bias_factor + shift))
        if not bias:  # a beta that had nothing to scale
            without_attribute(rebuilt, "beta")
    folded = {name: values for name, values in constants.items() if values is not None}
    if len(folded) < len(constants):
        return None
    return Rewrite({node.name: (rebuilt,)}, folded, {output: str(node.output[0])})


def _factor_of_weights(
    node: onnx.NodeProto, weight: Float64, change: Change
) -> tuple[Float64, Float64, Float64] | None:
    """Return the factors in the weight's shape, and factor and shift per output channel, (channels,) each."""
    if node.op_type in ("Conv", "ConvTranspose"):
        if weight.ndim < 3:
            return None
        group = int(attribute(node, "group", 1)) if node.op_type == "ConvTranspose" else 1
        channels = weight.shape[0] if node.op_type == "Conv" else weight.shape[1] * group
        found = change.per_channel(channels, 1 - weight.ndim)
        if found is None:
            return None
        kernel = [1] * (weight.ndim - 2)
        if node.op_type == "Conv":
            return found[0].reshape(-1, 1, *kernel), *found
        # group g of the outputs reads input channels g * IC / group and on: those rows of the weight are its own
        rows = found[0].reshape(group, 1, weight.shape[1], *kernel)
        inputs = weight.shape[0] // group
        return np.broadcast_to(rows, (group, inputs, *rows.shape[2:])).reshape(-1, *rows.shape[2:]), *found
    transposed = node.op_type == "Gemm" and bool(attribute(node, "transB", 0))
    if weight.ndim < 2 or (node.op_type == "Gemm" and not _is_plain(node)):
        return None
    found = change.per_channel(weight.shape[0] if transposed else weight.shape[-1], -1)
    return None if found is None else (found[0].reshape(-1, 1) if transposed else found[0], *found)


def _is_plain(gemm: onnx.NodeProto) -> bool:
    has_bias = len(gemm.input) > 2 and bool(gemm.input[2])
    return attribute(gemm, "alpha", 1.0) == 1.0 and (not has_bias or attribute(gemm, "beta", 1.0) == 1.0)


def _name(index: Index, names: Names, constant: str) -> str:
    """Keep a constant's name where nobody else reads it."""
    alone = len(index.uses[constant]) == 1 and constant not in index.outputs
    return constant if alone else names.beside(constant, "folded")
