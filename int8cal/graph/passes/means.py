"""Means over all of an image become GlobalAveragePool, for which runtimes have an integer kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

from int8cal.graph.edit import Rewrite, instead
from int8cal.graph.index import attribute
from int8cal.graph.ops import is_standard

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index

IMAGE = 4  # dimensions: N, C, H, W


def pool_means(index: Index, names: Names) -> Iterator[Rewrite]:
    """Turn ReduceMean over height and width into GlobalAveragePool, and Flatten where it drops these dimensions.

    Squeeze-and-excite blocks and classifiers are exported so, and from TFLite as an AveragePool with one window. Must
    not touch means over other axes or axes that are computed, and tensors that are not known to be float32 of four
    dimensions.
    """
    for node in index.graph.node:
        if is_standard(node) and node.op_type == "AveragePool" and _has_one_window(index, node):
            yield Rewrite({node.name: (instead(node, "GlobalAveragePool", [str(node.input[0])]),)})
        if node.op_type != "ReduceMean" or not is_standard(node) or not _is_over_image(index, node):
            continue
        data, output = str(node.input[0]), str(node.output[0])
        if attribute(node, "keepdims", 1):
            yield Rewrite({node.name: (instead(node, "GlobalAveragePool", [data]),)})
        else:
            pooled = names.beside(output, "pooled")
            flat = helper.make_node("Flatten", [pooled], [output], name=names.node(f"{node.name}_flatten"), axis=1)
            yield Rewrite({node.name: (instead(node, "GlobalAveragePool", [data], pooled), flat)})


def _has_one_window(index: Index, node: onnx.NodeProto) -> bool:
    """Whether an AveragePool gives one value for each channel, of all that there are."""
    dims, kernel = index.dims(node.input[0]), list(attribute(node, "kernel_shape", ()))
    whole = dims is not None and len(dims) == IMAGE and list(dims[2:]) == kernel
    if attribute(node, "auto_pad", b"NOTSET").startswith(b"SAME") and list(attribute(node, "strides", ())) != kernel:
        return False  # a window at each step, which reaches beyond the image
    return whole and not any(attribute(node, "pads", ())) and set(attribute(node, "dilations", ())) <= {1}


def _is_over_image(index: Index, node: onnx.NodeProto) -> bool:
    data = str(node.input[0])
    if index.rank(data) != IMAGE or index.is_constant(data) or not index.may_be_float(data):
        return False
    axes = attribute(node, "axes", None)  # an input since opset 18
    if axes is None and len(node.input) > 1 and node.input[1] and index.is_constant(node.input[1]):
        axes = index.constant(node.input[1]).reshape(-1).tolist()
    return axes is not None and sorted(axis % IMAGE for axis in axes) == [IMAGE - 2, IMAGE - 1]
