"""Which layers of a model ncnn can run on integers, and what they are called there.

A name is that of the ONNX node, unless ncnn's .param file gives another: pnnx renames every layer. The two lists are
then matched in order, by kind, number of outputs, kernel, stride, dilation and size of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.errors import TableError
from int8cal.graph.index import Index, attribute
from int8cal.interop.foreign import text_lines, words_of

if TYPE_CHECKING:
    import onnx

    from int8cal.calibration.table import CalibrationTable
    from int8cal.graph.plan import Layer, Plan

Kind = tuple[str, tuple[int, ...]]
_MAGIC = "7767517"
_TYPES = {"Convolution": "Conv", "ConvolutionDepthWise": "Conv", "InnerProduct": "Gemm"}


@dataclass(frozen=True)
class NcnnLayer:
    """A layer with constant weights.

    Attributes:
        name: In ncnn.
        node, key, input: The ONNX node, the key of its weights in a table, and the tensor that it reads.
        axis, channels, group: Of the weights: axis and number of output channels, groups.
        winograd: A 3x3 convolution of stride 1 without groups, for which ncnn wants small codes.
        quantizable: ncnn has an int8 form of it.
        kind: What a .param file says of it, to tell layers apart; None where no file can be compared.
    """

    name: str
    node: str
    key: str
    input: str
    axis: int | None
    channels: int
    group: int = 1
    winograd: bool = False
    quantizable: bool = True
    kind: Kind | None = None


def layers_of_model(model: onnx.ModelProto, plan: Plan) -> list[NcnnLayer]:
    """List the layers of a plan, under the names of their nodes."""
    index = Index(model)
    nodes = {node.name: node for node in index.graph.node}
    return [_layer(index, nodes[layer.node], layer, plan) for layer in plan.layers]


def layers_of_table(table: CalibrationTable, where: str) -> list[NcnnLayer]:
    """List the layers that a table names, without their model: what kind they are is not known then.

    Raises:
        TableError: The table does not name them; older ones do not.
    """
    layers = [
        NcnnLayer(entry.node, entry.node, key, entry.input, entry.axis, len(entry.scales))
        for key, entry in table.weights.items()
        if entry.node
    ]
    if not layers:
        raise TableError(
            "does not say which layer reads which tensor, as ncnn needs it", where=where, do="give --model MODEL.onnx"
        )
    return layers


def renamed(layers: list[NcnnLayer], content: bytes, where: str) -> list[NcnnLayer]:
    """Give layers the names that they have in ncnn.

    Args:
        layers: All of the model's, in its order.
        content: Bytes of the .param file.
        where: Its name, for messages.

    Returns:
        Those that the file has; the others are not quantizable.

    Raises:
        TableError: It is no .param file, or has a layer that the model does not have, in this order.
    """
    result = []
    rest = iter(layers)
    for number, name, kind in _param_layers(content, where):
        for layer in rest:
            if layer.kind == kind:
                result.append(replace(layer, name=name))
                break
            result.append(replace(layer, quantizable=False))
        else:
            raise TableError(
                f"layer {name!r} ({kind[0]}, {_told(kind)}) does not follow in the ONNX model",
                where=f"{where}:{number}",
                do="give the .param file that was made of this model",
            )
    return result + [replace(layer, quantizable=False) for layer in rest]


def _layer(index: Index, node: onnx.NodeProto, layer: Layer, plan: Plan) -> NcnnLayer:
    dims = tuple(index.initializers[layer.weight].dims)
    size = 1
    for dim in dims:
        size *= dim
    channels = 1 if layer.axis is None else dims[layer.axis]
    key = plan.weight_key(layer.node, layer.weight)
    kind: Kind | None = None
    winograd = False
    if node.op_type == "Conv" and len(dims) == 4:
        strides, dilations = (tuple(attribute(node, name, [1, 1])) for name in ("strides", "dilations"))
        kind = ("Conv", (channels, layer.group, size, *dims[2:], *strides, *dilations))
        winograd = layer.group == 1 and dims[2:] == (3, 3) and strides == dilations == (1, 1)
    elif node.op_type in ("Gemm", "MatMul") and len(dims) == 2:
        kind = ("Gemm", (channels, size))
    return NcnnLayer(
        layer.node, layer.node, key, layer.input, layer.axis, channels, layer.group, winograd, kind is not None, kind
    )


def _param_layers(content: bytes, where: str) -> list[tuple[int, str, Kind]]:
    lines = text_lines(content, where)
    if not lines or lines[0][1].strip() != _MAGIC:
        raise TableError(
            f"is no .param file of ncnn: its first line is not {_MAGIC}", where=f"{where}:1", do="give one"
        )
    result = []
    for number, line in lines[2:]:
        words = words_of(line)
        try:
            if words[0] not in _TYPES:
                continue
            values = _values(words[4 + int(words[2]) + int(words[3]) :])
            result.append((number, words[1], _kind(words[0], values)))
        except (IndexError, ValueError, KeyError) as error:
            raise TableError(
                f"is {line[:60]!r}, expected a layer of ncnn", where=f"{where}:{number}", do="correct the line"
            ) from error
    return result


def _values(words: list[str]) -> dict[int, int]:
    """Read `id=value` pairs with whole numbers; arrays and fractions do not matter here."""
    pairs = (word.split("=", 1) for word in words)
    return {int(key): int(value) for key, value in pairs if value.lstrip("-").isdigit() and int(key) >= 0}


def _kind(layer_type: str, values: dict[int, int]) -> Kind:
    if _TYPES[layer_type] == "Gemm":
        return "Gemm", (values[0], values[2])
    width, stride, dilation = values[1], values.get(3, 1), values.get(2, 1)
    window = (values.get(11, width), width)
    strides, dilations = (values.get(13, stride), stride), (values.get(12, dilation), dilation)
    return "Conv", (values[0], values.get(7, 1), values[6], *window, *strides, *dilations)


def _told(kind: Kind) -> str:
    names = ("outputs", "groups", "weights", "kernel") if kind[0] == "Conv" else ("outputs", "weights")
    return ", ".join(f"{value} {name}" for name, value in zip(names, kind[1], strict=False))
