"""Layers: nodes with constant weights that can become int8, or why they cannot.

A `Layer` gets Q and DQ around it, unless its `LayerForm` says that its input has no calibrated range. A `Recurrent`
node (LSTM, GRU, RNN) has int8 weights in one of two forms, which the target decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx

from int8cal.graph.index import attribute
from int8cal.graph.ops import OPS, is_standard, op_of
from int8cal.numerics.gram import Window
from int8cal.numerics.pairs import Reduction

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from int8cal.graph.index import Index
    from int8cal.graph.ops import OpRule
    from int8cal.job import TargetName

# Why a layer stays float that has weights like any other.
NO_KERNEL = "the runtime has no integer kernel for it"
BESIDE_FLOATS = "beside floats, where its float kernel is faster"
OF_FEW_CHANNELS = "in three dimensions, where its float kernel is faster for so few channels"
SLOWER = frozenset({NO_KERNEL, BESIDE_FLOATS, OF_FEW_CHANNELS})  # int8 would only cost
# How far below the others a masked score is, at least: exp of it is 0 in float32. Scores have no unit of their own.
MASKED = 104.0
STEEPEST = 1024.0  # line; the terms of an integer sum have to fit s32

# kernel: products of integers. weights: int8 in the file, which the runtime turns into float32 when it loads the model.
# recurrence: so is R alone, and W stays float.
KernelForm = Literal["kernel", "weights", "recurrence"]

# How a layer is quantized whose input has no calibrated range. dynamic: codes from the range of the values at hand,
# products of integers. weights: int8 in the file, which the runtime turns into float32 when it loads the model.
LayerForm = Literal["dynamic", "weights"]
# Ops that have a kernel for codes made at run time.
DYNAMIC_OPS = frozenset({"MatMul", "Gemm"})

# Gates of each op: rows of W and R per element of the hidden state.
GATES: dict[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}

# The op of com.microsoft whose kernel multiplies integers. Its rows take their range from the values at hand.
KERNELS: dict[str, str] = {"LSTM": "DynamicQuantizeLSTM"}
_KERNEL_ATTRIBUTES = frozenset(
    {"activations", "activation_alpha", "activation_beta", "clip", "direction", "hidden_size", "input_forget", "layout"}
)

# Targets whose runtime has these kernels, and those of codes made at run time. On others the model stays free of
# com.microsoft.
KERNEL_TARGETS: frozenset[TargetName] = frozenset({"portable", "x86-avx2", "x86-vnni", "arm64"})


@dataclass(frozen=True)
class Layer:
    """A node with constant weights that becomes int8.

    Attributes:
        weight, bias: Initializer names; bias None when absent.
        axis: Output-channel axis of the weight; None for one scale (weights that are not 2-D under MatMul).
        input: The quantized data input.
        output: The tensor behind the node and its fused activation.
        channels: Number of input channels.
        group: Groups of a convolution.
        bias_add: The Add behind a MatMul whose constant is the bias; the two become one Gemm. "" where there is none.
        dims: Of the weight.
        strides: Of a convolution; () where they are 1.
        form: None where its input has a calibrated range, and Q and DQ.
    """

    node: str
    op_type: str
    weight: str
    bias: str | None
    axis: int | None
    input: str
    output: str
    channels: int
    group: int = 1
    bias_add: str = ""
    dims: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    form: LayerForm | None = None

    @property
    def reduction(self) -> Reduction:
        """Over what it sums."""
        return reduction_of(self.op_type, self.axis, self.group)

    @property
    def channel_axis(self) -> int:
        """Axis of the channels in its input and output: 1 (N, C, ...) or -1 (..., C)."""
        return OPS[self.op_type].channel_axis

    @property
    def depthwise(self) -> bool:
        """Whether it is a Conv of which each channel is a group."""
        return self.op_type == "Conv" and self.group == self.channels > 1


def layer_of(index: Index, node: onnx.NodeProto, rules: Mapping[str, OpRule], allowed: Collection[str]) -> Layer | str:
    """Describe a layer, or say why it stays float.

    Args:
        index: The graph's index.
        node: Its op's rule is "linear".
        rules: Of the target.
        allowed: Names of the nodes that may be quantized; a bias behind a MatMul has to be among them.
    """
    rule = rules[node.op_type]
    reason = _why_float(index, node, rule, rules)
    if reason:
        return reason
    bias = node.input[rule.bias] if rule.bias is not None and len(node.input) > rule.bias else ""
    add = _bias_add(index, node, allowed)
    return _layer(index, node, rule, bias, add, activated(index, node if add is None else add))


def unranged_layer_of(
    index: Index, node: onnx.NodeProto, rule: OpRule, form: LayerForm, allowed: Collection[str]
) -> Layer | str:
    """Describe a layer whose input gets no calibrated range, or say why its weights stay float.

    Its bias stays float, and so does whatever follows.

    Args:
        index: The graph's index.
        node: Its op's rule is "linear".
        rule: Its op's.
        form: How it is quantized.
        allowed: As for `layer_of`.
    """
    reason = _why_float_weights(index, node, rule) or _why_not_dynamic(index, node, rule, form)
    if reason:
        return reason
    bias = node.input[rule.bias] if rule.bias is not None and len(node.input) > rule.bias else ""
    if not (bias and index.is_float_constant(bias)) or (node.op_type == "Gemm" and not is_bias_row(index, node)):
        bias = ""
    add = _bias_add(index, node, allowed)
    output = str(node.output[0]) if add is None else str(add.output[0])
    return replace(_layer(index, node, rule, bias, add, output), form=form)


def _layer(
    index: Index, node: onnx.NodeProto, rule: OpRule, bias: str, add: onnx.NodeProto | None, output: str
) -> Layer:
    """Describe a layer; add: what holds its bias, where that is a node of its own, which then counts."""
    weight = index.initializers[node.input[rule.weight]]
    dims = tuple(weight.dims)
    axis, channels, group = _weight_layout(node, dims)
    if add is not None:
        bias = next(str(name) for name in add.input if name != node.output[0])
    return Layer(
        node.name,
        node.op_type,
        weight.name,
        bias or None,
        axis,
        node.input[0],
        output,
        channels,
        group,
        "" if add is None else add.name,
        dims,
        tuple(attribute(node, "strides", ())),
    )


def _why_not_dynamic(index: Index, node: onnx.NodeProto, rule: OpRule, form: LayerForm) -> str:
    if form != "dynamic":
        return ""
    if node.op_type not in DYNAMIC_OPS or len(index.initializers[node.input[rule.weight]].dims) != 2:
        return "only products with one matrix of weights have a kernel for codes made at run time"
    if not is_plain(node):
        return "its alpha, beta or transA is not the usual one"
    return ""


def _why_float_weights(index: Index, node: onnx.NodeProto, rule: OpRule) -> str:
    """Say why a node has no weights that could be int8."""
    weight = node.input[rule.weight]
    if not index.is_constant(weight):
        if index.is_constant(node.input[0]):
            return "its weights are the left operand, and it is too small to gain from being turned round"
        return "its weights are not float32" if is_cast_constant(index, weight) else "its weights are not constant"
    if index.is_constant(node.input[0]):
        return "both operands are constant"
    if index.elem_type(weight) != onnx.TensorProto.FLOAT:
        return "its weights are not float32"
    if 0 in index.initializers[weight].dims:
        return "its weights are empty"
    if len(index.initializers[weight].dims) < 2:
        return "its weights are a vector"
    return ""


def _why_float(index: Index, node: onnx.NodeProto, rule: OpRule, rules: Mapping[str, OpRule]) -> str:
    if rule.no_kernel or (not rule.grouped and attribute(node, "group", 1) > 1):
        return NO_KERNEL
    reason = _why_float_weights(index, node, rule)
    if reason:
        return reason
    if rule.bias is not None and len(node.input) > rule.bias and node.input[rule.bias]:
        bias = node.input[rule.bias]
        if not index.is_constant(bias):
            return "its bias is not constant"
        values = index.constant(bias)
        with np.errstate(invalid="ignore"):  # of a NaN that signals
            real = values.astype(np.float64)
        if np.isinf(real).any():
            return "its bias holds infinity"
        masks = bool(real.size) and np.ptp(real) >= MASKED
        if not rule.float_output and masks and are_scores(index, rules, node.output[0]):
            return "its bias masks scores that Softmax reads"
        if node.op_type == "Gemm" and not is_bias_row(index, node):
            return "its bias is not one value per output channel"
    if node.op_type == "Gemm" and attribute(node, "transA", 0):
        return "its input is transposed (transA), and it is too small to gain from a Transpose in front"
    return ""


def are_scores(index: Index, rules: Mapping[str, OpRule], tensor: str) -> bool:
    """Whether a Softmax reads a tensor, or what only moves its values.

    Args:
        index: Of the model.
        rules: Say which ops only move values.
        tensor: Its name.
    """
    waiting = [tensor]
    while waiting:
        for use in index.uses.get(waiting.pop(), ()):
            if use.node.op_type in ("Softmax", "LogSoftmax"):
                return True
            rule = rules.get(use.node.op_type)
            if rule is not None and rule.kind == "pass" and use.slot == 0:
                waiting.extend(use.node.output)
    return False


def is_cast_constant(index: Index, tensor: str) -> bool:
    """Whether a tensor is a constant of another type behind a Cast."""
    producer = index.producer.get(tensor)
    return producer is not None and producer.op_type == "Cast" and index.is_constant(producer.input[0])


def _bias_add(index: Index, node: onnx.NodeProto, allowed: Collection[str]) -> onnx.NodeProto | None:
    """Find the Add that only adds a bias to a MatMul with constant weights: together they are one product with a bias.

    Must not find one that the user left out, that adds anything but one finite constant per output channel, or where
    the product itself is read by another node or is a graph output. The rank of its input must be known, because it is
    computed on rows.
    """
    weight = index.initializers.get(node.input[1])
    product = str(node.output[0])
    add = index.only_reader(product)
    if node.op_type != "MatMul" or weight is None or len(weight.dims) != 2:
        return None
    if add is None or add.op_type != "Add" or not is_standard(add) or add.name not in allowed:
        return None
    bias = next((str(name) for name in add.input if name != product), "")
    if not index.is_float_constant(bias):
        return None
    values = index.constant(bias)
    if values.shape != (weight.dims[1],) or not np.isfinite(values).all() or not index.rank(node.input[0]):
        return None
    return add


def activated(index: Index, node: onnx.NodeProto) -> str:
    """Return the tensor whose Q ends a node's kernel: behind a Relu or Clip that alone reads the output."""
    output = str(node.output[0])
    reader = index.only_reader(output)
    if reader is None or not op_of(reader).clips or reader.input[0] != output:
        return output
    if not all(index.is_constant(name) for name in reader.input[1:] if name):
        return output
    # Q replaces the Clip only where its range ends exactly at the bound, and zero is the only bound that rounding
    # never moves; behind any other Clip the runtime would keep the whole layer in float
    low, _ = clip_bounds(index, reader)
    return str(reader.output[0]) if low == 0.0 else output


def clip_bounds(index: Index, node: onnx.NodeProto) -> tuple[float, float]:
    """Return the bounds of a Relu or a Clip (opset 6 attributes or inputs); NaN for one that the graph computes."""
    if node.op_type == "Relu":
        return 0.0, float("inf")
    low, high = attribute(node, "min", -np.inf), attribute(node, "max", np.inf)
    if len(node.input) > 1 and node.input[1]:
        low = _scalar(index, node.input[1])
    if len(node.input) > 2 and node.input[2]:
        high = _scalar(index, node.input[2])
    return float(low), float(high)


def line_of(node: onnx.NodeProto) -> tuple[float, float] | None:
    """Return alpha and beta of a HardSigmoid that is a line between 0 and 1; None for one that is as good as a step."""
    alpha, beta = float(attribute(node, "alpha", 0.2)), float(attribute(node, "beta", 0.5))
    return (alpha, beta) if 1.0 / STEEPEST <= alpha <= STEEPEST and 0.0 < beta <= STEEPEST else None


def _scalar(index: Index, name: str) -> float:
    return float(index.constant(name).item()) if index.is_constant(name) else float("nan")


def _weight_layout(node: onnx.NodeProto, dims: tuple[int, ...]) -> tuple[int | None, int, int]:
    """Output-channel axis of the weight, number of input channels, groups."""
    group = int(attribute(node, "group", 1))
    if node.op_type == "Conv":
        return 0, dims[1] * group, group
    if node.op_type == "ConvTranspose":
        return 1, dims[0], group
    if node.op_type == "Gemm":
        transposed = attribute(node, "transB", 0)
        return (0, dims[1], 1) if transposed else (1, dims[0], 1)
    return (len(dims) - 1 if len(dims) == 2 else None), dims[-2], 1


def is_plain(node: onnx.NodeProto) -> bool:
    """Whether a node is a MatMul, or a Gemm that is a MatMul and an Add."""
    usual = (("alpha", 1.0), ("beta", 1.0), ("transA", 0))
    return all(attribute(node, name, value) == value for name, value in usual)


def is_bias_row(index: Index, gemm: onnx.NodeProto) -> bool:
    """Whether the constant that a Gemm adds is one value, or one per column of its constant weights."""
    bias = index.constant(gemm.input[2])
    width = index.initializers[gemm.input[1]].dims[0 if attribute(gemm, "transB", 0) else 1]
    return bias.size in (1, width) and (bias.ndim <= 1 or bias.shape[-1] == bias.size)


def reduction_of(op_type: str, axis: int | None, group: int) -> Reduction:
    """Tell over what a layer sums: where output and input channels of its weight are.

    Args:
        op_type: "Conv" (M, C / group, kernel), "ConvTranspose" (C, M / group, kernel), "Gemm" or "MatMul".
        axis: Output-channel axis; None for a stack of matrices (..., K, N) under MatMul.
        group: Of a convolution.
    """
    if op_type == "Conv":
        return Reduction(0, 1)
    if op_type == "ConvTranspose":
        return Reduction(1, 0, group)
    return Reduction(None, -2) if axis is None else Reduction(axis, 1 - axis)


def window_of(node: onnx.NodeProto, kernel: Sequence[int], sizes: Sequence[int]) -> Window:
    """Read strides, dilations and pads; auto_pad is that of a Conv.

    Args:
        node: A Conv or ConvTranspose, or a form of them.
        kernel: Sizes of the kernel.
        sizes: Spatial sizes of the input.

    Raises:
        ModelError: The attributes do not fit each other.
    """
    strides, dilations = attribute(node, "strides", None), attribute(node, "dilations", None)
    auto = attribute(node, "auto_pad", b"NOTSET").decode()
    if auto not in {"SAME_UPPER", "SAME_LOWER"}:
        return Window.of(kernel, strides, dilations, None if auto == "VALID" else attribute(node, "pads", None))
    before, behind = [], []
    for axis, size in enumerate(sizes):
        stride = strides[axis] if strides else 1
        reach = (kernel[axis] - 1) * (dilations[axis] if dilations else 1) + 1
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        small = total // 2
        before.append(small if auto == "SAME_UPPER" else total - small)
        behind.append(total - before[-1])
    return Window.of(kernel, strides, dilations, [*before, *behind])


@dataclass(frozen=True)
class Recurrent:
    """A recurrent node with constant weights.

    Attributes:
        weight, recurrence: Initializers W and R: (directions, gates * hidden, inputs or hidden).
        rows: Gate rows in all directions: directions * gates * hidden, each with a scale of its own.
        no_kernel: Why its products cannot be of integers; "" where the runtime has a kernel.
        size: Number of weights in W and R.
        steps: Length of the sequence; None where only the feed decides.
    """

    node: str
    op_type: str
    weight: str
    recurrence: str
    rows: int
    no_kernel: str
    size: int = 0
    steps: int | None = None

    @property
    def tensors(self) -> tuple[str, ...]:
        """The weights, each once."""
        return tuple(dict.fromkeys((self.weight, self.recurrence)))

    def quantized(self, form: KernelForm) -> tuple[str, ...]:
        """Return those that a form makes int8."""
        return (self.recurrence,) if form == "recurrence" else self.tensors


def recurrent_of(index: Index, node: onnx.NodeProto) -> Recurrent | str:
    """Describe a recurrent node, or say why its weights stay float.

    Args:
        index: The graph's index.
        node: An op of `GATES`.
    """
    names = (str(node.input[1]), str(node.input[2]))
    if any(is_cast_constant(index, name) for name in names):
        return "its weights are not float32"
    if not all(index.is_constant(name) for name in names):
        return "its weights are not constant"
    if any(index.elem_type(name) != onnx.TensorProto.FLOAT for name in names):
        return "its weights are not float32"
    weight, recurrence = (tuple(index.initializers[name].dims) for name in names)
    if 0 in (*weight, *recurrence):
        return "its weights are empty"
    rows = GATES[node.op_type] * recurrence[-1]
    if len(weight) != 3 or len(recurrence) != 3 or not weight[1] == recurrence[1] == rows:
        return f"its weights have shapes {weight} and {recurrence}"
    dims = index.dims(node.input[0]) or (None, None, None)
    return Recurrent(
        node.name,
        node.op_type,
        *names,
        rows=weight[0] * rows,
        no_kernel=_no_kernel(node, dims[1]),
        size=sum(math.prod(index.initializers[name].dims) for name in dict.fromkeys(names)),
        steps=dims[1 if attribute(node, "layout", 0) else 0],
    )


def _no_kernel(node: onnx.NodeProto, batch: int | None) -> str:
    if node.op_type not in KERNELS:
        return f"the runtime has no integer kernel for {node.op_type}"
    unknown = sorted({item.name for item in node.attribute} - _KERNEL_ATTRIBUTES)
    if unknown or attribute(node, "layout", 0):
        return f"{KERNELS[node.op_type]} does not know the attribute {unknown[0] if unknown else 'layout'}"
    if batch is not None and batch > 1:
        # the runtime shares sequences out among its threads, and each thread takes a range from its own
        return f"with a batch of {batch}, {KERNELS[node.op_type]} depends on the number of threads"
    return ""
