"""The op table: what onnxruntime's CPU provider makes of each op between Q and DQ (measured on 1.31), as data.

The Plan reads this table and nothing else knows op names. Another target is another table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["linear", "compute", "pass"]


@dataclass(frozen=True)
class OpRule:
    """How one op runs on integers.

    Attributes:
        kind: "linear" multiplies by constant weights and decides where integer regions are; "compute" has an integer
            kernel with its own output scale; "pass" moves values, so input and output share one scale.
        inputs: Positions of the data inputs; None for all (variadic).
        float_output: The integer kernel can write float (MatMulIntegerToFloat, QGemm), so no Q is needed behind it.
        shares_inputs: Inputs that nothing else reads share the output's scale, which saves a second rounding.
        no_kernel: Weights are stored as int8 and the input is quantized, but the runtime computes in float.
        weight, bias: Positions of the constant weight and of the bias (linear ops).
    """

    kind: Kind
    inputs: tuple[int, ...] | None = (0,)
    float_output: bool = False
    shares_inputs: bool = False
    no_kernel: bool = False
    weight: int = 1
    bias: int | None = None


ONNXRUNTIME_CPU: dict[str, OpRule] = {
    "Conv": OpRule("linear", bias=2),
    "ConvTranspose": OpRule("linear", bias=2, no_kernel=True, float_output=True),
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

# Activations that the Q behind them replaces: its range clips what they clip.
CLIPPING = frozenset({"Relu", "Clip"})
