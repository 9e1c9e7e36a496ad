"""Graphs that onnxruntime optimized: what each op is for, which tensors hold real numbers, and what had which name.

The runtime writes no element types where it fused, so they are followed. Its own names are not told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import onnx
from onnx import TensorProto

from int8cal.graph.index import Index, attribute
from int8cal.protos import subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator

# integer: computes on integers. boundary: between real and integer values. layout: rearranges memory for the runtime's
# own float kernels. shape: asks for a shape, not for values. move: copies values. control: holds subgraphs.
Role = Literal["compute", "integer", "boundary", "layout", "shape", "move", "control"]


@dataclass(frozen=True)
class OpTrait:
    """What one op is for.

    Attributes:
        role: See `Role`.
        results: Element types of its outputs where its inputs do not decide them, the last one for all further outputs;
            0 where they do. Empty: as its inputs.
        typed_by: Position of the input whose element type the outputs have.
        passes: The provider fuses it between DQ and Q of one scale, though the Plan does not use that.
        computes: The provider has an integer kernel for it, though the Plan does not use that.
        unfused: The op it is a fused form of.
    """

    role: Role = "compute"
    results: tuple[int, ...] = ()
    typed_by: int = 0
    passes: bool = False
    computes: bool = False
    unfused: str = ""


_FLOAT, _INT64, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_UNKNOWN = OpTrait()

TRAITS: dict[str, OpTrait] = {
    **dict.fromkeys(
        (
            "QGemm",
            "QAttention",
            "QEmbedLayerNormalization",
            "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul",
            "DynamicQuantizeLSTM",
        ),
        OpTrait("integer", (_FLOAT,)),
    ),
    **dict.fromkeys(
        ("ConvInteger", "MatMulInteger", "MatMulInteger16"),
        OpTrait("integer", (TensorProto.INT32,)),
    ),
    "QuantizeLinear": OpTrait("boundary", (TensorProto.UINT8,)),
    "DynamicQuantizeLinear": OpTrait("boundary", (TensorProto.UINT8, _FLOAT, TensorProto.UINT8)),
    "DequantizeLinear": OpTrait("boundary", (_FLOAT,)),
    "Cast": OpTrait("boundary"),
    "CastLike": OpTrait("boundary", typed_by=1),
    "ReorderInput": OpTrait("layout"),
    "ReorderOutput": OpTrait("layout"),
    **dict.fromkeys(("Shape", "Size"), OpTrait("shape", (_INT64,))),
    **dict.fromkeys(
        (
            "Reshape",
            "Transpose",
            "Squeeze",
            "Unsqueeze",
            "Slice",
            "Flatten",
            "Concat",
            "Pad",
            "DepthToSpace",
            "SpaceToDepth",
            "GatherND",
            "ScatterND",
            "ScatterElements",
            "ReverseSequence",
            "Compress",
            "Trilu",
            "Dropout",
            "Constant",
            "ConstantOfShape",
            "SplitToSequence",
            "SequenceAt",
            "SequenceConstruct",
            "ConcatFromSequence",
        ),
        OpTrait("move"),
    ),
    **dict.fromkeys(("Gather", "GatherElements", "Split", "Tile", "Identity", "Expand"), OpTrait("move", passes=True)),
    **dict.fromkeys(("Resize", "ReduceMax", "ReduceMin"), OpTrait(passes=True)),
    **dict.fromkeys(("If", "Loop", "Scan"), OpTrait("control")),
    "Where": OpTrait(typed_by=1, computes=True),
    "OneHot": OpTrait("move", typed_by=2),
    "ArgMax": OpTrait(results=(_INT64,), computes=True),
    **dict.fromkeys(("ArgMin", "NonZero", "NonMaxSuppression", "Multinomial"), OpTrait(results=(_INT64,))),
    **dict.fromkeys(("TopK", "MaxPool", "Unique"), OpTrait(results=(0, _INT64))),
    **dict.fromkeys(
        (
            "Equal",
            "Greater",
            "GreaterOrEqual",
            "Less",
            "LessOrEqual",
            "And",
            "Or",
            "Xor",
            "Not",
            "IsNaN",
            "IsInf",
        ),
        OpTrait(results=(_BOOL,)),
    ),
    **dict.fromkeys(
        ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "EmbedLayerNormalization"),
        OpTrait(results=(_FLOAT,)),
    ),
    "FusedConv": OpTrait(unfused="Conv"),
    "NhwcFusedConv": OpTrait(unfused="Conv"),
    "FusedGemm": OpTrait(unfused="Gemm"),
    "FusedMatMul": OpTrait(unfused="MatMul"),
}


_REAL = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})

_LINEAR = frozenset({"Conv", "Gemm", "MatMul"})
_LAYOUT_SUFFIX = "_nchwc"
# What the runtime writes as a convolution that scales channels, between its own float kernels. The name of that begins
# with the one of its output, and ends so.
_SCALES = {"_bn": "BatchNormalization", "_mul": "Mul"}
# Names that the runtime makes up for what it adds.
_TOKEN = re.compile(r"_token_\d+$")
_MADE_UP = re.compile(rf"{_TOKEN.pattern}|^(ReorderInput|ReorderOutput|split_output)$")


def trait(op_type: str) -> OpTrait:
    """Look up an op; every QLinear* computes on integers, and an op that the table does not know computes in float."""
    if op_type.startswith("QLinear"):
        return TRAITS["ConvInteger"]
    return TRAITS.get(op_type, _UNKNOWN)


class ElementTypes:
    """Which tensors of a graph hold real numbers.

    Args:
        index: The graph; nodes in topological order.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._followed: dict[str, int] = {}
        for node in index.graph.node:
            for slot, name in enumerate(node.output):
                if name:
                    self._followed[name] = index.elem_type(name) or self._of_output(node, slot)

    def any_real(self, names: list[str]) -> bool:
        """Whether one of the tensors is real; one of unknown type counts as real, so that none goes uncounted."""
        return any(self._of(name) in _REAL | {TensorProto.UNDEFINED} for name in names if name)

    def _of(self, name: str) -> int:
        return self._followed.get(name) or self._index.elem_type(name)

    def _of_output(self, node: onnx.NodeProto, slot: int) -> int:
        known = trait(node.op_type)
        if known.role == "control":
            return _of_branch(node, slot)
        if node.op_type == "Cast":
            return int(attribute(node, "to", 0))
        if node.op_type in {"Constant", "ConstantOfShape"}:
            value = attribute(node, "value", None)
            return TensorProto.FLOAT if value is None else int(value.data_type)
        fixed = known.results[min(slot, len(known.results) - 1)] if known.results else 0
        if fixed:
            return fixed
        inputs = [*node.input[known.typed_by :], *node.input[: known.typed_by]]
        return next((kind for kind in map(self._of, filter(None, inputs)) if kind), 0)


def _of_branch(node: onnx.NodeProto, slot: int) -> int:
    # the first output of a Loop's body is its condition
    shift = 1 if node.op_type == "Loop" else 0
    for graph in subgraphs(node):
        if slot + shift < len(graph.output):
            return int(graph.output[slot + shift].type.tensor_type.elem_type)
    return 0


class OriginalNames:
    """The names of one model before and after the runtime optimized it.

    Args:
        optimized: The model as the runtime wrote it, or its index.
        original: The model before that; None to make do with the optimized one.
    """

    def __init__(self, optimized: onnx.ModelProto | Index, original: onnx.ModelProto | None) -> None:
        self._after = Index.of(optimized)
        graph = None if original is None else original.graph
        self._before = {} if graph is None else {name: node for node in graph.node for name in node.output if name}
        self._nodes = {node.name for node in self._before.values() if node.name}
        self._tensors = set(self._before) | {value.name for value in (graph.input if graph is not None else ())}

    def node(self, node: onnx.NodeProto) -> str:
        """Name a node; a fused one after its convolution or product, not after its activation."""
        # an integer kernel that takes channels last is a new node, named after the one in whose place it stands
        for name in (node.name, _TOKEN.sub("", node.name) if node.op_type != "Transpose" else ""):
            if name in self._nodes:
                return str(name)
        scaling = self._scaling(node)
        if scaling is not None and scaling.name:
            return str(scaling.name)
        op = trait(node.op_type).unfused or node.op_type
        same = next((self._before[name] for name in self._outputs(node) if name in self._before), None)
        while same is not None and op in _LINEAR and same.op_type != op and same.op_type not in _LINEAR and same.input:
            same = self._before.get(same.input[0])
        if same is not None and same.name:
            return str(same.name)
        named = [node.name.removesuffix(_LAYOUT_SUFFIX), *self._outputs(node)]
        return next((name for name in named if name and not _MADE_UP.search(name)), node.op_type)

    def op_type(self, node: onnx.NodeProto) -> str:
        """Say which op a node is; a convolution that only scales channels is what it was made of."""
        scaling = self._scaling(node)
        return str(node.op_type if scaling is None else scaling.op_type)

    def tensor(self, name: str, made: str = "the output of {}") -> str:
        """Name a tensor; one that the runtime made up after the tensor that it holds, or the node that gives it.

        Args:
            name: In the optimized model.
            made: How a tensor is told of that has the name of its node alone.
        """
        producer = self._after.producer.get(name)
        if producer is None or name in self._tensors:
            return name
        held = [each for each in self._outputs(producer) if each in self._tensors]
        if held:
            return held[0]
        known = not self._tensors and not _MADE_UP.search(name)
        return name if known else made.format(self.node(producer))

    def _scaling(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Find what a convolution that only scales channels was made of."""
        name = node.name.removesuffix(_LAYOUT_SUFFIX)
        if node.op_type != "Conv" or name == node.name or name in self._before:
            return None
        made = ((self._before.get(name.removesuffix(end)), op) for end, op in _SCALES.items() if name.endswith(end))
        return next((found for found, op in made if found is not None and found.op_type == op), None)

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


def optimized_bodies(
    optimized: onnx.ModelProto, original: onnx.ModelProto | None, place: str = ""
) -> Iterator[tuple[str, onnx.ModelProto, onnx.ModelProto | None]]:
    """Iterate over the bodies of a graph: what their nodes' names begin with, optimized, and before that."""
    holders = [node for node in optimized.graph.node if next(subgraphs(node), None) is not None]
    if not holders:
        return
    names = OriginalNames(optimized, original)
    known = {} if original is None else {node.name: node for node in original.graph.node}
    for node in holders:
        name = names.node(node)
        for item in node.attribute:
            if item.type != onnx.AttributeProto.GRAPH:
                continue
            same = [] if name not in known else [each.g for each in known[name].attribute if each.name == item.name]
            before = onnx.ModelProto(graph=same[0]) if same else None
            yield f"{place}{name}/{item.name}/", onnx.ModelProto(graph=item.g), before
