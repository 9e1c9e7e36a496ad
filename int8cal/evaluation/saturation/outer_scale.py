"""The weight scale of a MatMulInteger: it is not the op's, but multiplied on behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

    from int8cal.evaluation.saturation.constants import Constants


@dataclass(frozen=True)
class OuterScale:
    """Input `slot` of the Mul `node` holds the scale: one, or one per column."""

    node: onnx.NodeProto
    slot: int
    value: npt.NDArray[Any]


def outer_scale(node: onnx.NodeProto, columns: int, constants: Constants) -> OuterScale | None:
    """Find the scale in what onnxruntime.quantization writes: Mul(Cast(product), Mul(input scale, weight scale)).

    Args:
        node: The MatMulInteger.
        columns: Of its weights.
        constants: Of its graph.

    Returns:
        Where the scale is; None where the graph is another, or somebody else reads one of these tensors.
    """
    index = constants.index
    cast = index.only_reader(node.output[0])
    product = index.only_reader(cast.output[0]) if cast is not None and cast.op_type == "Cast" else None
    if cast is None or product is None or product.op_type != "Mul":
        return None
    factor = next((name for name in product.input if name != cast.output[0]), "")
    scales = index.producer.get(factor)
    if scales is None or scales.op_type != "Mul" or index.only_reader(factor) is None:
        return None
    for slot, name in enumerate(scales.input):
        value = constants.value(name)
        if value is not None and (value.size == 1 or value.shape == (columns,)):
            return OuterScale(scales, slot, value)
    return None
