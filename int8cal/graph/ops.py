"""What is known of each op, as data: of the op itself (`OPS`), and what a target's runtime makes of it (`OpTable`).

The Plan reads a target's table and carries it along. Another runtime is another table: onnxruntime's CPU provider
(measured on 1.31), OpenVINO's CPU plugin (measured on 2026.4), TensorRT (as NVIDIA's guide has it).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

STANDARD = ("", "ai.onnx")  # the domain of the standard ops has two names


def opset_of(model: onnx.ModelProto, otherwise: int) -> int:
    """Return the version of the standard ops that a model imports, or what is given where it imports none.

    Where there are several, onnxruntime takes the last.
    """
    return next((each.version for each in reversed(model.opset_import) if each.domain in STANDARD), otherwise)


@dataclass(frozen=True)
class Passage:
    """How an op with one data input lets a factor and a shift per channel pass from its output to its input.

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


@dataclass(frozen=True)
class Op:
    """What an op is, whatever runs it.

    Attributes:
        channel_axis: Of a layer, which multiplies its input 0 by weights in its input 1: where channels are in its
            input and output, 1 (N, C, ...) or -1 (..., C). 0 for any other op.
        step: With constants it is x * factor + shift.
        passage: f(x * factor + shift) as f(x) * factor + shift, None where that does not hold.
        reshapes: Same values in the same order, in another shape.
        normalizes: Inputs 1 and 2 are factor and shift of each channel in axis 1 of its output.
        clips: The range of the Q behind it does the same.
        range: Bounds of its outputs, whatever it reads.
        keeps_range: Its outputs lie in the range of its input 0.
        quantized: It makes, takes or multiplies codes.
    """

    channel_axis: int = 0
    step: bool = False
    passage: Passage | None = None
    reshapes: bool = False
    normalizes: bool = False
    clips: bool = False
    range: tuple[float, float] | None = None
    keeps_range: bool = False
    quantized: bool = False


_UNKNOWN = Op()
_MOVES = Passage(shift=True, scalar=True)
_CONVOLUTION, _PRODUCT = Op(channel_axis=1), Op(channel_axis=-1)
_STEP, _QUANTIZED = Op(step=True), Op(quantized=True)
_NORMALIZATION, _NOT_NEGATIVE, _AROUND_ZERO = Op(normalizes=True), Op(range=(0.0, math.inf)), Op(range=(-1.0, 1.0))
_PROBABILITY = Op(range=(0.0, 1.0))
OPS: dict[str, Op] = {
    "Conv": _CONVOLUTION,
    "ConvTranspose": _CONVOLUTION,
    "Gemm": _PRODUCT,
    "MatMul": _PRODUCT,
    "Add": _STEP,
    "Sub": _STEP,
    "Mul": _STEP,
    "Div": _STEP,
    "Neg": _STEP,
    "BatchNormalization": Op(step=True, normalizes=True),
    "InstanceNormalization": _NORMALIZATION,
    "GroupNormalization": _NORMALIZATION,
    "Relu": Op(passage=Passage(positive=True), clips=True, range=(0.0, math.inf)),
    "Clip": Op(clips=True),
    "LeakyRelu": Op(passage=Passage(positive=True)),
    "PRelu": Op(passage=Passage(positive=True)),
    "Abs": _NOT_NEGATIVE,
    "Exp": _NOT_NEGATIVE,
    "Sqrt": _NOT_NEGATIVE,
    "Sigmoid": _PROBABILITY,
    "HardSigmoid": _PROBABILITY,
    "Softmax": _PROBABILITY,
    "Tanh": _AROUND_ZERO,
    "Sin": _AROUND_ZERO,
    "Cos": _AROUND_ZERO,
    "MaxPool": Op(passage=Passage(positive=True, shift=True, spatial=True), keeps_range=True),
    "GlobalMaxPool": Op(passage=Passage(positive=True, shift=True, spatial=True), keeps_range=True),
    # zeros of the padding may count, so no shift, and no range that does not hold 0
    "AveragePool": Op(passage=Passage(spatial=True)),
    "GlobalAveragePool": Op(passage=Passage(shift=True, spatial=True), keeps_range=True),
    "ReduceMean": Op(passage=_MOVES),
    "Dropout": Op(passage=Passage()),
    "Identity": Op(passage=Passage(shift=True), keeps_range=True),
    "Reshape": Op(passage=_MOVES, reshapes=True, keeps_range=True),
    "Flatten": Op(passage=_MOVES, reshapes=True, keeps_range=True),
    "Squeeze": Op(passage=_MOVES, reshapes=True, keeps_range=True),
    "Unsqueeze": Op(passage=_MOVES, reshapes=True, keeps_range=True),
    "Transpose": Op(passage=_MOVES, keeps_range=True),
    "Slice": Op(passage=_MOVES, keeps_range=True),
    "DepthToSpace": Op(passage=_MOVES, keeps_range=True),
    "SpaceToDepth": Op(keeps_range=True),
    "Expand": Op(keeps_range=True),
    "QuantizeLinear": _QUANTIZED,
    "DequantizeLinear": _QUANTIZED,
    "DynamicQuantizeLinear": _QUANTIZED,
    "DynamicQuantizeMatMul": _QUANTIZED,
    "DynamicQuantizeLSTM": _QUANTIZED,
    "ConvInteger": _QUANTIZED,
    "MatMulInteger": _QUANTIZED,
    "MatMulIntegerToFloat": _QUANTIZED,
    "MatMulNBits": _QUANTIZED,
    "QGemm": _QUANTIZED,
    "QAttention": _QUANTIZED,
}


def is_standard(node: onnx.NodeProto) -> bool:
    """Whether a node's op is one of the ONNX standard, which `OPS` describes."""
    return node.domain in STANDARD


def op_of(node: onnx.NodeProto) -> Op:
    """Look up what a node's op is; one of another domain, or that the table does not know, is nothing in particular."""
    return OPS.get(node.op_type, _UNKNOWN) if is_standard(node) else _UNKNOWN


def handles_codes(node: onnx.NodeProto) -> bool:
    """Whether a node of any domain makes, takes or multiplies codes."""
    return OPS.get(node.op_type, _UNKNOWN).quantized or node.op_type.startswith("QLinear")


RuleKind = Literal["linear", "compute", "pass", "residual"]


@dataclass(frozen=True)
class FloatLimits:
    """Up to where a convolution is faster in float, with what stands around it, see graph.float_convolutions.

    Attributes:
        groups: Channels of a group, one included; of several, groups with one tap or an odd number, which gain least by
            being joined, or are not.
        products: Products per value (channels times taps).
        pair: The same of one beside one with groups of so few channels.
        image: Channels and taps of one that reads an image.
        gray: Outputs of one that reads an image of one channel, and outputs per tap.
        single: Outputs and taps of one of one channel between float ops.
        space: Channels times outputs of one in three dimensions, and how many count as outputs beside them.
    """

    groups: int = 8
    products: int = 48
    pair: int = 64
    image: tuple[int, int] = (3, 64)
    gray: tuple[int, int] = (64, 4)
    single: tuple[int, int] = (128, 512)
    space: tuple[int, int] = (400, 15)


@dataclass(frozen=True)
class OpRule:
    """How one op runs on integers.

    Attributes:
        kind: "linear" multiplies by constant weights and decides where integer regions are; "compute" has an integer
            kernel with its own output scale; "pass" moves values, so input and output share one scale; "residual" joins
            the kernel of the layer in front of it, which then reads the other operand as codes.
        inputs: Positions of the data inputs; None for all (variadic).
        float_output: The integer kernel can write float (MatMulIntegerToFloat, QGemm), so no Q is needed behind it, or
            takes what follows into itself, up to the next Q.
        shares_inputs: Inputs that nothing else reads share the output's scale, which saves a second rounding.
        for_codes: It stays float where nothing on integers reads it: that takes no longer, and rounds less.
        no_kernel: The runtime computes it in float, whatever its operands: Q and DQ would only cost, so it has none.
        grouped: A convolution with groups has the integer kernel too.
        in_float: Up to where a convolution is faster in float; None where the runtime has no such ones.
        joined_channels: Groups of fewer channels are joined up to so many, see quantization.wide_groups; 0 for never.
        padded_taps: A convolution of three channels and at most so many taps reads a fourth one of zeros, see
            quantization.image_channels.
        channel_block: Channels that the kernel of a depthwise convolution takes at once, see quantization.whole_blocks;
            0 where it does not matter.
        per_channel: It runs as a depthwise convolution where it is a factor and a shift per channel, see
            quantization.depthwise. It asks for codes of a sum alone: of other tensors, channels have ranges of their
            own before it, and it joins where they are quantized anyway.
        mode: The value of the attribute "mode" with which alone there is an integer kernel, which is its default; ""
            for any.
        behind: Of "residual": the layers whose kernel it joins; none for any.
        delays: Codes pass through it as well as real values, and its input is quantized where only it reads that, so
            that the kernel in front writes codes.
        splits: All its outputs hold values of its input, and take codes together or not at all.
        weight, bias: Positions of the constant weight and of the bias (linear ops).
    """

    kind: RuleKind
    inputs: tuple[int, ...] | None = (0,)
    float_output: bool = False
    shares_inputs: bool = False
    for_codes: bool = False
    no_kernel: bool = False
    grouped: bool = True
    in_float: FloatLimits | None = None
    joined_channels: int = 0
    padded_taps: int = 0
    channel_block: int = 0
    per_channel: bool = False
    mode: str = ""
    behind: tuple[str, ...] = ()
    delays: bool = False
    splits: bool = False
    weight: int = 1
    bias: int | None = None


def data_slots(node: onnx.NodeProto, rule: OpRule) -> tuple[int, ...]:
    """Return the positions of a node's data inputs under its rule."""
    if rule.inputs is None:
        return tuple(slot for slot, name in enumerate(node.input) if name)
    return tuple(slot for slot in rule.inputs if slot < len(node.input) and node.input[slot])


ONNXRUNTIME_CPU: dict[str, OpRule] = {
    "Conv": OpRule("linear", bias=2, in_float=FloatLimits(), joined_channels=32, padded_taps=25, channel_block=16),
    "ConvTranspose": OpRule("linear", bias=2, no_kernel=True),
    "Gemm": OpRule("linear", bias=2, float_output=True),
    "MatMul": OpRule("linear", float_output=True),
    "Add": OpRule("compute", inputs=(0, 1)),
    "Mul": OpRule("compute", inputs=(0, 1)),
    "Concat": OpRule("compute", inputs=None, shares_inputs=True),
    "Sigmoid": OpRule("compute"),
    "HardSigmoid": OpRule("compute", for_codes=True),  # as an Add, see quantization.emit
    "LeakyRelu": OpRule("compute"),
    "Softmax": OpRule("compute"),
    "AveragePool": OpRule("compute"),
    "GlobalAveragePool": OpRule("compute"),
    "BatchNormalization": OpRule("compute", per_channel=True),
    "MaxPool": OpRule("pass"),
    "Reshape": OpRule("pass"),
    "Flatten": OpRule("pass"),
    "Transpose": OpRule("pass"),
    "Slice": OpRule("pass"),
    "Squeeze": OpRule("pass"),
    "Unsqueeze": OpRule("pass"),
    "DepthToSpace": OpRule("pass"),
    "Split": OpRule("pass", splits=True),
    "Resize": OpRule("pass", mode="nearest"),
    "Pad": OpRule("pass", mode="constant"),  # with zeros; of codes, see quantization.on_codes
}


@dataclass(frozen=True)
class OpTable:
    """How a runtime takes a model.

    Attributes:
        rules: By op.
        recurrent: Weights of LSTM, GRU and RNN become int8, one way or another (see graph.layers).
        symmetric: Activations are int8 with zero point 0, nothing else.
        float_bias: A bias stays float: there is no DequantizeLinear of int32.
        embeddings: Gather, Cast and Mul take int8 constants (see graph.embeddings).
        looks_behind: The runtime takes what reads a product into it before it looks for an integer kernel, see
            quantization.products.
    """

    rules: Mapping[str, OpRule]
    recurrent: bool = True
    symmetric: bool = False
    float_bias: bool = False
    embeddings: bool = True
    looks_behind: bool = False


_ONNXRUNTIME = OpTable(ONNXRUNTIME_CPU, looks_behind=True)
# Layers take the activation and the Q behind them into their kernels, whatever the activation: a Q right behind the
# layer would only round once more.
_INPUTS_ONLY: dict[str, OpRule] = {
    op: replace(
        rule,
        float_output=True,
        no_kernel=False,
        in_float=None,
        joined_channels=0,
        padded_taps=0,
        channel_block=0,
    )
    for op, rule in ONNXRUNTIME_CPU.items()
    if rule.kind == "linear"
}
_TENSORRT: dict[str, OpRule] = _INPUTS_ONLY | {"Add": OpRule("residual", inputs=(0, 1), float_output=True)}
# Behind a Conv an Add reads codes, a fourth of float's bytes; the kernel of a MatMul takes no Add of two tensors. A
# MaxPool of codes is exact.
_OPENVINO: dict[str, OpRule] = _INPUTS_ONLY | {
    "ConvTranspose": replace(_INPUTS_ONLY["ConvTranspose"], grouped=False),
    "Add": replace(_TENSORRT["Add"], behind=("Conv",)),
    "MaxPool": OpRule("pass", delays=True),
}
_BY_TARGET: dict[str, OpTable] = {
    # its LSTM takes constants only, and int8 codes behind Cast and Mul are none to it
    "openvino": OpTable(_OPENVINO, recurrent=False),
    "tensorrt": OpTable(_TENSORRT, recurrent=False, symmetric=True, float_bias=True, embeddings=False),
}


def op_table(target: str) -> OpTable:
    """Return the op table of a target; onnxruntime's where it has none of its own."""
    return _BY_TARGET.get(target, _ONNXRUNTIME)
