"""The fusion audit: what onnxruntime really runs on integers, read from the graph it optimized for itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from int8cal.evaluation.result import FloatNode, Fusion
from int8cal.graph.index import Index, attribute
from int8cal.graph.ops import ONNXRUNTIME_CPU
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterable

# Kernels that compute on integers, beside every QLinear*.
_INTEGER_OPS = frozenset(
    {
        "QGemm",
        "QAttention",
        "QEmbedLayerNormalization",
        "ConvInteger",
        "MatMulInteger",
        "MatMulInteger16",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
    }
)
_BOUNDARY = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast"})
# Change of memory layout that the runtime puts around its own float kernels.
_LAYOUT = frozenset({"ReorderInput", "ReorderOutput"})
# They ask for a shape, not for values.
_SHAPE_OPS = frozenset({"Shape", "Size"})
# Ops that the provider also fuses when input and output share scale and zero point, beyond those the Plan uses.
_ALSO_PASSED = frozenset(
    {"Resize", "Gather", "GatherElements", "Split", "Tile", "Identity", "Expand", "ReduceMax", "ReduceMin"}
)
_ALSO_COMPUTED = frozenset({"Where", "ArgMax"})
# They read codes and give indices.
_INDEX_OPS = frozenset({"ArgMax", "ArgMin"})
_LINEAR = frozenset({"Conv", "Gemm", "MatMul"})
_FLOAT_TWINS = {"FusedConv": "Conv", "FusedGemm": "Gemm", "FusedMatMul": "MatMul", "NhwcFusedConv": "Conv"}


def audit_fusion(model: onnx.ModelProto | Path, names: onnx.ModelProto | None = None, *, threads: int = 0) -> Fusion:
    """Count the nodes with integer kernels, and list those left in float beside a Q or DQ.

    Args:
        model: The int8 model to open.
        names: The same model in memory, from which node names are told; None when `model` is one already.
        threads: Threads of the runtime; 0 for all CPUs.

    Returns:
        integer: nodes of the optimized graph that compute or move u8 or s8 values; float_: the listed nodes. A float
        node is listed when it reads a dequantized activation or feeds a QuantizeLinear, under the name it has in the
        model. Weights alone (a DQ of an initializer) list nothing. Subgraphs of If and Loop are not audited.

    Raises:
        ModelError: onnxruntime cannot open the model, or cannot write its optimized form.
    """
    with tempfile.TemporaryDirectory(prefix="int8cal-") as folder:
        path = Path(folder) / "optimized.onnx"
        Session(model, threads=threads, optimization="all", optimized_path=path)
        optimized = onnx.load(str(path), load_external_data=False)
    return audit_graph(optimized, model if isinstance(model, onnx.ModelProto) else names)


def audit_graph(optimized: onnx.ModelProto, original: onnx.ModelProto | None = None) -> Fusion:
    """Audit a graph that onnxruntime has optimized.

    Args:
        optimized: The model as the runtime wrote it.
        original: The model before that, from which node names are told; None to take them as they are.
    """
    graph = _Optimized(optimized)
    before = {} if original is None else {name: node for node in original.graph.node for name in node.output}
    integer, listed = 0, []
    for node in optimized.graph.node:
        if node.op_type in _BOUNDARY | _LAYOUT | _SHAPE_OPS:
            continue
        if graph.is_integer(node):
            integer += 1
        elif graph.reads_dequantized(node) or graph.feeds_quantize(node):
            outputs = [graph.outward(name) for name in node.output if name]
            listed.append(FloatNode(_name(node, outputs, before), node.op_type, graph.reason(node)))
    return Fusion(integer=integer, float_=len(listed), nodes=tuple(listed))


def _name(node: onnx.NodeProto, outputs: list[str], before: dict[str, onnx.NodeProto]) -> str:
    """Name the node as the user's model does; a fused one after its convolution or product, not its activation."""
    op = _FLOAT_TWINS.get(node.op_type, node.op_type)
    same = next((before[name] for name in outputs if name in before), None)
    while same is not None and op in _LINEAR and same.op_type != op and same.op_type not in _LINEAR and same.input:
        same = before.get(same.input[0])
    found = "" if same is None else same.name
    return found or node.name or next(iter(outputs), "")


class _Optimized:
    """Questions about one optimized graph; layout changes are looked through."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._index = Index(model)
        # the runtime writes no types for the codes between its kernels, so they are followed from where they arise
        self._codes: set[str] = set()
        for node in model.graph.node:
            if self._gives_codes(node):
                self._codes.update(name for name in node.output if name)

    def is_integer(self, node: onnx.NodeProto) -> bool:
        if node.op_type.startswith("QLinear") or node.op_type in _INTEGER_OPS:
            return True
        return any(name in self._codes for name in node.input)

    def _gives_codes(self, node: onnx.NodeProto) -> bool:
        op = node.op_type
        if op in {"QuantizeLinear", "DynamicQuantizeLinear"} or op.startswith("QLinear"):
            return True
        if op == "QGemm":  # without an output scale it writes float
            return len(node.input) > 7 and bool(node.input[7])
        if op in _BOUNDARY | _SHAPE_OPS | _INDEX_OPS | _INTEGER_OPS:
            return False
        return any(name in self._codes for name in node.input)

    def reads_dequantized(self, node: onnx.NodeProto) -> bool:
        return any(self._is_dequantized(name) and not self._is_weight(name) for name in node.input if name)

    def feeds_quantize(self, node: onnx.NodeProto) -> bool:
        return any(self._is_quantized(name) for name in node.output if name)

    def reason(self, node: onnx.NodeProto) -> str:
        """Why the node runs in float, as far as the graph shows it."""
        op = _FLOAT_TWINS.get(node.op_type, node.op_type)
        rule = ONNXRUNTIME_CPU.get(op)
        passes = op in _ALSO_PASSED or (rule is not None and rule.kind == "pass")
        if not passes and op not in _ALSO_COMPUTED and (rule is None or rule.no_kernel):
            return f"no integer kernel for {op} in the CPU provider"
        data = [name for name in node.input if name]
        if rule is not None and rule.inputs is not None:
            slots = {*rule.inputs, *([rule.weight] if rule.kind == "linear" else [])}
            data = [node.input[slot] for slot in sorted(slots) if slot < len(node.input)]
        elif passes:
            data = data[:1]
        floats = [name for name in map(self.inward, data) if not self._is_dequantized(name)]
        moving = [name for name in floats if not self._index.is_constant(name)]
        if moving:
            return f"input {moving[0]} is float"
        if floats:
            return "a constant input is float"
        if not all(self._is_quantized(name) for name in node.output if name):
            return "its output is not quantized"
        activation = attribute(node, "activation", b"").decode()
        if activation:
            return f"its output's range does not absorb the {activation} behind it"
        if passes:
            return "its input and output have different scales"
        return "the runtime did not fuse it"

    def inward(self, name: str) -> str:
        """Name the tensor before any layout change."""
        producer = self._index.producer.get(name)
        while producer is not None and producer.op_type in _LAYOUT:
            name = producer.input[0]
            producer = self._index.producer.get(name)
        return name

    def outward(self, name: str) -> str:
        """Name the tensor behind a layout change, where that is its only reader."""
        reader = self._index.only_reader(name)
        while reader is not None and reader.op_type in _LAYOUT:
            name = reader.output[0]
            reader = self._index.only_reader(name)
        return name

    def _is_dequantized(self, name: str) -> bool:
        producer = self._index.producer.get(self.inward(name))
        return producer is not None and producer.op_type == "DequantizeLinear"

    def _is_weight(self, name: str) -> bool:
        return self._index.is_constant(self._index.producer[self.inward(name)].input[0])

    def _is_quantized(self, name: str) -> bool:
        readers = self._readers(name)
        return any(node.op_type in {"QuantizeLinear", "DynamicQuantizeLinear"} for node in readers)

    def _readers(self, name: str) -> Iterable[onnx.NodeProto]:
        for use in self._index.uses.get(name, []):
            if use.node.op_type in _LAYOUT:
                yield from self._readers(use.node.output[0])
            elif use.slot == 0:
                yield use.node


def _node_names(model: onnx.ModelProto) -> dict[str, str]:
    return {output: node.name for node in model.graph.node for output in node.output if node.name}
