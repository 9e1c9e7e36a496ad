"""What a model takes and gives: input and output names, dtypes and shapes, and which axis is the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
from onnx import helper
from onnx.inliner import inline_local_functions

from int8cal.graph.dims import named_dims
from int8cal.protos import outline

if TYPE_CHECKING:
    from collections.abc import Iterable

_SIZED = frozenset({"Expand", "Reshape", "Tile"})  # ops whose second input says how large the output is
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"})
Dim = int | str | None  # fixed size, symbolic name, or unknown


@dataclass(frozen=True)
class TensorSpec:
    """One graph input or output: name, numpy dtype (float32 for bfloat16), and shape.

    Symbolic dimensions are strings; the shape of an unknown rank is None.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[Dim, ...] | None


_PICTURE, _COLORS = 3, 3  # dimensions, and the size of the first, of a picture that is no batch


@dataclass(frozen=True)
class Signature:
    """Inputs (initializers excluded) and outputs of a model.

    Attributes:
        batch: "dynamic" when axis 0 of every input is symbolic; an int when axis 0 is the same fixed size in every
            input, and in an output where it is above 1; None when the inputs have no common batch axis, so that a feed
            is one indivisible sample. Vectors of a fixed size have none: their only axis holds features.
        whole: There is no batch axis, whatever the shapes are: an input says how large something becomes, is a vector
            that is multiplied by weights, or has the steps of a recurrence along its first axis. Data can tell it, too:
            the inputs have as many rows as each likes, or the model does not keep rows apart (evaluation.mixed_rows).
        filled: Further inputs, which hold one number in every sample: the data has no values of them.
        defaults: Further inputs whose values the model holds itself; they are constants here.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    whole: bool = False
    filled: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()

    @property
    def batch(self) -> int | Literal["dynamic"] | None:
        """The batch rule of this model, from the shapes of its inputs; a size above 1 that no output has is none."""
        shapes = [spec.shape for spec in self.inputs if spec.shape]
        if self.whole or not shapes or len(shapes) < len(self.inputs):
            return None
        leading = {shape[0] for shape in shapes}
        sizes = [size for size in leading if isinstance(size, int)]
        if not sizes:
            return "dynamic"
        if len(leading) > 1 or all(len(shape) == 1 for shape in shapes):
            return None
        # inputs of unlike meaning may begin with the same size by chance; then no output has it. Detectors that take a
        # picture by itself, (3, H, W), give as many boxes as there are
        results = [spec.shape[0] for spec in self.outputs if spec.shape]
        picture = all(len(shape) == _PICTURE and shape[0] == _COLORS for shape in shapes)
        if (
            sizes[0] > 1
            and results
            and all(size != sizes[0] and (picture or isinstance(size, int)) for size in results)
        ):
            return None
        return sizes[0]


def signature_of(model: onnx.ModelProto) -> Signature:
    """Read the signature of a model.

    Args:
        model: Any model; weights need not be loaded. Initializers listed as graph inputs (IR < 4) do not count.

    Returns:
        The signature. A vector that a MatMul multiplies by constant weights has their size, also where it is symbolic.
        Outputs that declare no shape have that of shape inference where the batch rule depends on it.
    """
    model = _without_functions(model)
    products, sizes = [], set[str]()
    for node in model.graph.node:
        kind = node.op_type
        if kind == "MatMul" and len(node.input) > 1:
            products.append(node)
        elif kind in _SIZED and len(node.input) > 1:
            sizes.add(node.input[1])
    asked = {value.name for value in model.graph.input} | {node.input[1] for node in products}
    # of a long graph there are tens of thousands, and few of them are asked for
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer if tensor.name in asked}
    summed = {str(node.input[0]): weights[node.input[1]][-2:][0] for node in products if weights.get(node.input[1])}
    inputs = tuple(_specs(value for value in model.graph.input if value.name not in weights))
    vectors = {spec.name for spec in inputs if spec.shape is not None and len(spec.shape) == 1}
    # a model may list an output twice
    outputs = tuple({spec.name: spec for spec in _specs(model.graph.output)}.values())
    first = {spec.shape[0] for spec in inputs if spec.shape}
    if any(spec.shape is None for spec in outputs) and any(isinstance(size, int) and size > 1 for size in first):
        dims = named_dims(model)
        outputs = tuple(replace(spec, shape=dims.get(spec.name)) if spec.shape is None else spec for spec in outputs)
    return Signature(
        inputs=tuple(
            replace(spec, shape=(summed[spec.name],))
            if spec.name in summed and spec.shape is not None and len(spec.shape) == 1
            else spec
            for spec in inputs
        ),
        outputs=outputs,
        whole=bool(vectors & (sizes | summed.keys())) or _steps_first(model, inputs),
        defaults=tuple(value.name for value in model.graph.input if value.name in weights),
    )


def _without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write out functions of the model's own: what reads its inputs may be inside them."""
    if not model.functions:
        return model
    try:
        return inline_local_functions(outline(model))
    except (onnx.checker.ValidationError, RuntimeError):  # preparing tells what is wrong with it
        return model


def _steps_first(model: onnx.ModelProto, inputs: Iterable[TensorSpec]) -> bool:
    """Whether the first axis of an input is what an LSTM, GRU, RNN or Scan of the main graph goes along, step by step.

    Shape inference carries the axis there, through Transposes and Reshapes. A first axis of one is no matter: a step.
    """
    axes = [each for node in model.graph.node for each in _step_axes(node)]
    first = {spec.name for spec in inputs if spec.shape and spec.shape[0] != 1}
    if not axes or not first:
        return False
    sketch = outline(model)
    for value in sketch.graph.input:
        if value.name in first:  # a size would say nothing of where it comes from
            value.type.tensor_type.shape.dim[0].Clear()
    dims = named_dims(sketch)
    steps = {dims[tensor][axis] for tensor, axis in axes if len(dims.get(tensor, ())) > axis}
    return any(dims[name][0] in steps for name in first)


def _step_axes(node: onnx.NodeProto) -> list[tuple[str, int]]:
    """List the tensors that a recurrent node goes along, each with the axis."""
    attributes = {each.name: each for each in node.attribute}
    if node.op_type in _RECURRENT:
        layout = attributes["layout"].i if "layout" in attributes else 0
        return [(node.input[0], layout)]
    if node.op_type != "Scan" or "num_scan_inputs" not in attributes:
        return []
    scanned = node.input[-attributes["num_scan_inputs"].i :]
    axes = attributes["scan_input_axes"].ints if "scan_input_axes" in attributes else [0] * len(scanned)
    return [(name, axis) for name, axis in zip(scanned, axes, strict=False) if axis >= 0]


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    """Return a dimension; exporters write -1 and "?" for one that they know nothing of."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return None if dim.dim_param in ("", "?") else dim.dim_param


def dtype_of(elem_type: int) -> np.dtype[np.generic]:
    """Return the numpy dtype of an ONNX element type: float32 for bfloat16, which sessions round to."""
    is_bfloat16 = elem_type == onnx.TensorProto.BFLOAT16
    return np.dtype(np.float32) if is_bfloat16 else np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))


def _specs(values: Iterable[onnx.ValueInfoProto]) -> Iterable[TensorSpec]:
    for value in values:
        tensor = value.type.tensor_type
        dtype = dtype_of(tensor.elem_type) if tensor.elem_type else np.dtype(object)
        shape: tuple[Dim, ...] | None = None
        if tensor.HasField("shape"):
            shape = tuple(_dim(dim) for dim in tensor.shape.dim)
        yield TensorSpec(value.name, dtype, shape)
