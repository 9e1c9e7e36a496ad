"""Make an int8 model safe: new codes, and new scales, for the output channels that can saturate, and for no other.

The weights that the codes stand for are quantized again with numerics.rounding. Where the model can hold a scale per
output channel the scale is chosen anew; where it cannot, the scale stays and the offending pairs move to the nearest
safe codes. s32 biases follow the scales, so every other number of the model keeps its meaning.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx
from onnx import helper

from int8cal.audit.on_data import INSIDE
from int8cal.audit.worst_case import WorstCase, worst_cases
from int8cal.graph.constants import LAYOUT_OPS
from int8cal.graph.edit import Names, constant, refill
from int8cal.graph.index import Index
from int8cal.graph.ops import opset_of
from int8cal.numerics.affine import S7, S8, QType
from int8cal.numerics.rounding import choose_scales, round_codes
from int8cal.numerics.weights import BIAS_LIMIT
from int8cal.protos import copied

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.audit.layer import Linear
    from int8cal.evaluation.result import Fusion
    from int8cal.numerics import Array, Bools, Float32, Float64, Int8, Int32

RepairKind = Literal["scales", "codes"]
_ALL_CODES = QType("int8", -128, 127)
_CONSTANT_OPS = LAYOUT_OPS | {"Constant", "QuantizeLinear", "DequantizeLinear"}
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
    how: RepairKind | None
    channels: int
    sqnr_db: float | None
    why: str = ""


@dataclass(frozen=True)
class _New:
    """New rows of a layer, and of every scale (before, after): float32 values (scales,); None where they stay."""

    rows: Int8
    before: Float64 | None
    after: Float64 | None
    repair: Repair


def repair(model: onnx.ModelProto, target: str, fusion: Fusion | None) -> tuple[onnx.ModelProto, tuple[Repair, ...]]:
    """Quantize the unsafe channels of a model again, so that none can saturate on a target.

    Args:
        model: An int8 model of any tool; not changed.
        target: A name in runtime.targets.TARGETS.
        fusion: Its fusion audit, as for `audit_saturation`.

    Returns:
        A changed copy, and what was done to each unsafe layer, in graph order. Layers inside If, Loop and Scan stay.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    opset = opset_of(model, 1)
    editor = _Editor(result)
    repairs = []
    for case in worst_cases(result, target, fusion):
        if case.result.verdict != "unsafe":
            continue
        if case.layer.inside:
            repairs.append(Repair(case.layer.name, None, 0, None, INSIDE))
            continue
        new = _requantize(case, opset)
        _write(editor, case.layer, new)
        repairs.append(new.repair)
    editor.finish()
    return result, tuple(repairs)


def _requantize(case: WorstCase, opset: int) -> _New:
    layer, rows, links, unsafe = case.layer, case.rows, case.links, case.unsafe
    weight = layer.weight
    if weight is None or rows is None or links is None or unsafe is None:
        raise TypeError("a layer that is unsafe has weights, links and unsafe channels")
    touched: Bools = np.any(unsafe, axis=1)
    part = rows.values[touched].astype(np.float64)
    values = rows.values.copy()
    channels = int(touched.sum()) * rows.values.shape[1]
    before = _scales(layer, len(rows.values), opset)
    if before is None:
        span = S7 if case.anywhere else _ALL_CODES
        codes = round_codes(replace(rows, values=part), np.ones(len(part)), span, links)
        values[touched] = codes
        return _New(values, None, None, Repair(layer.name, "codes", channels, _sqnr(part, codes)))
    real = replace(rows, values=part * before[touched, None, None])
    span = S7 if case.anywhere else S8  # no two codes of s7 can saturate
    scales = _with_room(choose_scales(real, span, links), before, touched, bias_codes(layer))
    values[touched] = round_codes(real, scales, span, links)
    after = before.copy()
    after[touched] = scales
    new = values[touched] * scales[:, None, None]
    return _New(values, before, after, Repair(layer.name, "scales", channels, _sqnr(real.values, new)))


def _scales(layer: Linear, count: int, opset: int) -> Float64 | None:
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
    scales: Float64,
    before: Float64,
    touched: Bools,
    bias: Int32 | None,
) -> Float64:
    """Raise scales until the s32 bias of each channel fits as before."""
    if bias is None:
        return scales
    codes = np.abs(_per_scale(bias, len(before)).astype(np.float64)).max(axis=0)[touched]
    needed = (codes * before[touched] / (0.5 * BIAS_LIMIT)).astype(np.float32).astype(np.float64)
    return np.where(codes > 0.5 * BIAS_LIMIT, scales, np.maximum(scales, needed))


def _per_scale(values: Array, scales: int) -> Array:
    """Lay out values per output channel as (groups, scales)."""
    return (
        np.broadcast_to(values.reshape(-1), (scales,)).reshape(1, -1)
        if values.size == 1
        else values.reshape(-1, scales)
    )


def bias_codes(layer: Linear) -> Int32 | None:
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


def _write(editor: _Editor, layer: Linear, new: _New) -> None:
    codes = layer.restore(new.rows)
    scales = None if new.after is None else new.after.astype(np.float32)
    if layer.form.direct:
        _write_direct(editor, layer, codes, scales)
    else:
        _write_between(editor, layer, codes, scales)
    bias = bias_codes(layer)
    if bias is not None and new.before is not None and new.after is not None:
        _write_bias(editor, layer, bias, new.before, new.after)


def _write_direct(editor: _Editor, layer: Linear, codes: Int8, scales: Float32 | None) -> None:
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


def _write_between(editor: _Editor, layer: Linear, codes: Int8, scales: Float32 | None) -> None:
    node, weight = layer.proto, layer.weight
    if weight is None or weight.scale is None:
        raise TypeError("weights behind a DequantizeLinear have a scale")
    axis = weight.axis if scales is None else layer.reduction.output_axis
    scale = weight.scale if scales is None else scales
    zero_point = np.broadcast_to(weight.zero_point, scale.shape).astype(np.int8)
    if not weight.plain:
        stem = f"{weight.name}_safe"
        constants: dict[str, Array] = {stem: codes, f"{stem}_scale": scale, f"{stem}_zero_point": zero_point}
        editor.new_dequantize(node, layer.form.weight, constants, axis)
        return
    dequantize = editor.own_dequantize(node, layer.form.weight)
    editor.set_constant(dequantize, 0, codes)
    if scales is not None:
        editor.set_scales(dequantize, scale, zero_point, axis or 0)


def _write_bias(
    editor: _Editor,
    layer: Linear,
    bias: Int32,
    before: Float64,
    after: Float64,
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
    data = layer.constants.value(layer.data.scale)
    editor.set_constant(dequantize, 0, codes.reshape(shape))
    if given is None:
        return
    scale = _per_scale(np.asarray(given, np.float32), len(before))
    if data is not None and data.size == 1:
        exact = np.float32(data.reshape(-1)[0]) * after.astype(np.float32)
    else:
        exact = (scale * (after / before)).astype(np.float32)
    scales = np.broadcast_to(np.where(changed, exact, scale), codes.shape).reshape(-1)
    editor.set_scales(dequantize, scales, np.zeros(scales.shape, np.int32), len(shape) - 1)


def _sqnr(before: Float64, after: Array) -> float | None:
    noise = float(((before - after) ** 2).sum())
    return float(10 * np.log10((before**2).sum() / noise)) if noise > 0 else None


class _Editor:
    """A model that is changed in place: only what is asked for, everything else keeps its bytes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        index = Index(model)
        self.graph, self.producer, self.initializers = index.graph, index.producer, index.initializers
        self.names = Names(model.graph)
        self.fixed = {value.name for value in (*self.graph.input, *self.graph.output)}
        self.readers = Counter({name: len(uses) for name, uses in index.uses.items()})
        self.left: list[str] = []
        self.inserted: dict[str, list[onnx.NodeProto]] = {}  # first output of a node -> the new ones before it

    def set_constant(self, node: onnx.NodeProto, slot: int, value: Array) -> None:
        """Let an input of a node be this value; an initializer that others read as well stays, and gets a copy."""
        name = node.input[slot]
        alone = name in self.initializers and self.readers[name] == 1 and name not in self.fixed
        fresh = name if alone else self.names.tensor(f"{name or node.output[0]}_safe")
        tensor = constant(fresh, value)
        if alone:
            self.initializers[name].CopyFrom(tensor)
            return
        self.graph.initializer.append(tensor)
        self.initializers[fresh] = self.graph.initializer[-1]
        self.rewire(node, slot, fresh)

    def set_scales(self, node: onnx.NodeProto, scales: Array, zero_point: Array, axis: int) -> None:
        """Let a DequantizeLinear have these scales, and zero points where it has any."""
        self.set_constant(node, 1, scales)
        if len(node.input) > 2 and node.input[2]:
            self.set_constant(node, 2, zero_point)
        _set_axis(node, axis)

    def rewire(self, node: onnx.NodeProto, slot: int, name: str) -> None:
        """Let an input of a node be another tensor."""
        before = node.input[slot]
        node.input[slot] = name
        self.readers[name] += 1
        if before:
            self.readers[before] -= 1
            self.left.append(before)

    def own_dequantize(self, node: onnx.NodeProto, slot: int) -> onnx.NodeProto:
        """Return the DequantizeLinear behind an input; a copy of it where others read it too."""
        name = node.input[slot]
        producer = self.producer[name]
        if self.readers[name] == 1 and name not in self.fixed:
            return producer
        copy = copied(producer)
        copy.output[0] = self.names.tensor(f"{name}_safe")
        copy.name = f"{producer.name}_safe" if producer.name else ""
        return self._insert(copy, node, slot)

    def new_dequantize(
        self, node: onnx.NodeProto, slot: int, values: Mapping[str, Array], axis: int | None
    ) -> onnx.NodeProto:
        """Put a DequantizeLinear of new constants (in order, by name) before an input of a node."""
        names = []
        for stem, value in values.items():
            names.append(self.names.tensor(stem))
            self.graph.initializer.append(constant(names[-1], value))
            self.initializers[names[-1]] = self.graph.initializer[-1]
        output = self.names.tensor(f"{names[0]}_dequantized")
        made = helper.make_node("DequantizeLinear", names, [output])
        if axis is not None:
            _set_axis(made, axis)
        return self._insert(made, node, slot)

    def _insert(self, made: onnx.NodeProto, node: onnx.NodeProto, slot: int) -> onnx.NodeProto:
        self.inserted.setdefault(node.output[0], []).append(made)
        self.readers.update(name for name in made.input if name)
        self.producer[made.output[0]] = made
        self.rewire(node, slot, made.output[0])
        return made

    def finish(self) -> None:
        """Put the new nodes in their places; remove constants that are not read any more, with what made them."""
        if self.inserted:
            nodes = [(self.inserted.get(next(iter(node.output), ""), ()), node) for node in self.graph.node]
            refill(self.graph.node, [each for before, node in nodes for each in (*before, node)])
        gone_nodes: set[str] = set()
        gone: set[str] = set()
        while self.left:
            name = self.left.pop()
            if self.readers[name] > 0 or name in self.fixed:
                continue
            if name in self.initializers:
                gone.add(name)
            producer = self.producer.get(name)
            if producer is None or producer.op_type not in _CONSTANT_OPS or len(producer.output) != 1:
                continue
            gone_nodes.add(name)
            for each in filter(None, producer.input):
                self.readers[each] -= 1
                self.left.append(each)
        _keep(self.graph.node, lambda node: not (node.output and node.output[0] in gone_nodes))
        _keep(self.graph.initializer, lambda tensor: tensor.name not in gone)


def _set_axis(node: onnx.NodeProto, axis: int) -> None:
    for item in node.attribute:
        if item.name == "axis":
            item.i = axis
            return
    node.attribute.append(helper.make_attribute("axis", axis))


def _keep(items: Any, wanted: Any) -> None:
    for index in reversed(range(len(items))):
        if not wanted(items[index]):
            del items[index]
