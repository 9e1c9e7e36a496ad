"""A layer with constant weights takes a factor and a shift per output channel into weights and bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.graph.folding.change import as_float32
from int8cal.graph.folding.rewrite import Rewrite
from int8cal.graph.index import attribute
from int8cal.protos import copied

if TYPE_CHECKING:
    import numpy.typing as npt

    from int8cal.graph.folding.change import Change
    from int8cal.graph.folding.names import Names
    from int8cal.graph.index import Index

LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def into_layer(index: Index, names: Names, node: onnx.NodeProto, change: Change, output: str) -> Rewrite | None:
    """Fold a change of a layer's output into the layer.

    Must not touch a layer whose weights or bias are not float32 constants, a Gemm with alpha or beta, a MatMul where
    there is a shift (it has no bias), or where folded values leave float32.

    Args:
        index: Of the graph.
        names: Of the model.
        node: Of one of LAYERS.
        change: Of its output.
        output: The layer's new output.
    """
    weight = str(node.input[1])
    if not _is_float(index, weight):
        return None
    array = index.constant(weight).astype(np.float64)
    laid = _factor_of_weights(node, array, change)
    if laid is None:
        return None
    factor, bias_factor, shift = laid
    rebuilt = copied(node)
    rebuilt.output[0] = output
    constants = {}
    if change.scales:
        rebuilt.input[1] = _name(index, names, weight)
        constants[rebuilt.input[1]] = as_float32(array * factor)
    bias = str(node.input[2]) if len(node.input) > 2 else ""
    if node.op_type == "MatMul":
        if change.shifts:
            return None
    elif bias or change.shifts:
        if bias and not _is_float(index, bias):
            return None
        held = index.constant(bias).astype(np.float64) if bias else np.zeros(())
        del rebuilt.input[2:]
        rebuilt.input.append(_name(index, names, bias) if bias else names.fresh(node.name, "bias"))
        constants[rebuilt.input[2]] = as_float32(np.atleast_1d(held * bias_factor + shift))
        if not bias:  # a beta that had nothing to scale
            kept = [item for item in rebuilt.attribute if item.name != "beta"]
            del rebuilt.attribute[:]
            rebuilt.attribute.extend(kept)
    folded = {name: values for name, values in constants.items() if values is not None}
    if len(folded) < len(constants):
        return None
    return Rewrite({node.name: (rebuilt,)}, folded, {output: str(node.output[0])})


def _factor_of_weights(
    node: onnx.NodeProto, weight: npt.NDArray[np.float64], change: Change
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
    """Return the factors in the weight's shape, and factor and shift per output channel, (channels,) each."""
    if node.op_type in ("Conv", "ConvTranspose"):
        if weight.ndim < 3:
            return None
        group = int(attribute(node, "group", 1)) if node.op_type == "ConvTranspose" else 1
        channels = weight.shape[0] if node.op_type == "Conv" else weight.shape[1] * group
        found = change.per_channel(channels, 1 - weight.ndim)
        if found is None:
            return None
        kernel = [1] * (weight.ndim - 2)
        if node.op_type == "Conv":
            return found[0].reshape(-1, 1, *kernel), *found
        # group g of the outputs reads input channels g * IC / group and on: those rows of the weight are its own
        rows = found[0].reshape(group, 1, weight.shape[1], *kernel)
        inputs = weight.shape[0] // group
        return np.broadcast_to(rows, (group, inputs, *rows.shape[2:])).reshape(-1, *rows.shape[2:]), *found
    transposed = node.op_type == "Gemm" and bool(attribute(node, "transB", 0))
    if weight.ndim < 2 or (node.op_type == "Gemm" and not _is_plain(node)):
        return None
    found = change.per_channel(weight.shape[0] if transposed else weight.shape[-1], -1)
    return None if found is None else (found[0].reshape(-1, 1) if transposed else found[0], *found)


def _is_plain(gemm: onnx.NodeProto) -> bool:
    has_bias = len(gemm.input) > 2 and bool(gemm.input[2])
    return attribute(gemm, "alpha", 1.0) == 1.0 and (not has_bias or attribute(gemm, "beta", 1.0) == 1.0)


def _is_float(index: Index, name: str) -> bool:
    return index.is_constant(name) and index.elem_type(name) == onnx.TensorProto.FLOAT


def _name(index: Index, names: Names, constant: str) -> str:
    """Keep a constant's name where nobody else reads it."""
    alone = len(index.uses[constant]) == 1 and constant not in index.outputs
    return constant if alone else names.fresh(constant, "folded")
