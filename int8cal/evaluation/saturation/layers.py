"""Which nodes of an int8 model multiply activations by weights, and which runtimes do that on integers.

Any tool's model: Q and DQ around float ops, ops that take codes, weights as codes or as floats behind Q and DQ.
onnxruntime's own optimized graph (the fusion audit) tells which QDQ layers it runs on integers. Measured on it: u8
weights, depthwise convolutions, ConvInteger, and s8 activations in ops that take codes are summed exactly on every CPU.
oneDNN needs no Q behind a layer, so it runs on integers whatever has quantized data and weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from int8cal.evaluation.saturation.constants import LAYOUT_OPS, Constants
from int8cal.evaluation.saturation.forms import BETWEEN, DIRECT, FLOAT, Form
from int8cal.evaluation.saturation.linear import Linear, Runtime, input_of
from int8cal.evaluation.saturation.outer_scale import outer_scale
from int8cal.graph.index import Index, attribute
from int8cal.protos import outline, subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.evaluation.result import Fusion

_STANDARD = frozenset({"", "ai.onnx"})
DEPTHWISE = "depthwise: products are summed one by one"
KERNEL = "its kernel sums products exactly"
UNSIGNED = "unsigned weights: pairs are summed exactly"


def with_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model, large weights as name and type alone, and give every node a name of its own.

    Args:
        model: Any model. An unnamed node gets the name of its first output.
    """
    result = outline(model)
    taken = {node.name for node in result.graph.node}
    seen: set[str] = set()
    for node in result.graph.node:
        if not node.name or node.name in seen:
            name = next((output for output in node.output if output), node.op_type)
            while name in taken:
                name += "_"
            node.name = name
            taken.add(name)
        seen.add(node.name)
    return result


def read_layers(model: onnx.ModelProto, names: onnx.ModelProto, fusion: Fusion | None) -> list[Linear]:
    """Find the nodes that multiply by weights, in graph order.

    Args:
        model: An int8 model of any tool.
        names: What `with_names` made of it.
        fusion: The fusion audit of it, made with these names; None where the runtime could not write its graph: then
            every layer that could run on integers counts as one that does.
    """
    float_nodes = frozenset() if fusion is None else frozenset(node.node for node in fusion.nodes)
    constants = Constants(Index(model))
    found: list[Linear] = []
    for node, named in zip(model.graph.node, names.graph.node, strict=True):
        runs = None if fusion is None else named.name not in float_nodes
        found.extend(_of_node(node, named.name, constants, runs=runs))
        found.extend(_inside(node, constants))
    return found


def _inside(node: onnx.NodeProto, outer: Constants) -> Iterator[Linear]:
    """Read the layers of a node's subgraphs, and of those inside them, in the order in which they are written."""
    ways = [_inner_nodes(node, outer)]
    while ways:
        each = next(ways[-1], None)
        if each is None:
            ways.pop()
            continue
        inner, name, constants = each
        yield from _of_node(inner, name, constants, runs=None, inside=True)
        ways.append(_inner_nodes(inner, constants))


def _inner_nodes(node: onnx.NodeProto, outer: Constants) -> Iterator[tuple[onnx.NodeProto, str, Constants]]:
    for graph in subgraphs(node):
        shell = onnx.ModelProto(graph=graph)
        constants = Constants(Index(shell), outer)
        for inner in shell.graph.node:
            name = f"{node.name or node.op_type}/{inner.name or next(iter(inner.output), inner.op_type)}"
            yield inner, name, constants


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
        form = Form("Recurrent" if node.op_type in {"LSTM", "GRU", "RNN"} else "MatMul")
        yield Linear(name, node.op_type, form, node, constants, inside, why="computes in float")


def _between(layer: Linear, *, runs: bool | None) -> Linear:
    """Read a float op between DQ and Q."""
    node, constants = layer.proto, layer.constants
    if layer.form.kind == "ConvTranspose":
        runs = False  # onnxruntime has no integer kernel for it
    data = _activation(node.input[0], constants)
    weight = constants.codes(node.input[1]) if len(node.input) > 1 else None
    second = None if weight is not None else _activation(node.input[1], constants)
    if weight is None and second is None:
        return replace(layer, why="its weights are float")
    if data is None and weight is not None and runs:
        data = _Activation("uint8")  # the runtime moved a DequantizeLinear down to here
    if data is None:
        return replace(layer, weight=weight, why="its input is float")
    found = replace(
        layer,
        weight=weight,
        activation=data.kind,
        data=data.codes,
        data_scale=data.scale,
        data_zero_point=data.zero_point,
        path=data.path,
        second=second.kind if second else "",
        second_data=second.codes if second and not second.path else "",
        onnxruntime=runs is not False,
    )
    why = _exact(found)
    runtimes: list[Runtime] = [] if runs is False else ["onnxruntime"]
    if layer.form.kind != "ConvTranspose" or layer.group == 1:  # with groups oneDNN, too, computes it in float
        runtimes.append("onednn")
    if not why and not runtimes:
        return replace(layer, weight=weight, why="computes in float")
    return replace(found, why=why, runtimes=() if why else tuple(runtimes))


def _direct(layer: Linear) -> Linear:
    """Read an op that takes codes."""
    node, form, constants = layer.proto, layer.form, layer.constants
    names = {
        key: input_of(node, getattr(form, key))
        for key in ("data", "weight", "scale", "zero_point", "data_scale", "data_zero_point")
    }
    axis = {"Conv": 0, "Gemm": 0 if attribute(node, "transB", 0) else 1}.get(form.kind, -1)
    weight = constants.raw_codes(names["weight"], names["scale"], names["zero_point"], axis)
    outer = None
    if node.op_type == "MatMulInteger" and weight is not None and weight.values.ndim == 2:
        outer = outer_scale(node, weight.values.shape[1], constants)
    if outer is not None and weight is not None and not weight.zero_point.any():
        scale = outer.value.astype(np.float32).reshape(() if outer.value.size == 1 else -1)
        zeros = np.zeros(scale.shape, np.int64)
        weight = replace(weight, scale=scale, zero_point=zeros, axis=1 if scale.ndim else None)
    kind = "uint8" if form.quantizes else _kind(names["data"], names["data_zero_point"], constants)
    second = "" if weight is not None else _kind(names["weight"], names["zero_point"], constants)
    found = replace(
        layer,
        weight=weight,
        activation=kind,
        data=names["data"],
        data_scale=names["data_scale"],
        data_zero_point=names["data_zero_point"],
        second=second,
        second_data=names["weight"] if second else "",
        outer=outer,
        onnxruntime=True,
    )
    why = _exact(found)
    runtimes: list[Runtime] = []
    if not why and kind == "uint8" and not form.exact:
        runtimes.append("onnxruntime")
    if not why and form.onednn:
        runtimes.append("onednn")
    if not why and not runtimes:
        why = KERNEL
    return replace(found, why=why, runtimes=tuple(runtimes))


def _exact(layer: Linear) -> str:
    """Say why no runtime adds products of neighbours in s16; "" where one does."""
    if layer.weight is None:
        return UNSIGNED if layer.second == "uint8" else ""
    if layer.weight.values.dtype == np.uint8:
        return UNSIGNED
    shape = layer.weight.values.shape
    if layer.form.kind == "Conv" and layer.group > 1 and shape[1] == 1 and shape[0] == layer.group:
        return DEPTHWISE
    if layer.form.kind == "ConvTranspose" and shape[1] == 1 and shape[0] == layer.group:
        return DEPTHWISE
    return ""


@dataclass(frozen=True)
class _Activation:
    """Codes that are no constant: their type, tensors, and the layout ops behind their DQ."""

    kind: str
    codes: str = ""
    scale: str = ""
    zero_point: str = ""
    path: tuple[onnx.NodeProto, ...] = ()


def _activation(name: str, constants: Constants) -> _Activation | None:
    """Follow a tensor to codes that are no constant."""
    path: list[onnx.NodeProto] = []
    node = constants.index.producer.get(name)
    while node is not None and node.op_type in LAYOUT_OPS and node.input:
        path.append(node)
        node = constants.index.producer.get(node.input[0])
    if node is None or node.op_type != "DequantizeLinear" or attribute(node, "block_size", 0):
        return None
    codes, zero_point = node.input[0], input_of(node, 2)
    if constants.value(codes) is not None:
        return None
    kind = _kind(codes, zero_point, constants)
    if kind not in {"uint8", "int8"}:
        return None
    return _Activation(kind, codes, node.input[1], zero_point, tuple(reversed(path)))


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
