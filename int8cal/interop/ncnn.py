"""ncnn's calibration table: inverse scales by layer name, as `ncnn2table` writes and `ncnn2int8` reads them.

`<layer>_param_0 s0 s1 ...` holds those of a layer's weights, one per output channel, or per group of a grouped
convolution; `<layer> s` that of its input. A code is rint(x * s) within -127..127: this is the only place where int8cal
turns scales around.

A layer's name is that of its ONNX node, unless ncnn's .param file gives another: pnnx renames every layer. The two
lists are then matched in order, by kind, number of outputs, kernel, stride, dilation and size of the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.errors import NonFiniteError, TableError
from int8cal.graph.index import Index, attribute
from int8cal.graph.layers import SLOWER, Layer, layer_of
from int8cal.interop.foreign import (
    Conversion,
    Foreign,
    correction_losses,
    named,
    require_names,
    require_new,
    symmetric,
    symmetric_losses,
    text_lines,
    words_of,
)
from int8cal.numerics.affine import S7, S8, Affine, positive_scale
from int8cal.phrases import counted
from int8cal.quantization.table import WeightEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.quantization.table import CalibrationTable

WEIGHT = "_param_0"
WINOGRAD = 31  # the largest code of weights where ncnn multiplies by Winograd's method in 16 bits
_LARGEST = {"s8": S8.qmax, "paired": S8.qmax, "s7": -S7.qmin}
_LONGEST_NAME = 255 - len(WEIGHT)  # bytes that ncnn2int8 keeps of a name
_WHITE = " \t\n\r\v\f"
LayerKind = tuple[str, tuple[int, ...]]
_MAGIC = "7767517"
_TYPES = {"Convolution": "Conv", "ConvolutionDepthWise": "Conv", "InnerProduct": "Gemm"}


@dataclass(frozen=True)
class NcnnTable:
    """The numbers of a file, by ncnn's layer names: inverse scales of inputs and of weights."""

    inputs: dict[str, float]
    weights: dict[str, tuple[float, ...]]
    unusable: tuple[str, ...] = ()


def to_ncnn(table: CalibrationTable, layers: Sequence[NcnnLayer], where: str = "table") -> Conversion:
    """Write a table for `ncnn2int8`.

    Args:
        table: The table.
        layers: The layers that it quantizes, and what they are called in ncnn.
        where: What messages call the table.

    Raises:
        TableError: It quantizes no layer that ncnn has an int8 form of, or ncnn cannot read a layer's name.
    """
    known = [layer for layer in layers if layer.key in table.weights and layer.input in table.tensors]
    takes = [layer for layer in known if layer.quantizable]
    if not takes:
        raise TableError(
            "quantizes no layer that ncnn has an int8 form of: 2-D convolutions, and products with a 2-D weight",
            where=where,
            do="run this model in float there",
        )
    _require_names(takes, where)
    weights = [f"{layer.name}{WEIGHT} {_joined(_inverses(table.weights[layer.key], layer))}" for layer in takes]
    inputs = [f"{layer.name} {_joined([1 / symmetric(table.tensors[layer.input]).scale])}" for layer in takes]
    read = {layer.input: table.tensors[layer.input] for layer in takes}
    losses = symmetric_losses(read) + correction_losses(table)
    unread = [name for name in table.tensors if name not in read]
    if unread:
        losses.append(
            f"ranges of {counted(len(unread), 'tensor')} are left out, no layer of ncnn reads them: {named(unread)}"
        )
    left = [layer.node for layer in known if not layer.quantizable]
    gates = len(table.weights) - len(known)
    if left:
        losses.append(
            f"{counted(len(left), 'layer')} without an int8 form in ncnn (transposed convolutions, weights that are "
            f"not 2-D) are left out: {named(left)}"
        )
    if gates:
        losses.append(f"scales of {counted(gates, 'other weight')} (recurrent layers and embeddings, say) are left out")
    losses += _winograd_losses(takes) + _group_losses(takes, table)
    losses.append("observed ranges, clipped fractions, methods and settings have no place in ncnn's table")
    text = "".join(f"{line}\n" for line in (*weights, *inputs))
    return Conversion(text.encode(), tuple(losses))


def parse_ncnn(content: bytes, where: str) -> NcnnTable:
    """Read the numbers of a table that `ncnn2table` or int8cal wrote.

    Raises:
        TableError: A line is no name with numbers, or a name is there twice; names the line.
    """
    inputs: dict[str, float] = {}
    weights: dict[str, tuple[float, ...]] = {}
    seen: dict[str, int] = {}
    unusable = []
    for number, line in text_lines(content, where):
        name, *words = words_of(line)
        place = f"{where}:{number}"
        try:
            values = tuple(float(word) for word in words)
        except ValueError as error:
            raise TableError(
                f"is {line[:60]!r}, expected a layer's name and numbers", where=place, do="correct the line"
            ) from error
        if not values:
            raise TableError(f"has no number behind {name!r}", where=place, do="correct the line")
        require_new(name, seen, number, where)
        usable = all(math.isfinite(value) and value > 0 for value in values)
        if "_param_" in name:
            if name.endswith(WEIGHT) and usable:
                weights[name.removesuffix(WEIGHT)] = values
        elif len(values) > 1:
            raise TableError(
                f"has {len(values)} numbers behind {name!r}, an input has one scale", where=place, do="correct the line"
            )
        elif usable:
            inputs[name] = values[0]
        else:
            unusable.append(name)
    if not seen:
        raise TableError("is empty", where=f"{where}:1", do="give the table that ncnn2table wrote")
    return NcnnTable(inputs, weights, tuple(unusable))


def read_ncnn(content: bytes, where: str, layers: Sequence[NcnnLayer]) -> Foreign:
    """Read a table, for a model's layers.

    Args:
        content: The file's bytes.
        where: Its name, for messages.
        layers: The layers of the model, and what they are called in ncnn.

    Raises:
        TableError: The file is malformed, names no layer of the model, or has another number of channels.
    """
    parsed = parse_ncnn(content, where)
    by_name = {layer.name: layer for layer in layers}
    unknown = [name for name in parsed.inputs if name not in by_name]
    if len(unknown) == len(parsed.inputs):
        raise TableError(
            f"names no layer of the model ({named(unknown) or 'it has no scale of an input'})",
            where=where,
            do=f"give --param with ncnn's .param file; the model's layers are {named(by_name)}",
        )
    losses = []
    if unknown:
        losses.append(f"{counted(len(unknown), 'layer')} of the file are not in the model: {named(unknown)}")
    tensors: dict[str, Affine] = {}
    widened = set()
    for name, inverse in parsed.inputs.items():
        if name in unknown:
            continue
        affine, tensor = Affine(_scale(1 / inverse, name, where), 0, S8), by_name[name].input
        if tensors.get(tensor, affine) != affine:
            widened.add(tensor)
        tensors[tensor] = max(tensors.get(tensor, affine), affine, key=lambda each: each.scale)
    if widened:
        losses.append(
            f"{counted(len(widened), 'tensor')} read by several layers with different scales got the widest: "
            f"{named(sorted(widened))}"
        )
    weights = {}
    for name, inverses in parsed.weights.items():
        layer = by_name.get(name)
        if layer is not None:
            weights[layer.key] = WeightEntry("int8", layer.axis, "s8", _scales(inverses, layer, where))
    lost = tuple(by_name[name].input for name in parsed.unusable if name in by_name)
    return Foreign(tensors, weights, losses=tuple(losses), unusable=lost)


def _inverses(entry: WeightEntry, layer: NcnnLayer) -> list[float]:
    scales = list(entry.scales)
    if len(scales) == 1 < layer.channels:
        scales *= layer.channels
    if layer.group > 1:
        width = len(scales) // layer.group
        scales = [max(scales[first : first + width]) for first in range(0, len(scales), width)]
    factor = WINOGRAD / _LARGEST.get(entry.range, S8.qmax) if layer.winograd else 1.0
    return [factor / scale for scale in scales]


def _scales(inverses: tuple[float, ...], layer: NcnnLayer, where: str) -> tuple[float, ...]:
    expected = layer.group if layer.group > 1 else layer.channels
    if len(inverses) != expected:
        raise TableError(
            f"layer {layer.name!r} has {len(inverses)} weight scales, the model expects {expected}",
            where=where,
            do="is this the table of this model?",
        )
    factor = WINOGRAD / S8.qmax if layer.winograd else 1.0
    scales = [_scale(factor / inverse, layer.name, where) for inverse in inverses]
    width = layer.channels // expected
    return tuple(scale for scale in scales for _ in range(width))


def _scale(scale: float, name: str, where: str) -> float:
    try:
        return positive_scale(scale)
    except NonFiniteError as error:
        raise TableError(error.what, where=f"{where}: layer {name!r}", do="correct it") from error


def _joined(values: list[float]) -> str:
    return " ".join(repr(float(value)) for value in values)


def _require_names(layers: Sequence[NcnnLayer], where: str) -> None:
    names = [layer.name for layer in layers]
    require_names(names, _WHITE, where, "of a layer has white space or is empty, which ncnn's table cannot hold")
    for name in names:
        if "_param_" in name or len(name.encode()) > _LONGEST_NAME:
            why = "holds _param_" if "_param_" in name else f"has more than {_LONGEST_NAME} bytes"
            raise TableError(
                f"layer {name[:60]!r} {why}, which ncnn2int8 cannot read", where=where, do="rename the node"
            )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TableError(f"two layers are called {twice!r} in ncnn", where=where, do="rename one of them")


def _winograd_losses(layers: Sequence[NcnnLayer]) -> list[str]:
    slow = [layer.name for layer in layers if layer.winograd]
    if not slow:
        return []
    text = (
        f"weights of {counted(len(slow), '3x3 convolution')} of stride 1 get codes up to {WINOGRAD}, as ncnn2table "
        f"gives them, because ncnn multiplies them by Winograd's method: {named(slow)}"
    )
    return [text]


def _group_losses(layers: Sequence[NcnnLayer], table: CalibrationTable) -> list[str]:
    grouped = [layer.name for layer in layers if 1 < layer.group < len(table.weights[layer.key].scales)]
    if not grouped:
        return []
    return [f"ncnn has one weight scale per group, the largest of its channels was taken: {named(grouped)}"]


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
    kind: LayerKind | None = None


def layers_of_model(model: onnx.ModelProto, plan: Plan) -> list[NcnnLayer]:
    """List the layers of a plan, under the names of their nodes, and those that it leaves in float for speed."""
    index = Index(model)
    planned = {layer.node: layer for layer in plan.layers}
    slower = {each.node for each in plan.unquantized if each.reason in SLOWER}
    found = []
    for node in index.graph.node:
        if node.name in planned:
            found.append(_layer(index, node, planned[node.name], plan))
        elif node.name in slower:
            layer = layer_of(index, node, plan.ops.rules, ())
            if isinstance(layer, Layer):
                found.append(replace(_layer(index, node, layer, plan), quantizable=False))
    return found


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
    size = math.prod(dims)
    channels = 1 if layer.axis is None else dims[layer.axis]
    key = plan.weight_key(layer.node, layer.weight)
    kind: LayerKind | None = None
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


def _param_layers(content: bytes, where: str) -> list[tuple[int, str, LayerKind]]:
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


def _kind(layer_type: str, values: dict[int, int]) -> LayerKind:
    if _TYPES[layer_type] == "Gemm":
        return "Gemm", (values[0], values[2])
    width, stride, dilation = values[1], values.get(3, 1), values.get(2, 1)
    window = (values.get(11, width), width)
    strides, dilations = (values.get(13, stride), stride), (values.get(12, dilation), dilation)
    return "Conv", (values[0], values.get(7, 1), values[6], *window, *strides, *dilations)


def _told(kind: LayerKind) -> str:
    names = ("outputs", "groups", "weights", "kernel") if kind[0] == "Conv" else ("outputs", "weights")
    return ", ".join(f"{value} {name}" for name, value in zip(names, kind[1], strict=False))
