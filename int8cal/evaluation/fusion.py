"""The fusion audit: what onnxruntime really runs on integers, read from the graph it optimized for itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from int8cal.evaluation.layerwise import residual_of
from int8cal.evaluation.optimized_graph import ElementTypes, OriginalNames, optimized_bodies, trait
from int8cal.evaluation.result import NOT_QUANTIZED, FloatNode, Fusion
from int8cal.graph.bodies import full_name
from int8cal.graph.index import Index, attribute
from int8cal.graph.layers import KERNELS
from int8cal.graph.ops import ONNXRUNTIME_CPU
from int8cal.protos import outline
from int8cal.runtime.scratch import scratch_folder
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from int8cal.graph.plan import Plan

_QUANTIZERS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
# They read codes and give indices.
_INDEX_OPS = frozenset({"ArgMax", "ArgMin"})
WEIGHT_ONLY = "only its weights are quantized"


def audit_fusion(model: onnx.ModelProto | Path, names: onnx.ModelProto | None = None, *, threads: int = 0) -> Fusion:
    """Count the nodes with integer kernels, and list those that compute in float.

    Args:
        model: The int8 model to open.
        names: The same model in memory, from which node names are told; None to take `model` where it is one.
        threads: Threads of the runtime; 0 for all CPUs.

    Returns:
        integer: nodes of the optimized graph that compute or move u8 or s8 values; float_: the listed nodes, under the
        names they have in the model. Listed is every node that computes real numbers, and one that only moves them
        where it reads a dequantized activation or feeds a QuantizeLinear, since its movement could be one of codes.
        Arithmetic on shapes, Q and DQ, and changes of layout are not. Nodes in the bodies of If, Loop and Scan count
        like those of the main graph, whether a sample runs them or not; If, Loop and Scan themselves do not.

    Raises:
        ModelError: onnxruntime cannot open the model, or cannot write its optimized form.
    """
    with scratch_folder() as folder:
        path = folder / "optimized.onnx"
        Session(model, threads=threads, optimization="all", optimized_path=path)
        return audit_graph_file(path, model if names is None and isinstance(model, onnx.ModelProto) else names)


def with_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model, large weights as name and type alone, and give every node a name of its own.

    Args:
        model: Any model. An unnamed node gets the name of its first output.
    """
    result = outline(model)
    taken = {node.name for node in result.graph.node}
    seen: set[str] = set()
    for node in result.graph.node:
        if not node.name or node.name in seen:
            name = next((output for output in node.output if output), node.op_type)
            while name in taken:
                name += "_"
            node.name = name
            taken.add(name)
        seen.add(node.name)
    return result


def with_reasons(fusion: Fusion, plan: Plan, measured: Mapping[str, str]) -> Fusion:
    """Say of nodes in float why the plan left them there: of layers, and where the runtime's graph shows no cause.

    A layer that the plan left may stand beside codes, and then the graph shows what follows from that alone.

    Args:
        fusion: Of the plan's int8 model.
        plan: Names nodes as the model does.
        measured: Node that measuring left in float -> why, which wins.
    """
    left = {full_name(path, each.node): each for path, part in plan.graphs.items() for each in part.unquantized}

    def reason_of(node: FloatNode) -> str:
        known = left.get(node.node)
        if node.node in measured or known is None:
            return measured.get(node.node, node.reason)
        rule = ONNXRUNTIME_CPU.get(known.op_type)
        is_layer = rule is not None and rule.kind == "linear"
        return known.reason if is_layer or node.reason == NOT_QUANTIZED else node.reason

    return replace(fusion, nodes=tuple(replace(node, reason=reason_of(node)) for node in fusion.nodes))


def audit_graph_file(path: Path, original: onnx.ModelProto | None = None) -> Fusion:
    """Audit the graph that a session wrote: see `audit_graph`."""
    return audit_graph(onnx.load(str(path), load_external_data=False), original)


def audit_graph(optimized: onnx.ModelProto, original: onnx.ModelProto | None = None) -> Fusion:
    """Audit a graph that onnxruntime has optimized.

    Args:
        optimized: The model as the runtime wrote it.
        original: The model before that, from which node names are told; None to take them as they are.
    """
    integer, listed = 0, list[FloatNode]()
    waiting = [("", optimized, original)]
    while waiting:
        place, after, before = waiting.pop()
        fusion = _audit_scope(after, before)
        integer += fusion.integer
        listed += (replace(each, node=f"{place}{each.node}") for each in fusion.nodes)
        waiting += reversed([*optimized_bodies(after, before, place)])
    return Fusion(integer=integer, float_=len(listed), nodes=tuple(listed))


def _audit_scope(optimized: onnx.ModelProto, original: onnx.ModelProto | None) -> Fusion:
    """Audit one graph without the bodies inside it, see `audit_graph`."""
    graph = _Optimized(optimized)
    names = OriginalNames(graph.index, original)
    weight_only = frozenset() if original is None else weight_only_nodes(original)
    integer, listed = 0, []
    for node in optimized.graph.node:
        role = trait(node.op_type).role
        if role in {"boundary", "layout", "shape", "control"}:
            continue
        if graph.is_integer(node):
            integer += 1
        elif graph.reads_dequantized(node) or not graph.quantized.isdisjoint(node.output):
            whole, name = residual_of(graph.index, node), names.node(node)
            if whole:
                reason = f"it computes the residual codes of {names.tensor(whole)}"
            elif node.op_type in KERNELS and name in weight_only:
                reason = WEIGHT_ONLY
            else:
                reason = graph.reason(node, names)
            listed.append(FloatNode(name, names.op_type(node), reason, residual=bool(whole)))
        elif role != "move" and graph.gives_real(node):
            name = names.node(node)
            quantized = graph.has_quantized_weights(node) or name in weight_only
            listed.append(FloatNode(name, names.op_type(node), WEIGHT_ONLY if quantized else NOT_QUANTIZED))
    return Fusion(integer=integer, float_=len(listed), nodes=tuple(listed))


def weight_only_nodes(model: onnx.ModelProto) -> frozenset[str]:
    """Name the nodes with int8 constants behind Cast and Mul: the runtime folds both, so nothing of them shows.

    Where a Gather looks up rows of codes, Cast and Mul are behind it, and the Mul is named.
    """
    nodes = model.graph.node
    codes = {tensor.name for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    rows = {node.output[0] for node in nodes if node.op_type == "Gather" and node.input[0] in codes}
    real = {node.output[0]: node.input[0] for node in nodes if node.op_type == "Cast" and node.input[0] in codes | rows}
    scaled = [node for node in nodes if node.op_type == "Mul" and not real.keys().isdisjoint(node.input)]
    looked_up = [node for node in scaled if any(real.get(name) in rows for name in node.input)]
    values = {node.output[0] for node in scaled} - {node.output[0] for node in looked_up}
    return frozenset(node.name for node in (*looked_up, *(each for each in nodes if values.intersection(each.input))))


class _Optimized:
    """Questions about one optimized graph; layout changes are looked through."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.index = Index(model)
        self._types = ElementTypes(self.index)
        self._shapes = _shape_tensors(self.index)
        # the tensor before the layout changes that made another, and the tensors that a quantizer reads behind them
        self._inward: dict[str, str] = {}
        for node in model.graph.node:
            if trait(node.op_type).role == "layout":
                self._inward[node.output[0]] = self.inward(node.input[0])
        self.quantized = {node.input[0] for node in model.graph.node if node.op_type in _QUANTIZERS}
        for node in reversed(model.graph.node):
            if trait(node.op_type).role == "layout" and node.output[0] in self.quantized:
                self.quantized.add(node.input[0])
        # the runtime writes no types for the codes between its kernels, so they are followed from where they arise
        self._codes: set[str] = set()
        for node in model.graph.node:
            if self._gives_codes(node):
                self._codes.update(name for name in node.output if name)

    def is_integer(self, node: onnx.NodeProto) -> bool:
        if trait(node.op_type).role == "integer":
            return True
        return any(name in self._codes for name in node.input)

    def _gives_codes(self, node: onnx.NodeProto) -> bool:
        op = node.op_type
        if op in _QUANTIZERS or op.startswith("QLinear"):
            return True
        if op == "QGemm":  # without an output scale it writes float
            return len(node.input) > 7 and bool(node.input[7])
        if trait(op).role in {"boundary", "shape", "integer"} or op in _INDEX_OPS:
            return False
        return any(name in self._codes for name in node.input)

    def reads_dequantized(self, node: onnx.NodeProto) -> bool:
        return any(self._is_dequantized(name) and not self._is_weight(name) for name in node.input if name)

    def has_quantized_weights(self, node: onnx.NodeProto) -> bool:
        return any(self._is_dequantized(name) for name in node.input if name)

    def gives_real(self, node: onnx.NodeProto) -> bool:
        """Whether the node computes real numbers from the model's inputs, not from their shapes alone."""
        return self._types.any_real(list(node.output)) and not self._shapes.issuperset(filter(None, node.output))

    def reason(self, node: onnx.NodeProto, names: OriginalNames) -> str:
        """Why the node runs in float, as far as the graph shows it."""
        op = names.op_type(node)
        known = trait(op)
        op = known.unfused or op
        rule = ONNXRUNTIME_CPU.get(op)
        passes = known.passes or (rule is not None and rule.kind == "pass")
        if op in KERNELS:
            return f"it is no {KERNELS[op]}, the one kernel for {op} that multiplies integers"
        if not passes and not known.computes and (rule is None or rule.no_kernel):
            return f"no integer kernel for {op} in the CPU provider"
        data = [name for name in node.input if name]
        if rule is not None and rule.inputs is not None:
            slots = {*rule.inputs, *([rule.weight] if rule.kind == "linear" else [])}
            data = [node.input[slot] for slot in sorted(slots) if slot < len(node.input)]
        elif passes:
            data = data[:1]
        floats = [name for name in map(self.inward, data) if not self._is_dequantized(name)]
        moving = [name for name in floats if not self.index.is_constant(name)]
        if moving:
            return f"input {names.tensor(moving[0], 'from {}')} is float"
        if floats:
            return "a constant input is float"
        if not self.quantized.issuperset(filter(None, node.output)):
            return "its output is not quantized"
        activation = attribute(node, "activation", b"").decode()
        if activation:
            return f"its output's range does not absorb the {activation} behind it"
        if passes:
            return "its input and output have different scales"
        return "the runtime did not fuse it"

    def inward(self, name: str) -> str:
        """Name the tensor before any layout change."""
        return self._inward.get(name, name)

    def _is_dequantized(self, name: str) -> bool:
        producer = self.index.producer.get(self.inward(name))
        return producer is not None and producer.op_type == "DequantizeLinear"

    def _is_weight(self, name: str) -> bool:
        return self.index.is_constant(self.index.producer[self.inward(name)].input[0])


def _shape_tensors(index: Index) -> set[str]:
    """Name the tensors that follow from shapes and constants alone, such as the root of a head's width in attention."""
    found: set[str] = set()
    for node in index.graph.node:
        inputs = [name for name in node.input if name]
        known = trait(node.op_type).role
        if known == "shape" or (
            inputs
            and known != "control"
            and any(name in found for name in inputs)
            and all(name in found or index.is_constant(name) for name in inputs)
        ):
            found.update(name for name in node.output if name)
    return found
