"""The op table of the fusion audit: what each op of a graph that onnxruntime optimized is for, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnx import TensorProto

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
        twin: The op it is a fused form of.
    """

    role: Role = "compute"
    results: tuple[int, ...] = ()
    typed_by: int = 0
    passes: bool = False
    computes: bool = False
    twin: str = ""


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
    "FusedConv": OpTrait(twin="Conv"),
    "NhwcFusedConv": OpTrait(twin="Conv"),
    "FusedGemm": OpTrait(twin="Gemm"),
    "FusedMatMul": OpTrait(twin="MatMul"),
}


def trait(op_type: str) -> OpTrait:
    """Look up an op; every QLinear* computes on integers, and an op that the table does not know computes in float."""
    if op_type.startswith("QLinear"):
        return TRAITS["ConvInteger"]
    return TRAITS.get(op_type, _UNKNOWN)
