"""How products are written so that onnxruntime computes them in integers, whatever reads them and of any rank.

A MatMul or Gemm between DQs has an integer kernel that writes float. But the runtime first takes what follows into the
product: an Add (as the C of a Gemm), a Relu or Clip and the Q behind it, a Q beside other readers. Where that does not
fit the integer kernel, the product computes in float, and its weights are dequantized at every inference. A Reshape to
the same shape behind the product costs nothing and ends what the runtime looks at.

A Gemm takes two dimensions, so that a tensor of more becomes rows and gets its dimensions back.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.graph.dims import named_dims
from int8cal.graph.layers import clip_bounds
from int8cal.graph.ops import OPS, data_slots, op_of, opset_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx

    from int8cal.graph.dims import NamedDims
    from int8cal.graph.edit import Builder
    from int8cal.graph.index import Dims, Index
    from int8cal.graph.plan import Plan
    from int8cal.numerics.affine import Affine
    from int8cal.quantization.corrections.correction import Draft

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


def loses_kernel(draft: Draft, activations: Mapping[str, Affine], result: str, written: str) -> bool:
    """Whether the runtime would compute a product in float for the sake of what reads it.

    Args:
        draft: The int8 model that is made.
        activations: Affine of every planned tensor.
        result: What the product gives, in float.
        written: As what it is written, "MatMul" or "Gemm".
    """
    readers = list(_readers(draft, result))
    met = [_met(draft, activations, node, op_type) for node, op_type in readers]
    if len(met) > 1:
        return QUANTIZE in met
    (node, _) = readers[0] if readers else (None, "")
    if node is not None and node.op_type == "Add":
        return written == "MatMul" and _becomes_gemm(draft.index, node, result)
    return bool(met) and met[0] in OPS and OPS[met[0]].clips


def _becomes_gemm(index: Index, add: onnx.NodeProto, product: str) -> bool:
    """Whether MatMulAddFusion takes an Add: any behind a vector or matrix, that of a constant row behind the rest."""
    if (index.rank(product) or 0) <= 2:
        return True
    other = next((name for name in add.input if name != product), product)
    return index.is_constant(other) and index.rank(other) == 1


def _met(draft: Draft, activations: Mapping[str, Affine], node: onnx.NodeProto | None, op_type: str) -> str:
    """Return the op that the runtime sees: a Q where it drops the Relu in front, nothing where several read a Relu."""
    if node is None or not op_of(node).clips:
        return op_type
    output = str(node.output[0])
    behind = [each for _, each in _readers(draft, output)]
    if len(behind) != 1:
        return ""
    bounds = clip_bounds(draft.index, node)
    return QUANTIZE if behind == [QUANTIZE] and _absorbs(activations[output], bounds) else op_type


def _readers(draft: Draft, tensor: str) -> Iterator[tuple[onnx.NodeProto | None, str]]:
    """Iterate over what reads a float tensor in the int8 model: nodes, a Q, a remainder's Sub, the model's caller."""
    for use in draft.index.uses.get(tensor, []):
        if not reads_codes(draft.plan, use.node, use.slot, tensor):
            yield use.node, use.node.op_type
    if draft.plan.tensor(tensor) is not None:
        yield None, QUANTIZE
    if tensor in draft.with_remainder:
        yield None, "Sub"
    if tensor in draft.index.outputs:
        yield None, ""


def _absorbs(affine: Affine, bounds: tuple[float, float]) -> bool:
    # zero is the only lower bound that rounding never moves
    return bounds[0] == 0.0 and affine.zero_point == affine.dtype.qmin and affine.high <= bounds[1]


class ProductRows:
    """Tensors of more than two dimensions as rows, and products of rows with these dimensions again.

    Products whose leading dimensions are the same share the shape that says so: a transformer computes it once.

    Args:
        built: Takes what is added.
        model: The float model.

    Attributes:
        restored: Tensors that got their dimensions back.
    """

    def __init__(self, built: Builder, model: onnx.ModelProto) -> None:
        self.built, self.model = built, model
        self.restored: set[str] = set()
        # a size of 0 that is told is none to copy from the rows; before opset 14 a Reshape cannot say so
        told = opset_of(model, 0) >= 14
        self._told: dict[str, Any] = {"allowzero": 1} if told else {}
        self._rows: dict[str, str] = {}
        self._leading: dict[NamedDims, str] = {}
        self._shapes: dict[NamedDims, str] = {}

    @cached_property
    def _dims(self) -> dict[str, NamedDims]:
        return named_dims(self.model)

    def of(self, tensor: str, width: int) -> str:
        """Reshape (..., width) to (rows, width), once.

        Args:
            tensor: Its name; codes or values.
            width: The last dimension.
        """
        if tensor not in self._rows:
            shape = self.built.constant(f"{tensor}_rows_shape", np.array([-1, width], np.int64))
            self._rows[tensor] = self.built.names.tensor(f"{tensor}_rows")
            self.built.node("Reshape", [tensor, shape], self._rows[tensor])
        return self._rows[tensor]

    def restore(self, rows: str, output: str, *, width: int, like: tuple[str, Dims], codes: str) -> None:
        """Reshape (rows, width) to the leading dimensions of another tensor and width.

        Args:
            rows: The product.
            output: The name of the result.
            width: The last dimension.
            like: A tensor of the float model whose dimensions but the last the result has, and these dimensions, None
                where only the feed decides one. With one such the Reshape finds it; with more it is told.
            codes: The same tensor as it is in the int8 model.
        """
        tensor, dims = like
        leading, attributes = dims[:-1], dict[str, Any]()
        if leading.count(None) <= 1:
            known = np.array([*(-1 if dim is None else dim for dim in leading), width], np.int64)
            shape = self.built.constant(f"{output}_shape", known)
        else:
            named = self._dims.get(tensor, (tensor, ""))[:-1]
            if (*named, width) not in self._shapes:
                self._shapes[*named, width] = self._shape(output, width, named, codes)
            shape, attributes = self._shapes[*named, width], self._told
        self.built.node("Reshape", [rows, shape], output, **attributes)
        self.restored.add(output)

    def _shape(self, output: str, width: int, named: NamedDims, codes: str) -> str:
        built, names = self.built, self.built.names
        if named not in self._leading:
            whole, self._leading[named] = names.tensor(f"{output}_like"), names.tensor(f"{output}_leading")
            start, end = (
                built.constant(f"{output}_{part}", np.array([at])) for part, at in (("start", 0), ("end", -1))
            )
            built.node("Shape", [codes], whole)
            built.node("Slice", [whole, start, end], self._leading[named])
        shape, last = names.tensor(f"{output}_shape"), built.constant(f"{output}_width", np.array([width]))
        built.node("Concat", [self._leading[named], last], shape, axis=0)
        return shape
