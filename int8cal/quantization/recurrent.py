"""Recurrent nodes in int8: the integers that a table asks for, and how they are written into the model.

Three forms. "kernel": the op of com.microsoft that multiplies integers and quantizes its rows by itself. "weights":
int8 initializers behind Cast and Mul, and the float cell. "recurrence": R alone, and W in float. The runtime folds
Cast and Mul of constants when it loads the model, so the cell is as fast as before; behind DequantizeLinear, which it
does not fold, it would convert all weights in every run. Mul also takes a scale per direction and row, where
DequantizeLinear has one axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np
import onnx
from onnx import helper

from int8cal.errors import TableError
from int8cal.graph.edit import Builder, Names, instead, rebuild
from int8cal.graph.index import Index
from int8cal.graph.layers import KERNEL_TARGETS, KERNELS, KernelForm
from int8cal.numerics.weights import WEIGHT_TYPES, gate_scales, quantize_gates
from int8cal.protos import copied
from int8cal.quantization.table import WeightEntry

if TYPE_CHECKING:
    from typing import Literal

    from int8cal.graph.layers import Recurrent
    from int8cal.graph.plan import Plan
    from int8cal.numerics import Float64
    from int8cal.numerics.weights import GateCodes
    from int8cal.quantization.table import CalibrationTable

_DOMAIN = "com.microsoft"
_AXIS = 1  # of the rows; the scales of the first direction come first
_KERNEL_INPUTS = 8  # X, W, R, B, sequence_lens, initial_h, initial_c, P


@dataclass(frozen=True)
class QuantizedRecurrent:
    """A node's integers.

    Attributes:
        layer: The node.
        form: How it runs.
        range: Of the codes.
        gates: Codes and scales by the name of the float tensor.
    """

    layer: Recurrent
    form: KernelForm
    range: Literal["s8", "s7"]
    gates: dict[str, GateCodes]


def why_no_kernel(layer: Recurrent, target: str) -> str:
    """Say why a node's products are not of integers on a target; "" where they can be."""
    if not layer.no_kernel and target not in KERNEL_TARGETS:
        return f"the target {target} has no kernel for it"
    return layer.no_kernel


def quantize_recurrent(
    model: onnx.ModelProto | Index, plan: Plan, table: CalibrationTable
) -> dict[str, QuantizedRecurrent]:
    """Quantize the weights of the recurrent nodes that the table names under settings.recurrent.

    A table without that part leaves them in float, as it was when the table was made.

    Args:
        model: The prepared model, or its index.
        plan: Its plan.
        table: Forms, target, range, and scales, which are computed where absent.

    Returns:
        Integers by node name, in graph order.

    Raises:
        TableError: The table names a node or a form that is not there, or has the wrong number of scales.
    """
    index = Index.of(model)
    forms, result = _forms(index, plan, table), {}
    for layer in plan.recurrent:
        if layer.node not in forms:
            continue
        form = forms[layer.node]
        span = _range(form, table)
        gates = {}
        for name in layer.quantized(form):
            weight = index.constant(name).astype(np.float32)
            given = _given_scales(table, plan.weight_key(layer.node, name), weight.shape[:2], span)
            scales = gate_scales(weight, WEIGHT_TYPES[span]) if given is None else given
            gates[name] = quantize_gates(weight, scales, WEIGHT_TYPES[span])
        result[layer.node] = QuantizedRecurrent(layer, form, span, gates)
    return result


def gate_entries(plan: Plan, recurrent: dict[str, QuantizedRecurrent]) -> dict[str, WeightEntry]:
    """Return the table's weight entries for W and R of each node."""
    entries = {}
    for node, each in recurrent.items():
        for name, gates in each.gates.items():
            scales = tuple(gates.scales.ravel().tolist())
            entries[plan.weight_key(node, name)] = WeightEntry("int8", _AXIS, each.range, scales)
    return entries


def emit_recurrent(model: onnx.ModelProto, recurrent: dict[str, QuantizedRecurrent]) -> onnx.ModelProto:
    """Write the integers into an emitted model.

    Args:
        model: As emitted; changed in place.
        recurrent: Integers by node name.

    Returns:
        The model. It imports com.microsoft only where a kernel of that domain is used; float weights that nobody reads
        any more are gone.
    """
    if not recurrent:
        return model
    writer = _Writer(model)
    for node in model.graph.node:
        each = recurrent.get(node.name)
        if each is None:
            writer.built.nodes.append(node)
        elif each.form == "kernel":
            writer.kernel(node, each)
        else:
            writer.weights(node, each)
    rebuild(model, writer.built, {name for each in recurrent.values() for name in each.gates})
    if writer.used_kernel and all(item.domain != _DOMAIN for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return model


class _Writer:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.built = Builder(Names(model.graph))
        self.used_kernel = False
        # nodes that read the same weights in the same way share what is made of them
        self.written: dict[tuple[KernelForm, str, bytes, str], tuple[str, ...]] = {}

    def kernel(self, node: onnx.NodeProto, each: QuantizedRecurrent) -> None:
        """Turn a node into the op whose kernel multiplies integers."""
        self.used_kernel = True
        inputs = [*node.input, *[""] * (_KERNEL_INPUTS - len(node.input))]
        parameters: list[str] = []
        for slot, name in ((1, each.layer.weight), (2, each.layer.recurrence)):
            codes, scales, zeros = self._kernel_weight(name, each)
            inputs[slot] = codes
            parameters += [scales, zeros]
        result = instead(node, KERNELS[node.op_type], [*inputs, *parameters], domain=_DOMAIN)
        result.output[:] = node.output
        result.attribute.extend(item for item in node.attribute if item.name != "layout")  # 0, as the kernel has it
        result.doc_string = node.doc_string
        self.built.nodes.append(result)

    def weights(self, node: onnx.NodeProto, each: QuantizedRecurrent) -> None:
        """Put int8 weights, Cast and Mul in front of a node that stays in float."""
        result = copied(node)
        for slot, name in ((1, each.layer.weight), (2, each.layer.recurrence)):
            gates = each.gates.get(name)
            if gates is None:  # it stays float
                continue
            key = (each.form, name, gates.scales.tobytes(), each.range)
            if key not in self.written:
                value = self.built.names.tensor(f"{name}_dequantized")
                real = self.built.names.tensor(f"{name}_float")
                codes = self.built.constant(f"{name}_quantized", gates.codes)
                scales = self.built.constant(f"{name}_scale", gates.scales.astype(np.float32)[..., np.newaxis])
                self.built.node("Cast", [codes], real, after=value, to=onnx.TensorProto.FLOAT)
                self.built.node("Mul", [real, scales], value)
                self.written[key] = (value,)
            (result.input[slot],) = self.written[key]
        self.built.nodes.append(result)

    def _kernel_weight(self, name: str, each: QuantizedRecurrent) -> tuple[str, ...]:
        gates = each.gates[name]
        key = (each.form, name, gates.scales.tobytes(), each.range)
        if key not in self.written:
            self.written[key] = (
                self.built.constant(f"{name}_quantized", gates.codes.transpose(0, 2, 1)),
                self.built.constant(f"{name}_scale", gates.scales.astype(np.float32)),
                self.built.constant(f"{name}_zero_point", np.zeros(gates.scales.shape, np.int8)),
            )
        return self.written[key]


def _forms(index: Index, plan: Plan, table: CalibrationTable) -> dict[str, KernelForm]:
    forms, target = table.settings.recurrent, table.settings.target
    layers = {layer.node: layer for layer in plan.recurrent}
    for node, form in forms.items():
        where = "settings.recurrent"
        if node not in index.nodes:
            raise TableError(f"names the node {node!r}, which the model does not have", where=where, do="remove it")
        if form not in get_args(KernelForm):
            raise TableError(f"is {form!r} for node {node!r}", where=where, do="give kernel, weights or recurrence")
        reason = why_no_kernel(layers[node], target) if form == "kernel" and node in layers else ""
        if reason:
            raise TableError(f"is kernel for node {node!r}, but {reason}", where=where, do="give weights")
    return forms


def _range(form: KernelForm, table: CalibrationTable) -> Literal["s8", "s7"]:
    if form != "kernel":
        return "s8"  # nothing adds up integers, so nothing can saturate
    # the kernel adds neighbours along the inputs in s16 where the CPU lacks VNNI
    return "s8" if table.settings.weights == "s8" else "s7"


def _given_scales(table: CalibrationTable, key: str, shape: tuple[int, ...], span: str) -> Float64 | None:
    entry = table.weights.get(key)
    if entry is None:
        return None
    entry.require_shape(key, _AXIS, shape[0] * shape[1])
    given = entry.scales_for(span)
    return None if given is None else given.reshape(shape)
