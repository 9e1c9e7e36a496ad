"""Finds which two weights of a row a kernel multiplies in one VPMADDUBSW, by making exactly those two saturate.

One output channel per pair of reduction positions: 127 (or -127) at both, 0 elsewhere, every activation at its largest code.
255 * 127 * 2 = 64770 does not fit into s16, so the channel falls short if, and only if, the two meet in one instruction.
A row has the order [kernel positions..., input channel of the group]; a pair is two positions of it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

import numpy as np
import onnx
from harness import Case
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from int8cal.numerics.pairs import pair_starts

# every layer is scaled so that the exact sum of two products is this; a sum that saturates is about half of it
EXACT = 100.0
CODES = {"uint8": (np.uint8, T.UINT8, 255), "int8": (np.int8, T.INT8, 127)}

Pairs = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Layer:
    """A layer to probe.

    Args:
        op: Conv, ConvTranspose, MatMul and Gemm as QDQ; QLinearConv, QLinearMatMul, MatMulInteger, ConvInteger as they are.
        channels: Input channels of a group, or K of a matrix product.
        kernel: Kernel shape of a convolution.
        groups: Each group sees every pair; ignored where `outputs` is given.
        outputs: Output channels of a group: the pairs are spread over as many groups as that takes.
        rows: Rows of the activation of a matrix product.
        x, w: Element types; an unsigned weight has zero point 128.
        per_channel: A weight scale for each output channel.
        sign: Whether both weights are 127 or -127.
        quantized: QDQ layers end in a QuantizeLinear.
        constant: The weight of a matrix product is an initializer.
        columns: 0: a column per pair. Else that many equal columns of 127, and one run per pair, with activations that are 0 elsewhere.
        extra: The image is that much larger than the kernel, along every axis.
        pad, stride, dilation: Of the convolution.
        reach: Pairs further apart than this are left out (long rows).
        level: Optimization level of onnxruntime; "extended" keeps convolutions in NCHW.
    """

    op: str
    channels: int
    kernel: tuple[int, ...] = ()
    groups: int = 1
    outputs: int = 0
    rows: int = 1
    x: str = "uint8"
    w: str = "int8"
    per_channel: bool = True
    sign: int = 1
    stride: int = 1
    dilation: int = 1
    extra: int = 2
    pad: int = 0
    quantized: bool = True
    transposed: bool = False
    constant: bool = True
    columns: int = 0
    reach: int = 10_000
    level: str = "all"

    @property
    def length(self) -> int:
        """Weights of a row."""
        return self.channels * int(np.prod(self.kernel, dtype=int))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs that are probed, in the order of the output channels."""
        return [(i, j) for i, j in itertools.combinations(range(self.length), 2) if j - i <= self.reach]

    def __str__(self) -> str:
        given = (f for f in fields(self) if f.name != "op" and getattr(self, f.name) != f.default)
        return " ".join([self.op, *(f"{f.name}={getattr(self, f.name)}".replace(" ", "") for f in given)])


def saturated_pairs(layer: Layer, outputs: np.ndarray) -> Pairs:
    """The pairs that saturate, told from the outputs of the layer's probe.

    Raises:
        ValueError: A channel is neither exact nor saturated, or differs between positions, groups or runs.
    """
    y = outputs.astype(np.float64)
    if layer.op in {"MatMulInteger", "ConvInteger"}:
        y = y * _scale(layer)
    if layer.op in {"QLinearConv", "QLinearMatMul"}:
        y = y - (128 if layer.x == "uint8" else 0)
    y *= layer.sign
    convolution = "Conv" in layer.op
    if convolution:
        y = np.moveaxis(y[:, 0], 1, 0).reshape(y.shape[2], -1)  # (output channels, runs * positions)
    elif layer.columns:
        y = y.reshape(len(y), -1)
    else:
        y = np.moveaxis(y, -1, 0).reshape(y.shape[-1], -1)
    count = len(layer.pairs)
    y = y[:count] if layer.outputs else y.reshape(-1, count, y.shape[1]).transpose(1, 0, 2).reshape(count, -1)
    short = np.abs(y - _saturated(layer)) < 0.45
    partial = layer.pad or layer.op == "ConvTranspose"  # some positions see a part of the kernel only
    if not partial and not (np.abs(y[~short] - EXACT) <= 1).all():
        raise ValueError(f"{layer}: not exact: {np.unique(y[~short])}")
    if not partial and (short.any(axis=1) != short.all(axis=1)).any():
        raise ValueError(f"{layer}: the same pair saturates here and not there")
    short = short.any(axis=1)
    return frozenset(pair for pair, saturates in zip(layer.pairs, short, strict=True) if saturates)


def expected_pairs(layer: Layer, order: str) -> Pairs:
    """The pairs of an order: those of int8cal.numerics.pairs, "none", and what oneDNN does to a single input channel.

    rows: neighbours within a row of the kernel; a last odd one stands alone.
    columns: neighbours in the order of the kernel's columns, one below the other, from one column on into the next.
    """
    if order == "none":
        return frozenset()
    if order in {"flat", "channels"}:
        starts = pair_starts(order, layer.length // layer.channels, layer.channels)
        return frozenset((int(k), int(k) + 1) for k in starts)
    height, width = layer.kernel
    grid = np.arange(layer.length).reshape(height, width)
    lines = grid if order == "rows" else grid.T.reshape(1, -1)
    found = [line[k : k + 2] for line in lines for k in range(0, len(line) - 1, 2)]
    return frozenset((int(min(pair)), int(max(pair))) for pair in found)


def probe(layer: Layer) -> Case:
    """Builds the model that probes one layer."""
    return _convolution(layer) if "Conv" in layer.op else _product(layer)


def _scale(layer: Layer) -> float:
    return EXACT / (2 * 127 * CODES[layer.x][2])


def _saturated(layer: Layer) -> float:
    """What is left of `EXACT`; s8 activations are shifted to u8, and the shift is taken off behind the saturation."""
    limit = 32767 if layer.sign > 0 else 32768
    return (limit - (2 * 127 * 128 if layer.x == "int8" else 0)) * _scale(layer)


def _codes(layer: Layer) -> np.ndarray:
    """Weights without their zero point: (groups, output channels of a group, row)."""
    pairs = layer.pairs
    rows = np.zeros((len(pairs), layer.length), np.int16)
    for row, pair in zip(rows, pairs, strict=True):
        row[list(pair)] = 127 * layer.sign
    if not layer.outputs:
        return np.stack([rows] * layer.groups)
    missing = -len(rows) % layer.outputs
    return np.concatenate([rows, rows[:missing]]).reshape(-1, layer.outputs, layer.length)


class _Graph:
    """Nodes and initializers as they come."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def quantize(self, x: str, kind: str, zero: int) -> str:
        """A QuantizeLinear and a DequantizeLinear of scale 1."""
        pair = [self.constant(f"{x}.s", np.float32(1)), self.constant(f"{x}.z", CODES[kind][0](zero))]
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [x, *pair], f"{x}.q"), *pair], f"{x}.d")

    def weight(self, layer: Layer, stored: np.ndarray, axis: int) -> list[str]:
        """The weight, its scale and its zero point, per channel or per tensor."""
        zero = 0 if layer.w == "int8" else 128
        kind = CODES[layer.w][0]
        shape = stored.shape[axis] if layer.per_channel else ()
        return [
            self.constant("w", (stored + zero).astype(kind)),
            self.constant("w.s", np.full(shape, _scale(layer), np.float32)),
            self.constant("w.z", np.full(shape, zero, kind)),
        ]

    def model(self, inputs: dict[str, tuple[int, tuple[int, ...]]], result: tuple[str, int]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "probe",
            [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info(*result, None)],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _convolution(layer: Layer) -> Case:
    codes = _codes(layer)
    groups, per_group, _ = codes.shape
    w = np.moveaxis(codes.reshape(groups * per_group, *layer.kernel, layer.channels), -1, 1)
    spatial = [(k - 1) * layer.dilation + 1 + layer.extra for k in layer.kernel]
    attributes: dict[str, object] = {
        "group": groups,
        "strides": [layer.stride] * len(spatial),
        "dilations": [layer.dilation] * len(spatial),
        "pads": [layer.pad] * 2 * len(spatial),
    }
    axis = 0
    if layer.op == "ConvTranspose":
        w = w.reshape(groups, per_group, layer.channels, *layer.kernel).swapaxes(1, 2)
        w = w.reshape(groups * layer.channels, per_group, *layer.kernel)
        axis = 1
        attributes["pads"] = [(k - 1) * layer.dilation for k in layer.kernel] * 2
    shape = (1, groups * layer.channels, *spatial)
    kind, code, top = CODES[layer.x]
    graph = _Graph()
    weight = graph.weight(layer, w, axis)
    zero = graph.constant("zero", kind(0))
    half = 128 if layer.x == "uint8" else 0
    if layer.op in {"Conv", "ConvTranspose"}:
        x = graph.quantize("x", layer.x, 0)
        w_d = graph.node("DequantizeLinear", weight, "w.d", **({"axis": axis} if layer.per_channel else {}))
        y = graph.node(layer.op, [x, w_d], "y0", **attributes)
        y = graph.quantize(y, layer.x, half) if layer.quantized else y
        model = graph.model({"x": (T.FLOAT, shape)}, (y, T.FLOAT))
        return Case(model, {"x": np.full((1, *shape), top, np.float32)}, layer.level)
    feeds = {"x": np.full((1, *shape), top, kind)}
    if layer.op == "ConvInteger":
        y = graph.node("ConvInteger", ["x", "w", zero, graph.constant("wz", _weight_zero(layer))], "y", **attributes)
        return Case(graph.model({"x": (code, shape)}, (y, T.INT32)), feeds, layer.level)
    one = graph.constant("one", np.float32(1))
    y = graph.node("QLinearConv", ["x", one, zero, *weight, one, graph.constant("half", kind(half))], "y", **attributes)
    return Case(graph.model({"x": (code, shape)}, (y, code)), feeds, layer.level)


def _weight_zero(layer: Layer) -> np.generic:
    """The zero point of a weight, per tensor."""
    return CODES[layer.w][0](0 if layer.w == "int8" else 128)


def _product(layer: Layer) -> Case:
    kind, code, top = CODES[layer.x]
    if layer.columns:
        w = np.full((layer.length, layer.columns), 127 * layer.sign, np.int16)
        x = np.zeros((len(layer.pairs), layer.rows, layer.length), np.float32)
        for run, pair in zip(x, layer.pairs, strict=True):
            run[:, list(pair)] = top
    else:
        w = _codes(layer)[0].T
        x = np.full((1, layer.rows, layer.length), top, np.float32)
    w = w.T if layer.transposed else w
    axis = 0 if layer.transposed else 1
    shape = x.shape[1:]
    graph = _Graph()
    half = 128 if layer.x == "uint8" else 0
    if layer.op in {"MatMul", "Gemm"}:
        weight = graph.weight(layer, w, axis)
        x_d = graph.quantize("x", layer.x, 0)
        w_d = graph.node("DequantizeLinear", weight, "w.d", **({"axis": axis} if layer.per_channel else {}))
        y = graph.node(layer.op, [x_d, w_d], "y0", **({"transB": int(layer.transposed)} if layer.op == "Gemm" else {}))
        y = graph.quantize(y, layer.x, half) if layer.quantized else y
        return Case(graph.model({"x": (T.FLOAT, shape)}, (y, T.FLOAT)), {"x": x}, layer.level)
    feeds = {"x": x.astype(kind)}
    inputs = {"x": (code, shape)}
    zero = graph.constant("zero", kind(0))
    weight = graph.weight(layer, w, axis)
    if not layer.constant:
        stored = numpy_helper.to_array(graph.constants.pop(1))
        feeds["w"] = np.stack([stored] * len(x))
        inputs["w"] = (CODES[layer.w][1], stored.shape)
    if layer.op == "MatMulInteger":
        y = graph.node("MatMulInteger", ["x", "w", zero, graph.constant("wz", _weight_zero(layer))], "y")
        return Case(graph.model(inputs, (y, T.INT32)), feeds, layer.level)
    one = graph.constant("one", np.float32(1))
    y = graph.node("QLinearMatMul", ["x", one, zero, *weight, one, graph.constant("half", kind(half))], "y")
    return Case(graph.model(inputs, (y, code)), feeds, layer.level)
