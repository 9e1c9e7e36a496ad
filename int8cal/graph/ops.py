"""The op tables: what a target's runtime makes of each op between Q and DQ, as data.

The Plan reads a table and carries it along; nothing else knows op names. Another runtime is another table:
onnxruntime's CPU provider (measured on 1.31), OpenVINO's CPU plugin (measured on 2026.4), TensorRT (as NVIDIA's guide
has it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["linear", "compute", "pass", "residual"]


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
        no_kernel: The runtime computes it in float, whatever its operands: Q and DQ would only cost, so it has none.
        grouped: A convolution with groups has the integer kernel too.
        weight, bias: Positions of the constant weight and of the bias (linear ops).
    """

    kind: Kind
    inputs: tuple[int, ...] | None = (0,)
    float_output: bool = False
    shares_inputs: bool = False
    no_kernel: bool = False
    grouped: bool = True
    weight: int = 1
    bias: int | None = None


ONNXRUNTIME_CPU: dict[str, OpRule] = {
    "Conv": OpRule("linear", bias=2),
    "ConvTranspose": OpRule("linear", bias=2, no_kernel=True),
    "Gemm": OpRule("linear", bias=2, float_output=True),
    "MatMul": OpRule("linear", float_output=True),
    "Add": OpRule("compute", inputs=(0, 1)),
    "Mul": OpRule("compute", inputs=(0, 1)),
    "Concat": OpRule("compute", inputs=None, shares_inputs=True),
    "Sigmoid": OpRule("compute"),
    "LeakyRelu": OpRule("compute"),
    "Softmax": OpRule("compute"),
    "AveragePool": OpRule("compute"),
    "GlobalAveragePool": OpRule("compute"),
    "MaxPool": OpRule("pass"),
    "Reshape": OpRule("pass"),
    "Flatten": OpRule("pass"),
    "Transpose": OpRule("pass"),
    "Slice": OpRule("pass"),
    "Squeeze": OpRule("pass"),
    "Unsqueeze": OpRule("pass"),
    "DepthToSpace": OpRule("pass"),
}


@dataclass(frozen=True)
class OpTable:
    """How a runtime takes a model.

    Attributes:
        rules: By op.
        recurrent: Weights of LSTM, GRU and RNN become int8, one way or another (see graph.recurrent).
        symmetric: Activations are int8 with zero point 0, nothing else.
        float_bias: A bias stays float: there is no DequantizeLinear of int32.
        looks_behind: The runtime takes what reads a product into it before it looks for an integer kernel, see
            quantization.product_ends.
    """

    rules: Mapping[str, OpRule]
    recurrent: bool = True
    symmetric: bool = False
    float_bias: bool = False
    looks_behind: bool = False


_ONNXRUNTIME = OpTable(ONNXRUNTIME_CPU, looks_behind=True)
# Layers take the activation and the Q behind them into their kernels, whatever the activation: a Q right behind the
# layer would only round once more.
_INPUTS_ONLY: dict[str, OpRule] = {
    op: replace(rule, float_output=True, no_kernel=False)
    for op, rule in ONNXRUNTIME_CPU.items()
    if rule.kind == "linear"
}
_TENSORRT: dict[str, OpRule] = _INPUTS_ONLY | {"Add": OpRule("residual", inputs=(0, 1), float_output=True)}
_BY_TARGET: dict[str, OpTable] = {
    # its LSTM takes constants only, and int8 codes behind Cast and Mul are none to it
    "openvino": OpTable(
        _INPUTS_ONLY | {"ConvTranspose": replace(_INPUTS_ONLY["ConvTranspose"], grouped=False)}, recurrent=False
    ),
    "tensorrt": OpTable(_TENSORRT, recurrent=False, symmetric=True, float_bias=True),
}


def op_table(target: str) -> OpTable:
    """Return the op table of a target; onnxruntime's where it has none of its own."""
    return _BY_TARGET.get(target, _ONNXRUNTIME)


# Activations that the Q behind them replaces: its range clips what they clip.
CLIPPING = frozenset({"Relu", "Clip"})
