"""Which nodes of an int8 model multiply activations by weights, and which runtimes do that on integers.

Any tool's model: Q and DQ around float ops, ops that take codes, weights as codes or as floats behind Q and DQ.
onnxruntime's own optimized graph (the fusion audit) tells which QDQ layers it runs on integers. Measured on it: u8
weights, depthwise convolutions, ConvInteger, and s8 activations in ops that take codes are summed exactly on every CPU.
oneDNN needs no Q behind a layer, so it runs on integers whatever has quantized data and weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from int8cal.audit.layer import (
    BETWEEN,
    DIRECT,
    FLOAT,
    KernelLibrary,
    Linear,
    Operand,
    OuterScale,
    ProductForm,
    input_of,
)
from int8cal.evaluation.fusion import with_names
from int8cal.graph.constants import Constants
from int8cal.graph.index import Index, attribute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.evaluation.result import Fusion

_STANDARD = frozenset({"", "ai.onnx"})
DEPTHWISE = "depthwise: products are summed one by one"
KERNEL = "its kernel sums products exactly"
UNSIGNED = "unsigned weights: pairs are summed exactly"


def read_layers(model: onnx.ModelProto, fusion: Fusion | None) -> list[Linear]:
    """Find the nodes that multiply by weights, in graph order.

    Args:
        model: An int8 model of any tool.
        fusion: The fusion audit of it, made with the names of `with_names`; None where the runtime could not write its
            graph: then every layer that could run on integers counts as one that does.
    """
    float_nodes = frozenset() if fusion is None else frozenset(node.node for node in fusion.nodes)
    constants = Constants(Index(model))
    found: list[Linear] = []
    for node, named in zip(model.graph.node, with_names(model).graph.node, strict=True):
        runs = None if fusion is None else named.name not in float_nodes
        found.extend(_of_node(node, named.name, constants, runs=runs))
        found.extend(_inside(node, node.name or node.op_type, constants))
    return found


def _inside(node: onnx.NodeProto, place: str, outer: Constants) -> Iterator[Linear]:
    """Read the layers of a node's subgraphs, and of those inside them, in the order in which they are written."""
    for item in node.attribute:
        if item.type != onnx.AttributeProto.GRAPH:
            continue
        shell = onnx.ModelProto(graph=item.g)
        constants = Constants(Index(shell), outer)
        for inner in shell.graph.node:
            name = f"{place}/{item.name}/{inner.name or next(iter(inner.output), inner.op_type)}"
            yield from _of_node(inner, name, constants, runs=None, inside=True)
            yield from _inside(inner, name, constants)


def _of_node(
    node: onnx.NodeProto, name: str, constants: Constants, *, runs: bool | None, inside: bool = False
) -> Iterator[Linear]:
    # runs: whether onnxruntime multiplies integers here, None where nothing tells
    if node.op_type in DIRECT:
        for form in DIRECT[node.op_type]:
            yield _direct(Linear(name, node.op_type, form, node, constants, inside))
    elif node.op_type in BETWEEN and node.domain in _STANDARD:
        linear = Linear(name, node.op_type, BETWEEN[node.op_type], node, constants, inside)
        yield _between(linear, runs=runs)
    elif node.op_type in FLOAT:
        form = ProductForm("Recurrent" if node.op_type in {"LSTM", "GRU", "RNN"} else "MatMul")
        yield Linear(name, node.op_type, form, node, constants, inside, why="computes in float")


def _between(layer: Linear, *, runs: bool | None) -> Linear:
    node, constants = layer.proto, layer.constants
    if layer.form.kind == "ConvTranspose":
        runs = False  # onnxruntime has no integer kernel for it
    data = _operand(node.input[0], constants)
    weight = constants.codes(node.input[1]) if len(node.input) > 1 else None
    second = None if weight is not None else _operand(node.input[1], constants)
    if second is not None and second.path:
        second = Operand(second.kind)
    if weight is None and second is None:
        return replace(layer, why="its weights are float")
    if data is None and weight is not None and runs:
        data = Operand("uint8")  # the runtime moved a DequantizeLinear down to here
    if data is None:
        return replace(layer, weight=weight, why="its input is float")
    found = replace(
        layer,
        weight=weight,
        data=data,
        second=second,
        onnxruntime=runs is not False,
    )
    why = _exact(found)
    runtimes: list[KernelLibrary] = [] if runs is False else ["onnxruntime"]
    if layer.form.kind != "ConvTranspose" or layer.group == 1:  # with groups oneDNN, too, computes it in float
        runtimes.append("onednn")
    if not why and not runtimes:
        return replace(layer, weight=weight, why="computes in float")
    return replace(found, why=why, runtimes=() if why else tuple(runtimes))


def _direct(layer: Linear) -> Linear:
    node, form, constants = layer.proto, layer.form, layer.constants
    names = {
        key: input_of(node, getattr(form, key))
        for key in ("data", "weight", "scale", "zero_point", "data_scale", "data_zero_point")
    }
    axis = {"Conv": 0, "Gemm": 0 if attribute(node, "transB", 0) else 1}.get(form.kind, -1)
    weight = constants.raw_codes(names["weight"], names["scale"], names["zero_point"], axis)
    outer = None
    if node.op_type == "MatMulInteger" and weight is not None and weight.values.ndim == 2:
        outer = _outer_scale(node, weight.values.shape[1], constants)
    if outer is not None and weight is not None and not weight.zero_point.any():
        scale = outer.value.astype(np.float32).reshape(() if outer.value.size == 1 else -1)
        zeros = np.zeros(scale.shape, np.int64)
        weight = replace(weight, scale=scale, zero_point=zeros, axis=1 if scale.ndim else None)
    kind = "uint8" if form.quantizes else _kind(names["data"], names["data_zero_point"], constants)
    data, second = Operand(kind, names["data"], names["data_scale"], names["data_zero_point"]), None
    if weight is None:
        second = Operand(_kind(names["weight"], names["zero_point"], constants), names["weight"])
    found = replace(layer, weight=weight, data=data, second=second, outer=outer, onnxruntime=True)
    why = _exact(found)
    runtimes: list[KernelLibrary] = []
    if not why and kind == "uint8" and not form.exact:
        runtimes.append("onnxruntime")
    if not why and form.onednn:
        runtimes.append("onednn")
    if not why and not runtimes:
        why = KERNEL
    return replace(found, why=why, runtimes=tuple(runtimes))


def _outer_scale(node: onnx.NodeProto, columns: int, constants: Constants) -> OuterScale | None:
    # onnxruntime.quantization writes Mul(Cast(product), Mul(input scale, weight scale)); None where somebody else reads
    # one of these tensors
    index = constants.index
    cast = index.only_reader(node.output[0])
    product = index.only_reader(cast.output[0]) if cast is not None and cast.op_type == "Cast" else None
    if cast is None or product is None or product.op_type != "Mul":
        return None
    factor = next((name for name in product.input if name != cast.output[0]), "")
    scales = index.producer.get(factor)
    if scales is None or scales.op_type != "Mul" or index.only_reader(factor) is None:
        return None
    for slot, name in enumerate(scales.input):
        value = constants.value(name)
        if value is not None and (value.size == 1 or value.shape == (columns,)):
            return OuterScale(scales, slot, value)
    return None


def _exact(layer: Linear) -> str:
    """Say why no runtime adds products of neighbours in s16; "" where one does."""
    if layer.weight is None:
        return UNSIGNED if layer.second is not None and layer.second.kind == "uint8" else ""
    if layer.weight.values.dtype == np.uint8:
        return UNSIGNED
    shape = layer.weight.values.shape
    if layer.form.kind == "Conv" and layer.group > 1 and shape[1] == 1 and shape[0] == layer.group:
        return DEPTHWISE
    if layer.form.kind == "ConvTranspose" and shape[1] == 1 and shape[0] == layer.group:
        return DEPTHWISE
    return ""


def _operand(name: str, constants: Constants) -> Operand | None:
    """Follow a tensor to codes that are no constant."""
    node, path = constants.laid_out_from(name)
    if node is None or node.op_type != "DequantizeLinear" or attribute(node, "block_size", 0):
        return None
    codes, zero_point = node.input[0], input_of(node, 2)
    if constants.value(codes) is not None:
        return None
    kind = _kind(codes, zero_point, constants)
    if kind not in {"uint8", "int8"}:
        return None
    return Operand(kind, codes, node.input[1], zero_point, tuple(reversed(path)))


def _kind(codes: str, zero_point: str, constants: Constants) -> str:
    """Tell the type of a tensor of codes: from its zero point, the graph's types, or the Q that makes it."""
    zero = constants.value(zero_point) if zero_point else None
    if zero is not None:
        return str(zero.dtype)
    known = constants.index.elem_type(codes)
    if known:
        return str(np.dtype(helper.tensor_dtype_to_np_dtype(known)))
    node = constants.index.producer.get(codes)
    if node is not None and node.op_type == "QuantizeLinear":
        asked = attribute(node, "output_dtype", 0)
        if asked:
            return str(np.dtype(helper.tensor_dtype_to_np_dtype(asked)))
        given = constants.value(input_of(node, 2))
        return "uint8" if given is None else str(given.dtype)
    return "uint8"  # what Q and DynamicQuantizeLinear give unless told otherwise
