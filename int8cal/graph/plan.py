"""The Plan: which nodes run on integers and which tensors get Q/DQ. Made once; taps, emitter, audit and report read it.

The rule behind it: Conv, Gemm and MatMul with constant weights decide. Their inputs are quantized; a Conv's output too,
because its integer kernel writes integers. Any other op joins an integer region only where that is free of noise: all
its inputs are quantized anyway and somebody wants its output quantized anyway. Everything else stays float.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.graph.bias_add import bias_add
from int8cal.graph.index import Index, attribute
from int8cal.graph.ops import CLIPPING, OpRule, OpTable, op_table
from int8cal.graph.recurrent import GATES, Recurrent, recurrent_of
from int8cal.graph.reduction import reduction_of
from int8cal.graph.scores import are_scores, is_mask
from int8cal.graph.select import EXCLUDED
from int8cal.graph.shared_scales import SharedScales

if TYPE_CHECKING:
    from collections.abc import Iterable

    from int8cal.graph.select import Selection
    from int8cal.numerics.pairs import Reduction


# Why a layer stays float that has weights like any other.
NO_KERNEL = "the runtime has no integer kernel for it"


@dataclass(frozen=True)
class Layer:
    """A node with constant weights that becomes int8.

    Attributes:
        weight, bias: Initializer names; bias None when absent.
        axis: Output-channel axis of the weight; None for one scale (weights that are not 2-D under MatMul).
        input: The quantized data input.
        output: The tensor behind the node and its fused activation.
        channels: Number of input channels.
        group: Groups of a convolution.
        bias_add: The Add behind a MatMul whose constant is the bias; the two become one Gemm. "" where there is none.
    """

    node: str
    op_type: str
    weight: str
    bias: str | None
    axis: int | None
    input: str
    output: str
    channels: int
    group: int = 1
    bias_add: str = ""

    @property
    def reduction(self) -> Reduction:
        """Over what it sums."""
        return reduction_of(self.op_type, self.axis, self.group)


@dataclass(frozen=True)
class QuantizedTensor:
    """A quantized activation tensor.

    Attributes:
        tensor: Its name.
        group: Tensors of one group share scale and zero point; the group is named after its first one.
        source: Its own values count for the group's range (False where an op only passes values of another tensor on).
        exclusive: Every reader takes the dequantized value; otherwise only the integer readers do.
        node, op_type: The producer ("" and "Input" for a graph input).
        channel_axis: 1 (N, C, ...) or -1 (..., C) where a layer reads it, with `channels`; None where none does.
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
class Left:
    """A node that could have an integer kernel and stays float, and why."""

    node: str
    op_type: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """Everything that is quantized, in graph order.

    Recurrent nodes are apart: their inputs get no Q and DQ, and the table says how each is quantized.

    Attributes:
        ops: The op table that it was made with.
    """

    tensors: tuple[QuantizedTensor, ...]
    layers: tuple[Layer, ...]
    integer_nodes: frozenset[str]
    left: tuple[Left, ...]
    recurrent: tuple[Recurrent, ...] = ()
    ops: OpTable = field(default_factory=lambda: op_table(""), repr=False)

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
        for layer in self.layers:
            found.setdefault(layer.weight, []).append(layer.node)
        for each in self.recurrent:
            for weight in dict.fromkeys(each.tensors):
                found.setdefault(weight, []).append(each.node)
        return found


def data_slots(node: onnx.NodeProto, rule: OpRule) -> tuple[int, ...]:
    """Return the positions of a node's data inputs under its rule."""
    if rule.inputs is None:
        return tuple(slot for slot, name in enumerate(node.input) if name)
    return tuple(slot for slot in rule.inputs if slot < len(node.input) and node.input[slot])


def make_plan(model: onnx.ModelProto, selection: Selection) -> Plan:
    """Decide what is quantized.

    Args:
        model: A prepared model.
        selection: Which nodes the user allows, and the target, whose op table holds.

    Raises:
        UsageError: a pattern of the selection matches nothing.
    """
    return _Planner(model, selection, op_table(selection.target)).plan()


class _Planner:
    def __init__(self, model: onnx.ModelProto, selection: Selection, ops: OpTable) -> None:
        self.index = Index(model)
        self.ops, self.rules = ops, ops.rules
        self.selection = selection
        self.allowed = selection.resolve(model.graph.node)
        self.left: list[Left] = []
        self.layers: dict[str, Layer] = {}
        self.taken_in: set[str] = set()  # Adds that belong to a MatMul
        self.integer: set[str] = set()
        self.hard: set[str] = set()  # tensors that a linear op reads
        self.shared = SharedScales(self.index)

    def plan(self) -> Plan:
        nodes = list(self.index.graph.node)
        for node in nodes:
            self._linear(node)
        wanted = self._wish(nodes)
        quantized = self._join(nodes, wanted) | self._residuals(nodes)
        return self._result(nodes, quantized)

    def _linear(self, node: onnx.NodeProto) -> None:
        rule = self.rules.get(node.op_type)
        if rule is None or rule.kind != "linear" or node.domain not in ("", "ai.onnx"):
            return
        reason = self._why_not(node, rule)
        if reason:
            self.left.append(Left(node.name, node.op_type, reason))
            return
        weight = self.index.initializers[node.input[rule.weight]]
        bias = node.input[rule.bias] if rule.bias is not None and len(node.input) > rule.bias else ""
        axis, channels, group = _weight_layout(node, tuple(weight.dims))
        add = bias_add(self.index, node, self.allowed)
        if add is not None:
            bias = add.bias
            self.taken_in.add(add.node.name)
        self.layers[node.name] = Layer(
            node.name,
            node.op_type,
            weight.name,
            bias or None,
            axis,
            node.input[0],
            self.activated(node if add is None else add.node),
            channels,
            group,
            "" if add is None else add.node.name,
        )
        self.integer.add(node.name)
        self.hard.add(node.input[0])

    def _why_not(self, node: onnx.NodeProto, rule: OpRule) -> str:
        weight = node.input[rule.weight]
        if node.name not in self.allowed:
            return self.selection.reason(node.name)
        if rule.no_kernel or (not rule.grouped and attribute(node, "group", 1) > 1):
            return NO_KERNEL
        if not self.index.is_constant(weight):
            if self.index.is_constant(node.input[0]):
                return "its weights are the left operand, no integer kernel takes them there"
            producer = self.index.producer.get(weight)
            cast = producer is not None and producer.op_type == "Cast" and self.index.is_constant(producer.input[0])
            return "its weights are not float32" if cast else "its weights are not constant"
        if self.index.is_constant(node.input[0]):
            return "both operands are constant"
        if self.index.elem_type(weight) != onnx.TensorProto.FLOAT:
            return "its weights are not float32"
        if 0 in self.index.initializers[weight].dims:
            return "its weights are empty"
        if len(self.index.initializers[weight].dims) < 2:
            return "its weights are a vector"
        if rule.bias is not None and len(node.input) > rule.bias and node.input[rule.bias]:
            bias = node.input[rule.bias]
            if not self.index.is_constant(bias):
                return "its bias is not constant"
            values = self.index.constant(bias)
            if not np.isfinite(values.astype(np.float64)).all():
                return "its bias holds NaN or infinity"
            if not rule.float_output and is_mask(values) and are_scores(self.index, self.rules, node.output[0]):
                return "its bias masks scores that Softmax reads"
            if node.op_type == "Gemm" and not _is_row(values, self.index.constant(weight), node):
                return "its bias is not one value per output channel"
        if node.op_type == "Gemm" and attribute(node, "transA", 0):
            return "its input is transposed (transA)"
        return ""

    def activated(self, node: onnx.NodeProto) -> str:
        """Return the tensor whose Q ends the node's kernel: behind a Relu or Clip that alone reads the output."""
        output = str(node.output[0])
        reader = self.index.only_reader(output)
        if reader is None or reader.op_type not in CLIPPING or reader.input[0] != output:
            return output
        if not all(self.index.is_constant(name) for name in reader.input[1:] if name):
            return output
        # Q replaces the Clip only where its range ends exactly at the bound, and zero is the only bound that rounding
        # never moves; behind any other Clip the runtime would keep the whole layer in float
        low, _ = clip_bounds(self.index, reader)
        return str(reader.output[0]) if low == 0.0 else output

    def _may_mask(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Add" and are_scores(self.index, self.rules, node.output[0])

    def _float_tensor(self, name: str) -> bool:
        return self.index.elem_type(name) in (onnx.TensorProto.FLOAT, 0)

    def _wish(self, nodes: list[onnx.NodeProto]) -> set[str]:
        """Go backwards: tensors that somebody would take quantized if they could be had so."""
        wanted = set(self.hard)
        for node in reversed(nodes):
            rule = self.rules.get(node.op_type)
            if (
                rule is None
                or rule.kind in ("linear", "residual")
                or node.name not in self.allowed
                or node.name in self.taken_in
                or node.domain not in ("", "ai.onnx")
                or self._may_mask(node)
            ):
                continue
            if self.activated(node) not in wanted and node.output[0] not in wanted:
                continue
            wanted |= {
                node.input[slot] for slot in data_slots(node, rule) if not self.index.is_constant(node.input[slot])
            }
        return wanted

    def _join(self, nodes: list[onnx.NodeProto], wanted: set[str]) -> set[str]:
        """Go forwards: let ops join where all they read is quantized and their output is wanted so."""
        quantized = {
            self.layers[node.name].output
            for node in nodes
            if node.name in self.layers and not self.rules[node.op_type].float_output
        } | self.hard
        for node in nodes:
            rule = self.rules.get(node.op_type)
            if rule is None or rule.kind in ("linear", "residual") or node.domain not in ("", "ai.onnx"):
                continue
            if node.name in self.taken_in:
                continue
            output = self.activated(node) if rule.kind == "compute" else node.output[0]
            if output not in wanted or not self._float_tensor(node.output[0]):
                continue
            slots = data_slots(node, rule)
            variable = [node.input[slot] for slot in slots if not self.index.is_constant(node.input[slot])]
            reason = self._why_float(node, slots, variable, quantized)
            if reason:
                self.left.append(Left(node.name, node.op_type, reason))
                continue
            self.integer.add(node.name)
            quantized.add(output)
            self._share(node, rule, variable, output)
        return quantized

    def _residuals(self, nodes: list[onnx.NodeProto]) -> set[str]:
        """Name the operands that join the kernel of a layer through an Add behind it, and let those Adds take codes."""
        order = {node.name: position for position, node in enumerate(nodes)}
        found: set[str] = set()
        for node in nodes:
            rule = self.rules.get(node.op_type)
            if rule is None or rule.kind != "residual" or node.name not in self.allowed or node.name in self.taken_in:
                continue
            if self._may_mask(node):
                continue
            # the layer that is computed last takes the Add into its kernel; it reads the other operand
            behind = [
                (order[producer.name], slot)
                for slot, name in enumerate(node.input)
                if (producer := self.index.producer.get(name)) is not None
                and producer.name in self.layers
                and self.index.only_reader(name) is node
            ]
            if not behind:
                continue
            other = node.input[1 - max(behind)[1]]
            if self.index.is_constant(other) or not self._float_tensor(other):
                continue
            self.integer.add(node.name)
            found.add(other)
        return found

    def _why_float(self, node: onnx.NodeProto, slots: tuple[int, ...], variable: list[str], quantized: set[str]) -> str:
        if node.name not in self.allowed:
            return self.selection.reason(node.name)
        if len(node.output) > 1 and any(name in self.index.uses for name in node.output[1:]):
            return "its second output is used"
        if len(variable) != len(slots):
            return "an operand is constant"
        if self._may_mask(node):
            return "it may mask scores that Softmax reads"
        for name in variable:
            if name not in quantized:
                return f"its input {name} is float"
        return ""

    def _share(self, node: onnx.NodeProto, rule: OpRule, variable: list[str], output: str) -> None:
        if rule.kind == "pass":
            self.shared.unite(variable[0], output)
        elif rule.shares_inputs and output == node.output[0]:
            # a scale shared with signed values has a zero point above 0, which no longer replaces a Relu: the layer in
            # front of that Relu would fall back to float
            signed = [name for name in variable if not self.shared.is_clipped(name)]
            for name in signed or variable:
                if self.index.only_reader(name) is node:
                    self.shared.unite(name, output)

    def _result(self, nodes: list[onnx.NodeProto], quantized: set[str]) -> Plan:
        by_name = self.index.nodes
        inputs = quantized & self.index.inputs
        order = [value.name for value in self.index.graph.input if value.name in inputs]
        order += [name for node in nodes for name in node.output if name in quantized]
        ends = {  # outputs of integer kernels that cannot write float
            (layer.output if name in self.layers else "")
            for name, layer in self.layers.items()
            if not self.rules[layer.op_type].float_output
        }
        ends |= {
            self._end(by_name[name])
            for name in self.integer - self.layers.keys()
            if not self.rules[by_name[name].op_type].float_output
        }
        passed = {by_name[name].output[0] for name in self.integer if self._only_passes(by_name[name])}
        readers = {layer.input: layer for layer in self.layers.values()}
        groups: dict[str, str] = {}
        points = []
        for tensor in order:
            producer = self.index.producer.get(tensor)
            layer = readers.get(tensor)
            points.append(
                QuantizedTensor(
                    tensor=tensor,
                    group=groups.setdefault(self.shared.root(tensor), tensor),
                    source=tensor not in passed,
                    exclusive=tensor in ends,
                    node=producer.name if producer is not None else "",
                    op_type=producer.op_type if producer is not None else "Input",
                    channel_axis=None if layer is None else (-1 if layer.op_type in ("Gemm", "MatMul") else 1),
                    channels=0 if layer is None else layer.channels,
                )
            )
        layers = tuple(self.layers[node.name] for node in nodes if node.name in self.layers)
        left = tuple(self._explained(item, by_name[item.node], ends) for item in self.left)
        recurrent, floats = self._recurrent(nodes)
        left = (*left, *self._fused_exclusions(nodes), *floats)
        return Plan(tuple(points), layers, frozenset(self.integer), left, recurrent, self.ops)

    def _recurrent(self, nodes: list[onnx.NodeProto]) -> tuple[tuple[Recurrent, ...], list[Left]]:
        """Find the recurrent nodes whose weights become int8, and those that stay float."""
        found, floats = [], []
        for node in nodes:
            if node.op_type not in GATES or node.domain not in ("", "ai.onnx"):
                continue
            allowed = node.name in self.allowed
            each = recurrent_of(self.index, node) if allowed else self.selection.reason(node.name)
            if not self.ops.recurrent:
                each = f"{self.selection.target} has no int8 {node.op_type}"
            if isinstance(each, str):
                floats.append(Left(node.name, node.op_type, each))
            else:
                found.append(each)
        return tuple(found), floats

    def _explained(self, left: Left, node: onnx.NodeProto, ends: set[str]) -> Left:
        """Tell where excluding a node cannot keep the runtime from fusing it."""
        if left.reason != EXCLUDED or self.rules[node.op_type].kind == "linear":
            return left
        inputs = {node.input[slot] for slot in data_slots(node, self.rules[node.op_type])}
        if not inputs <= ends or self.activated(node) not in self.hard:
            return left
        reason = f"{EXCLUDED}, but its neighbours quantize its inputs and output, the runtime may fuse it"
        return Left(left.node, left.op_type, reason)

    def _fused_exclusions(self, nodes: list[onnx.NodeProto]) -> list[Left]:
        """Tell where excluding an activation changes nothing, because it belongs to the node in front."""
        behind = {self._end(node): node.name for node in nodes if node.name in self.integer - self.layers.keys()}
        behind |= {layer.output: layer.node for layer in self.layers.values()}
        return [
            Left(node.name, node.op_type, f"excluding it has no effect, it belongs to {behind[node.output[0]]}")
            for node in nodes
            if node.op_type in CLIPPING and node.name not in self.allowed and node.output[0] in behind
        ]

    def _end(self, node: onnx.NodeProto) -> str:
        return self.activated(node) if self.rules[node.op_type].kind == "compute" else node.output[0]

    def _only_passes(self, node: onnx.NodeProto) -> bool:
        rule = self.rules[node.op_type]
        if rule.kind == "pass":
            return True
        variable: Iterable[str] = (node.input[slot] for slot in data_slots(node, rule))
        return rule.shares_inputs and all(
            self.shared.root(name) == self.shared.root(node.output[0]) for name in variable
        )


def clip_bounds(index: Index, node: onnx.NodeProto) -> tuple[float, float]:
    """Return the bounds of a Relu or a Clip with constant min and max (opset 6 attributes or inputs)."""
    if node.op_type == "Relu":
        return 0.0, float("inf")
    low, high = attribute(node, "min", -np.inf), attribute(node, "max", np.inf)
    if len(node.input) > 1 and node.input[1]:
        low = index.constant(node.input[1]).item()
    if len(node.input) > 2 and node.input[2]:
        high = index.constant(node.input[2]).item()
    return float(low), float(high)


def _weight_layout(node: onnx.NodeProto, dims: tuple[int, ...]) -> tuple[int | None, int, int]:
    """Output-channel axis of the weight, number of input channels, groups (NUMERICS 1)."""
    group = int(attribute(node, "group", 1))
    if node.op_type == "Conv":
        return 0, dims[1] * group, group
    if node.op_type == "ConvTranspose":
        return 1, dims[0], group
    if node.op_type == "Gemm":
        transposed = attribute(node, "transB", 0)
        return (0, dims[1], 1) if transposed else (1, dims[0], 1)
    return (len(dims) - 1 if len(dims) == 2 else None), dims[-2], 1


def _is_row(bias: np.ndarray, weight: np.ndarray, node: onnx.NodeProto) -> bool:
    width = weight.shape[0] if attribute(node, "transB", 0) else weight.shape[1]
    return bias.size in (1, width) and (bias.ndim <= 1 or bias.shape[-1] == bias.size)
