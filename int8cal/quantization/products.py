"""How products are written so that onnxruntime computes them in integers, whatever reads them and of any rank.

A MatMul or Gemm between DQs has an integer kernel that writes float. But the runtime first takes what follows into the
product: an Add (as the C of a Gemm), a Relu or Clip and the Q behind it, a Q beside other readers. Where that does not
fit the integer kernel, the product computes in float, and its weights are dequantized at every inference. A Reshape to
the same shape behind the product costs nothing and ends what the runtime looks at.

A Gemm takes two dimensions, so that a tensor of more becomes rows and gets its dimensions back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.layers import clip_bounds
from int8cal.graph.ops import OPS, op_of
from int8cal.graph.plan import data_slots

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx

    from int8cal.graph.edit import Builder
    from int8cal.graph.index import Dims, Index
    from int8cal.graph.plan import Plan
    from int8cal.numerics.affine import Affine

QUANTIZE = "QuantizeLinear"


def reads_codes(plan: Plan, node: onnx.NodeProto, slot: int, name: str) -> bool:
    """Whether an input of a node becomes the output of a DQ."""
    tensor = plan.tensor(name)
    if tensor is None:
        return False
    if tensor.exclusive:
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
    return bool(met) and met[0] in OPS and OPS[met[0]].clips


def _becomes_gemm(index: Index, add: onnx.NodeProto, product: str) -> bool:
    """Whether MatMulAddFusion takes an Add: any behind a vector or matrix, that of a constant row behind the rest."""
    if (index.rank(product) or 0) <= 2:
        return True
    other = next((name for name in add.input if name != product), product)
    return index.is_constant(other) and index.rank(other) == 1


def _met(index: Index, plan: Plan, activations: Mapping[str, Affine], node: onnx.NodeProto | None, op_type: str) -> str:
    """Return the op that the runtime sees: a Q where it drops the Relu in front, nothing where several read a Relu."""
    if node is None or not op_of(node).clips:
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


def to_rows(built: Builder, tensor: str, width: int) -> str:
    """Reshape (..., width) to (rows, width).

    Args:
        built: Takes what is added.
        tensor: Its name; codes or values.
        width: The last dimension.
    """
    shape = built.constant(f"{tensor}_rows_shape", np.array([-1, width], np.int64))
    output = built.names.tensor(f"{tensor}_rows")
    built.node("Reshape", [tensor, shape], output)
    return output


def from_rows(built: Builder, rows: str, output: str, *, width: int, like: tuple[str, Dims]) -> None:
    """Reshape (rows, width) to the leading dimensions of another tensor and width.

    Args:
        built: Takes what is added.
        rows: The product.
        output: The name of the result.
        width: The last dimension.
        like: The tensor whose dimensions but the last the result has, and these dimensions, None where only the feed
            decides one. With one such the Reshape finds it; with more it is told by the tensor's shape.
    """
    source, dims = like
    leading = dims[:-1]
    if leading.count(None) <= 1:
        known = np.array([*(-1 if dim is None else dim for dim in leading), width], np.int64)
        shape = built.constant(f"{output}_shape", known)
    else:
        shape, whole, kept = (built.names.tensor(f"{output}_{part}") for part in ("shape", "like", "leading"))
        parts = {"start": 0, "end": -1, "width": width}
        start, end, last = (built.constant(f"{output}_{part}", np.array([at])) for part, at in parts.items())
        built.node("Shape", [source], whole)
        built.node("Slice", [whole, start, end], kept)
        built.node("Concat", [kept, last], shape, axis=0)
    built.node("Reshape", [rows, shape], output)
