"""The ops that multiply integers, and where each has its operands: one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["Conv", "ConvTranspose", "Gemm", "MatMul", "Recurrent"]


@dataclass(frozen=True)
class Form:
    """Where an op that takes codes has its operands; -1 for what it has not.

    Attributes:
        kind: How it reduces.
        data, weight: Positions of the operands.
        data_scale, data_zero_point, scale, zero_point: Of the data and of the weights.
        bias: Of an s32 bias.
        output_scale: Of the result.
        part: Which weights these are, where an op has several.
        quantizes: The op takes float data and makes codes of it.
        exact: onnxruntime sums its products exactly on every CPU.
        direct: The op takes codes; else it is a float op between DQ and Q.
        onednn: What reads ONNX for oneDNN (OpenVINO) makes an integer layer of it too.
    """

    kind: Kind
    data: int = 0
    weight: int = 1
    data_scale: int = -1
    data_zero_point: int = -1
    scale: int = -1
    zero_point: int = -1
    bias: int = -1
    output_scale: int = -1
    part: str = ""
    quantizes: bool = False
    exact: bool = False
    direct: bool = True
    onednn: bool = False


# ops that take codes
DIRECT: dict[str, tuple[Form, ...]] = {
    "QLinearConv": (Form("Conv", 0, 3, 1, 2, 4, 5, bias=8, output_scale=6, onednn=True),),
    "QLinearMatMul": (Form("MatMul", 0, 3, 1, 2, 4, 5, output_scale=6, onednn=True),),
    "QGemm": (Form("Gemm", 0, 3, 1, 2, 4, 5, bias=6, output_scale=7),),
    "MatMulInteger": (Form("MatMul", data_zero_point=2, zero_point=3),),
    # its kernel widens the weights, and multiplies them by the data from the left
    "ConvInteger": (Form("Conv", data_zero_point=2, zero_point=3, exact=True),),
    "MatMulIntegerToFloat": (Form("MatMul", data_scale=2, scale=3, data_zero_point=4, zero_point=5),),
    "DynamicQuantizeMatMul": (Form("MatMul", scale=2, zero_point=3, quantizes=True),),
    "QAttention": (Form("MatMul", data_scale=3, scale=4, data_zero_point=6, zero_point=7),),
    "DynamicQuantizeLSTM": (
        Form("Recurrent", weight=1, scale=8, zero_point=9, part="W", quantizes=True),
        Form("Recurrent", weight=2, scale=10, zero_point=11, part="R", quantizes=True),
    ),
}

# ops that multiply integers between DequantizeLinear and QuantizeLinear
BETWEEN: dict[str, Form] = {
    "Conv": Form("Conv", bias=2, direct=False, onednn=True),
    "ConvTranspose": Form("ConvTranspose", bias=2, direct=False, onednn=True),
    "Gemm": Form("Gemm", bias=2, direct=False, onednn=True),
    "MatMul": Form("MatMul", direct=False, onednn=True),
}

# ops with weights that always compute in float
FLOAT = frozenset({"LSTM", "GRU", "RNN", "Attention", "MatMulNBits"})
