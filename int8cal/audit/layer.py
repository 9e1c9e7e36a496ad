"""A node that multiplies by weights, whatever form a tool gave it; the table of the ops that do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from int8cal.errors import ModelError
from int8cal.graph.index import attribute
from int8cal.graph.layers import reduction_of
from int8cal.numerics.pairs import Rows

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.constants import Codes, Constants
    from int8cal.numerics import Array
    from int8cal.numerics.pairs import Reduction

ProductKind = Literal["Conv", "ConvTranspose", "Gemm", "MatMul", "Recurrent"]
KernelLibrary = Literal["onnxruntime", "onednn"]
# between a layer and the Q that takes its result; an Add of two layers' results too: steps are those of the Q
_GLUE = frozenset({"Relu", "LeakyRelu", "Clip", "Add", "Reshape", "Transpose"})
_GLUE_LENGTH = 4


@dataclass(frozen=True)
class ProductForm:
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

    kind: ProductKind
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
DIRECT: dict[str, tuple[ProductForm, ...]] = {
    "QLinearConv": (ProductForm("Conv", 0, 3, 1, 2, 4, 5, bias=8, output_scale=6, onednn=True),),
    "QLinearMatMul": (ProductForm("MatMul", 0, 3, 1, 2, 4, 5, output_scale=6, onednn=True),),
    "QGemm": (ProductForm("Gemm", 0, 3, 1, 2, 4, 5, bias=6, output_scale=7),),
    "MatMulInteger": (ProductForm("MatMul", data_zero_point=2, zero_point=3),),
    # its kernel widens the weights, and multiplies them by the data from the left
    "ConvInteger": (ProductForm("Conv", data_zero_point=2, zero_point=3, exact=True),),
    "MatMulIntegerToFloat": (ProductForm("MatMul", data_scale=2, scale=3, data_zero_point=4, zero_point=5),),
    "DynamicQuantizeMatMul": (ProductForm("MatMul", scale=2, zero_point=3, quantizes=True),),
    "QAttention": (ProductForm("MatMul", data_scale=3, scale=4, data_zero_point=6, zero_point=7),),
    "DynamicQuantizeLSTM": (
        ProductForm("Recurrent", weight=1, scale=8, zero_point=9, part="W", quantizes=True),
        ProductForm("Recurrent", weight=2, scale=10, zero_point=11, part="R", quantizes=True),
    ),
}

# ops that multiply integers between DequantizeLinear and QuantizeLinear
BETWEEN: dict[str, ProductForm] = {
    "Conv": ProductForm("Conv", bias=2, direct=False, onednn=True),
    "ConvTranspose": ProductForm("ConvTranspose", bias=2, direct=False, onednn=True),
    "Gemm": ProductForm("Gemm", bias=2, direct=False, onednn=True),
    "MatMul": ProductForm("MatMul", direct=False, onednn=True),
}

# ops with weights that always compute in float
FLOAT = frozenset({"LSTM", "GRU", "RNN", "Attention", "MatMulNBits"})


@dataclass(frozen=True)
class OuterScale:
    """A MatMulInteger's weight scale: input `slot` of the Mul `node` behind it; one, or one per column."""

    node: onnx.NodeProto
    slot: int
    value: Array


@dataclass(frozen=True)
class Operand:
    """What a layer multiplies by, where it is no constant.

    Attributes:
        kind: Type of its codes, "uint8" or "int8"; "" where it is float.
        codes, scale, zero_point: Tensors; "" where there are none. Codes are floats where the op itself quantizes.
        path: Nodes between the DequantizeLinear of the codes and the layer that only change the layout, in order.
    """

    kind: str = ""
    codes: str = ""
    scale: str = ""
    zero_point: str = ""
    path: tuple[onnx.NodeProto, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Linear:
    """A node that multiplies by weights; one with two weight tensors gives two.

    Attributes:
        node: Its name, or that of its first output.
        op_type: Its op.
        form: Where its operands are.
        proto: The node.
        constants: Of its graph.
        inside: It is in the graph of an If, Loop or Scan.
        weight: Constant codes; None where the second operand is an activation, or float.
        data: The first operand.
        second: The second one, where it is an activation.
        runtimes: Those that add products of neighbours in s16, where the CPU has no VNNI.
        outer: Where a scale is that is not the op's own.
        onnxruntime: Whether onnxruntime multiplies integers here.
        why: Why it is float, or why its sums are exact.
    """

    node: str
    op_type: str
    form: ProductForm
    proto: onnx.NodeProto = field(repr=False)
    constants: Constants = field(repr=False)
    inside: bool
    weight: Codes | None = None
    data: Operand = field(default_factory=Operand)
    second: Operand | None = None
    runtimes: tuple[KernelLibrary, ...] = ()
    outer: OuterScale | None = field(default=None, repr=False)
    onnxruntime: bool = False
    why: str = ""

    @property
    def name(self) -> str:
        """The node's name, and which of its weights."""
        return f"{self.node} ({self.form.part})" if self.form.part else self.node

    @property
    def integer(self) -> bool:
        """Whether some runtime multiplies integers here."""
        return bool(self.data.kind) and (self.weight is not None or self.second is not None)

    @property
    def group(self) -> int:
        """Groups of a convolution."""
        return int(attribute(self.proto, "group", 1))

    @property
    def reduction(self) -> Reduction:
        """How the weights are stored; for matrices of two axes and convolutions."""
        axis = 0 if attribute(self.proto, "transB", 0) else 1
        return reduction_of(self.form.kind, axis, self.group)

    def rows(self) -> Rows:
        """Lay out the codes in the order of reduction: (scales, outputs per scale, K).

        Raises:
            ModelError: They have a rank that the op does not take.
        """
        codes = self._codes()
        convolution = self.form.kind in {"Conv", "ConvTranspose"}
        if codes.ndim < (3 if convolution else 1) or (self.form.kind == "Gemm" and codes.ndim != 2):
            raise self._misshapen(codes, "too few axes" if convolution else "not two axes")
        if self.form.kind == "ConvTranspose" and codes.shape[0] % max(self.group, 1):
            raise self._misshapen(codes, f"channels that are not divisible into {self.group} groups")
        if self._is_stack(codes):
            return _stack_rows(codes, directions=self.form.kind == "Recurrent")
        return self.reduction.rows(codes)

    def restore(self, values: Array) -> Array:
        """Turn rows back into weights as the op reads them: the inverse of `rows`."""
        codes = self._codes()
        if not self._is_stack(codes):
            return self.reduction.restore(values, codes.shape)
        if codes.ndim == 1:
            return values.reshape(codes.shape)
        if self.form.kind == "Recurrent":
            count, length, outputs = codes.shape
            return np.ascontiguousarray(values.reshape(count, outputs, length).transpose(0, 2, 1))
        moved = values.reshape(codes.shape[-1], *codes.shape[:-2], codes.shape[-2])
        return np.ascontiguousarray(np.moveaxis(moved, (0, -1), (-1, -2)))

    def _is_stack(self, codes: Array) -> bool:
        return self.form.kind in {"MatMul", "Recurrent"} and codes.ndim != 2

    def _misshapen(self, codes: Array, what: str) -> ModelError:
        return ModelError(
            f"its weight {self.weight and self.weight.name!r} has shape {codes.shape}: {what} for {self.op_type}",
            where=f"node {self.node!r}",
            do="check the model with onnx.checker.check_model",
        )

    def output_scale(self) -> float | None:
        """Return the scale of the codes that the result becomes, through a Relu, Clip or constant Add; None if none."""
        if self.form.output_scale >= 0:
            return _scalar(self.constants.value(input_of(self.proto, self.form.output_scale)))
        name = self.proto.output[0]
        for _ in range(_GLUE_LENGTH):
            uses = self.constants.index.uses.get(name, [])
            for use in uses:
                if use.node.op_type == "QuantizeLinear" and use.slot == 0:
                    return _scalar(self.constants.value(use.node.input[1]))
            if len(uses) != 1 or uses[0].node.op_type not in _GLUE:
                return None
            name = uses[0].node.output[0]
        return None

    def _codes(self) -> Array:
        if self.weight is None or (self.form.kind == "Recurrent" and self.weight.values.ndim != 3):
            raise ModelError("has no constant int8 weights", where=f"node {self.node!r}", do="audit another layer")
        return self.weight.values


def _stack_rows(codes: Array, *, directions: bool) -> Rows:
    """Lay out a vector (K,), matrices (..., K, N), or weights of directions (D, K, N), each with its own scales."""
    if codes.ndim == 1:
        return Rows(codes.reshape(1, 1, -1), codes.size)
    length = codes.shape[-2]
    if directions:
        return Rows(np.ascontiguousarray(codes.transpose(0, 2, 1)).reshape(-1, 1, length), length)
    moved = np.ascontiguousarray(np.moveaxis(codes, (-1, -2), (0, -1)))
    return Rows(moved.reshape(codes.shape[-1], -1, length), length)


def input_of(node: onnx.NodeProto, slot: int) -> str:
    """Name an input; "" where the node has none at that position."""
    return str(node.input[slot]) if 0 <= slot < len(node.input) else ""


def _scalar(value: Any) -> float | None:
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None
