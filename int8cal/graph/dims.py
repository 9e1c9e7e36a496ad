"""Which dimensions of a model's tensors are the same, whatever is fed."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from onnx import shape_inference

from int8cal.graph.edit import refill
from int8cal.protos import graphs_within, outline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

NamedDims = tuple[int | str, ...]


def named_dims(model: onnx.ModelProto, fed: Mapping[str, Sequence[int]] = MappingProxyType({})) -> dict[str, NamedDims]:
    """Return the dimensions of tensors, with a name for each that only the feed decides: where names agree, sizes do.

    Names that the model declares count for nothing, since feeds that break them mostly run all the same: two inputs of
    (batch, 8) may be fed as (4, 8) and (1, 8). Every free dimension of an input has a name of its own here, and shape
    inference hands names on, through Shape, Gather and Concat to Reshape as well.

    Args:
        model: Not changed.
        fed: Shapes of inputs in one inference, by name; none for whatever is fed.

    Returns:
        By tensor of the main graph, for those whose rank is known.
    """
    sketch = outline(model)
    for number, graph in enumerate(graphs_within(sketch.graph)):
        refill(graph.value_info, [])
        stored = {tensor.name for tensor in graph.initializer}  # one may be an output, too
        for value in (*graph.output, *(graph.input if number else ())):
            if value.type.HasField("tensor_type") and value.name not in stored:
                value.type.tensor_type.ClearField("shape")
    for value in sketch.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.ClearField("dim_param")
            if value.name in fed:
                dim.dim_value = fed[value.name][axis]
        _name(value)
    inferred = shape_inference.infer_shapes(sketch, data_prop=True).graph
    return {
        value.name: tuple(dim.dim_param or dim.dim_value for dim in _name(value))
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
        if value.type.tensor_type.HasField("shape")
    }


def _name(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    """Name the free dimensions of a tensor after it; those of inner tensors mostly have a name from inference."""
    dims: Sequence[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    for axis, dim in enumerate(dims):
        if not dim.dim_param and dim.dim_value <= 0:  # some exporters write -1 for a size that they do not know
            dim.dim_param = f"axis {axis} of {value.name}"
    return dims
