"""Which layers read the image: the way from the input to them, and what a pixel is worth in each of their channels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from int8cal.errors import ModelError
from int8cal.graph.index import Index, attribute
from int8cal.graph.taps import tapped_model
from int8cal.numerics.affine import U8, Affine, positive_scale
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from int8cal.data.pixels import Pixels
    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.numerics import Float32, Float64


# Ops that only rearrange pixels, and that every runtime can do with uint8 too
PASSING = frozenset({"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice"})
# With one constant operand they are a normalization inside the graph, which disappears into the layers as well
ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
_SHAPE_READERS = frozenset({"Shape", "Size"})
# onnxruntime 1.31 runs integer convolutions of 4 channels faster than those of 3: measured 1.2x (7x7) to 3x (3x3), but
# not with kernels as large as a transformer's 16x16 patches
_SLOW_CHANNELS, _SLOW_TAPS = 3, 64
_UNKNOWN_SIDE = 16  # stands in for a dimension that the model leaves open, while channels are followed


@dataclass(frozen=True, eq=False)
class PixelLayer:
    """A layer that takes pixels.

    Attributes:
        layer: The plan's.
        gain, offset: Float64 (input channels,): in the FP32 model the layer reads gain * pixel + offset.
    """

    layer: Layer
    gain: Float64
    offset: Float64

    def residual(self, zero_point: int) -> Float64:
        """Return what the layer reads where the pixel is the zero point: 0 where zero padding keeps its meaning."""
        return zero_point * self.gain + self.offset

    @property
    def can_be_widened(self) -> bool:
        """Whether the layer can read one more channel, of constant value."""
        return self.layer.op_type == "Conv" and self.layer.group == 1


@dataclass(frozen=True, eq=False)
class PixelReaders:
    """What reads the image.

    Attributes:
        tensors: The input, and all that is made of it by ops that rearrange or normalize, on the way to the layers.
        layers: The layers, in graph order.
        folded: Names of the nodes that normalize on the way; they disappear.
    """

    tensors: tuple[str, ...]
    layers: tuple[PixelLayer, ...]
    folded: tuple[str, ...]

    @property
    def affine(self) -> Affine:
        """Scale and zero point of the input: x' is about as large as x, and 0 is the pixel nearest to the mean one."""
        gain = np.concatenate([item.gain for item in self.layers])
        offset = np.concatenate([item.offset for item in self.layers])
        zero_point = int(np.clip(np.rint(-(gain @ offset) / (gain @ gain)), U8.qmin, U8.qmax))
        return Affine(positive_scale(float(np.exp(np.log(np.abs(gain)).mean()))), zero_point, U8)


def find_pixel_layers(model: onnx.ModelProto, plan: Plan, pixels: Pixels, where: str) -> PixelReaders:
    """Follow the input to the layers that read it, through ops that rearrange and normalize.

    Args:
        model: The prepared model.
        plan: Its plan.
        pixels: What the input is in pixels.
        where: The model, for messages.

    Raises:
        ModelError: Something else reads one of these tensors (names the node), or a layer mixes channels.
    """
    index = Index(model)
    by_node = {layer.node: layer for layer in plan.layers}
    tensors, found = [pixels.input], []
    for tensor in tensors:  # grows while it is walked
        if tensor in index.outputs:
            raise refused(f"the input {pixels.input!r} is passed on to output {tensor!r} as float", where)
        for use in index.uses.get(tensor, []):
            node = use.node
            layer = by_node.get(node.name)
            if layer is not None and use.slot == 0 and layer.op_type != "ConvTranspose":
                found.append(layer)
            elif (node.op_type in PASSING and use.slot == 0) or _normalizes(index, node, use.slot):
                tensors.append(str(node.output[0]))
            elif use.slot != 0 or node.op_type not in _SHAPE_READERS:
                raise refused(f"{node.op_type} {node.name!r} reads {_which(tensor, pixels)}{_why(plan, node)}", where)
    if not found:
        raise refused(f"no layer reads the input {pixels.input!r}", where)
    order = {node.name: position for position, node in enumerate(index.graph.node)}
    layers = sorted(dict.fromkeys(found), key=lambda layer: order[layer.node])
    folded = [index.producer[name] for name in tensors[1:] if index.producer[name].op_type in ARITHMETIC]
    return PixelReaders(
        tuple(tensors),
        tuple(_worth(index, model, pixels, tuple(tensors), layers, where)),
        tuple(node.name for node in folded),
    )


def constant_channel(model: onnx.ModelProto, readers: PixelReaders) -> int | None:
    """Choose the code of a channel of constant value behind the image's, as near to the zero point as weights allow.

    None where padding is as good without it (off by no more than rounding the mean pixel to a code explains) and the
    runtime no faster with it. Its weights are those of the image's channels times residual / distance. They are rounded
    with the same scale, so the nearest code that does not raise any scale has the least rounding error.
    """
    affine, index = readers.affine, Index(model)
    convolutions = [item for item in readers.layers if item.can_be_widened]
    if not any(
        _slow(index, item.layer) or (_pads(index.nodes[item.layer.node]) and _is_off(item, affine))
        for item in convolutions
    ):
        return None
    need = 1.0
    for item in convolutions:
        weight = index.constant(item.layer.weight).astype(np.float64)
        shape = (1, -1, *[1] * (weight.ndim - 2))
        axes = tuple(range(1, weight.ndim))
        largest = np.abs(weight * (item.gain / affine.scale).reshape(shape)).max(axis=axes)
        rest = item.residual(affine.zero_point).reshape(shape)
        constant = np.abs((weight * rest).sum(axis=1)).max(axis=axes[:-1]) / affine.scale
        alive = largest > 0
        need = max(need, float((constant[alive] / largest[alive]).max(initial=0.0)))
    above, below = U8.qmax - affine.zero_point, affine.zero_point
    distance = int(min(np.ceil(need), max(above, below)))
    return affine.zero_point + distance if distance <= above else affine.zero_point - distance


def _is_off(item: PixelLayer, affine: Affine) -> bool:
    """Whether padding is off by more than rounding the mean pixel explains."""
    return bool((np.abs(item.residual(affine.zero_point)) > 0.5000001 * np.abs(item.gain)).any())


def _slow(index: Index, layer: Layer) -> bool:
    taps = math.prod(index.initializers[layer.weight].dims[2:])
    return layer.channels == _SLOW_CHANNELS and taps <= _SLOW_TAPS


def _pads(node: onnx.NodeProto) -> bool:
    auto = attribute(node, "auto_pad", b"NOTSET")
    return auto in {b"SAME_UPPER", b"SAME_LOWER"} or any(attribute(node, "pads", []))


def refused(what: str, where: str) -> ModelError:
    """Make the error for a model that cannot take raw pixels."""
    return ModelError(f"uint8_input is not possible: {what}", where=where, do="leave --uint8-input out")


def _normalizes(index: Index, node: onnx.NodeProto, slot: int) -> bool:
    if node.op_type not in ARITHMETIC or node.domain not in ("", "ai.onnx") or len(node.input) != 2 or slot < 0:
        return False
    return index.is_constant(node.input[1 - slot]) and not (node.op_type == "Div" and slot == 1)


def _which(tensor: str, pixels: Pixels) -> str:
    return f"the input {tensor!r}" if tensor == pixels.input else f"{tensor!r}, made of the input {pixels.input!r},"


def _why(plan: Plan, node: onnx.NodeProto) -> str:
    reason = next((each.reason for each in plan.unquantized if each.node == node.name), "")
    return f" ({reason})" if reason else " and is no Conv or Gemm with constant weights"


def _worth(
    index: Index, model: onnx.ModelProto, pixels: Pixels, tensors: tuple[str, ...], layers: list[Layer], where: str
) -> Iterator[PixelLayer]:
    """Find gain and offset of each input channel of each layer."""
    channels = np.arange(len(pixels.mean))
    makers = [index.producer[name] for name in tensors[1:]]
    if not any(node.op_type in ARITHMETIC for node in makers):
        followed = _followed(model, pixels, tensors, channels)
        for layer in layers:
            chosen = _per_channel(followed[layer.input], layer, where).astype(np.int64)
            yield PixelLayer(layer, pixels.gain[chosen], pixels.offset[chosen])
        return
    black = _followed(model, pixels, tensors, pixels.offset)
    white = _followed(model, pixels, tensors, 255 * pixels.gain + pixels.offset)
    for node in makers:
        data = next(name for name in node.input if name in tensors)
        if node.op_type in ARITHMETIC and black[data].shape != black[node.output[0]].shape:
            raise refused(f"{node.op_type} {node.name!r} changes the shape of {_which(data, pixels)}", where)
    for layer in layers:
        offset = _per_channel(black[layer.input], layer, where)
        gain = (_per_channel(white[layer.input], layer, where) - offset) / 255
        if not (np.isfinite(gain) & (gain != 0) & np.isfinite(offset)).all():
            raise refused(f"{layer.op_type} {layer.node!r} reads a channel that does not depend on pixels", where)
        yield PixelLayer(layer, gain, offset)


def _per_channel(values: Float32, layer: Layer, where: str) -> Float64:
    """Return the one value that each input channel of a layer reads, float64 (channels,)."""
    axis = 1 if layer.op_type == "Conv" else -1
    rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    if rows.shape[0] != layer.channels or not rows.size or (rows != rows[:, :1]).any():
        raise refused(f"{layer.op_type} {layer.node!r} mixes the image's channels along its own", where)
    return rows[:, 0].astype(np.float64)


def _followed(
    model: onnx.ModelProto, pixels: Pixels, tensors: tuple[str, ...], values: npt.NDArray[np.generic]
) -> dict[str, Float32]:
    """Send an image through that has one value per channel, and return what each tensor holds then."""
    value = next(value for value in model.graph.input if value.name == pixels.input)
    dims = value.type.tensor_type.shape.dim
    known = [dim.dim_value for dim in dims] or [0] * (3 if pixels.axis is None else 4)
    sides = [side or (1 if axis == 0 else _UNKNOWN_SIDE) for axis, side in enumerate(known)]
    shape = [1] * len(sides)
    if pixels.axis is not None:
        sides[pixels.axis] = shape[pixels.axis] = len(values)
    image = np.ascontiguousarray(np.broadcast_to(values.astype(np.float32).reshape(shape), sides))
    result = {pixels.input: image}
    if len(tensors) > 1:
        session = Session(tapped_model(model, tensors), threads=1, optimization="none")
        found = session.run({pixels.input: image}, list(tensors[1:]))
        result |= {name: np.asarray(array, np.float32) for name, array in found.items()}
    return result
