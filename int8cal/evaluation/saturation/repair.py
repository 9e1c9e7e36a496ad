"""Make an int8 model safe: new codes, and new scales, for the output channels that can saturate, and for no other.

The weights that the codes stand for are quantized again with numerics.rounding. Where the model can hold a scale per
output channel the scale is chosen anew; where it cannot, the scale stays and the offending pairs move to the nearest
safe codes. s32 biases follow the scales, so every other number of the model keeps its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx

from int8cal.evaluation.saturation.edit import Editor, set_axis
from int8cal.evaluation.saturation.on_data import INSIDE
from int8cal.evaluation.saturation.worst_case import Judged, judge_layers
from int8cal.numerics.affine import S7, S8, QType
from int8cal.numerics.rounding import choose_scales, round_codes
from int8cal.numerics.weights import BIAS_LIMIT

if TYPE_CHECKING:
    import numpy.typing as npt

    from int8cal.evaluation.result import Fusion
    from int8cal.evaluation.saturation.linear import Linear

How = Literal["scales", "codes"]
_ALL_CODES = QType("int8", -128, 127)
_AXIS_OPSET = 13  # DequantizeLinear has an axis from here on


@dataclass(frozen=True)
class Repair:
    """What was changed in one layer.

    Attributes:
        node: The layer.
        how: "scales": codes and scales of the unsafe channels; "codes": unsafe pairs under the same scales; None where
            it could not be repaired, and `why`.
        channels: Output channels that were quantized again.
        sqnr_db: Signal to noise of their weights, new against old; None where none was changed.
    """

    node: str
    how: How | None
    channels: int
    sqnr_db: float | None
    why: str = ""


@dataclass(frozen=True)
class _New:
    """New rows of a layer, and of every scale (before, after): float32 values (scales,); None where they stay."""

    rows: npt.NDArray[np.int8]
    before: npt.NDArray[np.float64] | None
    after: npt.NDArray[np.float64] | None
    repair: Repair


def repair(model: onnx.ModelProto, target: str, fusion: Fusion | None) -> tuple[onnx.ModelProto, tuple[Repair, ...]]:
    """Quantize the unsafe channels of a model again, so that none can saturate on a target.

    Args:
        model: An int8 model of any tool; not changed.
        target: A name in runtime.targets.TARGETS.
        fusion: Its fusion audit, as for `judge_layers`.

    Returns:
        A changed copy, and what was done to each unsafe layer, in graph order. Layers inside If, Loop and Scan stay.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    opset = max((item.version for item in model.opset_import if item.domain in {"", "ai.onnx"}), default=1)
    editor = Editor(result)
    repairs = []
    for judged in judge_layers(result, target, fusion):
        if judged.result.verdict != "unsafe":
            continue
        if judged.layer.inside:
            repairs.append(Repair(judged.layer.name, None, 0, None, INSIDE))
            continue
        new = _requantize(judged, opset)
        _write(editor, judged.layer, new)
        repairs.append(new.repair)
    editor.finish()
    return result, tuple(repairs)


def _requantize(judged: Judged, opset: int) -> _New:
    layer, rows, links, unsafe = judged.layer, judged.rows, judged.links, judged.unsafe
    weight = layer.weight
    if weight is None or rows is None or links is None or unsafe is None:
        raise TypeError("a layer that is unsafe has weights, links and unsafe channels")
    touched: npt.NDArray[np.bool_] = np.any(unsafe, axis=1)
    part = rows.values[touched].astype(np.float64)
    values = rows.values.copy()
    channels = int(touched.sum()) * rows.values.shape[1]
    before = _scales(layer, len(rows.values), opset)
    if before is None:
        span = S7 if judged.anywhere else _ALL_CODES
        codes = round_codes(replace(rows, values=part), np.ones(len(part)), span, links)
        values[touched] = codes
        return _New(values, None, None, Repair(layer.name, "codes", channels, _sqnr(part, codes)))
    real = replace(rows, values=part * before[touched, None, None])
    span = S7 if judged.anywhere else S8  # no two codes of s7 can saturate
    scales = _with_room(choose_scales(real, span, links), before, touched, bias_codes(layer))
    values[touched] = round_codes(real, scales, span, links)
    after = before.copy()
    after[touched] = scales
    new = values[touched] * scales[:, None, None]
    return _New(values, before, after, Repair(layer.name, "scales", channels, _sqnr(real.values, new)))


def _scales(layer: Linear, count: int, opset: int) -> npt.NDArray[np.float64] | None:
    """Return the scale of each of `count` rows where each may have one of its own; None where the scales must stay."""
    weight = layer.weight
    if weight is None or weight.scale is None or weight.zero_point.any():
        return None
    if layer.form.kind != "Recurrent" and weight.values.ndim != 2 and layer.form.kind in {"MatMul", "Gemm"}:
        return None
    if weight.scale.ndim == 0:
        if not layer.form.direct and opset < _AXIS_OPSET:
            return None
        return np.full(count, float(weight.scale))
    if layer.form.kind == "Recurrent":
        found = np.broadcast_to(weight.scale.reshape(weight.values.shape[0], -1), weight.values.shape[::2])
        return found.reshape(-1).astype(np.float64)
    return weight.scale.astype(np.float64) if weight.axis == layer.reduction.output_axis else None


def _with_room(
    scales: npt.NDArray[np.float64],
    before: npt.NDArray[np.float64],
    touched: npt.NDArray[np.bool_],
    bias: npt.NDArray[np.int32] | None,
) -> npt.NDArray[np.float64]:
    """Raise scales until the s32 bias of each channel fits as before."""
    if bias is None:
        return scales
    codes = np.abs(_per_scale(bias, len(before)).astype(np.float64)).max(axis=0)[touched]
    needed = (codes * before[touched] / (0.5 * BIAS_LIMIT)).astype(np.float32).astype(np.float64)
    return np.where(codes > 0.5 * BIAS_LIMIT, scales, np.maximum(scales, needed))


def _per_scale(values: npt.NDArray[Any], scales: int) -> npt.NDArray[Any]:
    """Lay out values per output channel as (groups, scales)."""
    return (
        np.broadcast_to(values.reshape(-1), (scales,)).reshape(1, -1)
        if values.size == 1
        else values.reshape(-1, scales)
    )


def bias_codes(layer: Linear) -> npt.NDArray[np.int32] | None:
    """Return the codes of an s32 bias."""
    slot = layer.form.bias
    if not 0 <= slot < len(layer.proto.input) or not layer.proto.input[slot]:
        return None
    name = layer.proto.input[slot]
    node = layer.constants.index.producer.get(name)
    if node is not None and node.op_type == "DequantizeLinear":
        name = node.input[0]
    value = layer.constants.value(name)
    return value if value is not None and value.dtype == np.int32 else None


def _write(editor: Editor, layer: Linear, new: _New) -> None:
    codes = layer.restore(new.rows)
    scales = None if new.after is None else new.after.astype(np.float32)
    if layer.form.direct:
        _write_direct(editor, layer, codes, scales)
    else:
        _write_between(editor, layer, codes, scales)
    bias = bias_codes(layer)
    if bias is not None and new.before is not None and new.after is not None:
        _write_bias(editor, layer, bias, new.before, new.after)


def _write_direct(
    editor: Editor, layer: Linear, codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float32] | None
) -> None:
    node, form = layer.proto, layer.form
    editor.set_constant(node, form.weight, codes)
    if scales is None:
        return
    if layer.outer is not None:
        editor.set_constant(layer.outer.node, layer.outer.slot, scales)
        return
    shape = (codes.shape[0], codes.shape[2]) if form.kind == "Recurrent" else scales.shape
    editor.set_constant(node, form.scale, scales.reshape(shape))
    if 0 <= form.zero_point < len(node.input) and node.input[form.zero_point]:
        editor.set_constant(node, form.zero_point, np.zeros(shape, np.int8))


def _write_between(
    editor: Editor, layer: Linear, codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float32] | None
) -> None:
    node, weight = layer.proto, layer.weight
    if weight is None or weight.scale is None:
        raise TypeError("weights behind a DequantizeLinear have a scale")
    axis = weight.axis if scales is None else layer.reduction.output_axis
    scale = weight.scale if scales is None else scales
    zero_point = np.broadcast_to(weight.zero_point, scale.shape).astype(np.int8)
    if not weight.plain:
        stem = f"{weight.name}_safe"
        constants: dict[str, npt.NDArray[Any]] = {stem: codes, f"{stem}_scale": scale, f"{stem}_zero_point": zero_point}
        editor.new_dequantize(node, layer.form.weight, constants, axis)
        return
    dequantize = editor.own_dequantize(node, layer.form.weight)
    editor.set_constant(dequantize, 0, codes)
    if scales is None:
        return
    editor.set_constant(dequantize, 1, scale)
    if len(dequantize.input) > 2 and dequantize.input[2]:
        editor.set_constant(dequantize, 2, zero_point)
    set_axis(dequantize, axis or 0)


def _write_bias(
    editor: Editor,
    layer: Linear,
    bias: npt.NDArray[np.int32],
    before: npt.NDArray[np.float64],
    after: npt.NDArray[np.float64],
) -> None:
    """Let the codes of a bias, and the scales that say what they stand for, follow the scales of the weights."""
    node, slot = layer.proto, layer.form.bias
    changed = before != after
    old = _per_scale(bias, len(before))
    moved = np.clip(np.rint(old * (before / after)), -BIAS_LIMIT, BIAS_LIMIT).astype(np.int32)
    codes = np.where(changed, moved, old)
    shape = (codes.size,) if bias.size == 1 else bias.shape
    if layer.form.direct:
        editor.set_constant(node, slot, codes.reshape(shape))
        return
    dequantize = editor.own_dequantize(node, slot)
    given = layer.constants.value(dequantize.input[1])
    data = layer.constants.value(layer.data_scale)
    editor.set_constant(dequantize, 0, codes.reshape(shape))
    if given is None:
        return
    scale = _per_scale(np.asarray(given, np.float32), len(before))
    if data is not None and data.size == 1:
        exact = np.float32(data.reshape(-1)[0]) * after.astype(np.float32)
    else:
        exact = (scale * (after / before)).astype(np.float32)
    scales = np.broadcast_to(np.where(changed, exact, scale), codes.shape).reshape(-1)
    editor.set_constant(dequantize, 1, scales)
    if len(dequantize.input) > 2 and dequantize.input[2]:
        editor.set_constant(dequantize, 2, np.zeros(scales.shape, np.int32))
    set_axis(dequantize, len(shape) - 1)


def _sqnr(before: npt.NDArray[np.float64], after: npt.NDArray[Any]) -> float | None:
    noise = float(((before - after) ** 2).sum())
    return float(10 * np.log10((before**2).sum() / noise)) if noise > 0 else None
