"""Products that onnxruntime would compute in float because of what reads them.

A MatMul or Gemm between DQs has an integer kernel that writes float. But the runtime first takes what follows into the
product: an Add (as the C of a Gemm), a Relu or Clip and the Q behind it, a Q beside other readers. Where that does not
fit the integer kernel, the product computes in float, and its weights are dequantized at every inference. A Reshape to
the same shape behind the product costs nothing and ends what the runtime looks at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.ops import CLIPPING
from int8cal.graph.plan import clip_bounds, data_slots

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx

    from int8cal.graph.index import Index
    from int8cal.graph.plan import Plan
    from int8cal.numerics.affine import Affine

QUANTIZE = "QuantizeLinear"


def reads_codes(plan: Plan, node: onnx.NodeProto, slot: int, name: str) -> bool:
    """Whether an input of a node becomes the output of a DQ."""
    point = plan.tensor(name)
    if point is None:
        return False
    if point.exclusive:
        return True
    if node.name not in plan.integer_nodes:
        return False
    rule = plan.ops.rules[node.op_type]
    return slot == 0 if rule.kind == "linear" else slot in data_slots(node, rule)


def loses_kernel(index: Index, plan: Plan, activations: Mapping[str, Affine], result: str, written: str) -> bool:
    """Whether the runtime would compute a product in float for the sake of what reads it.

    Args:
        index: Of the float model.
        plan: Its plan.
        activations: Affine of every planned tensor.
        result: What the product gives, in float.
        written: As what it is written, "MatMul" or "Gemm".
    """
    readers = list(_readers(index, plan, result))
    met = [_met(index, plan, activations, node, op_type) for node, op_type in readers]
    if len(met) > 1:
        return QUANTIZE in met
    (node, _) = readers[0] if readers else (None, "")
    if node is not None and node.op_type == "Add":
        return written == "MatMul" and _becomes_gemm(index, node, result)
    return bool(met) and met[0] in CLIPPING


def _becomes_gemm(index: Index, add: onnx.NodeProto, product: str) -> bool:
    """Whether MatMulAddFusion takes an Add: any behind a vector or matrix, that of a constant row behind the rest."""
    if (index.rank(product) or 0) <= 2:
        return True
    other = next((name for name in add.input if name != product), product)
    return index.is_constant(other) and index.rank(other) == 1


def _met(index: Index, plan: Plan, activations: Mapping[str, Affine], node: onnx.NodeProto | None, op_type: str) -> str:
    """Return the op that the runtime sees: a Q where it drops the Relu in front, nothing where several read a Relu."""
    if node is None or op_type not in CLIPPING:
        return op_type
    output = str(node.output[0])
    behind = [each for _, each in _readers(index, plan, output)]
    if len(behind) != 1:
        return ""
    return QUANTIZE if behind == [QUANTIZE] and _absorbs(activations[output], clip_bounds(index, node)) else op_type


def _readers(index: Index, plan: Plan, tensor: str) -> Iterator[tuple[onnx.NodeProto | None, str]]:
    """Iterate over what reads a float tensor in the int8 model: nodes, a Q, the caller of the model."""
    for use in index.uses.get(tensor, []):
        if not reads_codes(plan, use.node, use.slot, tensor):
            yield use.node, use.node.op_type
    if plan.tensor(tensor) is not None:
        yield None, QUANTIZE
    if tensor in index.outputs:
        yield None, ""


def _absorbs(affine: Affine, bounds: tuple[float, float]) -> bool:
    # zero is the only lower bound that rounding never moves
    return bounds[0] == 0.0 and affine.zero_point == affine.dtype.qmin and affine.high <= bounds[1]
