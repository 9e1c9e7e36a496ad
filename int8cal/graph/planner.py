"""Decides what is quantized: makes the Plan, once; nobody else decides where Q and DQ go.

The rule behind it: Conv, Gemm and MatMul with constant weights decide. Their inputs are quantized; a Conv's output too,
because its integer kernel writes integers. Any other op joins an integer region only where that is free of noise: all
its inputs are quantized anyway and somebody wants its output quantized anyway. Everything else stays float.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from int8cal.graph.embeddings import find_embeddings
from int8cal.graph.float_convolutions import convolutions_faster_in_float
from int8cal.graph.index import Index, attribute, walk
from int8cal.graph.layers import (
    GATES,
    Layer,
    Recurrent,
    activated,
    are_scores,
    layer_of,
    line_of,
    recurrent_of,
    unranged_layer_of,
)
from int8cal.graph.ops import OpRule, OpTable, RuleKind, data_slots, is_standard, op_of, op_table
from int8cal.graph.passes.steps import channel_step, reads_sum
from int8cal.graph.plan import Plan, QuantizedTensor, Unquantized
from int8cal.graph.select import EXCLUDED
from int8cal.protos import subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx

    from int8cal.graph.embeddings import Embedding
    from int8cal.graph.select import Selection

_VALUE, _AXES = 2, 3  # their places among the inputs of a Pad


def make_plan(model: onnx.ModelProto | Index, selection: Selection) -> Plan:
    """Decide what is quantized.

    Args:
        model: A prepared model, or its index.
        selection: Which nodes the user allows, and the target, whose op table holds.

    Raises:
        UsageError: a pattern of the selection matches nothing.
    """
    index, ops = Index.of(model), op_table(selection.target)
    first = _Planner(index, selection, ops, {})
    plan, slower = first.plan(), first.faster_in_float()
    return _Planner(index, selection, ops, slower).plan() if slower else plan


class _Planner:
    def __init__(self, index: Index, selection: Selection, ops: OpTable, slower: Mapping[str, str]) -> None:
        self.index = index
        self.slower = slower  # layers that a first plan found to be faster in float -> why
        self.nodes = list(index.graph.node)
        self.ops, self.rules = ops, ops.rules
        self.selection = selection
        inside = [each for node in self.nodes for graph in subgraphs(node) for each in walk(graph)]
        self.allowed = selection.resolve(self.nodes, inside)
        self.unquantized: list[Unquantized] = []
        self.forms = selection.layer_forms(self.nodes, inside)
        self.layers: dict[str, Layer] = {}
        self.unranged: list[Layer] = []
        self.taken_in: set[str] = set()  # Adds that belong to a MatMul
        self.integer: set[str] = set()
        self.hard: set[str] = set()  # tensors that a linear op reads
        self.written: set[str] = set()  # those that one writes, with the activation behind it
        self.shared = _SharedScales(self.index)

    def plan(self) -> Plan:
        """Return the plan; once."""
        for node, _ in self._ruled("linear"):
            self._linear(node)
        wanted = self._wish()
        quantized = self._residuals()
        quantized |= self._join(wanted | quantized)
        return self._result(quantized)

    def faster_in_float(self) -> dict[str, str]:
        """Name the planned convolutions that are faster in float, with what stands around them counted, and why."""
        written = {name for node in self.nodes if node.name in self.integer for name in self._ends(node)}
        conv, layers, pixels = self.rules["Conv"], self.layers.values(), self.selection.pixels
        return convolutions_faster_in_float(self.index, conv, layers, self.integer, written, pixels=pixels)

    def _ruled(self, *kinds: RuleKind) -> Iterator[tuple[onnx.NodeProto, OpRule]]:
        """Iterate over the nodes that the target has a rule of these kinds for, in graph order."""
        for node in self.nodes:
            rule = self.rules.get(node.op_type)
            if rule is None or rule.kind not in kinds or not is_standard(node) or node.name in self.taken_in:
                continue
            if _has_kernel(self.index, node, rule, of_u8=self.selection.of_u8):
                yield node, rule

    def _variable(self, node: onnx.NodeProto, rule: OpRule) -> list[str]:
        names = (node.input[slot] for slot in data_slots(node, rule))
        return [name for name in names if not self.index.is_constant(name)]

    def _has_constant(self, node: onnx.NodeProto, rule: OpRule) -> bool:
        return len(self._variable(node, rule)) != len(data_slots(node, rule))

    def _ends(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """Return the tensors behind a node's kernel, more than one behind a Split alone."""
        rule = self.rules[node.op_type]
        if node.name in self.layers:
            return (self.layers[node.name].output,)
        if rule.splits:
            return tuple(node.output)  # one that nobody reads gets no Q, and then the runtime fuses none of them
        return (activated(self.index, node) if rule.kind == "compute" else node.output[0],)

    def _linear(self, node: onnx.NodeProto) -> None:
        found: Layer | str = self.selection.reason(node.name)
        form = self.forms.get(node.name)
        if node.name in self.allowed and form is not None:
            found = unranged_layer_of(self.index, node, self.rules[node.op_type], form, self.allowed)
            if isinstance(found, Layer):
                self.unranged.append(found)
                return
        elif node.name in self.allowed:
            found = layer_of(self.index, node, self.rules, self.allowed)
            found = self.slower.get(node.name, found)
        if isinstance(found, str):
            self.unquantized.append(Unquantized(node.name, node.op_type, found))
            return
        self.layers[node.name] = found
        self.integer.add(node.name)
        self.hard.add(found.input)
        self.written.add(found.output)
        if found.bias_add:
            self.taken_in.add(found.bias_add)

    def _may_mask(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Add" and are_scores(self.index, self.rules, node.output[0])

    def _wish(self) -> set[str]:
        """Go backwards: tensors that somebody would take quantized if they could be had so."""
        wanted = set(self.hard)
        for node, rule in reversed([*self._ruled("compute", "pass")]):
            asks = not (self._may_mask(node) or self._has_constant(node, rule))
            if node.name not in self.allowed or not asks or (rule.per_channel and not reads_sum(self.index, node)):
                continue
            if wanted.issuperset(self._ends(node)) or (not rule.splits and node.output[0] in wanted):
                wanted.update(self._variable(node, rule))
        return wanted

    def _join(self, wanted: set[str]) -> set[str]:
        """Go forwards: let ops join where all they read is quantized and their output is wanted so."""
        joins, entered = [], []
        quantized = self.hard | {
            layer.output for layer in self.layers.values() if not self.rules[layer.op_type].float_output
        }
        for node, rule in self._ruled("compute", "pass"):
            outputs = self._ends(node)
            if not wanted.issuperset(outputs) or not self.index.may_be_float(node.output[0]):
                continue
            beside = self._beside_codes(node, rule, quantized)
            reason = self._why_float(node, rule, quantized, beside)
            if reason:
                self.unquantized.append(Unquantized(node.name, node.op_type, reason))
                continue
            self.integer.add(node.name)
            quantized.update(outputs, beside)
            entered += [(name, outputs[0]) for name in beside]
            if rule.kind == "pass":
                for output in outputs:
                    self.shared.unite(self._variable(node, rule)[0], output)
            elif rule.shares_inputs and outputs[0] == node.output[0]:
                joins.append((node, outputs[0]))
        for node, rule in self._ruled("compute"):
            readers = {each.name for each in self._readers(node.output[0]) if each is not None}
            if rule.for_codes and node.name in self.integer and readers.isdisjoint(self.integer):
                self.integer.remove(node.name)
                quantized.difference_update(self._ends(node))
        self._join_inputs(joins, quantized)
        for name, output in entered:
            self.shared.unite(name, output)
        return quantized

    def _beside_codes(self, node: onnx.NodeProto, rule: OpRule, quantized: set[str]) -> set[str]:
        """Name float inputs that are rounded once if they take the scale of the output, which was rounded before.

        These are inputs of a Concat beside codes, and what a layer writes for a MaxPool that delays its codes. Must
        name none that another node reads, nor any where a float op reads the output, which it has unrounded.
        """
        variable = self._variable(node, rule)
        rounds = any(each is None or each.name not in self.integer for each in self._readers(node.output[0]))
        beside = rule.shares_inputs and not quantized.isdisjoint(variable)
        if rounds or not (beside or (rule.delays and self.written.issuperset(variable))):
            return set()
        return {name for name in variable if name not in quantized and self.index.only_reader(name) is node}

    def _residuals(self) -> set[str]:
        """Name the operands that join the kernel of a layer through an Add behind it, and let those Adds take codes."""
        order = {node.name: position for position, node in enumerate(self.nodes)}
        found: set[str] = set()
        for node, rule in self._ruled("residual"):
            if node.name not in self.allowed or self._may_mask(node):
                continue
            # the layer that is computed last takes the Add into its kernel; it reads the other operand
            behind = [
                (order[producer.name], slot)
                for slot, name in enumerate(node.input)
                if (producer := self.index.producer.get(name)) is not None
                and producer.name in self.layers
                and (not rule.behind or producer.op_type in rule.behind)
                and self.index.only_reader(name) is node
            ]
            if not behind:
                continue
            other = node.input[1 - max(behind)[1]]
            if self.index.is_constant(other) or not self.index.may_be_float(other):
                continue
            self.integer.add(node.name)
            found.add(other)
        return found

    def _why_float(self, node: onnx.NodeProto, rule: OpRule, quantized: set[str], beside: set[str]) -> str:
        if node.name not in self.allowed:
            return self.selection.reason(node.name)
        if not rule.splits and any(name in self.index.uses for name in node.output[1:]):
            return "its second output is used"
        variable = self._variable(node, rule)
        if self._has_constant(node, rule):
            return "an operand is constant"
        if self._may_mask(node):
            return "it may mask scores that Softmax reads"
        return next(
            (f'its input "{name}" is float' for name in variable if name not in quantized and name not in beside), ""
        )

    def _join_inputs(self, nodes: list[tuple[onnx.NodeProto, str]], quantized: set[str]) -> None:
        """Let inputs of Concats share the scale of the output where nothing else reads them, or what shares theirs.

        Args:
            nodes: Concats on integers in graph order, and their outputs.
            quantized: Tensors; ops that only pass values on share scales already.
        """
        uses = Counter(
            self.shared.root(tensor)
            for tensor in quantized
            for reader in self._readers(tensor)
            if reader is None or reader.name not in self.integer or self.rules[reader.op_type].kind != "pass"
        )
        # as the sets are before any Concat joins them
        sets = {name: self.shared.root(name) for node, _ in nodes for name in node.input}
        for node, output in nodes:
            variable = self._variable(node, self.rules[node.op_type])
            own = Counter(sets[name] for name in variable)
            # a scale shared with signed values has a zero point above 0, which no longer replaces a Relu: the layer in
            # front of that Relu would fall back to float
            signed = [name for name in variable if not self.shared.is_clipped(name)]
            for name in signed or variable:
                if uses[sets[name]] == own[sets[name]]:
                    self.shared.unite(name, output)

    def _readers(self, tensor: str) -> Iterator[onnx.NodeProto | None]:
        """Iterate over the nodes that read a tensor, themselves or inside; None for the caller of the model."""
        yield from (use.node for use in self.index.uses.get(tensor, ()))
        if tensor in self.index.outputs:
            yield None

    def _result(self, quantized: set[str]) -> Plan:
        integer = [node for node in self.nodes if node.name in self.integer]
        order = [value.name for value in self.index.graph.input if value.name in quantized & self.index.inputs]
        order += [name for node in self.nodes for name in node.output if name in quantized]
        # of integer kernels that cannot write float
        ends = {name for node in integer if not self.rules[node.op_type].float_output for name in self._ends(node)}
        passed = {name for node in integer if self._only_passes(node) for name in node.output}
        layouts: dict[str, set[tuple[int, int]]] = {}
        for each in self.layers.values():
            layouts.setdefault(each.input, set()).add((each.channel_axis, each.channels))
        groups, tensors = dict[str, str](), list[QuantizedTensor]()
        for tensor in order:
            producer = self.index.producer.get(tensor)
            # channels of a Conv are no channels of a product beside it, though they may be as many
            layout = layouts.get(tensor, set())
            channel_axis, channels = layout.pop() if len(layout) == 1 else (None, 0)
            tensors.append(
                QuantizedTensor(
                    tensor=tensor,
                    group=groups.setdefault(self.shared.root(tensor), tensor),
                    source=tensor not in passed,
                    exclusive=tensor in ends,
                    node=producer.name if producer is not None else "",
                    op_type=producer.op_type if producer is not None else "Input",
                    channel_axis=channel_axis,
                    channels=channels,
                )
            )
        unquantized = [self._explained(each, ends) for each in self.unquantized] + self._fused_exclusions(integer)
        recurrent = []
        for node in self.nodes:
            found = self._recurrent(node)
            if isinstance(found, Recurrent):
                recurrent.append(found)
            elif found is not None:
                unquantized.append(found)
        layers = tuple(self.layers.values())
        embeddings, floats = self._embeddings(recurrent)
        return Plan(
            tuple(tensors),
            layers,
            frozenset(self.integer),
            (*unquantized, *floats),
            tuple(recurrent),
            self.ops,
            embeddings,
            tuple(self.unranged),
        )

    def _embeddings(self, recurrent: list[Recurrent]) -> tuple[tuple[Embedding, ...], list[Unquantized]]:
        """Return the tables that become int8, and those that stay float."""
        coded = {layer.weight for layer in (*self.layers.values(), *self.unranged)}
        coded |= {name for each in recurrent for name in each.tensors}
        found, floats = [], []
        for table, why in find_embeddings(self.index, coded):
            excluded = [node for node in (*table.gathers, *table.readers) if node not in self.allowed]
            reason = why or ("" if self.ops.embeddings else f"{self.selection.target} takes no int8 table")
            if not reason and excluded:
                reason = self.selection.reason(excluded[0])
            if reason:
                floats.append(Unquantized(table.node, table.op_type, reason))
            else:
                found.append(table)
        return tuple(found), floats

    def _recurrent(self, node: onnx.NodeProto) -> Recurrent | Unquantized | None:
        """Return a recurrent node whose weights become int8, or why such a node or an Einsum stays float, or None."""
        if node.op_type == "Einsum" and any(self.index.is_float_constant(name) for name in node.input):
            return Unquantized(node.name, node.op_type, "its equation is not one product of two matrices")
        if node.op_type not in GATES or not is_standard(node):
            return None
        if not self.ops.recurrent:
            return Unquantized(node.name, node.op_type, f"{self.selection.target} has no int8 {node.op_type}")
        if node.name not in self.allowed:
            return Unquantized(node.name, node.op_type, self.selection.reason(node.name))
        found = recurrent_of(self.index, node)
        return Unquantized(node.name, node.op_type, found) if isinstance(found, str) else found

    def _explained(self, found: Unquantized, ends: set[str]) -> Unquantized:
        """Tell where excluding a node cannot keep the runtime from fusing it."""
        node, rule = self.index.nodes[found.node], self.rules[found.op_type]
        if found.reason != EXCLUDED or rule.kind == "linear":
            return found
        inputs = {node.input[slot] for slot in data_slots(node, rule)}
        if not inputs <= ends or activated(self.index, node) not in self.hard:
            return found
        reason = f"{EXCLUDED}, but its neighbours quantize its inputs and output, the runtime may fuse it"
        return Unquantized(found.node, found.op_type, reason)

    def _fused_exclusions(self, integer: list[onnx.NodeProto]) -> list[Unquantized]:
        """Tell where excluding an activation changes nothing, because it belongs to the node in front."""
        behind = {name: node.name for node in integer for name in self._ends(node)}
        return [
            Unquantized(node.name, node.op_type, f"excluding it has no effect, it belongs to {behind[node.output[0]]}")
            for node in self.nodes
            if op_of(node).clips and node.name not in self.allowed and node.output[0] in behind
        ]

    def _only_passes(self, node: onnx.NodeProto) -> bool:
        rule = self.rules[node.op_type]
        if rule.kind == "pass":
            return True
        names = (node.output[0], *(node.input[slot] for slot in data_slots(node, rule)))
        return rule.shares_inputs and len({self.shared.root(name) for name in names}) == 1


class _SharedScales:
    """Sets of tensors that share one scale, each under the name of one of them, its root.

    Args:
        index: Of the graph; at first each tensor is alone.
    """

    def __init__(self, index: Index) -> None:
        self._parents: dict[str, str] = {}
        # roots of sets with a tensor that a Relu or Clip ends at; at first each tensor is its own
        self._clipped = {node.output[0] for node in index.graph.node if op_of(node).clips}

    def root(self, tensor: str) -> str:
        """Name the set of a tensor."""
        while (parent := self._parents.get(tensor, tensor)) != tensor:
            self._parents[tensor] = self._parents.get(parent, parent)  # the next way is short
            tensor = self._parents[tensor]
        return tensor

    def unite(self, first: str, second: str) -> None:
        """Let the sets of two tensors be one, under the first one's root."""
        first, second = self.root(first), self.root(second)
        if second in self._clipped:
            self._clipped.add(first)
        self._parents[second] = first

    def is_clipped(self, tensor: str) -> bool:
        """Whether a Relu or Clip ends at the tensor or at one that shares its scale."""
        return self.root(tensor) in self._clipped


def _has_kernel(index: Index, node: onnx.NodeProto, rule: OpRule, *, of_u8: bool) -> bool:
    """Whether a node has the integer kernel that its op's rule is about; `of_u8`: activations may be codes of uint8."""
    if rule.for_codes and not (of_u8 and line_of(node)):
        return False
    if rule.per_channel and channel_step(index, node) is None:
        return False
    if rule.mode and attribute(node, "mode", rule.mode.encode()) != rule.mode.encode():
        return False
    return node.op_type != "Pad" or _adds_zeros(index, node)


def _adds_zeros(index: Index, node: onnx.NodeProto) -> bool:
    """Whether a Pad, of all axes, adds what every range has a code for."""
    value, axes = (node.input[slot] if len(node.input) > slot else "" for slot in (_VALUE, _AXES))
    return not axes and (not value or (index.is_constant(value) and not index.constant(value).any()))
