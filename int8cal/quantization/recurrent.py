"""Recurrent nodes in int8: the integers that a table asks for, and how they are written into the model.

Two forms. "kernel": the op of com.microsoft that multiplies integers and quantizes its rows by itself. "weights": int8
initializers behind Cast and Mul, and the float cell. The runtime folds Cast and Mul of constants when it loads the
model, so the cell is as fast as before; behind DequantizeLinear, which it does not fold, it would convert all weights
in every run. Mul also takes a scale per direction and row, where DequantizeLinear has one axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np
import onnx
from onnx import helper, numpy_helper

from int8cal.calibration.table import WeightEntry
from int8cal.errors import TableError
from int8cal.graph.index import Index, outer_references
from int8cal.graph.recurrent import KERNEL_TARGETS, KERNELS, Form
from int8cal.numerics.recurrent import gate_scales, quantize_gates
from int8cal.numerics.weights import WEIGHT_TYPES
from int8cal.protos import copied
from int8cal.quantization.emit import free_name, tensor_names
from int8cal.quantization.layers import finite_weight
from int8cal.runtime.targets import table_range, table_target

if TYPE_CHECKING:
    from typing import Literal

    import numpy.typing as npt

    from int8cal.calibration.table import CalibrationTable
    from int8cal.graph.plan import Plan
    from int8cal.graph.recurrent import Recurrent
    from int8cal.numerics.recurrent import GateCodes

FORMS_KEY = "recurrent"
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
        keys: The table's key of each of these tensors.
    """

    layer: Recurrent
    form: Form
    range: Literal["s8", "s7"]
    gates: dict[str, GateCodes]
    keys: dict[str, str]


def why_no_kernel(layer: Recurrent, target: str) -> str:
    """Say why a node's products are not of integers on a target; "" where they can be."""
    if not layer.no_kernel and target not in KERNEL_TARGETS:
        return f"the target {target} has no kernel for it"
    return layer.no_kernel


def quantize_recurrent(model: onnx.ModelProto, plan: Plan, table: CalibrationTable) -> dict[str, QuantizedRecurrent]:
    """Quantize the weights of the recurrent nodes that the table names under settings.recurrent.

    A table without that part leaves them in float, as it was when the table was made.

    Args:
        model: The prepared model.
        plan: Its plan.
        table: Forms, target, range, and scales, which are computed where absent.

    Returns:
        Integers by node name, in graph order.

    Raises:
        TableError: The table names a node or a form that is not there, or has the wrong number of scales.
        NonFiniteError: A weight holds NaN or infinity.
    """
    forms = _forms(model, plan, table)
    index = Index(model)
    result = {}
    for layer in plan.recurrent:
        if layer.node not in forms:
            continue
        form = forms[layer.node]
        span = _range(form, table)
        keys = {name: plan.weight_key(layer.node, name) for name in layer.tensors}
        gates = {}
        for name in layer.tensors:
            weight = finite_weight(index, name, layer.node)
            given = _given_scales(table, keys[name], weight.shape[:2], span)
            scales = gate_scales(weight, WEIGHT_TYPES[span]) if given is None else given
            gates[name] = quantize_gates(weight, scales, WEIGHT_TYPES[span])
        result[layer.node] = QuantizedRecurrent(layer, form, span, gates, keys)
    return result


def gate_entries(recurrent: dict[str, QuantizedRecurrent]) -> dict[str, WeightEntry]:
    """Return the table's weight entries for W and R of each node."""
    return {
        each.keys[name]: WeightEntry("int8", _AXIS, each.range, tuple(map(float, gates.scales.reshape(-1))))
        for each in recurrent.values()
        for name, gates in each.gates.items()
    }


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
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        each = recurrent.get(node.name)
        if each is None:
            nodes.append(copied(node))
        elif each.form == "kernel":
            nodes.append(writer.kernel(node, each))
        else:
            nodes.extend(writer.weights(node, each))
    read = {name for node in nodes for name in (*node.input, *outer_references(node))}
    read |= {value.name for value in model.graph.output}
    unread = {name for each in recurrent.values() for name in each.gates} - read
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in unread]
    initializers = onnx.GraphProto()
    initializers.initializer.extend([*kept, *writer.initializers.values()])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.initializer[:]
    model.graph.initializer.extend(initializers.initializer)
    if writer.used_kernel and all(item.domain != _DOMAIN for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return model


class _Writer:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.taken = tensor_names(model.graph)
        self.taken_nodes = {node.name for node in model.graph.node}
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.used_kernel = False
        # nodes that read the same weights in the same way share what is made of them
        self.written: dict[tuple[Form, str, bytes, str], tuple[str, ...]] = {}

    def kernel(self, node: onnx.NodeProto, each: QuantizedRecurrent) -> onnx.NodeProto:
        """Turn a node into the op whose kernel multiplies integers."""
        self.used_kernel = True
        inputs = [*node.input, *[""] * (_KERNEL_INPUTS - len(node.input))]
        parameters: list[str] = []
        for slot, name in ((1, each.layer.weight), (2, each.layer.recurrence)):
            codes, scales, zeros = self._kernel_weight(name, each)
            inputs[slot] = codes
            parameters += [scales, zeros]
        result = helper.make_node(
            KERNELS[node.op_type], [*inputs, *parameters], list(node.output), name=node.name, domain=_DOMAIN
        )
        result.attribute.extend(item for item in node.attribute if item.name != "layout")  # 0, as the kernel has it
        result.doc_string = node.doc_string
        return result

    def weights(self, node: onnx.NodeProto, each: QuantizedRecurrent) -> list[onnx.NodeProto]:
        """Put int8 weights, Cast and Mul in front of a node that stays in float."""
        result = copied(node)
        nodes: list[onnx.NodeProto] = []
        for slot, name in ((1, each.layer.weight), (2, each.layer.recurrence)):
            gates = each.gates[name]
            key = (each.form, name, gates.scales.tobytes(), each.range)
            if key not in self.written:
                value = self._fresh(f"{name}_dequantized")
                real = self._fresh(f"{name}_float")
                codes = self._constant(f"{name}_quantized", gates.codes)
                scales = self._constant(f"{name}_scale", gates.scales.astype(np.float32)[..., np.newaxis])
                nodes.append(helper.make_node("Cast", [codes], [real], name=self._node(f"{value}_Cast"), to=1))
                nodes.append(helper.make_node("Mul", [real, scales], [value], name=self._node(f"{value}_Mul")))
                self.written[key] = (value,)
            (result.input[slot],) = self.written[key]
        return [*nodes, result]

    def _kernel_weight(self, name: str, each: QuantizedRecurrent) -> tuple[str, ...]:
        gates = each.gates[name]
        key = (each.form, name, gates.scales.tobytes(), each.range)
        if key not in self.written:
            self.written[key] = (
                self._constant(f"{name}_quantized", gates.codes.transpose(0, 2, 1)),
                self._constant(f"{name}_scale", gates.scales.astype(np.float32)),
                self._constant(f"{name}_zero_point", np.zeros(gates.scales.shape, np.int8)),
            )
        return self.written[key]

    def _constant(self, stem: str, value: npt.NDArray[np.generic]) -> str:
        name = self._fresh(stem)
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def _fresh(self, stem: str) -> str:
        return free_name(stem, self.taken)

    def _node(self, stem: str) -> str:
        return free_name(stem, self.taken_nodes)


def _forms(model: onnx.ModelProto, plan: Plan, table: CalibrationTable) -> dict[str, Form]:
    forms: dict[str, Form] = dict(table.settings.get(FORMS_KEY, {}))
    layers = {layer.node: layer for layer in plan.recurrent}
    known = {node.name for node in model.graph.node}
    target = table_target(table.settings)
    for node, form in forms.items():
        where = f"settings.{FORMS_KEY}"
        if node not in known:
            raise TableError(f"names the node {node!r}, which the model does not have", where=where, do="remove it")
        if form not in get_args(Form):
            raise TableError(f"is {form!r} for node {node!r}", where=where, do="give kernel or weights")
        reason = why_no_kernel(layers[node], target) if form == "kernel" and node in layers else ""
        if reason:
            raise TableError(f"is kernel for node {node!r}, but {reason}", where=where, do="give weights")
    return forms


def _range(form: Form, table: CalibrationTable) -> Literal["s8", "s7"]:
    if form == "weights":
        return "s8"  # nothing adds up integers, so nothing can saturate
    # the kernel adds neighbours along the inputs in s16 where the CPU lacks VNNI
    return "s8" if table_range(table.settings) == "s8" else "s7"


def _given_scales(
    table: CalibrationTable, key: str, shape: tuple[int, ...], span: str
) -> npt.NDArray[np.float64] | None:
    entry = table.weights.get(key)
    if entry is None:
        return None
    entry.require_shape(key, _AXIS, shape[0] * shape[1])
    given = entry.scales_for(span)
    return None if given is None else given.reshape(shape)
