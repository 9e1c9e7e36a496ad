"""Elementwise nodes with constants, read as one formula: y = x * factor + shift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.graph.index import attribute

if TYPE_CHECKING:
    import numpy.typing as npt

    from int8cal.graph.index import Index

Array = "npt.NDArray[np.float64]"
# A constant of this size rounds what it is added to, (x + 2**23) - 2**23, or masks it. Either needs the sum as it is.
LARGEST_SHIFT = 2.0**20
STEP_OPS = frozenset({"Mul", "Div", "Add", "Sub", "Neg", "BatchNormalization"})


@dataclass(frozen=True)
class Step:
    """A node that computes data * factor + shift.

    Attributes:
        data: The tensor that varies.
        factor, shift: Shapes that broadcast to the data's from the right and never widen it.
    """

    node: onnx.NodeProto
    data: str
    factor: npt.NDArray[np.float64]
    shift: npt.NDArray[np.float64]

    @property
    def output(self) -> str:
        """The tensor it makes."""
        return str(self.node.output[0])


def step_of(index: Index, node: onnx.NodeProto) -> Step | None:
    """Read a node as a step.

    Must not read one whose constant is not float32, not finite, too large, or would widen the data; one that divides by
    zero or by the data; a BatchNormalization in training mode. The data's type must be float32, its shape known where
    it matters.

    Args:
        index: Of the graph.
        node: Any node.
    """
    if node.op_type not in STEP_OPS or node.domain not in ("", "ai.onnx"):
        return None
    if index.elem_type(node.output[0]) not in (onnx.TensorProto.FLOAT, 0):
        return None
    found = _batch_norm(index, node) if node.op_type == "BatchNormalization" else _elementwise(index, node)
    if found is None or index.is_constant(found.data) or index.elem_type(found.data) != onnx.TensorProto.FLOAT:
        return None
    constants = (found.factor, found.shift)
    usable = all(np.isfinite(each).all() and fits(index, found.data, each.shape) for each in constants)
    return found if usable and (np.abs(found.shift) < LARGEST_SHIFT).all() else None


def fits(index: Index, data: str, shape: tuple[int, ...]) -> bool:
    """Whether a constant of this shape leaves the data's shape as it is when the two are broadcast."""
    if not shape:
        return True
    dims = index.dims(data)
    if dims is None or len(shape) > len(dims):
        return False
    return all(size in (1, dim) for size, dim in zip(reversed(shape), reversed(dims), strict=False))


def _elementwise(index: Index, node: onnx.NodeProto) -> Step | None:
    one, zero = np.ones(()), np.zeros(())
    if node.op_type == "Neg":
        return Step(node, str(node.input[0]), -one, zero)
    first, second = (str(name) for name in node.input)
    if index.is_constant(second):
        data, name = first, second
    elif index.is_constant(first) and node.op_type != "Div":
        data, name = second, first
    else:
        return None
    if index.elem_type(name) != onnx.TensorProto.FLOAT:
        return None
    constant = index.constant(name).astype(np.float64)
    if node.op_type == "Mul":
        return Step(node, data, constant, zero)
    if node.op_type == "Div":
        return Step(node, data, 1 / constant, zero) if constant.all() else None
    if node.op_type == "Add":
        return Step(node, data, one, constant)
    return Step(node, data, one, -constant) if name == second else Step(node, data, -one, constant)


def _batch_norm(index: Index, node: onnx.NodeProto) -> Step | None:
    data, rank = str(node.input[0]), index.rank(node.input[0])
    if rank is None or rank < 2 or attribute(node, "training_mode", 0) or len(node.output) > 1:
        return None
    if not all(index.is_constant(name) and index.elem_type(name) == onnx.TensorProto.FLOAT for name in node.input[1:]):
        return None
    scale, offset, mean, variance = (index.constant(name).astype(np.float64) for name in node.input[1:])
    deviation = np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    if not (deviation > 0).all():
        return None
    factor = scale / deviation
    shape = (-1, *[1] * (rank - 2))
    return Step(node, data, factor.reshape(shape), (offset - mean * factor).reshape(shape))
