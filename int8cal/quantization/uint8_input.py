"""Raw pixels as the model's input: which layers take them, with which scale and zero point, and how the table says so.

The int8 model's input holds codes p, and x' = (p - zero_point) * scale stands for them; x = gain * p + offset per
channel is what the FP32 model gets. gain goes into the weights, offset into the biases (corrections.uint8_fold).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.data.pixels import Pixels, pixels_of
from int8cal.errors import ConfigError, ModelError, TableError, UsageError
from int8cal.graph.index import Index, attribute
from int8cal.graph.plan import Plan, QuantizedTensor
from int8cal.numerics.affine import U8, Affine, positive_scale
from int8cal.quantization.uint8_layers import PixelLayer, find_pixel_layers, refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from int8cal.graph.plan import Layer
    from int8cal.graph.prepared import Prepared
    from int8cal.job import Preprocess, QuantizationSettings

CORRECTION = "uint8_input"
# onnxruntime 1.31 runs integer convolutions of 4 channels faster than those of 3: measured 1.2x (7x7) to 3x (3x3), but
# not with kernels as large as a transformer's 16x16 patches
_SLOW_CHANNELS, _SLOW_TAPS = 3, 64


@dataclass(frozen=True)
class Uint8Input:
    """How an int8 model takes raw pixels.

    Attributes:
        pixels: What the FP32 model's input is in pixels.
        ones: Code of a channel of constant value that is put behind the image's, so that zero padding keeps its meaning
            where the mean pixel is not the zero point; None for no such channel.
        tensors: The input and what is made of it by ops that rearrange or normalize, in graph order.
        layers: The layers that read these.
        folded: The nodes of a normalization inside the graph, which disappear.
    """

    pixels: Pixels
    ones: int | None
    tensors: tuple[str, ...]
    layers: tuple[PixelLayer, ...]
    folded: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return what the table keeps under corrections.uint8_input."""
        return {**self.pixels.to_dict(), "ones": self.ones, "folded": list(self.folded)}

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes of the layers."""
        return frozenset(item.layer.node for item in self.layers)

    def widened(self, item: PixelLayer) -> bool:
        """Whether a layer reads the channel of constant value."""
        return self.ones is not None and item.layer.op_type == "Conv" and item.layer.group == 1


def plan_uint8_input(
    prepared: Prepared, plan: Plan, preprocess: Preprocess | None, settings: QuantizationSettings
) -> Uint8Input | None:
    """Settle how the model will take raw pixels, before any data is read; None where it will take floats.

    Args:
        prepared: The FP32 model.
        plan: Its plan.
        preprocess: How images become its input; None for pixel values as they are.
        settings: Whether raw pixels are wanted; the activation type and the user's ranges, which may contradict.

    Raises:
        UsageError, ConfigError: Settings that contradict.
        ModelError: The model has no image input, or something but a layer with constant weights reads it; names the
            node.
    """
    if not settings.uint8_input:
        return None
    if settings.activations != "u8":
        raise UsageError(
            f"uint8_input needs activations u8, not {settings.activations}: onnxruntime has no convolution that mixes "
            "both",
            do="give one of them up",
        )
    pixels = pixels_of(prepared.signature, preprocess, prepared.where)
    found = find_pixel_layers(prepared.model, plan, pixels, prepared.where)
    tensors, layers = found.tensors, found.layers
    fixed = next((name for name in tensors if name in settings.ranges), None)
    if fixed is not None:
        raise ConfigError(
            f"quantization.ranges gives a range for {fixed!r}, but uint8_input fixes it: the codes are the pixels",
            do="remove one of them",
        )
    affine = pixel_affine(layers)
    for item in layers:
        if item.layer.bias is None and item.layer.op_type == "MatMul" and item.residual(affine.zero_point).any():
            raise refused(f"MatMul {item.layer.node!r} has no bias that could take the mean", prepared.where)
    return Uint8Input(pixels, _ones(prepared.model, layers), tensors, layers, found.folded)


def uint8_input_of(model: onnx.ModelProto, plan: Plan, corrections: dict[str, Any]) -> Uint8Input | None:
    """Read a table's record; None where the model takes floats.

    Args:
        model: The prepared FP32 model.
        plan: Its plan.
        corrections: Of the table.

    Raises:
        TableError: The record is malformed or does not fit the model.
    """
    record = corrections.get(CORRECTION)
    if record is None:
        return None
    place = f"corrections.{CORRECTION}"
    try:
        pixels = Pixels.from_dict(record)
    except ValueError as error:
        raise TableError(str(error), where=place, do="calibrate again") from error
    ones = record.get("ones")
    if ones is not None and (not isinstance(ones, int) or isinstance(ones, bool) or not 0 <= ones <= 255):
        raise TableError(f'has "ones" {ones!r}, expected null or a code 0..255', where=place, do="calibrate again")
    if pixels.input not in Index(model).inputs:
        raise TableError(f"names {pixels.input!r}, which is not an input", where=place, do="calibrate again")
    try:
        found = find_pixel_layers(model, plan, pixels, "")
    except ModelError as error:
        raise TableError(error.what, where=place, do="calibrate again") from error
    return Uint8Input(pixels, ones, found.tensors, found.layers, found.folded)


def with_points(plan: Plan, uint8: Uint8Input) -> Plan:
    """Return the plan in which the input and all that is made of it are quantized, with one scale."""
    name = uint8.pixels.input
    points = []
    for tensor in uint8.tensors:
        known = plan.tensor(tensor) or QuantizedTensor(
            tensor, name, False, False, "", "Input" if tensor == name else ""
        )
        points.append(replace(known, group=name, source=tensor == name))
    rest = without_points(plan, uint8)
    return Plan((*points, *rest.tensors), plan.layers, plan.integer_nodes, plan.left, plan.recurrent, plan.ops)


def without_points(plan: Plan, uint8: Uint8Input) -> Plan:
    """Return the plan without the tensors whose range is that of raw pixels."""
    points = tuple(each for each in plan.tensors if each.tensor not in uint8.tensors)
    return Plan(points, plan.layers, plan.integer_nodes, plan.left, plan.recurrent, plan.ops)


def pixel_affine(layers: Sequence[PixelLayer]) -> Affine:
    """Choose scale and zero point: x' is about as large as x, and 0 is the pixel nearest to the mean one."""
    gain, offset = (np.concatenate(parts) for parts in zip(*((item.gain, item.offset) for item in layers), strict=True))
    zero_point = int(np.clip(np.rint(-(gain @ offset) / (gain @ gain)), U8.qmin, U8.qmax))
    return Affine(positive_scale(float(np.exp(np.log(np.abs(gain)).mean()))), zero_point, U8)


def describe(uint8: Uint8Input, affine: Affine) -> str:
    """Tell in one line what was decided, with what padding stands for."""
    names = ", ".join(item.layer.node for item in uint8.layers)
    what = ", ".join(("scale, mean and std", *uint8.folded))
    line = f"raw pixels at {uint8.pixels.input}: {what} folded into {names}"
    convolutions = [item for item in uint8.layers if item.layer.op_type == "Conv"]
    if not convolutions:
        return line
    line += "; "
    rest = max(float(np.abs(item.residual(affine.zero_point)).max()) for item in convolutions)
    if all(uint8.widened(item) for item in convolutions):
        return line + f"padding stays 0 through a channel of constant value (without it, up to {rest:.3g})"
    if rest == 0:
        return line + "padding stays 0"
    return line + f"zero padding now stands for values of up to {rest:.3g} in place of 0"


def _ones(model: onnx.ModelProto, layers: tuple[PixelLayer, ...]) -> int | None:
    """Choose the code of the channel of constant value, as near to the zero point as its weights allow.

    None where padding is as good without it (off by no more than rounding the mean pixel to a code explains) and the
    runtime no faster with it. Its weights are those of the image's channels times residual / distance. They are rounded
    with the same scale, so the nearest code that does not raise any scale has the least rounding error.
    """
    affine = pixel_affine(layers)
    index = Index(model)
    convolutions = [item for item in layers if item.layer.op_type == "Conv" and item.layer.group == 1]
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
