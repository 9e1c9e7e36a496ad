"""Models at an opset that the runtime has QuantizeLinear of, with what onnx's converter forgets of older ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import onnx
from onnx import helper, shape_inference, version_converter
from onnx.inliner import inline_local_functions

from int8cal.errors import ModelError
from int8cal.graph.edit import Builder, Names, instead, refill
from int8cal.graph.index import attribute, walk
from int8cal.graph.ops import STANDARD
from int8cal.protos import copied, graphs_within, outline
from int8cal.stored import values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    # Writes what stands in a node's place; knows the constants of its graph, and the ranks of its tensors.
    Write = Callable[[Builder, onnx.NodeProto, Mapping[str, onnx.TensorProto], Mapping[str, int]], None]

OPSET_OF_16_BITS, IR_OF_16_BITS = 21, 10  # QuantizeLinear to uint16
MAX_OPSET = 27  # opset 28 has other QuantizeLinear and DequantizeLinear, which onnxruntime 1.32 has no kernel for

_NEEDS_SIZES = re.compile("assertNotParams|assertInputsAvailable")  # of onnx's converter, for ops that broadcast
_LARGEST = 2**31 - 1  # that onnx can be asked about


def name_standard(model: onnx.ModelProto) -> None:
    """Give the domain of the standard ops its usual name, which is empty: onnx looks imports and ops up by that one.

    Args:
        model: Changed in place, functions too. Of several imports of that domain the last stays, as in onnxruntime.
    """
    for owner in (model, *model.functions):
        named = [item for item in owner.opset_import if item.domain in STANDARD]
        for item in named[:-1]:
            owner.opset_import.remove(item)
        for item in named[-1:]:
            item.domain = STANDARD[0]
    for nodes in (model.graph, *model.functions):
        for node in walk(nodes):
            if node.domain in STANDARD:
                node.domain = STANDARD[0]


def raise_opset(model: onnx.ModelProto, opset: int, where: str, least: int) -> onnx.ModelProto:
    """Return the model at a higher opset.

    onnx's converter does most of it. It forgets what some ops meant before: PRelu up to opset 6, Hardmax up to 12,
    Upsample and Resize up to 10.

    Args:
        model: At `opset`; may be changed.
        opset, least: The versions.
        where: What messages call it.

    Raises:
        ModelError: An op has no counterpart in the higher opset.
    """
    if opset < 9 and any(node.op_type == "Scan" for node in walk(model.graph)):
        _refuse(opset, least, where, "Scan of opset 8 takes a batch of sequences, which later ones do not")
    if opset < 7:
        _rewrite(model, {"PRelu": _slopes_of_channels})
    try:
        _require_sound(model, opset)
        raised = _converted(model, least)
    except Exception as error:  # noqa: BLE001 - the converter raises RuntimeError and ValidationError of several kinds
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        if _NEEDS_SIZES.search(why):
            why = "below opset 7 that takes tensors of fixed sizes, and not all are; a batch of 1 may do"
        _refuse(opset, least, where, why, error)
    if least >= OPSET_OF_16_BITS:
        raised.ir_version = max(raised.ir_version, IR_OF_16_BITS)
    changed: dict[str, Write] = {"Hardmax": _flat_hardmax} if opset < 13 else {}
    if opset < 11:
        changed["Resize"] = _resize_as_before
    _rewrite(raised, changed)
    return raised


def _require_sound(model: onnx.ModelProto, opset: int) -> None:
    """Refuse what ends the process in the converter: inputs that are missing, attributes of another type.

    Not by onnx's checker, which refuses much that runs, such as outputs without a shape.

    Raises:
        ValueError: Says what is wrong.
    """
    for node in walk(model.graph):
        if node.domain not in STANDARD or not onnx.defs.has(node.op_type):
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=opset)
        except onnx.defs.SchemaError:  # an op of a later opset
            continue
        inputs, outputs = len(node.input), len(node.output)
        if not (schema.min_input <= inputs <= schema.max_input and schema.min_output <= outputs <= schema.max_output):
            raise ValueError(f"{node.op_type} {node.name!r} has {inputs} inputs and {outputs} outputs")
        known: dict[str, Any] = dict(schema.attributes)
        for item in node.attribute:
            if item.name in known and item.type != int(known[item.name].type):
                raise ValueError(f"attribute {item.name} of {node.op_type} {node.name!r} is of another type")


def _refuse(opset: int, least: int, where: str, why: str, error: Exception | None = None) -> NoReturn:
    raise ModelError(
        f"opset {opset} cannot be raised to {least}: {why}", where=where, do=f"export it with opset {least} or higher"
    ) from error


def _rewrite(model: onnx.ModelProto, changed: Mapping[str, Write]) -> None:
    """Write nodes anew by their op, in the graphs inside too."""
    if not any(node.op_type in changed and node.domain in STANDARD for node in walk(model.graph)):
        return
    names, constants, ranks = Names(model.graph), dict[str, onnx.TensorProto](), dict[str, int]()
    for graph in graphs_within(shape_inference.infer_shapes(outline(model)).graph):
        values = (*graph.input, *graph.value_info, *graph.output)
        typed = {each.name: each.type.tensor_type for each in values}
        ranks |= {name: len(each.shape.dim) for name, each in typed.items() if each.HasField("shape")}
        ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    graphs = [*graphs_within(model.graph)]
    for graph in graphs:
        constants |= {tensor.name: tensor for tensor in graph.initializer}
        made = [node for node in graph.node if node.op_type == "Constant"]
        constants |= {node.output[0]: attribute(node, "value", None) for node in made}
    for graph in reversed(graphs):  # a graph's nodes hold those inside it
        built = Builder(names)
        for node in graph.node:
            write = changed.get(node.op_type) if node.domain in STANDARD else None
            if write is None:
                built.nodes.append(node)
            else:
                write(built, node, constants, ranks)
        refill(graph.node, built.nodes)
        graph.initializer.extend(built.initializers.values())


def _slopes_of_channels(
    built: Builder, node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], ranks: Mapping[str, int]
) -> None:
    """Give slopes of shape (C) the rank that they need to be broadcast: before opset 7 they belonged to axis 1."""
    del constants
    copy = copied(node)
    if ranks.get(node.input[1]) == 1:
        rank = ranks.get(node.input[0])
        if rank is None:
            raise ModelError(
                f"PRelu of opset 6 has a slope per channel, and the rank of {node.input[0]!r} is unknown",
                do="export it with opset 7 or higher",
                node=node.name,
            )
        if rank > 2:
            copy.input[1] = built.names.tensor(f"{node.input[1]}_channels")
            built.node("Unsqueeze", [node.input[1]], copy.input[1], axes=[*range(1, rank - 1)])
    built.nodes.append(copy)


def _flat_hardmax(
    built: Builder, node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], ranks: Mapping[str, int]
) -> None:
    """Let Hardmax take what is behind its axis as one row: from opset 13 on it takes the axis alone."""
    del constants
    data, result, axis = node.input[0], node.output[0], attribute(node, "axis", 1)
    if axis in (-1, ranks.get(data, 0) - 1):
        built.nodes.append(instead(node, "Hardmax", [data], axis=-1))
        return
    shape, rows, marks = (built.names.tensor(f"{result}_{what}") for what in ("shape", "rows", "marks"))
    built.node("Shape", [data], shape)
    built.node("Flatten", [data], rows, axis=axis)
    built.nodes.append(instead(node, "Hardmax", [rows], marks, axis=-1))
    built.node("Reshape", [marks, shape], result)


def _resize_as_before(
    built: Builder, node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], ranks: Mapping[str, int]
) -> None:
    """Let Resize, once an Upsample or a Resize of opset 10, find its pixels as these did.

    Source: onnxruntime's kernels, which divide the position by the scale, and of two pixels take the one before, or
    behind on an axis that gets smaller.
    """
    del ranks
    if attribute(node, "coordinate_transformation_mode", None):
        built.nodes.append(node)
        return
    known = constants.get(node.input[2]) if len(node.input) > 2 else None
    scales = np.ones(0, np.float32) if known is None else values_of(known)
    parts = [("", "ceil" if (scales < 1).any() else "floor")]
    if (scales < 1).any() and (scales > 1).any() and attribute(node, "mode", b"nearest") == b"nearest":
        ends = (("smaller", np.minimum(scales, 1), "ceil"), ("larger", np.maximum(scales, 1), "floor"))
        parts = [(built.constant(f"{node.input[2]}_{what}", values), nearest) for what, values, nearest in ends]
    data = node.input[0]
    for number, (scale, nearest) in enumerate(parts, 1):
        copy = copied(node)
        copy.input[0] = data
        if scale:
            copy.input[2] = scale
        if number < len(parts):
            copy.name = built.names.node(f"{node.name}_smaller")
            copy.output[0] = data = built.names.tensor(f"{node.output[0]}_smaller")
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
        copy.attribute.extend(helper.make_attribute(name, mode) for name, mode in modes.items())
        built.nodes.append(copy)


def lower_opset(model: onnx.ModelProto, opset: int, where: str) -> onnx.ModelProto:
    """Return the model at MAX_OPSET; where none of its ops has changed since, it is only called so.

    Raises:
        ModelError: An op has no counterpart there, or the opset is no number of one.
    """
    if opset > _LARGEST:
        raise ModelError(f"imports opset {opset}, which there is not", where=where, do="export it again")
    inside = (node for function in model.functions for node in function.node)
    ops = {node.op_type for node in (*walk(model.graph), *inside) if node.domain in STANDARD}
    changed = sorted(op for op in ops if onnx.defs.has(op) and _since(op, opset) > MAX_OPSET)
    if changed:
        try:
            return _converted(model, MAX_OPSET)
        except Exception as error:  # of several kinds
            raise ModelError(
                f"opset {opset} cannot be lowered to {MAX_OPSET}, the last one that onnxruntime has QuantizeLinear of: "
                f"it has another {', '.join(changed)}",
                where=where,
                do=f"export it with opset {MAX_OPSET} or lower",
            ) from error
    for imports in (model.opset_import, *(function.opset_import for function in model.functions)):
        for item in imports:
            if item.domain in STANDARD:
                item.version = min(item.version, MAX_OPSET)
    return model


def _converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return the model at another opset, its functions written out: the converter drops them, and keeps their calls."""
    whole = inline_local_functions(model, convert_version=True) if model.functions else model
    return version_converter.convert_version(whole, opset)


def _since(op: str, opset: int) -> int:
    return int(onnx.defs.get_schema(op, max_inclusive_version=opset).since_version)
