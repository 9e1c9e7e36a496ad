"""A node with constants as a step, y = x * factor + shift, and the change per channel that it makes of its input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.graph.index import attribute
from int8cal.graph.ops import op_of

if TYPE_CHECKING:
    from int8cal.graph.index import Index
    from int8cal.numerics import Float32, Float64

# A constant of this size rounds what it is added to, (x + 2**23) - 2**23, or masks it. Either needs the sum as it is.
LARGEST_SHIFT = 2.0**20


@dataclass(frozen=True)
class AffineStep:
    """A node that computes data * factor + shift.

    Attributes:
        data: The tensor that varies.
        factor, shift: Shapes that broadcast to the data's from the right and never widen it.
    """

    node: onnx.NodeProto
    data: str
    factor: Float64
    shift: Float64

    @property
    def output(self) -> str:
        """The tensor it makes."""
        return str(self.node.output[0])

    @property
    def scalar(self) -> bool:
        """Whether it does the same to all values."""
        return self.factor.size == self.shift.size == 1


def step_of(index: Index, node: onnx.NodeProto) -> AffineStep | None:
    """Read a node as a step.

    Must not read one whose constant is not float32, not finite, too large, or would widen the data; one that divides by
    zero or by the data; a BatchNormalization in training mode. The data's type must be float32, its shape known where
    it matters.
    """
    if not op_of(node).step or not index.may_be_float(node.output[0]):
        return None
    found = _batch_norm(index, node) if node.op_type == "BatchNormalization" else _elementwise(index, node)
    if found is None or index.is_constant(found.data) or index.elem_type(found.data) != onnx.TensorProto.FLOAT:
        return None
    constants = (found.factor, found.shift)
    usable = all(np.isfinite(each).all() and fits(index, found.data, each.shape) for each in constants)
    return found if usable and (np.abs(found.shift) < LARGEST_SHIFT).all() else None


def scaled(index: Index, node: onnx.NodeProto) -> AffineStep | None:
    """Read a node that multiplies by one constant above 0, or divides by it, as a step; None for any other."""
    step = step_of(index, node)
    if step is None or not step.scalar or step.shift.item() != 0.0 or step.factor.item() <= 0.0:
        return None
    return step


def channel_step(index: Index, node: onnx.NodeProto) -> AffineStep | None:
    """Read a BatchNormalization over one or two axes as a step; None for any other node."""
    if node.op_type != "BatchNormalization" or index.rank(node.input[0]) not in (3, 4):
        return None
    return step_of(index, node)


def reads_sum(index: Index, node: onnx.NodeProto) -> bool:
    """Whether a node reads what an Add writes."""
    before = index.producer.get(node.input[0])
    return before is not None and before.op_type == "Add"


def fits(index: Index, data: str, shape: tuple[int, ...]) -> bool:
    """Whether a constant of this shape leaves the data's shape as it is when the two are broadcast."""
    if not shape:
        return True
    dims = index.dims(data)
    if dims is None or len(shape) > len(dims):
        return False
    return all(size in (1, dim) for size, dim in zip(reversed(shape), reversed(dims), strict=False))


def _elementwise(index: Index, node: onnx.NodeProto) -> AffineStep | None:
    one, zero = np.ones(()), np.zeros(())
    if node.op_type == "Neg":
        return AffineStep(node, str(node.input[0]), -one, zero)
    first, second = (str(name) for name in node.input)
    if index.is_constant(second):
        data, name = first, second
    elif index.is_constant(first) and node.op_type != "Div":
        data, name = second, first
    else:
        return None
    if not index.is_float_constant(name):
        return None
    constant = index.constant(name).astype(np.float64)
    if node.op_type == "Mul":
        return AffineStep(node, data, constant, zero)
    if node.op_type == "Div":
        return AffineStep(node, data, 1 / constant, zero) if constant.all() else None
    if node.op_type == "Add":
        return AffineStep(node, data, one, constant)
    return AffineStep(node, data, one, -constant) if name == second else AffineStep(node, data, -one, constant)


def _batch_norm(index: Index, node: onnx.NodeProto) -> AffineStep | None:
    data, rank = str(node.input[0]), index.rank(node.input[0])
    if rank is None or rank < 2 or attribute(node, "training_mode", 0) or len(node.output) > 1:
        return None
    if not all(index.is_float_constant(name) for name in node.input[1:]):
        return None
    scale, offset, mean, variance = (index.constant(name).astype(np.float64) for name in node.input[1:])
    deviation = np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    if not (deviation > 0).all():
        return None
    factor = scale / deviation
    shape = (-1, *[1] * (rank - 2))
    return AffineStep(node, data, factor.reshape(shape), (offset - mean * factor).reshape(shape))


# A sum of two constants that is smaller than this part of either is a rounding trick, (x + 2**23) - 2**23, or as good
# as one: the float arithmetic in between is what the model wants.
CANCELLED = 1e-3


@dataclass(frozen=True)
class Change:
    """What happens to a tensor: x becomes x * factor + shift.

    Attributes:
        factor, shift: Float64, (1,) or (channels,).
        axis: Of the channels, counted from the right, below 0; without meaning where both have one value.
    """

    factor: Float64
    shift: Float64
    axis: int = -1

    @property
    def scalar(self) -> bool:
        """Whether all channels change alike."""
        return self.factor.size == self.shift.size == 1

    @property
    def scales(self) -> bool:
        """Whether the factor does anything."""
        return not bool((self.factor == 1).all())

    @property
    def shifts(self) -> bool:
        """Whether the shift does anything."""
        return bool(self.shift.any())

    @property
    def positive(self) -> bool:
        """Whether larger values stay larger."""
        return bool((self.factor > 0).all())

    def scaling(self) -> Change:
        """Return the factor alone."""
        return replace(self, shift=np.zeros(1))

    def part(self, channels: slice) -> Change:
        """Return what happens to some of the channels."""
        factor, shift = (values[channels] if values.size > 1 else values for values in (self.factor, self.shift))
        return replace(self, factor=factor, shift=shift)

    def reshaped(self, values: Float64) -> Float64:
        """Return factor or shift in the shape in which it broadcasts to the tensor."""
        return values.reshape(-1, *[1] * (-self.axis - 1)) if values.size > 1 else values.reshape(())

    def per_channel(self, channels: int, axis: int) -> tuple[Float64, Float64] | None:
        """Return factor and shift of each of a layer's channels; None where they lie along another axis."""
        for values in (self.factor, self.shift):
            if values.size > 1 and (self.axis != axis or values.size != channels):
                return None
        return np.broadcast_to(self.factor, channels), np.broadcast_to(self.shift, channels)


def change_of(step: AffineStep) -> Change | None:
    """Read a step as a change; None where its constants vary along more than one axis."""
    axes = {
        position - each.ndim
        for each in (step.factor, step.shift)
        for position, size in enumerate(each.shape)
        if size > 1
    }
    if len(axes) > 1:
        return None
    return Change(step.factor.reshape(-1), step.shift.reshape(-1), next(iter(axes), -1))


def as_float32(values: Float64) -> Float32 | None:
    """Return a constant in the model's type; None where it does not hold one of the values, or holds 0 for it."""
    with np.errstate(over="ignore", under="ignore"):
        array = values.astype(np.float32)
    return array if np.isfinite(array).all() and bool(((array != 0) == (values != 0)).all()) else None


def added(first: Float64, second: Float64) -> Float64 | None:
    """Add two constants; None where they cancel."""
    total = first + second
    larger = np.maximum(np.abs(first), np.abs(second))
    return None if (first.any() and second.any() and (np.abs(total) < CANCELLED * larger).any()) else total
